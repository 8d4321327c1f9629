"""The network of NATS-Bench with the architecture as an input: one program for the whole space.

A cell holds the parameters of every operation on every edge, and its architecture, `int32[6]`,
chooses among them. So one compilation serves all 15,625 architectures. The result equals that of
the plain sub-network, and what an architecture does not use gets a gradient of exactly zero.

The cells of a stage, and the edges of a cell, are passed one after another by the same
instructions, so that the program is as short for many cells as for one. An edge computes only what
its architecture asks for. Under `vmap` over (parameters, architecture), which suits accelerators,
it computes every operation for all of them, and chooses after that.

| published name | here |
|---|---|
| `stem.0.weight`, `stem.1.*` | `stem/conv`, `stem/*` |
| `cells.I.layers.E.op.1.weight` | `cells_S/conv_1x1[K, E]` or `cells_S/conv_3x3[K, E]` |
| `cells.I.layers.E.op.2.*` | `cells_S/*[K, E, 0]` after 1×1, `cells_S/*[K, E, 1]` after 3×3 |
| `cells.I.conv_a.op.1.weight`, `….op.2.*` | `reduction_T/conv_a/conv`, `reduction_T/conv_a/*` |
| `cells.I.conv_b.…` | `reduction_T/conv_b/…` |
| `cells.I.downsample.1.weight` | `reduction_T/downsample` |
| `lastact.0.*` | `lastact/*` |
| `classifier.weight`, `classifier.bias` | `classifier_weight`, `classifier_bias` |

With N cells in a stage, I = S (N + 1) + K is the K-th cell of stage S, and if K is N the reduction
to stage T = S + 1. Kernels have PyTorch's axes (out, in, height, width), and
`*` stands for PyTorch's `weight` and `bias` (in `params`), `running_mean` and `running_var` (in
`batch_stats`): nothing is transposed.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Literal, NamedTuple, cast

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int, Int32

from bqnes_jax.errors import check_choice, check_whole
from bqnes_jax.identity import SPEED, field
from bqnes_jax.models.edges import Operation, Passed, pass_edges
from bqnes_jax.models.layers import batch_norm, norm_variables, track, uniform
from bqnes_jax.models.norms import along, find_moments, normalise, pull_norm
from bqnes_jax.models.patches import convolve_by_products
from bqnes_jax.models.shifts import Activations, OtherActivations
from bqnes_jax.spaces.base import Space
from bqnes_jax.spaces.nats import EDGES, NATS, OPERATIONS

CONV_1X1, CONV_3X3 = (OPERATIONS.index(name) for name in ("nor_conv_1x1", "nor_conv_3x3"))

_NUMBERS_KEPT = 50
_AXES = ("CHWN", "OIHW", "CHWN")  # of activations, as everywhere, and of PyTorch's kernels


@dataclasses.dataclass(frozen=True)
class NATSNetworkConfig:
    """The macro-skeleton: stem, `cells` cells, reduction, cells, reduction, cells, classifier.

    Attributes:
        channels: of the first stage; doubled by each of the two reductions.
        cells: in each of the three stages.
        classes: how many.
        layout: how a network is computed, with the same result. "convolution": with convolutions as
            such, each edge choosing from all operations, as suits `vmap`. "patches": as products of
            matrices, much faster than XLA's convolutions of small images on a CPU; in training an
            edge changes arrays in place, as suits one network after another. "auto": patches on
            CPUs.
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

    @property
    def space(self) -> Space:
        """What can be built."""
        return NATS

    def build(self) -> nn.Module:
        """Return the network."""
        return NATSNetwork(self)

    def count_kept(self, image_shape: tuple[int, ...]) -> float:
        """Estimate how many numbers a gradient remembers of an image.

        That is some 50 for each channel of each position in a cell.
        """
        rows, columns = image_shape[:2]
        # Twice the channels at a quarter of the positions in each further stage.
        return _NUMBERS_KEPT * rows * columns * self.channels * (1 + 1 / 2 + 1 / 4) * self.cells

    def count_parameters(self, arch: Array, input_channels: int) -> Int[Array, "*batch"]:
        """Count the parameters that architectures use."""
        c = self.channels
        widths = (c, 2 * c, 4 * c)
        stem = 9 * input_channels * c + 2 * c
        reductions = sum(9 * (w // 2 + w) * w + 4 * w + w // 2 * w for w in widths[1:])
        head = 2 * widths[2] + (widths[2] + 1) * self.classes
        of_1x1 = sum(w * w + 2 * w for w in widths)
        of_3x3 = sum(9 * w * w + 2 * w for w in widths)
        edges = jnp.sum(arch == CONV_1X1, -1) * of_1x1 + jnp.sum(arch == CONV_3X3, -1) * of_3x3
        return stem + reductions + head + self.cells * edges

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
        # One after another by the same instructions: a stage is compiled once for all its cells.
        cells = nn.scan(
            _Cell,
            variable_axes={"params": 0, "batch_stats": 0},
            split_rngs={"params": True},
            in_axes=nn.broadcast,  # pyright: ignore[reportArgumentType]
            length=config.cells,
        )
        for stage in range(3):
            if stage:
                channels *= 2
                x = _Reduction(config, channels, name=f"reduction_{stage}")(x, train)
            of_stage = cells(config, channels, train, name=f"cells_{stage}")
            x, _ = cast(tuple[Activations, None], of_stage(x, arch))
        x = nn.relu(_BatchNorm(name="lastact")(x.astype(images.dtype), train))
        features = jnp.mean(x, axis=(1, 2))
        weight = self.param("classifier_weight", uniform(channels), (config.classes, channels))
        bias = self.param("classifier_bias", uniform(channels), (config.classes,))
        return (weight @ features).T + bias


class _Cell(nn.Module):
    """Four nodes, each the sum of the edges that end there; the last is the output."""

    config: NATSNetworkConfig
    channels: int
    train: bool

    @nn.compact
    def __call__(self, x: Activations, arch: Int32[Array, "6"]) -> tuple[Activations, None]:
        c = self.channels
        kernels = (
            self.param("conv_1x1", uniform(c), (len(EDGES), c, c, 1, 1)),
            self.param("conv_3x3", uniform(9 * c), (len(EDGES), c, c, 3, 3)),
        )
        weight, bias, *running = norm_variables(self, (len(EDGES), 2, c))
        own = _Convolutions(kernels, weight, bias)
        if not self.train:
            return _pass_forward(self.config, arch, x, own, running).nodes[3], None
        trained = _train_cell(self.config, arch, x, own)
        x, mean, var = cast(tuple[Array, Array, Array], trained)
        track(self, mean[:, None], var[:, None], x[0].size, chosen=_find_used(arch))
        return x, None


class _Convolutions(NamedTuple):
    """The parameters of an edge, or of all edges: of its 1×1 convolution, and of its 3×3 one."""

    kernels: tuple[Float[Array, "*edges out in 1 1"], Float[Array, "*edges out in 3 3"]]
    weight: Float[Array, "*edges 2 channels"]
    bias: Float[Array, "*edges 2 channels"]


def _find_used(arch: Int32[Array, "6"]) -> Bool[Array, "6 2 1"]:
    """Tell which of its two convolutions each edge uses."""
    return (arch[:, None] == jnp.array([CONV_1X1, CONV_3X3]))[:, :, None]


def _operations(plain: Callable, convolution: Callable) -> dict[str, Operation]:
    """Name what an edge may do: `plain` is given a function, `convolution` the number of one."""
    return {
        "skip_connect": plain(lambda x: x),
        "nor_conv_1x1": convolution(0),
        "nor_conv_3x3": convolution(1),
        "avg_pool_3x3": plain(_average_pool),
    }


def _pass_forward(
    config: NATSNetworkConfig,
    arch: Int32[Array, "6"],
    x: Activations,
    own: _Convolutions,
    running: list[Float[Array, "6 2 channels"]] | None = None,
) -> Passed:
    """Return the nodes of a cell, and in training the moments and outputs of its convolutions.

    Convolutions are normalised by running statistics, or in training by those of the batch. What
    belongs to one is 0 where an edge has none.
    """
    train, dtype = running is None, jnp.promote_types(x.dtype, jnp.float32)

    def plain(function):
        return lambda edge, done: (function(done.nodes[edge.source]), None)

    def convolution(i: int):
        def apply(edge, done):
            e = edge.number
            y = _convolve(config, nn.relu(done.nodes[edge.source]), own.kernels[i][e])
            moments = find_moments(y) if running is None else (of[e, i] for of in running)
            mean, var = (values.astype(dtype) for values in moments)
            out = normalise(y, mean, var, own.weight[e, i], own.bias[e, i])
            return out, (mean, var, y) if train else None

        return apply

    nodes = jnp.concatenate([x[None], jnp.zeros((3, *x.shape), x.dtype)])
    moments = jnp.zeros((len(EDGES), len(x)), dtype)
    kept = (moments, moments, jnp.zeros((len(EDGES), *x.shape), x.dtype)) if train else None
    return pass_edges(
        arch,
        _operations(plain, convolution),
        Passed(nodes, kept),
        in_place=train and config.uses_patches(),
    )


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _train_cell(
    config: NATSNetworkConfig, arch: Int32[Array, "6"], x: Activations, own: _Convolutions
) -> tuple[Activations, Float[Array, "6 channels"], Float[Array, "6 channels"]]:
    """Return what a cell makes of a batch, and the moments of its convolutions, as constants.

    The gradient is written out: it passes the edges in reverse, and computes what their operations
    need. JAX's own would remember what every operation needs on each edge, most of it zeros.
    """
    return _train_cell_forward(config, arch, x, own)[0]


def _train_cell_forward(config, arch, x, own):
    nodes, (mean, var, convolved) = _pass_forward(config, arch, x, own)
    return (nodes[3], mean, var), (arch, own, nodes, mean, var, convolved)


def _train_cell_backward(config, residuals, gradients):
    arch, own, nodes, mean, var, convolved = residuals

    def plain(function):
        def pull(edge, done):
            _, pull_function = jax.vjp(function, nodes[edge.source])
            return pull_function(done.nodes[edge.target])[0], None

        return pull

    def convolution(i: int):
        def pull(edge, done):
            e = edge.number
            gradient, by_weight, by_bias = pull_norm(
                convolved[e], mean[e], var[e], own.weight[e, i], done.nodes[edge.target]
            )
            _, pull_conv = jax.vjp(
                lambda x, kernel: _convolve(config, nn.relu(x), kernel),
                nodes[edge.source],
                own.kernels[i][e],
            )
            by_x, by_kernel = pull_conv(gradient)
            kernels = (by_kernel, None) if i == 0 else (None, by_kernel)
            return by_x, (*kernels, by_weight, by_bias)

        return pull

    last = jnp.concatenate([jnp.zeros_like(nodes[:3]), gradients[0][None]])
    kept = jax.tree.map(jnp.zeros_like, (*own.kernels, own.weight[:, 0], own.bias[:, 0]))
    by_nodes, (small, large, *norms) = pass_edges(
        arch,
        _operations(plain, convolution),
        Passed(last, kept),
        in_place=config.uses_patches(),
        back=True,
    )
    by_weight, by_bias = (jnp.where(_find_used(arch), values[:, None], 0) for values in norms)
    return None, by_nodes[0], _Convolutions((small, large), by_weight, by_bias)


_train_cell.defvjp(_train_cell_forward, _train_cell_backward)


class _Reduction(nn.Module):
    """Twice the channels at half the size: two convolutions beside a pooled shortcut."""

    config: NATSNetworkConfig
    channels: int

    @nn.compact
    def __call__(self, x: Activations, train: bool) -> OtherActivations:
        c = x.shape[0]
        y = _ConvNorm(self.config, self.channels, stride=2, name="conv_a")(nn.relu(x), train)
        y = _ConvNorm(self.config, self.channels, name="conv_b")(nn.relu(y), train)
        kernel = self.param("downsample", uniform(c), (self.channels, c, 1, 1))
        return y + _convolve(self.config, _halve(x), kernel)


class _ConvNorm(nn.Module):
    """A 3×3 convolution without bias, and a batch norm."""

    config: NATSNetworkConfig
    channels: int
    stride: int = 1

    @nn.compact
    def __call__(self, x: Activations, train: bool) -> OtherActivations:
        c = x.shape[0]
        kernel = self.param("conv", uniform(9 * c), (self.channels, c, 3, 3))
        return batch_norm(self, _convolve(self.config, x, kernel, self.stride), train)


class _BatchNorm(nn.Module):
    """A batch norm under a name of its own."""

    @nn.compact
    def __call__(self, x: Activations, train: bool) -> Activations:
        return batch_norm(self, x, train)


def _convolve(
    config: NATSNetworkConfig, x: Activations, kernel: Float[Array, "out in k k"], stride: int = 1
) -> OtherActivations:
    """Convolve as such or by products of matrices, with the same result."""
    kernel, size = kernel.astype(x.dtype), kernel.shape[-1]
    if config.uses_patches():
        return convolve_by_products(x, kernel, stride)
    around = (size // 2, size // 2)
    return lax.conv_general_dilated(
        x, kernel, (stride, stride), (around, around), dimension_numbers=_AXES
    )


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
        x = (first + second) / along(jnp.asarray(counts, x.dtype), x, axis=axis)
    return x
