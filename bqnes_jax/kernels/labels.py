"""Labels of the Weisfeiler–Lehman test, by hashing, on any batch of labelled graphs.

ℓ⁰(v) = hash(label of v);  ℓᵗ⁺¹(v) = hash(ℓᵗ(v), multiset of ℓᵗ over the out-neighbours of v).
"""

import functools

import jax
import jax.numpy as jnp
import jraph
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int, UInt32

from bqnes_jax.compiling import call_apart
from bqnes_jax.errors import BQNESError, check_whole
from bqnes_jax.spaces.base import GraphSpace, enumerate_space


def wl_labels(
    graph: jraph.GraphsTuple, iterations: int, *, seed: ArrayLike = 0
) -> UInt32[Array, "l v"]:
    """Return the labels of every node after 0 … h refinements, (h + 1)×nodes, as 32-bit hashes.

    `graph.nodes` are integer labels; edges point from `senders` to `receivers`. Integers in
    `graph.edges` are labels of edges: a node is refined by the labels of the edges that leave it
    and of the nodes where they end. Batched tuples are refined together, and so is padding, which
    touches no real node.
    """
    _check_graph(graph, iterations)
    nodes, senders, receivers = (
        jnp.asarray(part) for part in (graph.nodes, graph.senders, graph.receivers)
    )
    label = _mix(nodes.astype(jnp.uint32) + _salt(seed, 0))
    layers = [label]
    for layer in range(1, iterations + 1):
        # A sum does not depend on the order, and of well mixed numbers hardly collides.
        message = _mix(label ^ np.uint32(0x5BD1E995))[receivers]
        if graph.edges is not None:
            edges = jnp.asarray(graph.edges).astype(jnp.uint32)
            message = _mix(message + _mix(edges + _salt(seed, layer)))
        multiset = jax.ops.segment_sum(message, senders, nodes.shape[0])
        label = _mix(_mix(label + _salt(seed, layer)) * np.uint32(0x9E3779B1) + multiset)
        layers.append(label)
    return jnp.stack(layers)


def wl_histograms(
    graph: jraph.GraphsTuple, iterations: int = 1, *, buckets: int = 1024
) -> Float[Array, "graphs d"]:
    """Count the hashed labels of each graph of a batch: graphs×((h + 1)·buckets).

    Every graph of the tuple has a row, padding too: `jraph.get_graph_padding_mask` tells which.

    Example:
        >>> path = jraph.GraphsTuple(
        ...     nodes=jnp.array([0, 1, 2]), senders=jnp.array([0, 1]), receivers=jnp.array([1, 2]),
        ...     n_node=jnp.array([3]), n_edge=jnp.array([2]), edges=None, globals=None,
        ... )
        >>> wl_histograms(path, iterations=1, buckets=64).sum().item()
        6.0
    """
    check_whole("buckets", buckets, 1)
    _check_graph(graph, iterations)
    return _hashed_histograms(graph, iterations, buckets)


def vocabulary(space: GraphSpace, iterations: int) -> tuple[np.ndarray, np.ndarray]:
    """List every label that occurs in a space, sorted, and the layer of each.

    Two independent hashes must tell the same labels apart; so a collision does not go unnoticed.
    """
    labels, real = list_labels(space, iterations, seed=0)
    check, _ = list_labels(space, iterations, seed=1)
    pairs = labels.astype(np.uint64) << np.uint64(32) | check
    # Layer by layer: to sort numbers is far faster than to sort rows of them.
    each = [np.unique(pairs[:, layer][real]) for layer in range(iterations + 1)]
    known, layers = np.concatenate(each), np.repeat(np.arange(iterations + 1), [*map(len, each)])
    for half in (known >> np.uint64(32), known.astype(np.uint32)):
        if len(np.unique(half)) < len(known):
            raise BQNESError(
                f"two labels of space {space.name!r} share a hash after {iterations} iterations; "
                "use hashed features (buckets=…)."
            )
    order = np.argsort(known)
    return (known[order] >> np.uint64(32)).astype(np.uint32), layers[order].astype(np.int32)


def _check_graph(graph: jraph.GraphsTuple, iterations: int) -> None:
    check_whole("iterations", iterations, 0)
    nodes = graph.nodes
    if not isinstance(nodes, jax.Array | np.ndarray):
        raise BQNESError(
            f"graph.nodes is of type {type(nodes).__name__}; it must be an array with one integer "
            "label for each node."
        )
    if not jnp.issubdtype(nodes.dtype, jnp.integer) or nodes.ndim != 1:
        raise BQNESError(
            f"graph.nodes has type {nodes.dtype} and shape {nodes.shape}; "
            "it must hold one integer label for each node."
        )
    edges, shape = graph.edges, jnp.asarray(graph.senders).shape
    if edges is None:
        return
    if not isinstance(edges, jax.Array | np.ndarray):
        raise BQNESError(
            f"graph.edges is of type {type(edges).__name__}; it must be None, or an array with one "
            "integer label for each edge."
        )
    if not jnp.issubdtype(edges.dtype, jnp.integer) or edges.shape != shape:
        raise BQNESError(
            f"graph.edges has type {edges.dtype} and shape {edges.shape}; it must be None, or hold "
            "one integer label for each edge."
        )


@functools.partial(jax.jit, static_argnums=(1, 2))
def _hashed_histograms(
    graph: jraph.GraphsTuple, iterations: int, buckets: int
) -> Float[Array, "graphs d"]:
    columns = columns_of(wl_labels(graph, iterations), buckets)
    graphs, (layers, nodes) = len(graph.n_node), columns.shape
    owner = jnp.repeat(jnp.arange(graphs), graph.n_node, total_repeat_length=nodes)
    return jnp.zeros((graphs, layers * buckets)).at[owner, columns].add(1)


def columns_of(labels: UInt32[Array, "l v"], buckets: int) -> Int[Array, "l v"]:
    """Return the column of a histogram that each label of each layer counts in."""
    first = np.arange(len(labels), dtype=np.int32)[:, None] * np.int32(buckets)
    return (labels % np.uint32(buckets)).astype(jnp.int32) + first


@functools.partial(jax.jit, static_argnums=(0, 1))
def _all_labels(
    space: GraphSpace, iterations: int, archs: Int[Array, "n length"], seed: UInt32[Array, ""]
) -> tuple[UInt32[Array, "n l v"], Bool[Array, "n v"]]:
    def one(arch: Int[Array, " length"]) -> tuple[UInt32[Array, "l v"], Bool[Array, " v"]]:
        graph = space.graph(arch)
        labels = wl_labels(graph, iterations, seed=seed)
        return labels, jnp.arange(labels.shape[1]) < graph.n_node[0]

    return jax.vmap(one)(archs)


@functools.lru_cache(maxsize=2)  # of the two seeds that a vocabulary needs, one is needed again
def list_labels(space: GraphSpace, iterations: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the labels of the nodes of every architecture, and which of these nodes are real."""

    def compute() -> tuple[np.ndarray, np.ndarray]:
        labels, real = _all_labels(space, iterations, enumerate_space(space), jnp.uint32(seed))
        return np.asarray(labels), np.asarray(real)

    return call_apart(compute)


def _mix(x: UInt32[Array, " v"]) -> UInt32[Array, " v"]:
    """Spread every bit over all 32 (the finaliser of MurmurHash3, a bijection)."""
    x = (x ^ (x >> 16)) * np.uint32(0x85EBCA6B)
    x = (x ^ (x >> 13)) * np.uint32(0xC2B2AE35)
    return x ^ (x >> 16)


def _salt(seed: ArrayLike, layer: int) -> UInt32[Array, ""]:
    """Give each layer and seed labels of their own."""
    return jnp.uint32(seed) * np.uint32(0x2545F491) + np.uint32(0x6C078965 * (layer + 1) % 2**32)
