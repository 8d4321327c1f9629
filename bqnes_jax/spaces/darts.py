"""The DARTS cell space (Liu, Simonyan and Yang 2019): a normal and a reduction cell.

A cell has the outputs of the two cells before it as inputs 0 and 1, and four nodes 2 … 5. A node
adds up two operations, each on an input or an earlier node, never both on the same one; the output
of the cell is its nodes side by side. A node's two edges have no order, so that an architecture is
canonical if its first edge comes from the earlier input: there are (180 · 7⁸)² ≈ 1.1·10¹⁸.
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

OPERATIONS = (
    *("max_pool_3x3", "avg_pool_3x3", "skip_connect"),
    *("sep_conv_3x3", "sep_conv_5x5", "dil_conv_3x3", "dil_conv_5x5"),
)
CELLS = ("normal", "reduce")
NODES = 4  # that compute, in a cell
INPUTS = 2  # of a cell, and of a node

_SHAPE = (len(CELLS), NODES, INPUTS, 2)  # the last axis: where an edge comes from, and what it does
_SOURCES = np.arange(INPUTS, INPUTS + NODES)  # how many there are for each node
_LIMITS = np.stack([_SOURCES, np.full(NODES, len(OPERATIONS))], axis=-1)  # nodes×2
_OPTIONS = np.broadcast_to(_LIMITS[None, :, None], _SHAPE)

# Of the graph: inputs, operations and the output of one cell, and then those of the other.
_EDGES = NODES * INPUTS  # of a cell
_VERTICES = INPUTS + _EDGES + 1  # of a cell
_PADDING = len(CELLS) * _VERTICES
_EDGE = re.compile(r"\(\s*['\"](\w+)['\"]\s*,\s*(\d{1,3})\s*\)")  # in a text
_PAIRS = [np.array([(a, b) for b in range(n) for a in range(b)]) for n in _SOURCES]


@dataclasses.dataclass(frozen=True)
class DARTSSpace:
    """Pairs of a normal and a reduction cell, equally likely a priori. Use the instance `DARTS`.

    Of 32 entries the first sixteen are the normal cell: for each of its four nodes the source and
    the operation of one edge, and of the other.

    Example:
        >>> arch = DARTS.sample(jax.random.key(0), 1)[0]
        >>> bool(DARTS.is_canonical(arch)), DARTS.count == (180 * 7**8) ** 2
        (True, True)
        >>> DARTS.to_string(arch)[:39]
        "Genotype(normal=[('avg_pool_3x3', 0), ("
    """

    name = "darts"
    size = None  # too many to list; `count` tells how many
    options = tuple(int(n) for n in _OPTIONS.ravel())

    @property
    def count(self) -> int:
        """How many canonical architectures there are, exactly."""
        pairs = int(np.prod([len(pairs) for pairs in _PAIRS]))
        return (pairs * len(OPERATIONS) ** _EDGES) ** len(CELLS)

    def sample(self, key: PRNGKey, n: int) -> Architectures:
        """Draw n canonical architectures uniformly, independently."""
        check_whole("n", n, 0)
        operation_key, *keys = jax.random.split(key, 1 + NODES)
        shape = (n, len(CELLS))
        operations = jax.random.randint(
            operation_key, (*shape, NODES, INPUTS), 0, len(OPERATIONS), jnp.int32
        )
        sources = jnp.stack(
            [
                jnp.asarray(pairs, jnp.int32)[jax.random.randint(key, shape, 0, len(pairs))]
                for key, pairs in zip(keys, _PAIRS, strict=True)
            ],
            axis=2,
        )
        return jnp.stack([sources, operations], axis=-1).reshape(n, len(self.options))

    def mutate(self, key: PRNGKey, arch: ArrayLike) -> Architecture:
        """Change one operation or one source, uniformly among the canonical results."""
        edges = self._edges(arch)
        values = jnp.arange(_OPTIONS.max(), dtype=jnp.int32)
        # A node has each source once: its own one, and that of its other edge, stay away.
        sources = edges[..., 0]
        taken = (sources[..., None] == values) | (sources[..., ::-1, None] == values)
        same = edges[..., 1, None] == values
        allowed = ~jnp.stack([taken, same], axis=-2) & (values < _OPTIONS[..., None])
        chosen = jax.random.categorical(key, jnp.where(allowed, 0.0, -jnp.inf).ravel())
        entry, value = chosen // len(values), chosen % len(values)
        return self.repair(edges.ravel().at[entry].set(value.astype(jnp.int32)))

    def is_canonical(self, arch: ArrayLike) -> Bool[Array, "*batch"]:
        """Tell whether the edges of every node are in order; any leading axes are kept."""
        sources = self._split(arch)[..., 0]
        return jnp.all(sources[..., 0] < sources[..., 1], axis=(-2, -1))

    def repair(self, arch: ArrayLike) -> Int32[Array, "*batch 32"]:
        """Bring the edges of every node in order; any leading axes are kept."""
        edges = self._split(arch)
        swapped = edges[..., 0, 0] > edges[..., 1, 0]
        edges = jnp.where(swapped[..., None, None], edges[..., ::-1, :], edges)
        return edges.reshape(*edges.shape[:-4], len(self.options))

    def coordinates(self, arch: ArrayLike) -> Float[Array, "*batch 168"]:
        """Return the one-hot sources and operations of all edges, side by side."""
        arch = as_architectures(self, arch)
        parts = [jax.nn.one_hot(arch[..., i], n) for i, n in enumerate(self.options)]
        return jnp.concatenate(parts, axis=-1)

    def decode(self, arch: ArrayLike) -> dict[str, list[tuple[str, int]]]:
        """Return the edges of both cells: what each does, and where it comes from."""
        edges = np.asarray(self._edges(arch)).reshape(len(CELLS), _EDGES, 2)
        return {
            cell: [(OPERATIONS[operation], int(source)) for source, operation in some]
            for cell, some in zip(CELLS, edges, strict=True)
        }

    def to_string(self, arch: ArrayLike) -> str:
        """Write one architecture as papers do, as a `Genotype`."""
        self._check_canonical(arch)
        joined = f"range({INPUTS}, {INPUTS + NODES})"
        cells = (
            f"{cell}={edges!r}, {cell}_concat={joined}" for cell, edges in self.decode(arch).items()
        )
        return f"Genotype({', '.join(cells)})"

    def from_string(self, text: str) -> Architecture:
        """Read one `Genotype`, with the edges of a node in any order; no code is run."""
        if not isinstance(text, str):
            raise BQNESError(f"{text!r} is not a text; `str` of a `Genotype` is one.")
        cells = [_read_cell(text, cell) for cell in CELLS]
        arch = np.array(cells, np.int32).reshape(len(self.options))
        if (arch >= np.array(self.options)).any():
            raise BQNESError(
                f"an edge in {text!r} comes from its own node or a later one; node {INPUTS} has "
                "the inputs 0 and 1, and each further node one more."
            )
        arch = self.repair(arch)
        self._check_canonical(arch)
        return arch

    def graph(self, arch: ArrayLike) -> jraph.GraphsTuple:
        """Return the labelled graph of one architecture: both cells side by side.

        Its nodes are inputs, operations and outputs, with labels that tell the cells apart. What a
        node of a cell adds up goes to every operation on that node, and to the output. Static
        shape: 23 nodes and 48 edges, of which the padding belongs to a second graph.
        """
        return _graph(self._edges(arch))

    def _check_canonical(self, arch: ArrayLike) -> None:
        if not concrete(self.is_canonical(self._one(arch))):
            raise BQNESError(
                f"{np.asarray(arch).tolist()} is no architecture of space {self.name!r}: the two "
                "edges of a node must come from different places, the earlier one first; `repair` "
                "brings them in order."
            )

    def _one(self, arch: ArrayLike) -> Architecture:
        arch = as_architectures(self, arch)
        check_shape("architecture", arch, (len(self.options),))
        return arch

    def _split(self, arch: ArrayLike) -> Int32[Array, "*batch 2 4 2 2"]:
        arch = as_architectures(self, arch)
        return arch.reshape(*arch.shape[:-1], *_SHAPE)

    def _edges(self, arch: ArrayLike) -> Int32[Array, "2 4 2 2"]:
        return self._one(arch).reshape(_SHAPE)


def _read_cell(text: str, cell: str) -> list[tuple[int, int]]:
    """Return source and operation of each edge of a cell."""
    form = f"Genotype({cell}=[('sep_conv_3x3', 0), …], {cell}_concat=range(2, 6), …)"
    lists = re.findall(rf"\b{cell}\s*=\s*\[([^\]]*)\]", text)
    if len(lists) > 1:
        raise BQNESError(
            f"{text!r} has {len(lists)} {cell} cells; it must be one Genotype: {form}."
        )
    inside = lists[0] if lists else ""
    found = re.findall(_EDGE, inside)
    other = re.sub(_EDGE, "", inside).replace(",", "").strip()
    if other:
        raise BQNESError(
            f"{other!r} in the {cell} cell of {text!r} is no edge; the form is {form}."
        )
    if len(found) != _EDGES:
        raise BQNESError(
            f"{text!r} has {len(found)} edges of the {cell} cell; it must have {_EDGES}: {form}."
        )
    for operation, _ in found:
        if operation not in OPERATIONS:
            raise BQNESError(
                f"operation {operation!r} in {text!r} does not exist; "
                f"allowed are {', '.join(OPERATIONS)}."
            )
    # Of a `range` only the ends are written.
    joined = re.search(rf"{cell}_concat\s*=\s*(\w*[(\[{{][^)\]}}]*[)\]}}])", text)
    written = joined[1] if joined else f"range({INPUTS}, {INPUTS + NODES})"
    numbers = [int(number) for number in re.findall(r"\d{1,3}", written)]
    nodes = range(INPUTS, INPUTS + NODES)
    if numbers != ([nodes.start, nodes.stop] if "range" in written else [*nodes]):
        raise BQNESError(f"{text!r} joins the nodes {written}; cells of this space join all four.")
    return [(int(source), OPERATIONS.index(operation)) for operation, source in found]


@jax.jit
def _graph(edges: Int32[Array, "2 4 2 2"]) -> jraph.GraphsTuple:
    first = np.arange(len(CELLS)) * _VERTICES
    own = first[:, None, None] + INPUTS + np.arange(_EDGES).reshape(NODES, INPUTS)
    outputs = np.broadcast_to((first + _VERTICES - 1)[:, None, None], own.shape)
    source, operation = edges[..., 0], edges[..., 1]

    # A node is the sum of two operations, and both point to what uses it; an input stands alone.
    of_node = source >= INPUTS
    start = jnp.where(of_node, INPUTS + INPUTS * (source - INPUTS), source)
    start = start + first[:, None, None]
    is_edge = jnp.stack([jnp.ones_like(of_node), of_node, jnp.ones_like(of_node)])
    senders = jnp.stack([start, start + 1, jnp.broadcast_to(own, source.shape)])
    receivers = jnp.broadcast_to(np.stack([own, own, outputs]), senders.shape)
    order = jnp.argsort(~is_edge.ravel(), stable=True)
    senders, receivers = (
        jnp.where(is_edge, ends, _PADDING).ravel()[order].astype(jnp.int32)
        for ends in (senders, receivers)
    )
    n_edge = jnp.sum(is_edge, dtype=jnp.int32)

    kinds = INPUTS + len(OPERATIONS) + 1  # of labels, in a cell
    labels = jnp.concatenate(
        [
            jnp.broadcast_to(np.arange(INPUTS), (len(CELLS), INPUTS)),
            INPUTS + operation.reshape(len(CELLS), _EDGES),
            jnp.full((len(CELLS), 1), kinds - 1),
        ],
        axis=1,
    )
    labels = labels + kinds * np.arange(len(CELLS))[:, None]
    return jraph.GraphsTuple(
        nodes=jnp.append(labels.ravel(), 0).astype(jnp.int32),
        edges=None,
        senders=senders,
        receivers=receivers,
        globals=None,
        n_node=jnp.array([_PADDING, 1], jnp.int32),
        n_edge=jnp.stack([n_edge, is_edge.size - n_edge]),
    )


DARTS = DARTSSpace()
