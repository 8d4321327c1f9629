"""The NATS-Bench topology space: cells of four nodes and six operations.

An architecture is `int32[6]`: the operation on each of the edges 0→1, 0→2, 1→2, 0→3, 1→3, 2→3 of
the cell. As text it is NAS-Bench-201's `|op~0|+|op~0|op~1|+|op~0|op~1|op~2|`.
"""

import dataclasses
import re

import jax
import jax.numpy as jnp
import jraph
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int32

from bqnes_jax.errors import BQNESError, check_shape, check_whole, concrete
from bqnes_jax.spaces.base import Architecture, Architectures, as_architectures
from bqnes_jax.types import PRNGKey

OPERATIONS = ("none", "skip_connect", "nor_conv_1x1", "nor_conv_3x3", "avg_pool_3x3")
NONE, SKIP = 0, 1
INPUT, OUTPUT = 5, 6  # node labels beside the five operations
EDGES = ((0, 1), (0, 2), (1, 2), (0, 3), (1, 3), (2, 3))

# The labelled graph has the operations on its nodes: input, the six edges of the cell, output, in
# topological order. Two are joined where one edge of the cell ends at the node the other leaves.
_NODES = 8
_ADJACENCY = np.zeros((_NODES, _NODES), bool)
for _i, (_source, _target) in enumerate(EDGES):
    _ADJACENCY[0, 1 + _i] = _source == 0
    _ADJACENCY[1 + _i, 7] = _target == 3
    for _j, (_next_source, _) in enumerate(EDGES):
        _ADJACENCY[1 + _i, 1 + _j] = _target == _next_source
_MAX_EDGES = int(_ADJACENCY.sum())  # contraction never adds to the edges of the full graph


@dataclasses.dataclass(frozen=True)
class NATSSpace:
    """All 5⁶ = 15,625 cells, equally likely a priori. Use the instance `NATS`.

    Example:
        >>> arch = NATS.from_string(
        ...     "|nor_conv_3x3~0|+|none~0|skip_connect~1|+|none~0|none~1|avg_pool_3x3~2|"
        ... )
        >>> arch.tolist()
        [3, 0, 1, 0, 0, 4]
        >>> int(NATS.index(arch))
        9504
        >>> NATS.graph(arch).n_node.tolist()  # input, convolution, pooling, output; and padding
        [4, 5]
    """

    name = "nats"
    options = (len(OPERATIONS),) * len(EDGES)
    size = len(OPERATIONS) ** len(EDGES)

    def sample(self, key: PRNGKey, n: int) -> Architectures:
        """Draw n architectures uniformly, independently (so with repetitions)."""
        check_whole("n", n, 0)
        return jax.random.randint(key, (n, len(EDGES)), 0, len(OPERATIONS), jnp.int32)

    def mutate(self, key: PRNGKey, arch: ArrayLike) -> Architecture:
        """Change the operation on one edge to a different one, both drawn uniformly."""
        arch = self._one(arch)
        edge_key, shift_key = jax.random.split(key)
        edge = jax.random.randint(edge_key, (), 0, len(EDGES))
        shift = jax.random.randint(shift_key, (), 1, len(OPERATIONS), jnp.int32)
        return arch.at[edge].set((arch[edge] + shift) % len(OPERATIONS))

    def index(self, arch: ArrayLike) -> Int32[Array, "*batch"]:
        """Read architectures as numbers in base 5, the first edge most significant."""
        return as_architectures(self, arch) @ _place_values()

    def from_index(self, index: ArrayLike) -> Int32[Array, "*batch 6"]:
        """Return the architectures of these numbers, 0 … 15,624."""
        values = concrete(index)
        if not jnp.issubdtype(jnp.result_type(index), jnp.integer):
            raise BQNESError(f"index is of type {jnp.result_type(index)}; it must be an integer.")
        if values is not None and values.size and not 0 <= values.min() <= values.max() < self.size:
            worst = values.min() if values.min() < 0 else values.max()
            raise BQNESError(f"index {worst} is outside space 'nats'; it must be from 0 to 15624.")
        index = jnp.asarray(index, jnp.int32)
        return index[..., None] // _place_values() % len(OPERATIONS)

    def to_string(self, arch: ArrayLike) -> str:
        """Write one cell in NAS-Bench-201's form."""
        arch = np.asarray(self._one(arch))
        nodes: dict[int, str] = {}
        for (source, target), operation in zip(EDGES, arch, strict=True):
            nodes[target] = nodes.get(target, "|") + f"{OPERATIONS[operation]}~{source}|"
        return "+".join(nodes.values())

    def from_string(self, text: str) -> Architecture:
        """Read one cell in NAS-Bench-201's form."""
        form = "|op~0|+|op~0|op~1|+|op~0|op~1|op~2|"
        node = [r"\|" + "".join(rf"([^|~+]+)~{i}\|" for i in range(n)) for n in (1, 2, 3)]
        match = re.fullmatch(r"\+".join(node), text.strip()) if isinstance(text, str) else None
        if match is None:
            raise BQNESError(f"{text!r} is not an architecture; the form is {form!r}.")
        for operation in match.groups():
            if operation not in OPERATIONS:
                raise BQNESError(
                    f"operation {operation!r} in {text!r} does not exist; "
                    f"allowed are {', '.join(OPERATIONS)}."
                )
        return jnp.array([OPERATIONS.index(operation) for operation in match.groups()], jnp.int32)

    def coordinates(self, arch: ArrayLike) -> Float[Array, "*batch 30"]:
        """Return the one-hot operations of the six edges, side by side."""
        one_hot = jax.nn.one_hot(as_architectures(self, arch), len(OPERATIONS))
        return one_hot.reshape(*one_hot.shape[:-2], len(self.options) * len(OPERATIONS))

    def graph(self, arch: ArrayLike) -> jraph.GraphsTuple:
        """Return the labelled graph of one cell, with only what its output depends on.

        `none` is removed, `skip_connect` contracted (each predecessor gets each successor), and
        what lies on no path from input to output dropped. A cell without such a path has the empty
        graph. Static shape: 9 nodes and 10 edges, of which the padding belongs to a second graph.
        """
        return _graph(self._one(arch))

    def _one(self, arch: ArrayLike) -> Architecture:
        arch = as_architectures(self, arch)
        check_shape("architecture", arch, (len(EDGES),))
        return arch


@jax.jit
def _graph(arch: Int32[Array, "6"]) -> jraph.GraphsTuple:
    labels = jnp.concatenate([jnp.array([INPUT]), arch, jnp.array([OUTPUT])]).astype(jnp.int32)
    adjacency = _contract(labels)
    keep = _on_path(adjacency)
    sources, targets = (jnp.asarray(ends, jnp.int32) for ends in np.triu_indices(_NODES, 1))
    edge_keep = adjacency[sources, targets] & keep[sources] & keep[targets]

    n_node, n_edge = (jnp.sum(kept, dtype=jnp.int32) for kept in (keep, edge_keep))
    place = _count_before(keep)
    is_edge = jnp.arange(_MAX_EDGES) < n_edge
    ends = (_to_front(place[ends], edge_keep)[:_MAX_EDGES] for ends in (sources, targets))
    senders, receivers = (jnp.where(is_edge, end, n_node) for end in ends)
    return jraph.GraphsTuple(
        nodes=jnp.append(_to_front(labels, keep), 0),
        edges=None,
        senders=senders,
        receivers=receivers,
        globals=None,
        n_node=jnp.stack([n_node, _NODES + 1 - n_node]),
        n_edge=jnp.stack([n_edge, _MAX_EDGES - n_edge]),
    )


def _count_before(keep: Bool[Array, " n"]) -> Int32[Array, " n"]:
    """Count the kept entries before each: where it goes when what is dropped is gone."""
    return jnp.sum(np.tri(len(keep), k=-1, dtype=bool) & keep, axis=1, dtype=jnp.int32)


def _to_front(values: Int32[Array, " n"], keep: Bool[Array, " n"]) -> Int32[Array, " n"]:
    """Move what is kept to the front, in order, and fill with zeros.

    For a handful of entries a comparison of all pairs compiles and runs faster than a scatter.
    """
    goes = (_count_before(keep)[:, None] == jnp.arange(len(keep))) & keep[:, None]
    return jnp.sum(jnp.where(goes, values[:, None], 0), axis=0, dtype=jnp.int32)


def _contract(labels: Int32[Array, "8"]) -> Bool[Array, "8 8"]:
    """Join the nodes that data flows between directly, `none` and `skip_connect` taken out.

    With A the graph without `none` and S the skips, A + ASA + ASASA + … joins what only skips lie
    between, so that chains of any length pass their connection on.
    """
    present, skip = labels != NONE, labels == SKIP
    adjacency = jnp.asarray(_ADJACENCY) & present[:, None] & present[None, :]
    through = _closure(adjacency & skip[:, None])
    joined = _either(adjacency, through)
    left = present & ~skip
    return joined & left[:, None] & left[None, :]


def _on_path(adjacency: Bool[Array, "8 8"]) -> Bool[Array, "8"]:
    """Mark the nodes that lie on a path from the first node to the last."""
    reaches = _closure(adjacency)
    return reaches[0] & reaches[:, -1]


def _closure(adjacency: Bool[Array, "8 8"]) -> Bool[Array, "8 8"]:
    """Return where any number of steps leads, none included: (I + A)⁸."""
    steps = adjacency | np.eye(_NODES, dtype=bool)
    for _ in range(3):
        steps = _either(steps, steps)
    return steps


def _either(a: Bool[Array, "8 8"], b: Bool[Array, "8 8"]) -> Bool[Array, "8 8"]:
    """Multiply as matrices of truth values."""
    return jnp.any(a[:, :, None] & b[None, :, :], axis=1)


def _place_values() -> Int32[Array, "6"]:
    return jnp.array([len(OPERATIONS) ** i for i in reversed(range(len(EDGES)))], jnp.int32)


NATS = NATSSpace()
