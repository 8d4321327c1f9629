"""The edges of a cell of NATS-Bench, one after another, each with its architecture's operation."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int32

from bqnes_jax.models.shifts import Activations
from bqnes_jax.spaces.nats import EDGES, OPERATIONS

_SOURCES, _TARGETS = np.array(EDGES, np.int32).T

Tree = Any


class Edge(NamedTuple):
    """The number of an edge, and the nodes where it begins and ends."""

    number: Int32[Array, ""]
    source: Int32[Array, ""]
    target: Int32[Array, ""]


class Passed(NamedTuple):
    """What the edges have done: the sums at the nodes, and a tree of what each keeps, [6, …]."""

    nodes: Float[Array, "4 channels height width n"]
    kept: Tree


# Returns what an edge adds to a node, and what it keeps; None for each leaf, or tree, of nothing.
Operation = Callable[[Edge, Passed], tuple[Activations, Tree]]


def pass_edges(
    arch: Int32[Array, "6"],
    operations: Mapping[str, Operation],
    start: Passed,
    *,
    in_place: bool,
    back: bool = False,
) -> Passed:
    """Let each edge do its operation, if there is one under its name.

    Args:
        arch: the number of the operation of each edge.
        operations: by name.
        start: what the first edge finds.
        in_place: whether an operation is a loop that is passed once or not at all. It changes the
            arrays in place, where a conditional would copy them; but it has no gradient. Otherwise
            one result is chosen from those of all operations, as suits `vmap`.
        back: from the last edge to the first, each adding to the node where it begins.
    """
    nothing = jax.tree.map(lambda values: jnp.zeros_like(values[0]), tuple(start))

    def write(done: Passed, edge: Edge, new: tuple[Activations, Tree]) -> Passed:
        added, kept = new
        end = edge.source if back else edge.target
        return Passed(
            done.nodes.at[end].add(added, mode="promise_in_bounds"),
            _replace(
                done.kept,
                kept,
                lambda old, new: old.at[edge.number].set(new, mode="promise_in_bounds"),
            ),
        )

    def repeat(number: Array, done: Passed) -> Passed:
        for name, operation in operations.items():
            times = arch[number] == OPERATIONS.index(name)

            def body(number, done, operation=operation):
                # What it reads depends on the loop's own counter: XLA cannot move it out of there.
                edge = _edge(number)
                return write(done, edge, operation(edge, done))

            done = lax.fori_loop(number, number + times, body, done)
        return done

    def choose(number: Array, done: Passed) -> Passed:
        edge = _edge(number)

        def branch(name: str) -> Callable:
            if name not in operations:
                return lambda: nothing
            return lambda: _replace(nothing, operations[name](edge, done), lambda _, new: new)

        return write(done, edge, lax.switch(arch[number], [branch(name) for name in OPERATIONS]))

    pass_edge, last = repeat if in_place else choose, len(EDGES) - 1
    return lax.fori_loop(
        0, len(EDGES), lambda i, done: pass_edge(last - i if back else i, done), start
    )


def _edge(number: Array) -> Edge:
    return Edge(number, jnp.asarray(_SOURCES)[number], jnp.asarray(_TARGETS)[number])


def _replace(old: Tree, new: Tree, function: Callable[[Array, Array], Array]) -> Tree:
    """Make new leaves of old and new ones, except where a new leaf or tree is None."""
    return jax.tree.map(
        lambda new, old: old if new is None else function(old, new),
        new,
        old,
        is_leaf=lambda tree: tree is None,
    )
