"""The Weisfeiler–Lehman subtree kernel on the graphs of a space.

The features of a graph are the histograms of its labels (`kernels.labels`) of every iteration
t = 0 … h, side by side.

Graphs have few nodes, and a node has one label in each iteration: a row of the Gram matrix is the
sum of a few rows, one for each node, of what the other graphs have in common with such a node.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int, Int32

from bqnes_jax.errors import BQNESError, as_float, check_positive, check_shape, check_whole
from bqnes_jax.kernels.base import Kernel, View, matmul
from bqnes_jax.kernels.labels import columns_of, list_labels, vocabulary, wl_labels
from bqnes_jax.kernels.linear import FiniteKernel
from bqnes_jax.spaces.base import GraphSpace, as_architectures, as_listed

_ROWS = 128  # of a Gram matrix worked out at a time: in a loop XLA fuses, at once it does not


@jax.tree_util.register_pytree_node_class
@dataclasses.dataclass(frozen=True)
class WL(FiniteKernel):
    """Normalised WL kernel on the graphs of a space: k = ⟨φ, φ'⟩ / (‖φ‖ ‖φ'‖).

    The histogram of layer t is multiplied by `layer_weights[t]`. None stands for ones. Numbers in a
    tuple stay as they are; an array is a hyper-parameter, which a fit adapts.

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
    _: dataclasses.KW_ONLY
    buckets: int | None = None
    layer_weights: ArrayLike | tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        check_whole("iterations", self.iterations, 0)
        if self.buckets is not None:
            check_whole("buckets", self.buckets, 1)
        elif self.space.size is None:
            raise BQNESError(
                f"buckets is None, but space {self.space.name!r} cannot be listed; "
                "give the number of hash buckets, for instance 4096."
            )
        given = self.layer_weights
        if isinstance(given, jax.Array | np.ndarray | list | tuple):
            weights = np.asarray(given, float) if isinstance(given, tuple) else as_float(given)
            if weights.ndim == 1:  # while JAX maps over a kernel, leaves have other shapes
                check_shape("layer_weights", weights, (self.iterations + 1,))
            check_positive("layer_weights", weights)
            if not isinstance(given, tuple):
                object.__setattr__(self, "layer_weights", weights)

    def tree_flatten(self) -> tuple[tuple, tuple]:
        """Take apart what a fit may adapt and what is fixed."""
        fixed = isinstance(self.layer_weights, tuple)
        static = (self.space, self.iterations, self.buckets, self.layer_weights if fixed else None)
        return () if fixed else (self.layer_weights,), static

    @classmethod
    def tree_unflatten(cls, static: tuple, leaves: tuple) -> "WL":
        """Put together what `tree_flatten` took apart."""
        space, iterations, buckets, fixed = static
        (weights,) = leaves or (fixed,)
        return cls(space, iterations, buckets=buckets, layer_weights=weights)

    def features(self, archs: ArrayLike) -> Float[Array, "n d"]:
        """Return ψ = φ / ‖φ‖ and the mark of the empty graph; n×(features + 1)."""
        return _features(self, as_architectures(self.space, archs))

    def gram(self, archs: ArrayLike) -> Float[Array, "n n"]:
        """Evaluate the kernel between all pairs."""
        return _gram(self, as_architectures(self.space, archs))

    def cross(self, archs: ArrayLike, others: ArrayLike) -> Float[Array, "n m"]:
        """Evaluate the kernel between each of one set and each of another."""
        archs, others = (as_architectures(self.space, some) for some in (archs, others))
        return _cross(self, archs, others)

    def diag(self, archs: ArrayLike) -> Float[Array, " n"]:
        """Return ones: the kernel is normalised."""
        return jnp.ones(as_architectures(self.space, archs).shape[0])

    def split(self) -> tuple[View, Kernel]:
        """Take the words out where labels are hashed, which are fewer than features; or these."""
        if self.buckets is None or self.layer_weights is not None:
            return super().split()
        spell = functools.partial(_spell, self)
        return spell, Words((self.iterations + 1) * self.buckets)


@functools.partial(jax.tree_util.register_dataclass, data_fields=[], meta_fields=["columns"])
@dataclasses.dataclass(frozen=True)
class Words(FiniteKernel):
    """The WL kernel by hashing, where an "architecture" is its words: the columns of its labels.

    Attributes:
        columns: how many there are; a word of that number marks the empty graph, one more fills up.

    Example:
        >>> print(Words(3).gram(jnp.array([[0, 1], [0, 0], [2, 4]])).round(3))
        [[1.    0.707 0.   ]
         [0.707 1.    0.   ]
         [0.    0.    1.   ]]
    """

    columns: int

    space = None

    def features(self, archs: ArrayLike) -> Float[Array, "n d"]:
        """Return ψ = φ / ‖φ‖ and the mark of the empty graph; n×(columns + 1)."""
        words = jnp.asarray(archs)
        encoding = _of_words(self.columns)
        return _histograms(encoding, words) * _scales_of_words(self.columns, words)[:, None]

    def cross(self, archs: ArrayLike, others: ArrayLike) -> Float[Array, "n m"]:
        """Evaluate the kernel between each of one set and each of another."""
        return _cross_words(_of_words(self.columns), jnp.asarray(archs), jnp.asarray(others))

    def gram(self, archs: ArrayLike) -> Float[Array, "n n"]:
        """Evaluate the kernel between all pairs."""
        return self.cross(archs, archs)

    def diag(self, archs: ArrayLike) -> Float[Array, " n"]:
        """Return ones: the kernel is normalised."""
        return jnp.ones(jnp.shape(archs)[0])

    def add_features(self, archs: ArrayLike, weights: ArrayLike) -> Float[Array, " d"]:
        """Return Σ w_n ψ_n, without a vector of features for each."""
        words = jnp.asarray(archs)
        scaled = jnp.asarray(weights) * _scales_of_words(self.columns, words)
        nothing = jnp.zeros(self.columns + 1, scaled.dtype)
        return nothing.at[words].add(scaled[:, None], mode="drop")


class Encoding(NamedTuple):
    """How graphs are spelled: as words, each of which counts in some columns of the histogram.

    The last word but one, and the last column, mark the empty graph; the last word says nothing
    and fills up. `meanings` is None where a word counts in the column of its own number.
    """

    spell: Callable[[Int[Array, "n length"]], Int[Array, "n k"]]
    meanings: np.ndarray | None  # words×columns, 0 or 1
    layer_of_column: np.ndarray  # int, one for each column but the last


@jax.jit
def _features(kernel: WL, archs: Int[Array, "n length"]) -> Float[Array, "n d"]:
    encoding = _encoding(kernel.space, kernel.iterations, kernel.buckets)
    histograms = _histograms(encoding, encoding.spell(archs))
    if kernel.layer_weights is not None:
        weights = jnp.asarray(kernel.layer_weights)[encoding.layer_of_column]
        histograms = histograms * jnp.append(weights, 1)
    return histograms / jnp.sqrt(jnp.sum(histograms**2, axis=1, keepdims=True))


@jax.jit
def _cross(
    kernel: WL, archs: Int[Array, "n length"], others: Int[Array, "m length"]
) -> Float[Array, "n m"]:
    encoding = _encoding(kernel.space, kernel.iterations, kernel.buckets)
    words = encoding.spell(archs)
    # A matrix product is the faster one for few columns, and the one to differentiate.
    if kernel.layer_weights is not None or 2 * words.shape[1] > len(encoding.layer_of_column):
        return matmul(_features(kernel, archs), _features(kernel, others).T)
    return _cross_words(encoding, words, encoding.spell(others))


def _spell(kernel: WL, archs: ArrayLike) -> Int32[Array, "n k"]:
    encoding = _encoding(kernel.space, kernel.iterations, kernel.buckets)
    return jax.jit(encoding.spell)(as_architectures(kernel.space, archs)).astype(jnp.int32)


def _of_words(columns: int) -> Encoding:
    """Return the encoding of what is spelled already."""
    return Encoding(lambda words: words, None, np.zeros(columns, np.int32))


def _cross_words(
    encoding: Encoding, words: Int[Array, "n k"], others: Int[Array, "m k"]
) -> Float[Array, "n m"]:
    theirs = _overlaps(encoding, others)
    return _add_rows(theirs.T, words, *(_scales(encoding, some) for some in (words, others)))


@jax.jit
def _gram(kernel: WL, archs: Int[Array, "n length"]) -> Float[Array, "n n"]:
    return _cross(kernel, archs, archs)


def _overlaps(encoding: Encoding, words: Int[Array, "n k"]) -> Float[Array, "n w"]:
    """Return ⟨φ, φ of a word⟩ for every graph and every word there is."""
    if encoding.meanings is None:
        return jnp.pad(_histograms(encoding, words), ((0, 0), (0, 1)))
    table = jnp.asarray(_shared_columns(encoding.meanings), float)
    return _add_rows(table, words, jnp.ones(len(words)), jnp.ones(len(table)))


def _scales(encoding: Encoding, words: Int[Array, "n k"]) -> Float[Array, " n"]:
    """Return 1/‖φ‖ of every graph."""
    if encoding.meanings is None:
        return _scales_of_words(len(encoding.layer_of_column), words)
    overlaps = _overlaps(encoding, words)
    return 1 / jnp.sqrt(jnp.sum(jnp.take_along_axis(overlaps, words, axis=1), axis=1))


def _scales_of_words(columns: int, words: Int[Array, "n k"]) -> Float[Array, " n"]:
    """Return 1/‖φ‖, ‖φ‖² being how often a word and itself meet, whichever pair that is."""
    same = (words[:, :, None] == words[:, None, :]) & (words <= columns)[:, None, :]
    return 1 / jnp.sqrt(jnp.sum(same, axis=(1, 2), dtype=float))


def _shared_columns(meanings: np.ndarray) -> np.ndarray:
    """Count the columns that two words share, words×words.

    This is `meanings @ meanings.T`. A column has few words, so most of that product is zeros.
    """
    table = np.zeros((len(meanings), len(meanings)), np.int32)
    columns, words = np.nonzero(meanings.T)
    for some in np.split(words, np.flatnonzero(np.diff(columns)) + 1):
        table[np.ix_(some, some)] += 1
    return table


def _histograms(encoding: Encoding, words: Int[Array, "n k"]) -> Float[Array, "n d"]:
    if encoding.meanings is not None:
        table = jnp.asarray(encoding.meanings, float)
        return _add_rows(table, words, jnp.ones(len(words)), jnp.ones(table.shape[1]))
    nothing = jnp.zeros((len(words), len(encoding.layer_of_column) + 1))
    return nothing.at[jnp.arange(len(words))[:, None], words].add(1, mode="drop")


def _add_rows(
    table: Float[Array, "w m"],
    words: Int[Array, "n k"],
    scales: Float[Array, " n"],
    other_scales: Float[Array, " m"],
) -> Float[Array, "n m"]:
    """Return Σ_k table[words[:, k]], scaled on both sides, some rows at a time.

    All at once there would be an n×k×m array. The sums are whole numbers, and so exact: what is
    symmetric stays so.
    """
    n, block = len(words), _ROWS

    def some(words: Int[Array, "b k"], scales: Float[Array, " b"]) -> Float[Array, "b m"]:
        rows = (table.at[word].get(mode="promise_in_bounds") for word in words.T)
        return functools.reduce(jnp.add, rows) * (scales[:, None] * other_scales)

    def fill(i: Int[Array, ""], filled: Float[Array, "n m"]) -> Float[Array, "n m"]:
        start = jnp.minimum(i * block, n - block)  # the last ones may be worked out twice
        part = (lax.dynamic_slice_in_dim(x, start, block) for x in (words, scales))
        return lax.dynamic_update_slice_in_dim(filled, some(*part), start, axis=0)

    if n <= block:
        return some(words, scales)
    return lax.fori_loop(0, -(-n // block), fill, jnp.zeros((n, table.shape[1]), table.dtype))


@functools.cache
def _encoding(space: GraphSpace, iterations: int, buckets: int | None) -> Encoding:
    if buckets is None:
        return _spell_out(space, iterations)
    columns = (iterations + 1) * buckets

    def spell(arch: Int[Array, " length"]) -> Int[Array, " k"]:
        graph = space.graph(arch)
        words = columns_of(wl_labels(graph, iterations), buckets)
        words = jnp.where(jnp.arange(words.shape[1]) < graph.n_node[0], words, columns + 1).ravel()
        return words.at[0].set(jnp.where(graph.n_node[0] > 0, words[0], columns))

    layer_of_column = np.repeat(np.arange(iterations + 1, dtype=np.int32), buckets)
    return Encoding(jax.vmap(spell), None, layer_of_column)


def _spell_out(space: GraphSpace, iterations: int) -> Encoding:
    """Look the words of an architecture up: a word is what a node is labelled in all layers."""
    known, layer_of_column = vocabulary(space, iterations)
    labels, real = list_labels(space, iterations, seed=0)
    columns = np.searchsorted(known, np.moveaxis(labels, 1, 2)[real])
    columns, word_of_node = np.unique(columns, axis=0, return_inverse=True)
    empty, nothing = len(columns), len(columns) + 1
    words = np.full(real.shape, nothing, np.int32)
    words[real] = word_of_node.reshape(-1)
    words[~real.any(axis=1), 0] = empty
    words = words[:, (words < nothing).any(axis=0)]
    meanings = np.zeros((nothing + 1, len(known) + 1), np.int8)
    meanings[np.arange(empty)[:, None], columns] = 1
    meanings[empty, -1] = 1
    index = as_listed(space).index
    return Encoding(lambda archs: jnp.asarray(words)[index(archs)], meanings, layer_of_column)
