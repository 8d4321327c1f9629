"""The edges of a cell of DARTS, one after another, each with its architecture's operation.

They are passed by the same instructions, whatever they come from: all that they can come from is in
one array. All convolutions are one loop over the places of a kernel (`taps`), so that there are
five operations to compile in a cell, and not 7 × 14. An edge computes only what its architecture
asks for; under `vmap` every edge takes as long as the longest one. `evaluate_cell` normalises by
running statistics, `train_cell` by those of the batch and with a gradient that is written out.
"""

import functools
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int, Int32

from bqnes_jax.models.norms import find_moments, normalise, pull_norm
from bqnes_jax.models.shifts import Activations, OtherActivations
from bqnes_jax.models.taps import (
    PHASES,
    Phases,
    Taps,
    average_taps,
    convolve_taps,
    max_taps,
    pull_average,
    pull_max,
    pull_taps,
)
from bqnes_jax.spaces.darts import INPUTS, NODES, OPERATIONS

MAX, AVERAGE, SKIP, SEP_3X3, SEP_5X5, DIL_3X3, DIL_5X5 = range(len(OPERATIONS))

EDGES = NODES * INPUTS
CONVOLUTIONS = 6  # of an edge: twice separable and once dilated, of 3×3 and of 5×5
SEPARABLE, DILATED = 2, 1  # how many of them an operation is
# Phases that a halving sees: even pixels, and odd ones.
DIAGONAL = np.array([0, PHASES - 1], np.int32)


class Own(NamedTuple):
    """The parameters of the edges of a cell, one norm for each convolution and for the halving."""

    kernels: Float[Array, "8 6 places channels"]
    pointwise: Float[Array, "8 6 channels channels"]
    halving: Float[Array, "8 2 half channels"] | None  # in a reduction cell
    weight: Float[Array, "8 norms channels"]
    bias: Float[Array, "8 norms channels"]


def multiply(
    kernel: Float[Array, "parts each in"], x: Float[Array, "parts in h w n"]
) -> OtherActivations:
    """Multiply the channels of each part by a matrix, and put the results beside each other."""
    out = kernel @ x.reshape(*x.shape[:2], -1)
    return out.reshape(-1, *x.shape[2:])


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
        return jnp.where(self.operation >= DIL_3X3, DILATED, SEPARABLE)

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


def find_used(edges: Int32[Array, "8 2"], norms: int) -> Bool[Array, "8 norms 1"]:
    """Tell which batch norms each edge uses."""
    edge = jax.vmap(lambda e: _edge(edges, e, PHASES if norms > CONVOLUTIONS else 1))(
        jnp.arange(EDGES)
    )
    first, second = (edge.norm(i)[:, None] for i in (0, 1))
    number = jnp.arange(norms)
    convolves = (edge.operation >= SEP_3X3)[:, None]
    halves = ((edge.operation == SKIP) & edge.strided)[:, None]
    of_edge = convolves & ((number == first) | (number == second))
    return (of_edge | (halves & (number == CONVOLUTIONS)))[..., None]


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
    own: Own,
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
            y = multiply(own.pointwise[at][None], mixed[None])
            kept = keep(kept, (edge.number, i), mixed=mixed, convolved=y)
            out, kept = normalise_edge(edge, y, norm, kept)
            return _as_state(out, phases), kept

        start = done.states[edge.source], done.kept
        out, kept = lax.fori_loop(0, edge.passes, one, start)
        return out[0], kept

    def halve(edge, done):
        assert own.halving is not None
        x = nn.relu(done.states[edge.source][DIAGONAL])
        y = multiply(own.halving[edge.number], x)
        kept = keep(done.kept, (edge.number, 0), convolved=y)
        return normalise_edge(edge, y, CONVOLUTIONS, kept)

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


def _keep_nothing(inputs: Array, own: Own) -> _Kept:
    moments = jnp.zeros(own.weight.shape, jnp.promote_types(inputs.dtype, jnp.float32))
    arrays = jnp.zeros((EDGES, SEPARABLE, *inputs.shape[2:]), inputs.dtype)
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
        return pass_edge(EDGES - 1 - i if back else i, done)

    return lax.fori_loop(0, EDGES, step, start)


def evaluate_cell(
    size: tuple[int, int],
    edges: Int32[Array, "8 2"],
    inputs: Float[Array, "2 phases channels h w n"],
    own: Own,
    running: list[Array],
) -> OtherActivations:
    """Return what a cell makes of images, normalised by running means and variances."""
    return _join(_pass_forward(size, edges, inputs, own, running=running).states)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def train_cell(
    size: tuple[int, int],
    edges: Int32[Array, "8 2"],
    counts: Float[Array, "8 n"],
    inputs: Float[Array, "2 phases channels h w n"],
    own: Own,
) -> tuple[OtherActivations, Float[Array, "8 norms channels"], Float[Array, "8 norms channels"]]:
    """Return what a cell makes of a batch, and the moments of its batch norms, as constants.

    The gradient is written out: it passes the edges in reverse, and computes what their operations
    need. JAX's own would not differentiate loops whose length is an input.
    """
    return _train_forward(size, edges, counts, inputs, own)[0]


def _train_forward(size, edges, counts, inputs, own):
    states, kept = _pass_forward(size, edges, inputs, own, counts=counts)
    assert kept is not None
    return (_join(states), kept.mean, kept.var), (edges, counts, own, states, kept)


class _Pulled(NamedTuple):
    """The gradients by the states of a cell, and by its parameters."""

    states: Float[Array, "6 phases channels h w n"]
    own: Own


def _train_backward(size, residuals, gradients):
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
            by_mixed = multiply(own.pointwise[at].T[None], by_y[None])
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
        by_y, by_own = pull_edge(edge, CONVOLUTIONS, 0, gradient, by_own)
        x = states[edge.source][DIAGONAL]
        _, pull = jax.vjp(
            lambda kernel, x: multiply(kernel, nn.relu(x)), own.halving[edge.number], x
        )
        by_kernel, by_x = pull(by_y)
        by_own = by_own._replace(halving=by_own.halving.at[edge.number].set(by_kernel))
        return jnp.zeros_like(states[0]).at[DIAGONAL].set(by_x), by_own

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


train_cell.defvjp(_train_forward, _train_backward)
