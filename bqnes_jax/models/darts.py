"""The network of DARTS with the architecture as an input: one program for the whole space.

A cell holds the parameters of every operation on each of its eight edges, and its architecture
chooses among them (`darts_edges`). The result equals that of the plain sub-network, and what an
architecture does not use gets a gradient of exactly zero. Cells whose inputs have the same shapes
are passed by the same instructions.

| published name (in `cells.I.`) | here (in `cells_G/`) |
|---|---|
| `preprocess0.op.1.weight`, `….op.2.*` | `preprocess0/conv`, `preprocess0/*` |
| `preprocess0.conv_1.weight`, `….conv_2.…` | `preprocess0/conv[0]`, `…[1]` |
| `_ops.E.op.1.weight`, `….5.…` | `conv_3x3[E, 0]`, `…[E, 1]`; dilated `…[E, 2]`; or `conv_5x5` |
| `_ops.E.op.2.weight`, `….6.…` | `pointwise[E, i]`, i likewise; 3 more if 5×5 |
| `_ops.E.op.3.*`, `….7.*` | `*[E, i]`, likewise |
| `_ops.E.conv_1.weight`, `….conv_2.…`, `….bn.*` | `halving[E, 0]`, `…[E, 1]`, `*[E, 6]` |

Cells that are passed by the same instructions are `cells_G`, G the first of them, and their arrays
have one more axis before the others. Kernels have PyTorch's axes, and `*` stands for `weight` and
`bias` (in `params`), `running_mean` and `running_var` (in `batch_stats`).
"""

import dataclasses
import itertools
from typing import Any, NamedTuple, cast

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Int32

from bqnes_jax.errors import BQNESError, check_whole
from bqnes_jax.models.darts_edges import (
    CONVOLUTIONS,
    DIAGONAL,
    DIL_3X3,
    DIL_5X5,
    DILATED,
    EDGES,
    SEP_3X3,
    SEP_5X5,
    SEPARABLE,
    SKIP,
    Own,
    evaluate_cell,
    find_used,
    multiply,
    train_cell,
)
from bqnes_jax.models.layers import batch_norm, norm_variables, track, uniform
from bqnes_jax.models.patches import convolve_by_products
from bqnes_jax.models.shifts import Activations, OtherActivations
from bqnes_jax.models.taps import PLACES, in_phases
from bqnes_jax.spaces.base import Space
from bqnes_jax.spaces.darts import CELLS, DARTS, INPUTS, NODES, OPERATIONS

_STEM = 3  # times as many channels as a node


@dataclasses.dataclass(frozen=True)
class DARTSNetworkConfig:
    """The macro-skeleton: stem, cells of which two are reduction cells, classifier.

    Attributes:
        channels: of a node in the first cells; doubled by each of the two reductions.
        cells: in all; those after a third and after two thirds of them are reductions.
        classes: how many.
        drop_path: how likely it is in training that an edge gives nothing for an image; edges that
            pass on what they get never do.
    """

    channels: int = 36
    cells: int = 20
    _: dataclasses.KW_ONLY
    classes: int = 10
    drop_path: float = 0.0

    def __post_init__(self):
        check_whole("channels", self.channels, 2)
        check_whole("cells", self.cells, 3)
        check_whole("classes", self.classes, 2)
        if self.channels % 2:
            raise BQNESError(f"channels is {self.channels}; it must be even, as reductions halve.")
        if not 0 <= self.drop_path < 1:
            raise BQNESError(f"drop_path is {self.drop_path!r}; it must be from 0 to below 1.")

    @property
    def space(self) -> Space:
        """What can be built."""
        return DARTS

    def build(self) -> nn.Module:
        """Return the network."""
        return DARTSNetwork(self)

    def count_kept(self, image_shape: tuple[int, ...]) -> float:
        """Estimate how many numbers a gradient remembers of an image.

        The edges of a cell keep two arrays for each of two convolutions, and there are six states.
        """
        rows, columns = image_shape[:2]
        widths = [plan.width for plan in plan_cells(self)]
        # Twice the channels at a quarter of the positions after each reduction.
        positions = sum(rows * columns * self.channels**2 / width for width in widths)
        return (4 * EDGES + 3 * (NODES + INPUTS)) * positions

    def count_parameters(self, arch: Array, input_channels: int) -> Int[Array, "*batch"]:
        """Count the parameters that architectures use."""
        edges = arch.reshape(*arch.shape[:-1], len(CELLS), EDGES, 2)
        plans = plan_cells(self)
        stem = (9 * input_channels + 2) * _STEM * self.channels
        head = (NODES * plans[-1].width + 1) * self.classes
        preprocess = sum((inputs + 2) * plan.width for plan in plans for inputs in plan.inputs)
        of_edges = np.zeros((len(CELLS), len(OPERATIONS), 2), int)  # 1: those from an input
        for plan in plans:
            of_edges[int(plan.reduces)] += _count_operations(plan)
        source, operation = edges[..., 0], edges[..., 1]
        cell = np.arange(len(CELLS))[:, None]
        counts = jnp.asarray(of_edges)[cell, operation, (source < INPUTS).astype(int)]
        return stem + preprocess + head + jnp.sum(counts, axis=(-2, -1))


class Plan(NamedTuple):
    """What a cell is, but for its operations.

    Attributes:
        width: channels of its nodes.
        inputs: channels of its first input, and of the second.
        reduces: whether it is a reduction cell.
        halves: whether its first input is twice as large as the second, as after a reduction.
    """

    width: int
    inputs: tuple[int, int]
    reduces: bool
    halves: bool


def plan_cells(config: DARTSNetworkConfig) -> list[Plan]:
    """Return what each cell is, from the first to the last.

    Example:
        >>> [plan.reduces for plan in plan_cells(DARTSNetworkConfig(channels=2, cells=5))]
        [False, True, False, True, False]
    """
    plans, width, halves = [], config.channels, False
    before, last = (_STEM * width,) * 2
    for number in range(config.cells):
        reduces = number in (config.cells // 3, 2 * config.cells // 3)
        width *= 2 if reduces else 1
        plans.append(Plan(width, (before, last), reduces, halves))
        before, last, halves = last, NODES * width, reduces
    return plans


class DARTSNetwork(nn.Module):
    """Logits of images under an architecture.

    `init(key, arch, images)` returns `params` and `batch_stats`, the same shapes for every
    architecture. With `train=True` batches are normalised by their own statistics, and the
    running ones are updated (`mutable=["batch_stats"]`), those of operations in use only; dropping
    paths needs `rngs={"drop_path": key}`. Without `train` there is no gradient.

    Example:
        >>> network = DARTSNetwork(DARTSNetworkConfig(channels=2, cells=3))
        >>> images = jax.random.normal(jax.random.key(0), (2, 8, 8, 1))
        >>> arch = DARTS.sample(jax.random.key(1), 1)[0]
        >>> jax.eval_shape(network.init_with_output, jax.random.key(2), arch, images)[0].shape
        (2, 10)
    """

    config: DARTSNetworkConfig

    @nn.compact
    def __call__(
        self, arch: Int32[Array, "32"], images: Float[Array, "n h w c"], train: bool = False
    ) -> Float[Array, "n classes"]:
        """Compute the logits; images are normalised ones, of any size."""
        config = self.config
        x = jnp.transpose(images, (3, 1, 2, 0))
        x = _Stem(_STEM * config.channels, name="stem")(x, train)
        states: Any = (x, x)
        for plan, run in itertools.groupby(enumerate(plan_cells(config)), lambda item: item[1]):
            numbers = [number for number, _ in run]
            settings = (plan, config.drop_path, train)
            name = f"cells_{numbers[0]}"
            cell = _several(len(numbers))(*settings, name=name)
            states, _ = cast(tuple[Any, None], cell(states, arch))
        features = jnp.mean(states[1], axis=(1, 2))
        weight = self.param(
            "classifier_weight", uniform(len(features)), (config.classes, len(features))
        )
        bias = self.param("classifier_bias", uniform(len(features)), (config.classes,))
        return (weight @ features).T + bias


class _Stem(nn.Module):
    """A 3×3 convolution without bias, and a batch norm."""

    channels: int

    @nn.compact
    def __call__(self, x: Activations, train: bool) -> OtherActivations:
        kernel = self.param("conv", uniform(9 * len(x)), (self.channels, len(x), 3, 3))
        return batch_norm(self, convolve_by_products(x, kernel, 1), train)


class _Preprocess(nn.Module):
    """ReLU, a 1×1 convolution, a batch norm; or at half the size, of even and of odd pixels."""

    channels: int
    halves: bool

    @nn.compact
    def __call__(self, x: Activations, train: bool) -> OtherActivations:
        parts = 2 if self.halves else 1
        shape = (parts, self.channels // parts, len(x), 1, 1)
        kernel = self.param("conv", uniform(len(x)), shape if self.halves else shape[1:])
        x = nn.relu(x)
        seen = in_phases(x)[DIAGONAL] if self.halves else x[None]
        return batch_norm(self, multiply(kernel.reshape(shape[:3]), seen), train)


class _Cell(nn.Module):
    """Four nodes, each the sum of two edges; the output is all of them side by side."""

    plan: Plan
    drop_path: float
    train: bool

    @nn.compact
    def __call__(
        self, states: tuple[Array, Array], arch: Int32[Array, "32"]
    ) -> tuple[tuple[Array, Array], None]:
        plan, c, train = self.plan, self.plan.width, self.train
        inputs = jnp.stack(
            [
                _Preprocess(c, plan.halves and i == 0, name=f"preprocess{i}")(state, train)
                for i, state in enumerate(states)
            ]
        )
        own, running = self._variables()
        edges = arch.reshape(len(CELLS), EDGES, 2)[int(plan.reduces)]
        size = inputs.shape[2], inputs.shape[3]
        inputs = jnp.moveaxis(in_phases(inputs), 0, 1) if plan.reduces else inputs[:, None]
        if not train:
            return (states[1], evaluate_cell(size, edges, inputs, own, running)), None
        kept = self._draw_kept(inputs)
        trained = train_cell(size, edges, kept, inputs, own)
        out, mean, var = cast(tuple[Array, Array, Array], trained)
        track(self, mean, var, out[0].size, chosen=find_used(edges, own.weight.shape[1]))
        return (states[1], out), None

    def _variables(self) -> tuple[Own, list[Array]]:
        c, norms = self.plan.width, CONVOLUTIONS + self.plan.reduces
        small, large = (
            self.param(f"conv_{k}x{k}", uniform(k * k), (EDGES, 3, c, 1, k, k)) for k in (3, 5)
        )
        kernels = [kernel.reshape(EDGES, 3, c, -1) for kernel in (small, large)]
        kernels[0] = jnp.pad(kernels[0], ((0, 0),) * 3 + ((0, PLACES - 9),))
        shape = (EDGES, CONVOLUTIONS, c, c, 1, 1)
        pointwise = self.param("pointwise", uniform(c), shape).reshape(shape[:4])
        halving = None
        if self.plan.reduces:
            shape = (EDGES, 2, c // 2, c, 1, 1)
            halving = self.param("halving", uniform(c), shape).reshape(shape[:4])
        weight, bias, *running = norm_variables(self, (EDGES, norms, c))
        together = jnp.swapaxes(jnp.concatenate(kernels, axis=1), 2, 3)
        return Own(together, pointwise, halving, weight, bias), running

    def _draw_kept(self, inputs: Array) -> Float[Array, "8 n"]:
        """Draw by how much each edge counts for each image: 0, or more than 1 instead."""
        shape = (EDGES, inputs.shape[-1])
        if not self.drop_path:
            return jnp.ones(shape, inputs.dtype)
        kept = jax.random.bernoulli(self.make_rng("drop_path"), 1 - self.drop_path, shape)
        return kept.astype(inputs.dtype) / (1 - self.drop_path)


def _several(count: int) -> Any:
    """Return what passes so many cells one after another by the same instructions."""
    if count == 1:
        return _Cell
    return nn.scan(
        _Cell,
        variable_axes={"params": 0, "batch_stats": 0},
        split_rngs={"params": True, "drop_path": True},
        in_axes=nn.broadcast,  # pyright: ignore[reportArgumentType]
        length=count,
    )


def _count_operations(plan: Plan) -> Int[np.ndarray, "7 2"]:
    """Count the parameters of each operation of a cell, between nodes and from an input."""
    c = plan.width
    counts = np.zeros((len(OPERATIONS), 2), int)
    counts[SKIP, 1] = (c + 2) * c if plan.reduces else 0
    for operation, passes, size in (
        (SEP_3X3, SEPARABLE, 3),
        (SEP_5X5, SEPARABLE, 5),
        (DIL_3X3, DILATED, 3),
        (DIL_5X5, DILATED, 5),
    ):
        counts[operation] = passes * (size**2 + c + 2) * c
    return counts
