"""What hashing the labels of DARTS's graphs into buckets loses: counted without hashing, and with.

`darts.py` prints it.
"""

from typing import NamedTuple

import jax
import numpy as np

from bqnes_jax.kernels import WL, wl_labels
from bqnes_jax.spaces import DARTS
from bqnes_jax.spaces.base import Architectures

BUCKETS = (1024, 4096, 16384)
DEFAULT_BUCKETS = 4096
_PAIRS = 500  # draws between which kernels with and without collisions are compared
_KEY = 1001


class Collisions(NamedTuple):
    """What hashing into so many buckets loses, after one refinement.

    Attributes:
        buckets: for each layer.
        labels: that occur among the draws.
        sharing: how many of them share a bucket of their layer with another.
        archs: how many draws differ in their histograms of labels.
        hashed: how many differ in their hashed histograms.
        mean_error: of the kernel between different draws, absolute.
        largest_error: likewise.
    """

    buckets: int
    labels: int
    sharing: int
    archs: int
    hashed: int
    mean_error: float
    largest_error: float


def label_exactly(archs: Architectures) -> np.ndarray:
    """Return the labels after 0 and 1 refinements, architectures×2×nodes, without hashing.

    A label stands for the kind of a node, or for that and the kinds of what it leads to, each as
    often as it does.
    """
    graph = jax.device_get(jax.jit(jax.vmap(DARTS.graph))(archs))
    real = int(graph.n_node[0, 0])  # the same for all
    kinds = graph.nodes[:, :real]
    counts = np.zeros((*graph.nodes.shape, kinds.max() + 1), np.int8)
    which = np.arange(len(graph.nodes))[:, None]
    ends = graph.nodes[which, graph.receivers]
    np.add.at(counts, (which, graph.senders, ends), 1)
    refined = np.concatenate([kinds[..., None], counts[:, :real]], axis=2)
    _, numbers = np.unique(refined.reshape(-1, refined.shape[2]), axis=0, return_inverse=True)
    return np.stack([kinds, kinds.max() + 1 + numbers.reshape(kinds.shape)], axis=1)


def count_collisions(archs: Architectures, labels: np.ndarray, buckets: int) -> Collisions:
    def hashed(arch):
        return wl_labels(DARTS.graph(arch), 1)[:, : labels.shape[2]] % np.uint32(buckets)

    places = np.asarray(jax.jit(jax.vmap(hashed))(archs)).astype(np.int64)
    places += buckets * np.arange(2)[:, None]
    pairs = np.unique(np.stack([labels.ravel(), places.ravel()], axis=1), axis=0)
    shared = np.bincount(pairs[:, 1])[pairs[:, 1]] > 1
    ours = np.asarray(WL(DARTS, 1, buckets=buckets).gram(archs[:_PAIRS]))
    errors = np.abs(ours - exact_gram(labels[:_PAIRS]))[np.triu_indices(len(ours), 1)]
    return Collisions(
        buckets,
        len(pairs),
        int(shared.sum()),
        count_different(labels),
        count_different(places),
        float(errors.mean()),
        float(errors.max()),
    )


def count_different(labels: np.ndarray) -> int:
    """Count the different histograms of labels."""
    return len(np.unique(np.sort(labels.reshape(len(labels), -1), axis=1), axis=0))


def exact_gram(labels: np.ndarray) -> np.ndarray:
    _, columns = np.unique(labels, return_inverse=True)
    columns = columns.reshape(len(labels), -1)
    histograms = np.zeros((len(labels), columns.max() + 1))
    np.add.at(histograms, (np.arange(len(labels))[:, None], columns), 1)
    features = histograms / np.linalg.norm(histograms, axis=1, keepdims=True)
    return features @ features.T


def collide(samples: int) -> list[Collisions]:
    """Count collisions among uniform draws, for several numbers of buckets."""
    archs = DARTS.sample(jax.random.key(_KEY), samples)
    labels = label_exactly(archs)
    return [count_collisions(archs, labels, buckets) for buckets in BUCKETS]
