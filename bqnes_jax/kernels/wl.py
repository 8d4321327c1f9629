"""The Weisfeiler–Lehman subtree kernel, by hashing, on any batch of labelled graphs.

ℓ⁰(v) = hash(label of v);  ℓᵗ⁺¹(v) = hash(ℓᵗ(v), multiset of ℓᵗ over the out-neighbours of v).
The features of a graph are the histograms of its labels of every iteration t = 0 … h, side by side.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import jraph
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int, UInt32

from bqnes_jax.errors import BQNESError, as_float, check_positive, check_shape, check_whole
from bqnes_jax.kernels.base import matmul
from bqnes_jax.spaces.base import GraphSpace, as_architectures, enumerate_space


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["layer_weights"],
    meta_fields=["space", "iterations", "buckets"],
)
@dataclasses.dataclass(frozen=True)
class WL:
    """Normalised WL kernel on the graphs of a space: k = ⟨φ, φ'⟩ / (‖φ‖ ‖φ'‖).

    The histogram of layer t is multiplied by `layer_weights[t]` (None: all one, and not fitted).
    With `buckets=None` every label that occurs in the space has a feature of its own, which needs a
    space that can be listed; otherwise labels are hashed into that many buckets per layer. One more
    feature marks the empty graph, so that it is like itself and unlike everything else.

    Example:
        >>> from bqnes_jax.spaces import NATS
        >>> kernel = WL(NATS, iterations=1)
        >>> archs = NATS.from_index(jnp.array([9504, 9504, 0]))
        >>> kernel.features(archs).shape
        (3, 100)
        >>> kernel.gram(archs).round(3).tolist()
        [[1.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
    """

    space: GraphSpace
    iterations: int = 1
    buckets: int | None = None
    layer_weights: ArrayLike | None = None

    finite = True

    def __post_init__(self) -> None:
        check_whole("iterations", self.iterations, 0)
        if self.buckets is not None:
            check_whole("buckets", self.buckets, 1)
        elif self.space.size is None:
            raise BQNESError(
                f"buckets is None, but space {self.space.name!r} cannot be listed; "
                "give the number of hash buckets, for instance 4096."
            )
        if isinstance(self.layer_weights, jax.Array | np.ndarray | list | tuple):
            weights = as_float(self.layer_weights)
            if weights.ndim == 1:  # while JAX maps over a kernel, leaves have other shapes
                check_shape("layer_weights", weights, (self.iterations + 1,))
            check_positive("layer_weights", weights)
            object.__setattr__(self, "layer_weights", weights)

    def features(self, archs: ArrayLike) -> Float[Array, "n d"]:
        """Return ψ = φ / ‖φ‖ and the mark of the empty graph; n×(features + 1)."""
        archs = as_architectures(self.space, archs)
        return _features(self, archs)

    def gram(self, archs: ArrayLike) -> Float[Array, "n n"]:
        """Evaluate the kernel between all pairs."""
        features = self.features(archs)
        return matmul(features, features.T)

    def cross(self, archs: ArrayLike, others: ArrayLike) -> Float[Array, "n m"]:
        """Evaluate the kernel between each of one set and each of another."""
        return matmul(self.features(archs), self.features(others).T)

    def diag(self, archs: ArrayLike) -> Float[Array, " n"]:
        """Return ones: the kernel is normalised."""
        return jnp.ones(as_architectures(self.space, archs).shape[0])


class Encoding(NamedTuple):
    """How labels become columns of the histogram."""

    columns: Callable[[UInt32[Array, "layers nodes"]], Int[Array, "layers nodes"]]
    layer_of_column: np.ndarray  # int, one for each column


def wl_labels(
    graph: jraph.GraphsTuple, iterations: int, seed: ArrayLike = 0
) -> UInt32[Array, "l v"]:
    """Return the labels of every node after 0 … h refinements, (h + 1)×nodes, as 32-bit hashes.

    `graph.nodes` are integer labels; edges point from `senders` to `receivers`. Batched tuples are
    refined together, and so is padding, which touches no real node.
    """
    _check_graph(graph, iterations)
    nodes = jnp.asarray(graph.nodes)
    label = _mix(nodes.astype(jnp.uint32) + _salt(seed, 0))
    layers = [label]
    for layer in range(1, iterations + 1):
        # A sum does not depend on the order, and of well mixed numbers hardly collides.
        message = _mix(label ^ np.uint32(0x5BD1E995))[graph.receivers]
        multiset = jax.ops.segment_sum(message, graph.senders, nodes.shape[0])
        label = _mix(_mix(label + _salt(seed, layer)) * np.uint32(0x9E3779B1) + multiset)
        layers.append(label)
    return jnp.stack(layers)


def wl_histograms(
    graph: jraph.GraphsTuple, iterations: int = 1, buckets: int = 1024
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
    with jax.ensure_compile_time_eval():
        archs = enumerate_space(space)
        labels, real = _all_labels(space, iterations, archs, jnp.uint32(0))
        check, _ = _all_labels(space, iterations, archs, jnp.uint32(1))
    layers = np.broadcast_to(np.arange(iterations + 1)[:, None], labels.shape)
    real = np.broadcast_to(np.asarray(real)[:, None, :], labels.shape)
    triples = np.stack([np.asarray(labels)[real], np.asarray(check)[real], layers[real]], axis=1)
    known = np.unique(triples, axis=0)
    for column in (0, 1):
        if len(np.unique(known[:, column])) < len(known):
            raise BQNESError(
                f"two labels of space {space.name!r} share a hash after {iterations} iterations; "
                "use hashed features (buckets=…)."
            )
    return known[:, 0].astype(np.uint32), known[:, 2].astype(np.int32)


def _check_graph(graph: jraph.GraphsTuple, iterations: int) -> None:
    check_whole("iterations", iterations, 0)
    nodes = graph.nodes
    if not jnp.issubdtype(nodes.dtype, jnp.integer) or nodes.ndim != 1:
        raise BQNESError(
            f"graph.nodes has type {nodes.dtype} and shape {nodes.shape}; "
            "it must hold one integer label for each node."
        )


@functools.partial(jax.jit, static_argnums=(1, 2))
def _hashed_histograms(
    graph: jraph.GraphsTuple, iterations: int, buckets: int
) -> Float[Array, "graphs d"]:
    labels = wl_labels(graph, iterations)
    graphs, nodes = len(graph.n_node), labels.shape[1]
    owner = jnp.repeat(jnp.arange(graphs), graph.n_node, total_repeat_length=nodes)
    encoding = _hashing(iterations, buckets)
    return _count(encoding.columns(labels), owner, graphs, len(encoding.layer_of_column))


@functools.partial(jax.jit, static_argnums=(0, 1))
def _all_labels(
    space: GraphSpace, iterations: int, archs: Int[Array, "n length"], seed: UInt32[Array, ""]
) -> tuple[UInt32[Array, "n l v"], Bool[Array, "n v"]]:
    def one(arch: Int[Array, " length"]) -> tuple[UInt32[Array, "l v"], Bool[Array, " v"]]:
        graph = space.graph(arch)
        labels = wl_labels(graph, iterations, seed)
        return labels, jnp.arange(labels.shape[1]) < graph.n_node[0]

    return jax.vmap(one)(archs)


@jax.jit
def _features(kernel: WL, archs: Int[Array, "n length"]) -> Float[Array, "n d"]:
    encoding = _encoding(kernel.space, kernel.iterations, kernel.buckets)

    def histogram(arch: Int[Array, " length"]) -> Float[Array, " d"]:
        graph = kernel.space.graph(arch)
        columns = encoding.columns(wl_labels(graph, kernel.iterations))
        owner = jnp.where(jnp.arange(columns.shape[1]) < graph.n_node[0], 0, 1)
        return _count(columns, owner, 1, len(encoding.layer_of_column))[0]

    histograms = jax.vmap(histogram)(archs)
    if kernel.layer_weights is not None:
        histograms = histograms * jnp.asarray(kernel.layer_weights)[encoding.layer_of_column]
    squared = jnp.sum(histograms**2, axis=1, keepdims=True)
    empty = squared == 0
    normalised = histograms / jnp.sqrt(jnp.where(empty, 1, squared))
    return jnp.concatenate([normalised, empty.astype(normalised.dtype)], axis=1)


@functools.cache
def _encoding(space: GraphSpace, iterations: int, buckets: int | None) -> Encoding:
    if buckets is not None:
        return _hashing(iterations, buckets)
    words, layer_of_column = vocabulary(space, iterations)
    return Encoding(lambda labels: jnp.searchsorted(words, labels), layer_of_column)


def _hashing(iterations: int, buckets: int) -> Encoding:
    first = np.arange(iterations + 1, dtype=np.int32)[:, None] * np.int32(buckets)
    return Encoding(
        lambda labels: (labels % np.uint32(buckets)).astype(jnp.int32) + first,
        np.repeat(np.arange(iterations + 1, dtype=np.int32), buckets),
    )


def _count(
    columns: Int[Array, "l v"], owner: Int[Array, " v"], graphs: int, width: int
) -> Float[Array, "graphs d"]:
    """Add up the columns of each graph's nodes; an owner out of range does not count."""
    return jnp.zeros((graphs, width)).at[owner, columns].add(1, mode="drop")


def _mix(x: UInt32[Array, " v"]) -> UInt32[Array, " v"]:
    """Spread every bit over all 32 (the finaliser of MurmurHash3, a bijection)."""
    x = (x ^ (x >> 16)) * np.uint32(0x85EBCA6B)
    x = (x ^ (x >> 13)) * np.uint32(0xC2B2AE35)
    return x ^ (x >> 16)


def _salt(seed: ArrayLike, layer: int) -> UInt32[Array, ""]:
    """Give each layer and seed labels of their own."""
    return jnp.uint32(seed) * np.uint32(0x2545F491) + np.uint32(0x6C078965 * (layer + 1) % 2**32)
