"""The network of NATS-Bench with the architecture as an input: one program for the whole space.

A cell holds the parameters of every operation on every edge, and its architecture, `int32[6]`,
chooses among them. So one compilation serves all 15,625 architectures, and `vmap` over
(parameters, architecture) trains many of them together. The result equals that of the plain
sub-network, and what an architecture does not use gets a gradient of exactly zero.

The two convolutions of an edge are the same function of different kernels, a 1×1 kernel being a
3×3 one with zeros around it. The choice is therefore made between *kernels*, before convolving, and
the edges that leave a node share one convolution; pooling happens once for each node. An edge thus
pays for one convolution and one batch norm whatever the architecture, and not for two.

| published name | here |
|---|---|
| `stem.0.weight`, `stem.1.*` | `stem/conv`, `stem/*` |
| `cells.I.layers.E.op.1.weight` | `cells_I/conv_1x1[E]` or `cells_I/conv_3x3[E]` |
| `cells.I.layers.E.op.2.*` | `cells_I/*[E, 0]` after 1×1, `cells_I/*[E, 1]` after 3×3 |
| `cells.I.conv_a.op.1.weight`, `….op.2.*` | `cells_I/conv_a/conv`, `cells_I/conv_a/*` |
| `cells.I.conv_b.…` | `cells_I/conv_b/…` |
| `cells.I.downsample.1.weight` | `cells_I/downsample` |
| `lastact.0.*` | `lastact/*` |
| `classifier.weight`, `classifier.bias` | `classifier_weight`, `classifier_bias` |

Kernels have PyTorch's axes (out, in, height, width), and `*` stands for PyTorch's `weight` and
`bias` (in `params`), `running_mean` and `running_var` (in `batch_stats`): nothing is transposed.
"""

import dataclasses
import functools
import math
from typing import Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int, Int32

from bqnes_jax.errors import check_choice, check_whole
from bqnes_jax.identity import SPEED, field
from bqnes_jax.spaces.base import as_architectures
from bqnes_jax.spaces.nats import EDGES, NATS, OPERATIONS, SKIP

CONV_1X1, CONV_3X3, POOL = (
    OPERATIONS.index(name) for name in ("nor_conv_1x1", "nor_conv_3x3", "avg_pool_3x3")
)
_EPSILON, _MOMENTUM = 1e-5, 0.1  # of PyTorch's batch norm, whose momentum is that of the new value

# Inside the network axes are (channel, row, column, image): on a CPU shifts and sums then move
# whole rows of images. Where XLA chooses the memory order itself (GPU, TPU), their order is free.
_AXES = ("CHWN", "OIHW", "CHWN")
Activations = Float[Array, "channels height width n"]
OtherActivations = Float[Array, "out h w n"]  # of other channels or another size


@dataclasses.dataclass(frozen=True)
class NATSNetworkConfig:
    """The macro-skeleton: stem, `cells` cells, reduction, cells, reduction, cells, classifier.

    Attributes:
        channels: of the first stage; doubled by each of the two reductions.
        cells: in each of the three stages.
        classes: how many.
        layout: how a convolution is computed, with the same result. "convolution": as such.
            "patches": as one product of matrices, much faster where `vmap` would make XLA's slow
            grouped convolutions on a CPU. "auto": patches on CPUs.
        bfloat16: compute in bfloat16; parameters, statistics and logits stay as they are.
    """

    channels: int = 16
    cells: int = 5
    _: dataclasses.KW_ONLY
    classes: int = 10
    layout: Literal["auto", "convolution", "patches"] = field(SPEED, default="auto")
    bfloat16: bool = False

    def __post_init__(self):
        check_whole("channels", self.channels, 1)
        check_whole("cells", self.cells, 1)
        check_whole("classes", self.classes, 2)
        check_choice("layout", self.layout, ("auto", "convolution", "patches"))
        check_choice("bfloat16", self.bfloat16, (False, True))

    def uses_patches(self) -> bool:
        """Tell whether convolutions are products of matrices, on the present backend."""
        on_cpu = jax.default_backend() == "cpu"
        return self.layout == "patches" or (self.layout == "auto" and on_cpu)


class NATSNetwork(nn.Module):
    """Logits of images under an architecture.

    `init(key, arch, images)` returns `params` and `batch_stats`, the same shapes for every
    architecture. With `train=True` batches are normalised by their own statistics, and the
    running ones are updated (`mutable=["batch_stats"]`), those of operations in use only. Weight
    decay shrinks the parameters of unused operations too; nothing of it reaches the output.

    Example:
        >>> network = NATSNetwork(NATSNetworkConfig(channels=4, cells=1))
        >>> images = jax.random.normal(jax.random.key(0), (2, 8, 8, 1))
        >>> archs = NATS.sample(jax.random.key(1), 3)
        >>> variables = jax.jit(network.init)(jax.random.key(2), archs[0], images)
        >>> jax.jit(jax.vmap(network.apply, (None, 0, None)))(variables, archs, images).shape
        (3, 2, 10)
    """

    config: NATSNetworkConfig

    @nn.compact
    def __call__(
        self, arch: Int32[Array, "6"], images: Float[Array, "n h w c"], train: bool = False
    ) -> Float[Array, "n classes"]:
        """Compute the logits; images are normalised ones, of any size."""
        config, channels = self.config, self.config.channels
        x = jnp.transpose(images, (3, 1, 2, 0))
        x = x.astype(jnp.bfloat16 if config.bfloat16 else x.dtype)
        x = _ConvNorm(config, channels, name="stem")(x, train)
        x = _settle(x, arch)
        for stage in range(3):
            first = stage * (config.cells + 1)
            if stage:
                channels *= 2
                x = _Reduction(config, channels, name=f"cells_{first - 1}")(x, arch, train)
            for i in range(first, first + config.cells):
                x = _Cell(config, channels, name=f"cells_{i}")(x, arch, train)
        x = nn.relu(_BatchNorm(name="lastact")(x.astype(images.dtype), train))
        features = jnp.mean(x, axis=(1, 2))
        weight = self.param("classifier_weight", _uniform(channels), (config.classes, channels))
        bias = self.param("classifier_bias", _uniform(channels), (config.classes,))
        return (weight @ features).T + bias


def parameter_count(
    arch: ArrayLike, config: NATSNetworkConfig, *, input_channels: int = 3
) -> Int[Array, "*batch"]:
    """Count the parameters that architectures use; any leading axes are kept.

    Example:
        >>> int(parameter_count(jnp.array([3, 3, 4, 1, 3, 1]), NATSNetworkConfig(classes=100)))
        808276
    """
    check_whole("input_channels", input_channels, 1)
    arch = as_architectures(NATS, arch)
    c = config.channels
    widths = (c, 2 * c, 4 * c)
    stem = 9 * input_channels * c + 2 * c
    reductions = sum(9 * (w // 2 + w) * w + 4 * w + w // 2 * w for w in widths[1:])
    head = 2 * widths[2] + (widths[2] + 1) * config.classes
    of_1x1 = sum(w * w + 2 * w for w in widths)
    of_3x3 = sum(9 * w * w + 2 * w for w in widths)
    edges = jnp.sum(arch == CONV_1X1, -1) * of_1x1 + jnp.sum(arch == CONV_3X3, -1) * of_3x3
    return stem + reductions + head + config.cells * edges


class _Cell(nn.Module):
    """Four nodes, each the sum of the edges that end there; the last is the output."""

    config: NATSNetworkConfig
    channels: int

    @nn.compact
    def __call__(self, x: Activations, arch: Int32[Array, "6"], train: bool) -> Activations:
        c, chosen = self.channels, arch[:, None] == jnp.array([CONV_1X1, CONV_3X3])
        small = self.param("conv_1x1", _uniform(c), (len(EDGES), c, c, 1, 1))
        large = self.param("conv_3x3", _uniform(9 * c), (len(EDGES), c, c, 3, 3))
        kernels = _choose(chosen, jnp.pad(small, ((0, 0),) * 3 + ((1, 1),) * 2), large)
        weight, bias, running_mean, running_var = (
            _choose(chosen, values[:, 0], values[:, 1])
            for values in _norm_variables(self, (len(EDGES), 2, c))
        )

        nodes: list = [x, 0, 0, 0]
        moments: list = [None] * len(EDGES)
        for node in range(3):
            x, leaving = nodes[node], [e for e, (source, _) in enumerate(EDGES) if source == node]

            def of_leaving(values, leaving=leaving):
                return jnp.concatenate([values[e] for e in leaving])

            y = _convolve(self.config, nn.relu(x), of_leaving(kernels))
            mean, var = _moments(y) if train else map(of_leaving, (running_mean, running_var))
            y = _normalise(y, mean, var, of_leaving(weight), of_leaving(bias))
            pooled = _settle(_average_pool(x), arch)
            for i, e in enumerate(leaving):
                own = slice(i * c, (i + 1) * c)
                moments[e] = mean[own], var[own]
                kept = jnp.where(arch[e] == SKIP, x, 0) + jnp.where(arch[e] == POOL, pooled, 0)
                nodes[EDGES[e][1]] += y[own] + kept
            nodes[node + 1] = _settle(nodes[node + 1], arch)
        if train:
            mean, var = (jnp.stack(values)[:, None] for values in zip(*moments, strict=True))
            _track(self, mean, var, x[0].size, chosen[:, :, None])
        return nodes[3]


class _Reduction(nn.Module):
    """Twice the channels at half the size: two convolutions beside a pooled shortcut."""

    config: NATSNetworkConfig
    channels: int

    @nn.compact
    def __call__(self, x: Activations, arch: Int32[Array, "6"], train: bool) -> OtherActivations:
        c = x.shape[0]
        y = _ConvNorm(self.config, self.channels, stride=2, name="conv_a")(nn.relu(x), train)
        y = _ConvNorm(self.config, self.channels, name="conv_b")(nn.relu(y), train)
        kernel = self.param("downsample", _uniform(c), (self.channels, c, 1, 1))
        return _settle(y + _convolve(self.config, _halve(x), kernel), arch)


class _ConvNorm(nn.Module):
    """A 3×3 convolution without bias, and a batch norm."""

    config: NATSNetworkConfig
    channels: int
    stride: int = 1

    @nn.compact
    def __call__(self, x: Activations, train: bool) -> OtherActivations:
        c = x.shape[0]
        kernel = self.param("conv", _uniform(9 * c), (self.channels, c, 3, 3))
        return _batch_norm(self, _convolve(self.config, x, kernel, self.stride), train)


class _BatchNorm(nn.Module):
    """A batch norm under a name of its own."""

    @nn.compact
    def __call__(self, x: Activations, train: bool) -> Activations:
        return _batch_norm(self, x, train)


def _batch_norm(module: nn.Module, x: Activations, train: bool) -> Activations:
    weight, bias, mean, var = _norm_variables(module, x.shape[:1])
    if train:
        mean, var = _moments(x)
        _track(module, mean, var, x[0].size)
    return _normalise(x, mean, var, weight, bias)


def _norm_variables(module: nn.Module, shape: tuple[int, ...]) -> tuple[Array, ...]:
    """Declare weight, bias, running mean and running variance of batch norms."""
    ones, zeros = jnp.ones(shape), jnp.zeros(shape)
    return (
        module.param("weight", lambda _: ones),
        module.param("bias", lambda _: zeros),
        module.variable("batch_stats", "running_mean", lambda: zeros).value,
        module.variable("batch_stats", "running_var", lambda: ones).value,
    )


def _moments(x: Activations) -> tuple[Float[Array, " channels"], Float[Array, " channels"]]:
    x = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    mean = jnp.mean(x, axis=(1, 2, 3))
    return mean, jnp.mean((x - _along(mean, x)) ** 2, axis=(1, 2, 3))


def _normalise(
    x: Activations,
    mean: Float[Array, " channels"],
    var: Float[Array, " channels"],
    weight: Float[Array, " channels"],
    bias: Float[Array, " channels"],
) -> Activations:
    scale = weight * lax.rsqrt(var + _EPSILON)
    return ((x - _along(mean, x)) * _along(scale, x) + _along(bias, x)).astype(x.dtype)


def _track(
    module: nn.Module, mean: Array, var: Array, count: int, chosen: ArrayLike = True
) -> None:
    """Move the running statistics towards those of a batch, only where chosen.

    As in PyTorch the variance is then the unbiased one, unlike that which normalises the batch.
    """
    for name, new in (("running_mean", mean), ("running_var", var * count / max(count - 1, 1))):
        old = module.get_variable("batch_stats", name)
        new = (1 - _MOMENTUM) * old + _MOMENTUM * lax.stop_gradient(new)
        module.put_variable("batch_stats", name, jnp.where(chosen, new, old))


def _choose(chosen: Bool[Array, "6 2"], small: Array, large: Array) -> Array:
    """Take of each edge what belongs to its convolution, zeros where there is none.

    `where` and not a product: what is not chosen has no influence, whatever its value.
    """
    chosen_small, chosen_large = (_along(which, small) for which in chosen.T)
    return jnp.where(chosen_large, large, jnp.where(chosen_small, small, 0))


def _convolve(
    config: NATSNetworkConfig, x: Activations, kernel: Float[Array, "out in k k"], stride: int = 1
) -> OtherActivations:
    """Convolve with a kernel of odd size, with zeros around the image."""
    kernel, size = kernel.astype(x.dtype), kernel.shape[-1]
    around = (size // 2, size // 2)
    if not config.uses_patches():
        return lax.conv_general_dilated(
            x, kernel, (stride, stride), (around, around), dimension_numbers=_AXES
        )
    return _product(x, kernel, stride)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _product(x: Activations, kernel: Float[Array, "out in k k"], stride: int) -> OtherActivations:
    """Convolve by one product of matrices.

    Its gradient by x is a convolution again, and written as one: the transpose of cutting patches
    would be a sum of nine shifted arrays, slow to compile and to run.
    """
    return _product_forward(x, kernel, stride)[0]


def _product_forward(x, kernel, stride):
    patches = _patches(x, kernel.shape[-1], stride)
    out = kernel.reshape(len(kernel), -1) @ patches
    rows, columns = (-(-length // stride) for length in x.shape[1:3])
    return out.reshape(-1, rows, columns, x.shape[3]), (patches, kernel, x.shape)


def _product_backward(stride, residuals, gradient):
    patches, kernel, shape = residuals
    by_kernel = (gradient.reshape(len(kernel), -1) @ patches.T).reshape(kernel.shape)
    flipped = jnp.flip(kernel, (2, 3)).swapaxes(0, 1)
    # Zeros between the rows and columns that a stride leaves out.
    ends = [
        (0, length - (have - 1) * stride - 1, stride - 1)
        for have, length in zip(gradient.shape[1:3], shape[1:3], strict=True)
    ]
    spread = lax.pad(gradient, jnp.zeros((), gradient.dtype), [(0, 0, 0), *ends, (0, 0, 0)])
    by_x = flipped.reshape(len(flipped), -1) @ _patches(spread, kernel.shape[-1], 1)
    return by_x.reshape(shape), by_kernel


_product.defvjp(_product_forward, _product_backward)


def _patches(x: Activations, size: int, stride: int) -> Float[Array, "inputs positions"]:
    """Cut what each position sees of the image, with zeros around it, into columns."""
    around = (size // 2, size // 2)
    rows, columns = (-(-length // stride) for length in x.shape[1:3])
    padded = jnp.pad(x, ((0, 0), around, around, (0, 0)))
    seen = [
        padded[:, i : i + stride * rows : stride, j : j + stride * columns : stride]
        for i in range(size)
        for j in range(size)
    ]
    return jnp.stack(seen, axis=1).reshape(x.shape[0] * size**2, -1)


def _settle(x: Activations, arch: Int32[Array, "6"]) -> Activations:
    """Return x, computed once: both it and its gradient are kept in memory.

    XLA on CPUs fuses all that is not a product of matrices into each of its users, through
    optimisation barriers as well, and so computes the pooled sums and the gradients of patches
    again for every edge: half as fast. It does not see through a product by the identity.
    """
    if jax.default_backend() != "cpu":
        return x
    # Were it the same for all architectures, `vmap` would put the channels before them.
    identity = jnp.where(arch[0] >= 0, jnp.eye(len(x), dtype=x.dtype), 0)
    return (identity @ x.reshape(len(x), -1)).reshape(x.shape)


def _average_pool(x: Activations) -> Activations:
    """Average over 3×3 at stride 1; what lies outside of the image is not counted."""
    rows, columns = (np.convolve(np.ones(n), np.ones(3))[1:-1] for n in x.shape[1:3])
    padded = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    total = padded[:, :-2] + padded[:, 1:-1] + padded[:, 2:]
    total = total[:, :, :-2] + total[:, :, 1:-1] + total[:, :, 2:]
    return total / jnp.asarray(np.outer(rows, columns)[:, :, None], x.dtype)


def _halve(x: Activations) -> Float[Array, "channels h w n"]:
    """Average over 2×2 at stride 2; an odd last row or column is averaged on its own."""
    for axis in (1, 2):
        length = x.shape[axis]
        pairs = jnp.pad(x, [(0, length % 2 if i == axis else 0) for i in range(4)])
        first, second = (lax.slice_in_dim(pairs, i, None, 2, axis) for i in (0, 1))
        counts = np.minimum(2, length - np.arange(0, length, 2))
        x = (first + second) / _along(jnp.asarray(counts, x.dtype), x, axis)
    return x


def _along(values: ArrayLike, x: Array, axis: int = 0) -> Array:
    """Give a vector the number of axes of x, itself along one of them."""
    values = jnp.asarray(values)
    return values.reshape((1,) * axis + (-1,) + (1,) * (x.ndim - axis - 1))


def _uniform(inputs: int):
    """Initialise as PyTorch does: uniformly within 1/√inputs."""
    bound = 1 / math.sqrt(inputs)
    return lambda key, shape: jax.random.uniform(key, shape, minval=-bound, maxval=bound)
