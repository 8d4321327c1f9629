"""A slimmable MobileNetV2 with the architecture as an input: one program for the whole space.

The network holds the weights of its largest form, and an architecture of `spaces.SlimmableSpace`
says which of them are used: option k of a layer uses the first ⌈E·fraction_k⌉ of its E expanded
channels, the fractions going from ½ to 1 in equal steps (½, ¾, 1 for three widths), and option 0
uses none, which leaves the identity. So one compilation serves all architectures, and `vmap` over
them with shared weights evaluates many at once.

The choice is made among *weights*, by `where` and before they are used: those that are not chosen
become zeros. Channels without weights are exactly 0 after both activations, and the residual branch
of an absent layer is exactly 0. So the result equals that of the small network built on its own;
what is not used has no influence, whatever its value, and a gradient of exactly zero.

Batch norms have no running averages: slices share weights, and no average fits them all. With
`train=True` a batch is normalised by its own statistics, and `mutable=["batch_stats"]` returns
them; otherwise by those that are given, which are found for each slice on its own
(`training.supernet`).
"""

import dataclasses
import math
from typing import Literal, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int, Int32

from bqnes_jax.errors import BQNESError, check_choice, check_whole
from bqnes_jax.identity import SPEED, field
from bqnes_jax.models.shifts import (
    AXES,
    Activations,
    OtherActivations,
    column,
    convolve_channels,
    shift,
)
from bqnes_jax.spaces.base import as_architectures
from bqnes_jax.spaces.slimmable import SLIMMABLE, SlimmableSpace
from bqnes_jax.types import PRNGKey

_EPSILON = 1e-5  # of PyTorch's batch norm
Weights = dict[str, Array]


class NormStatistics(NamedTuple):
    """What a batch norm normalises by, for each channel: a leaf of `batch_stats`."""

    mean: Float[Array, "*layers channels"]
    var: Float[Array, "*layers channels"]


Statistics = dict[str, NormStatistics]


@dataclasses.dataclass(frozen=True)
class MobileNetConfig:
    """The macro-skeleton; by default that for images of 32×32 pixels.

    Attributes:
        space: how many blocks, layers and widths there are.
        channels: that each block puts out.
        strides: of the first layer of each block.
        expansion: how many times more channels a layer has inside, at its full width.
        stem: channels of the first convolution.
        head: channels of the last one.
        classes: how many.
        layout: how a depthwise convolution is computed, with the same result. "convolution": as
            such. "shifts": as a sum of shifted products, much faster than XLA's grouped
            convolutions on a CPU. "auto": shifts on CPUs.
        bfloat16: compute in bfloat16; parameters, statistics and logits stay as they are.
    """

    space: SlimmableSpace = SLIMMABLE
    channels: tuple[int, ...] = (16, 24, 32, 64, 96, 160, 320)
    _: dataclasses.KW_ONLY
    strides: tuple[int, ...] = (1, 1, 2, 2, 1, 2, 1)
    expansion: int = 6
    stem: int = 32
    head: int = 1280
    classes: int = 10
    layout: Literal["auto", "convolution", "shifts"] = field(SPEED, default="auto")
    bfloat16: bool = False

    def __post_init__(self):
        if not isinstance(self.space, SlimmableSpace):
            raise BQNESError(f"space is {self.space!r}; it must be a SlimmableSpace.")
        for name, high in (("channels", None), ("strides", 2)):
            values = getattr(self, name)
            if not isinstance(values, tuple) or len(values) != self.space.blocks:
                raise BQNESError(
                    f"{name} are {values!r}; it must be a tuple with one number for each of the "
                    f"{self.space.blocks} blocks."
                )
            for i, value in enumerate(values):
                check_whole(f"{name}[{i}]", value, 1, high)
        for name in ("expansion", "stem", "head"):
            check_whole(name, getattr(self, name), 1)
        check_whole("classes", self.classes, 2)
        check_choice("layout", self.layout, ("auto", "convolution", "shifts"))
        check_choice("bfloat16", self.bfloat16, (False, True))

    def uses_shifts(self) -> bool:
        """Tell whether 3×3 convolutions are sums of shifted products, on the present backend."""
        on_cpu = jax.default_backend() == "cpu"
        return self.layout == "shifts" or (self.layout == "auto" and on_cpu)

    def count_channels(self, expanded: int) -> tuple[int, ...]:
        """Return how many of a layer's expanded channels each option uses, 0 for absent first.

        Example:
            >>> MobileNetConfig().count_channels(18)
            (0, 9, 14, 18)
        """
        steps = max(self.space.widths - 1, 1)
        # Option k has the fraction (steps + k − 1) / (2 steps); in whole numbers, to be exact.
        slim = [-(-expanded * (steps + k) // (2 * steps)) for k in range(self.space.widths - 1)]
        return (0, *slim, expanded)

    def count_parameters(self, arch: Array, input_channels: int) -> Int[Array, "*batch"]:
        """Count the parameters that architectures use."""
        options = arch.reshape(*arch.shape[:-1], self.space.blocks, self.space.layers)
        total = (9 * input_channels + 2) * self.stem
        total += (self.channels[-1] + 2) * self.head + (self.head + 1) * self.classes
        inputs = self.stem
        for i, outputs in enumerate(self.channels):
            for layer in range(self.space.layers):
                used = jnp.array(self.count_channels(self.expansion * inputs))
                # Three kernels, and the norm behind each of them.
                each = used * (inputs + 2 + 9 + 2 + outputs) + jnp.where(used > 0, 2 * outputs, 0)
                total = total + each[options[..., i, layer]]
                inputs = outputs
        return jnp.asarray(total)


class MobileNet(nn.Module):
    """Logits of images under a canonical architecture.

    `init(key, arch, images)` returns `params` and `batch_stats`, of the same shapes for every
    architecture. The statistics of channels that an architecture does not use are 0.

    Example:
        >>> space = SlimmableSpace(blocks=2, layers=2)
        >>> config = MobileNetConfig(space, channels=(4, 8), strides=(1, 2), stem=4, head=16)
        >>> network = MobileNet(config)
        >>> images = jax.random.normal(jax.random.key(0), (2, 8, 8, 1))
        >>> archs = space.sample(jax.random.key(1), 3)
        >>> variables = network.init(jax.random.key(2), space.largest, images)
        >>> jax.vmap(network.apply, (None, 0, None))(variables, archs, images).shape
        (3, 2, 10)
    """

    config: MobileNetConfig

    @nn.compact
    def __call__(
        self,
        arch: Int32[Array, " length"],
        images: Float[Array, "n h w c"],
        train: bool = False,
    ) -> Float[Array, "n classes"]:
        """Compute the logits; images are normalised ones, of any size."""
        config = self.config
        options = as_architectures(config.space, arch).reshape(config.space.blocks, -1)
        x = jnp.transpose(images, (3, 1, 2, 0))
        x = x.astype(jnp.bfloat16 if config.bfloat16 else images.dtype)
        normal = _Normal()
        if self.is_initializing():
            normal.draw(self.make_rng("params"), _drawn(config, images.shape[-1]))
        x = nn.relu6(_ConvNorm(config, config.stem, 3, normal, name="stem")(x, train))
        for i, (channels, stride) in enumerate(zip(config.channels, config.strides, strict=True)):
            first = _Layers(config, channels, 1, stride, normal, name=f"blocks_{i}_first")
            x = first(x, options[i, :1], train)
            if config.space.layers > 1:
                count = config.space.layers - 1
                rest = _Layers(config, channels, count, 1, normal, name=f"blocks_{i}_rest")
                x = rest(x, options[i, 1:], train)
        x = nn.relu6(_ConvNorm(config, config.head, 1, normal, name="head")(x, train))
        features = jnp.mean(x.astype(images.dtype), axis=(1, 2)).T
        shape = (config.head, config.classes)
        weight = self.param("classifier_weight", lambda _: normal.take(shape, config.head))
        bias = self.param("classifier_bias", lambda _: jnp.zeros(config.classes))
        return features @ weight + bias


class _Normal:
    """Hands out normal numbers, all of them drawn at once.

    A generator of their own for each of the parameters would take longer to compile than training.
    """

    def __init__(self):
        self._left: Array | None = None

    def draw(self, key: PRNGKey, count: int) -> None:
        """Draw as many as will be taken."""
        self._left = jax.random.normal(key, (count,))

    def take(self, shape: tuple[int, ...], inputs: int) -> Array:
        """Return numbers of variance 2/inputs: right for rectified units with so many inputs."""
        if self._left is None:  # nothing is initialised: Flax compares shapes only
            return jnp.zeros(shape)
        count = math.prod(shape)
        taken, self._left = self._left[:count], self._left[count:]
        return math.sqrt(2 / inputs) * taken.reshape(shape)


def _drawn(config: MobileNetConfig, input_channels: int) -> int:
    """Count the parameters that are drawn at random: all but those of batch norms and biases."""
    ends = 9 * input_channels * config.stem + (config.channels[-1] + config.classes) * config.head
    total, inputs = ends, config.stem
    for outputs in config.channels:
        first, rest = (config.expansion * c * (c + 9 + outputs) for c in (inputs, outputs))
        total += first + (config.space.layers - 1) * rest
        inputs = outputs
    return total


class _ConvNorm(nn.Module):
    """A convolution without bias, 3×3 or 1×1, and a batch norm: what every slice has."""

    config: MobileNetConfig
    channels: int
    size: int
    normal: _Normal

    @nn.compact
    def __call__(self, x: Activations, train: bool) -> OtherActivations:
        inputs = self.size**2 * x.shape[0]
        shape = (self.size, self.size, x.shape[0], self.channels)
        kernel = self.param("conv", lambda _: self.normal.take(shape, inputs)).astype(x.dtype)
        if self.size == 1:
            x = _pointwise(x, kernel[0, 0])
        elif self.config.uses_shifts():
            shifts = shift(x, 1)
            patches = jnp.concatenate(list(shifts.values()))
            x = _pointwise(patches, jnp.concatenate([kernel[place] for place in shifts]))
        else:
            x = lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=AXES)
        weights, statistics = _norm_variables(self, "norm", (self.channels,), train)
        x, updated = _normalise(x, weights, statistics, "norm", jnp.array(True), train)
        if train:
            _put(self, updated)
        return x


class _Layers(nn.Module):
    """Inverted residuals of one shape, one after another; the weights are stacked.

    They are one body of a loop, so that it is compiled once; the first layer of a block has another
    shape, and is alone.
    """

    config: MobileNetConfig
    channels: int
    count: int
    stride: int
    normal: _Normal

    @nn.compact
    def __call__(
        self, x: Activations, options: Int32[Array, " count"], train: bool
    ) -> OtherActivations:
        inputs, expanded = len(x), self.config.expansion * len(x)
        shapes = {
            "expand": (inputs, expanded),
            "depthwise": (3, 3, expanded),
            "project": (expanded, self.channels),
        }
        weights = {
            name: self.param(
                name,
                lambda _, shape=shape: self.normal.take(
                    (self.count, *shape), math.prod(shape[:-1])
                ),
            )
            for name, shape in shapes.items()
        }
        statistics = {}
        # What is added to x begins as 0: a deep network begins as a shallow one, and learns sooner.
        added = self.stride == 1 and inputs == self.channels
        for name, channels, weight in (
            ("expand", expanded, 1.0),
            ("depthwise", expanded, 1.0),
            ("project", self.channels, 0.0 if added else 1.0),
        ):
            of_norm = _norm_variables(self, name, (self.count, channels), train, weight)
            weights |= of_norm[0]
            statistics |= of_norm[1]

        def layer(x, own):
            return _layer(self.config, self.stride, train, x, *own)

        if self.count == 1:
            own = jax.tree.map(lambda leaf: leaf[0], (weights, statistics, options))
            x, updated = layer(x, own)
            updated = jax.tree.map(lambda leaf: leaf[None], updated)
        else:
            x, updated = lax.scan(layer, x, (weights, statistics, options))
        if train:
            _put(self, updated)
        return x


def _layer(
    config: MobileNetConfig,
    stride: int,
    train: bool,
    x: Activations,
    weights: Weights,
    statistics: Statistics,
    option: Int32[Array, ""],
) -> tuple[OtherActivations, Statistics]:
    """Expand, convolve each channel, project; return the statistics of the batch as well."""
    present = option > 0
    expanded = weights["expand"].shape[-1]
    used = jnp.arange(expanded) < jnp.array(config.count_channels(expanded))[option]
    expand = jnp.where(used, weights["expand"], 0).astype(x.dtype)
    depthwise = jnp.where(used, weights["depthwise"], 0).astype(x.dtype)
    project = jnp.where(used[:, None], weights["project"], 0).astype(x.dtype)

    y = _pointwise(x, expand)
    y, of_expand = _normalise(y, weights, statistics, "expand", used, train)
    y = convolve_channels(nn.relu6(y), depthwise, stride, config.uses_shifts())
    y, of_depthwise = _normalise(y, weights, statistics, "depthwise", used, train)
    y = _pointwise(nn.relu6(y), project)
    y, of_project = _normalise(y, weights, statistics, "project", present, train)
    if stride == 1 and y.shape == x.shape:
        y = x + y
    return y, of_expand | of_depthwise | of_project


def _norm_variables(
    module: nn.Module, name: str, shape: tuple[int, ...], train: bool, weight: float = 1.0
) -> tuple[Weights, Statistics]:
    """Declare weight and bias of batch norms, and mean and variance, which training has not."""
    ones, zeros = jnp.ones(shape), jnp.zeros(shape)
    weights = {
        f"{name}_weight": module.param(f"{name}_weight", lambda _: weight * ones),
        f"{name}_bias": module.param(f"{name}_bias", lambda _: zeros),
    }
    if train and not module.is_initializing():
        return weights, {}
    start = NormStatistics(zeros, ones)
    return weights, {name: module.variable("batch_stats", name, lambda: start).value}


def _put(module: nn.Module, statistics: Statistics) -> None:
    """Hand out the statistics of a batch, if the caller wants them; `init` keeps its own."""
    if module.is_mutable_collection("batch_stats") and not module.is_initializing():
        for name, values in statistics.items():
            module.put_variable("batch_stats", name, jax.tree.map(lax.stop_gradient, values))


def _normalise(
    x: Activations,
    weights: Weights,
    statistics: Statistics,
    name: str,
    used: Bool[Array, "*channels"],
    train: bool,
) -> tuple[Activations, Statistics]:
    """Apply the batch norm of that name; channels that are not used stay 0 as they come in."""
    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    if train:
        mean = jnp.mean(wide, axis=(1, 2, 3))
        var = jnp.mean((wide - column(mean)) ** 2, axis=(1, 2, 3))
    else:
        mean, var = statistics[name]
        mean, var = jnp.where(used, mean, 0), jnp.where(used, var, 1)
    scale = jnp.where(used, weights[f"{name}_weight"], 0) * lax.rsqrt(var + _EPSILON)
    bias = jnp.where(used, weights[f"{name}_bias"], 0)
    y = ((wide - column(mean)) * column(scale) + column(bias)).astype(x.dtype)
    return y, {name: NormStatistics(mean, var)}


def _pointwise(x: Activations, kernel: Float[Array, "channels out"]) -> OtherActivations:
    """Convolve 1×1: one product of matrices."""
    return (kernel.T @ x.reshape(len(x), -1)).reshape(-1, *x.shape[1:])
