"""The network of DARTS with the architecture as an input: one program for the whole space.

A cell holds the parameters of every operation on each of its eight edges, and its architecture
chooses among them. The result equals that of the plain sub-network, and what an architecture does
not use gets a gradient of exactly zero.

The edges of a cell are passed one after another by the same instructions, whatever they come from:
all that they can come from is in one array. All convolutions are one loop over the places of a
kernel (`taps`), so that there are five operations to compile in a cell, and not 7 × 14. Cells whose
inputs have the same shapes are passed by the same instructions, too. An edge computes only what its
architecture asks for; under `vmap` every edge takes as long as the longest one.

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
import functools
import itertools
from typing import Any, NamedTuple, cast

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int, Int32

from bqnes_jax.errors import BQNESError, check_whole
from bqnes_jax.models.layers import batch_norm, norm_variables, track, uniform
from bqnes_jax.models.norms import find_moments, normalise, pull_norm
from bqnes_jax.models.patches import convolve_by_products
from bqnes_jax.models.shifts import Activations, OtherActivations
from bqnes_jax.models.taps import (
    PHASES,
    PLACES,
    Phases,
    Taps,
    average_taps,
    convolve_taps,
    in_phases,
    max_taps,
    pull_average,
    pull_max,
    pull_taps,
)
from bqnes_jax.spaces.base import Space
from bqnes_jax.spaces.darts import CELLS, DARTS, INPUTS, NODES, OPERATIONS

MAX, AVERAGE, SKIP, SEP_3X3, SEP_5X5, DIL_3X3, DIL_5X5 = range(len(OPERATIONS))

_EDGES = NODES * INPUTS
_CONVOLUTIONS = 6  # of an edge: twice separable and once dilated, of 3×3 and of 5×5
_SEPARABLE, _DILATED = 2, 1  # how many of them an operation is
_STEM = 3  # times as many channels as a node
_DIAGONAL = np.array(
    [0, PHASES - 1], np.int32
)  # phases that a halving sees: even pixels, and odd ones


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
        return (4 * _EDGES + 3 * (NODES + INPUTS)) * positions

    def count_parameters(self, arch: Array, input_channels: int) -> Int[Array, "*batch"]:
        """Count the parameters that architectures use."""
        edges = arch.reshape(*arch.shape[:-1], len(CELLS), _EDGES, 2)
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
        seen = in_phases(x)[_DIAGONAL] if self.halves else x[None]
        return batch_norm(self, _multiply(kernel.reshape(shape[:3]), seen), train)


def _multiply(
    kernel: Float[Array, "parts each in"], x: Float[Array, "parts in h w n"]
) -> OtherActivations:
    """Multiply the channels of each part by a matrix, and put the results beside each other."""
    out = kernel @ x.reshape(*x.shape[:2], -1)
    return out.reshape(-1, *x.shape[2:])


class _Own(NamedTuple):
    """The parameters of the edges of a cell, one norm for each convolution and for the halving."""

    kernels: Float[Array, "8 6 places channels"]
    pointwise: Float[Array, "8 6 channels channels"]
    halving: Float[Array, "8 2 half channels"] | None  # in a reduction cell
    weight: Float[Array, "8 norms channels"]
    bias: Float[Array, "8 norms channels"]


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
        edges = arch.reshape(len(CELLS), _EDGES, 2)[int(plan.reduces)]
        size = inputs.shape[2], inputs.shape[3]
        inputs = jnp.moveaxis(in_phases(inputs), 0, 1) if plan.reduces else inputs[:, None]
        if not train:
            out = _pass_forward(size, edges, inputs, own, running=running).states
            return (states[1], _join(out)), None
        kept = self._draw_kept(inputs)
        trained = _train_cell(size, edges, kept, inputs, own)
        out, mean, var = cast(tuple[Array, Array, Array], trained)
        track(self, mean, var, out[0].size, chosen=_find_used(edges, own.weight.shape[1]))
        return (states[1], out), None

    def _variables(self) -> tuple[_Own, list[Array]]:
        c, norms = self.plan.width, _CONVOLUTIONS + self.plan.reduces
        small, large = (
            self.param(f"conv_{k}x{k}", uniform(k * k), (_EDGES, 3, c, 1, k, k)) for k in (3, 5)
        )
        kernels = [kernel.reshape(_EDGES, 3, c, -1) for kernel in (small, large)]
        kernels[0] = jnp.pad(kernels[0], ((0, 0),) * 3 + ((0, PLACES - 9),))
        shape = (_EDGES, _CONVOLUTIONS, c, c, 1, 1)
        pointwise = self.param("pointwise", uniform(c), shape).reshape(shape[:4])
        halving = None
        if self.plan.reduces:
            shape = (_EDGES, 2, c // 2, c, 1, 1)
            halving = self.param("halving", uniform(c), shape).reshape(shape[:4])
        weight, bias, *running = norm_variables(self, (_EDGES, norms, c))
        together = jnp.swapaxes(jnp.concatenate(kernels, axis=1), 2, 3)
        return _Own(together, pointwise, halving, weight, bias), running

    def _draw_kept(self, inputs: Array) -> Float[Array, "8 n"]:
        """Draw by how much each edge counts for each image: 0, or more than 1 instead."""
        shape = (_EDGES, inputs.shape[-1])
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


class _Edge(NamedTuple):
    """What an edge does, and where."""

    number: Int32[Array, ""]
    source: Int32[Array, ""]
    target: Int32[Array, ""]
    operation: Int32[Array, ""]
    strided: Bool[Array, ""]

    @property
    def passes(self) -> Int[Array, ""]:
        """How many convolutions it is."""
        return jnp.where(self.operation >= DIL_3X3, _DILATED, _SEPARABLE)

    def norm(self, i: ArrayLike) -> Array:
        """Return which convolution of the edge comes i-th."""
        dilated = self.operation >= DIL_3X3
        large = (self.operation == SEP_5X5) | (self.operation == DIL_5X5)
        return 3 * large + jnp.where(dilated, 2, i)

    def taps(self, i: ArrayLike) -> Taps:
        """Return where the kernel of the i-th convolution looks."""
        large = (self.operation == SEP_5X5) | (self.operation == DIL_5X5)
        dilated = self.operation >= DIL_3X3
        size, dilation = jnp.int32(3) + 2 * large, jnp.int32(1) + dilated
        return Taps(size, dilation, self.strided & (i == 0))

    @property
    def pool(self) -> Taps:
        """Where a pool looks."""
        return Taps(jnp.int32(3), jnp.int32(1), self.strided)


def _edge(edges: Int32[Array, "8 2"], number: Array, phases: int) -> _Edge:
    source, operation = edges[number]
    strided = (source < INPUTS) & (phases == PHASES)
    return _Edge(number, source, INPUTS + number // INPUTS, operation, strided)


def _find_used(edges: Int32[Array, "8 2"], norms: int) -> Bool[Array, "8 norms 1"]:
    """Tell which batch norms each edge uses."""
    edge = jax.vmap(lambda e: _edge(edges, e, PHASES if norms > _CONVOLUTIONS else 1))(
        jnp.arange(_EDGES)
    )
    first, second = (edge.norm(i)[:, None] for i in (0, 1))
    number = jnp.arange(norms)
    convolves = (edge.operation >= SEP_3X3)[:, None]
    halves = ((edge.operation == SKIP) & edge.strided)[:, None]
    of_edge = convolves & ((number == first) | (number == second))
    return (of_edge | (halves & (number == _CONVOLUTIONS)))[..., None]


class _Kept(NamedTuple):
    """What a training remembers of the edges, for the gradient; 0 where an edge has none.

    Attributes:
        mean: of each batch norm, and var.
        mixed: what the i-th convolution makes of each channel on its own.
        convolved: what comes before the i-th batch norm.
    """

    mean: Float[Array, "8 norms channels"]
    var: Float[Array, "8 norms channels"]
    mixed: Float[Array, "8 2 channels h w n"]
    convolved: Float[Array, "8 2 channels h w n"]


class _Passed(NamedTuple):
    """What the edges have done."""

    states: Float[Array, "6 phases channels h w n"]
    kept: _Kept | None


def _pass_forward(
    size: tuple[int, int],
    edges: Int32[Array, "8 2"],
    inputs: Float[Array, "2 phases channels h w n"],
    own: _Own,
    *,
    counts: Float[Array, "8 n"] | None = None,
    running: list[Array] | None = None,
) -> _Passed:
    """Return the states of a cell, and in training what a gradient needs.

    Convolutions are normalised by running statistics, or in training by those of the batch.

    Args:
        size: of the inputs, before they are divided into phases.
        edges: where each comes from, and what it does.
        inputs: of the cell, preprocessed.
        own: the parameters.
        counts: by how much each edge counts for each image, in training.
        running: mean and variance of each batch norm, unless in training.
    """
    phases = inputs.shape[1]
    valid = _valid_pixels(size, phases)

    def normalise_edge(edge, y, norm, kept):
        at = edge.number, norm
        if running is None:
            mean, var = find_moments(y)
            kept = kept._replace(mean=kept.mean.at[at].set(mean), var=kept.var.at[at].set(var))
        else:
            mean, var = (values[at] for values in running)
        return normalise(y, mean, var, own.weight[at], own.bias[at]), kept

    def keep(kept, at, **values):
        if kept is None:
            return None
        new = {name: getattr(kept, name).at[at].set(value) for name, value in values.items()}
        return kept._replace(**new)

    def convolve(edge, done):
        def one(i, carry):
            x, kept = carry
            norm = edge.norm(i)
            at = edge.number, norm
            mixed = convolve_taps(nn.relu(x), own.kernels[at], edge.taps(i))
            y = _multiply(own.pointwise[at][None], mixed[None])
            kept = keep(kept, (edge.number, i), mixed=mixed, convolved=y)
            out, kept = normalise_edge(edge, y, norm, kept)
            return _as_state(out, phases), kept

        start = done.states[edge.source], done.kept
        out, kept = lax.fori_loop(0, edge.passes, one, start)
        return out[0], kept

    def halve(edge, done):
        assert own.halving is not None
        x = nn.relu(done.states[edge.source][_DIAGONAL])
        y = _multiply(own.halving[edge.number], x)
        kept = keep(done.kept, (edge.number, 0), convolved=y)
        return normalise_edge(edge, y, _CONVOLUTIONS, kept)

    def pool_max(edge, done):
        return max_taps(done.states[edge.source], valid, edge.pool)[0], done.kept

    def pool_average(edge, done):
        return average_taps(done.states[edge.source], valid, edge.pool), done.kept

    def skip(edge, done):
        return done.states[edge.source, 0], done.kept

    def write(operation, drops=True):
        def step(edge, done):
            out, kept = operation(edge, done)
            if drops and counts is not None:
                out = out * counts[edge.number]
            return _Passed(done.states.at[edge.target, 0].add(out), kept)

        return step

    operations = _Operations(
        write(pool_max), write(pool_average), write(convolve), write(halve), write(skip, False)
    )
    states = jnp.concatenate([inputs, jnp.zeros((NODES, *inputs.shape[1:]), inputs.dtype)])
    kept = None if running is not None else _keep_nothing(inputs, own)
    return _pass_edges(edges, operations, _Passed(states, kept), phases)


def _keep_nothing(inputs: Array, own: _Own) -> _Kept:
    moments = jnp.zeros(own.weight.shape, jnp.promote_types(inputs.dtype, jnp.float32))
    arrays = jnp.zeros((_EDGES, _SEPARABLE, *inputs.shape[2:]), inputs.dtype)
    return _Kept(moments, moments, arrays, arrays)


def _valid_pixels(size: tuple[int, int], phases: int) -> np.ndarray:
    """Tell which pixels of the phases belong to the image: all, unless its size is odd."""
    rows, columns = (length + length % 2 for length in size)
    valid = np.zeros((rows, columns), bool)
    valid[: size[0], : size[1]] = True
    if phases == 1:
        return valid[None, None, : size[0], : size[1], None]
    valid = valid.reshape(rows // 2, 2, columns // 2, 2).transpose(1, 3, 0, 2)
    return valid.reshape(PHASES, 1, rows // 2, columns // 2, 1)


def _as_state(x: Activations, phases: int) -> Phases:
    """Make an image the first of so many phases."""
    return jnp.pad(x[None], ((0, phases - 1),) + ((0, 0),) * x.ndim)


def _join(states: Float[Array, "6 phases channels h w n"]) -> Float[Array, "out h w n"]:
    """Put the nodes side by side."""
    return states[INPUTS:, 0].reshape(-1, *states.shape[3:])


class _Operations(NamedTuple):
    """What an edge may do to what the edges have done: functions of both."""

    pool_max: Any
    pool_average: Any
    convolve: Any
    halve: Any
    skip: Any


def _pass_edges(
    edges: Int32[Array, "8 2"], operations: _Operations, start: Any, phases: int, back: bool = False
) -> Any:
    """Let each edge do its operation, from the first to the last or back.

    An operation is a loop that is passed once or not at all: it changes the arrays in place, where
    a conditional would copy them.
    """

    def pass_edge(number, done):
        given = _edge(edges, number, phases)
        skips = given.operation == SKIP
        wanted = [
            (operations.pool_max, given.operation == MAX),
            (operations.pool_average, given.operation == AVERAGE),
            (operations.convolve, given.operation >= SEP_3X3),
            (operations.skip, skips & ~given.strided),
        ]
        if phases == PHASES:
            wanted.append((operations.halve, skips & given.strided))
        for operation, times in wanted:

            def body(number, done, operation=operation):
                # What it reads depends on the loop's own counter: XLA cannot move it out of there.
                return operation(_edge(edges, number, phases), done)

            done = lax.fori_loop(number, number + times, body, done)
        return done

    def step(i, done):
        return pass_edge(_EDGES - 1 - i if back else i, done)

    return lax.fori_loop(0, _EDGES, step, start)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _train_cell(
    size: tuple[int, int],
    edges: Int32[Array, "8 2"],
    counts: Float[Array, "8 n"],
    inputs: Float[Array, "2 phases channels h w n"],
    own: _Own,
) -> tuple[OtherActivations, Float[Array, "8 norms channels"], Float[Array, "8 norms channels"]]:
    """Return what a cell makes of a batch, and the moments of its batch norms, as constants.

    The gradient is written out: it passes the edges in reverse, and computes what their operations
    need. JAX's own would not differentiate loops whose length is an input.
    """
    return _train_cell_forward(size, edges, counts, inputs, own)[0]


def _train_cell_forward(size, edges, counts, inputs, own):
    states, kept = _pass_forward(size, edges, inputs, own, counts=counts)
    assert kept is not None
    return (_join(states), kept.mean, kept.var), (edges, counts, own, states, kept)


class _Pulled(NamedTuple):
    """The gradients by the states of a cell, and by its parameters."""

    states: Float[Array, "6 phases channels h w n"]
    own: _Own


def _train_cell_backward(size, residuals, gradients):
    edges, counts, own, states, kept = residuals
    phases = states.shape[1]
    valid = _valid_pixels(size, phases)

    def pull_edge(edge, norm, i, gradient, by_own):
        at = edge.number, norm
        y = kept.convolved[edge.number, i]
        by_y, by_weight, by_bias = pull_norm(
            y, kept.mean[at], kept.var[at], own.weight[at], gradient
        )
        by_own = by_own._replace(
            weight=by_own.weight.at[at].set(by_weight), bias=by_own.bias.at[at].set(by_bias)
        )
        return by_y, by_own

    def input_of(edge, i):
        """Return what the i-th convolution of an edge was given."""
        at = edge.number, edge.norm(0)
        first = kept.convolved[edge.number, 0]
        out = normalise(first, kept.mean[at], kept.var[at], own.weight[at], own.bias[at])
        return jnp.where(i == 0, states[edge.source], _as_state(out, phases))

    def convolve(edge, gradient, by_own):
        def one(j, carry):
            flow, by_own = carry
            i = edge.passes - 1 - j
            norm = edge.norm(i)
            at = edge.number, norm
            by_y, by_own = pull_edge(edge, norm, i, flow[0], by_own)
            mixed = kept.mixed[edge.number, i]
            by_pointwise = by_y.reshape(len(by_y), -1) @ mixed.reshape(len(mixed), -1).T
            by_mixed = _multiply(own.pointwise[at].T[None], by_y[None])
            x = input_of(edge, i)
            by_x, by_kernel = pull_taps(nn.relu(x), own.kernels[at], edge.taps(i), by_mixed)
            by_own = by_own._replace(
                kernels=by_own.kernels.at[at].set(by_kernel),
                pointwise=by_own.pointwise.at[at].set(by_pointwise),
            )
            return jnp.where(x > 0, by_x, 0), by_own

        start = _as_state(gradient, phases), by_own
        return lax.fori_loop(0, edge.passes, one, start)

    def halve(edge, gradient, by_own):
        by_y, by_own = pull_edge(edge, _CONVOLUTIONS, 0, gradient, by_own)
        x = states[edge.source][_DIAGONAL]
        _, pull = jax.vjp(
            lambda kernel, x: _multiply(kernel, nn.relu(x)), own.halving[edge.number], x
        )
        by_kernel, by_x = pull(by_y)
        by_own = by_own._replace(halving=by_own.halving.at[edge.number].set(by_kernel))
        return jnp.zeros_like(states[0]).at[_DIAGONAL].set(by_x), by_own

    def pool_max(edge, gradient, by_own):
        return pull_max(states[edge.source], valid, edge.pool, gradient), by_own

    def pool_average(edge, gradient, by_own):
        return pull_average(states[edge.source], valid, edge.pool, gradient), by_own

    def skip(edge, gradient, by_own):
        return _as_state(gradient, phases), by_own

    def write(operation, drops=True):
        def step(edge, done):
            gradient = done.states[edge.target, 0]
            gradient = gradient * counts[edge.number] if drops else gradient
            by_source, by_own = operation(edge, gradient, done.own)
            return _Pulled(done.states.at[edge.source].add(by_source), by_own)

        return step

    operations = _Operations(
        write(pool_max), write(pool_average), write(convolve), write(halve), write(skip, False)
    )
    last = gradients[0].reshape(NODES, *states.shape[2:])
    start = _Pulled(
        jnp.zeros_like(states).at[INPUTS:, 0].set(last), jax.tree.map(jnp.zeros_like, own)
    )
    by_states, by_own = _pass_edges(edges, operations, start, phases, back=True)
    return None, None, by_states[:INPUTS], by_own


_train_cell.defvjp(_train_cell_forward, _train_cell_backward)


def _count_operations(plan: Plan) -> Int[np.ndarray, "7 2"]:
    """Count the parameters of each operation of a cell, between nodes and from an input."""
    c = plan.width
    counts = np.zeros((len(OPERATIONS), 2), int)
    counts[SKIP, 1] = (c + 2) * c if plan.reduces else 0
    for operation, passes, size in (
        (SEP_3X3, _SEPARABLE, 3),
        (SEP_5X5, _SEPARABLE, 5),
        (DIL_3X3, _DILATED, 3),
        (DIL_5X5, _DILATED, 5),
    ):
        counts[operation] = passes * (size**2 + c + 2) * c
    return counts
