"""Calibration: whether what is said with probability p is true that often."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int

from bqnes_jax.errors import check_choice, check_whole
from bqnes_jax.metrics.base import check_probabilities, confidence_and_hits, nan_unless_sound

REFERENCES = ("confidence", "centre")


class ReliabilityCurve(NamedTuple):
    """Calibration by bins of the top-class confidence, each of shape (bins,).

    An empty bin has count 0, and then mean confidence and accuracy 0.
    """

    count: jax.Array  # pyright: ignore[reportIncompatibleMethodOverride]
    confidence: jax.Array
    accuracy: jax.Array


class BrierDecomposition(NamedTuple):
    """Brier score = reliability − resolution + uncertainty + within.

    Attributes:
        reliability: how far probabilities are from frequencies, squared; 0 when calibrated.
        resolution: how far frequencies in the bins are from those of all points, squared.
        uncertainty: the Brier score of always saying the frequencies of the classes.
        within: what is left of it inside the bins; 0 where each bin holds one probability.
    """

    reliability: jax.Array
    resolution: jax.Array
    uncertainty: jax.Array
    within: jax.Array


def reliability_curve(
    probabilities: ArrayLike, labels: ArrayLike, *, bins: int = 10, log: bool = False
) -> ReliabilityCurve:
    """Return accuracy against confidence, by equal-width bins of the top-class confidence.

    Bin b holds the points with b/bins < max_c p_ic ≤ (b+1)/bins, so that a confidence of exactly 1
    is in the last bin; 0 would be in the first.

    Example:
        >>> probabilities, labels = jnp.array([[0.75, 0.25], [0.25, 0.75]]), jnp.array([0, 0])
        >>> curve = reliability_curve(probabilities, labels, bins=2)
        >>> curve.count.tolist(), curve.confidence.tolist(), curve.accuracy.tolist()
        ([0, 2], [0.0, 0.75], [0.0, 0.5])
    """
    check_whole("bins", bins, 1)
    return _reliability_curve(*check_probabilities(probabilities, labels, log), bins)


def ece(
    probabilities: ArrayLike,
    labels: ArrayLike,
    *,
    bins: int = 10,
    reference: str = "confidence",
    log: bool = False,
) -> jax.Array:
    """Return the expected calibration error, Σ_b (n_b/n) |accuracy_b - reference_b|.

    The bins are those of `reliability_curve`; empty ones add nothing.

    Args:
        probabilities: of shape (n, C).
        labels: of shape (n,).
        bins: how many bins of equal width.
        reference: `"confidence"`, the bin's mean confidence (the standard definition), or
            `"centre"`, the middle of the bin, (b + ½)/bins (the one behind the paper's tables).
        log: whether `probabilities` are logarithms.

    Example:
        >>> probabilities, labels = jnp.array([[0.75, 0.25], [0.25, 0.75]]), jnp.array([0, 0])
        >>> float(ece(probabilities, labels))
        0.25
        >>> float(ece(probabilities, labels, bins=2, reference="centre"))
        0.25
    """
    check_whole("bins", bins, 1)
    check_choice("reference", reference, REFERENCES)
    return _ece(*check_probabilities(probabilities, labels, log), bins, reference)


def adaptive_ece(
    probabilities: ArrayLike, labels: ArrayLike, *, bins: int = 10, log: bool = False
) -> jax.Array:
    """Return the calibration error with as many points in each bin, Σ_b (n_b/n) |acc_b - conf_b|.

    In the order of their confidence, the point at place r (from 0) is in bin ⌊r · bins / n⌋.

    Example:
        >>> probabilities, labels = jnp.array([[0.75, 0.25], [0.25, 0.75]]), jnp.array([0, 0])
        >>> float(adaptive_ece(probabilities, labels, bins=1))
        0.25
    """
    check_whole("bins", bins, 1)
    return _adaptive_ece(*check_probabilities(probabilities, labels, log), bins)


def classwise_ece(
    probabilities: ArrayLike, labels: ArrayLike, *, bins: int = 10, log: bool = False
) -> jax.Array:
    """Return the calibration error of each class, averaged over the classes.

    (1/C) Σ_c Σ_b (n_bc/n) |frequency of c in the bin - mean p_c in the bin|, in bins of equal width
    of p_c as in `reliability_curve`.

    Example:
        >>> probabilities, labels = jnp.array([[0.75, 0.25], [0.75, 0.25]]), jnp.array([0, 1])
        >>> float(classwise_ece(probabilities, labels))
        0.25
    """
    check_whole("bins", bins, 1)
    return _classwise_ece(*check_probabilities(probabilities, labels, log), bins)


def brier_decomposition(
    probabilities: ArrayLike, labels: ArrayLike, *, bins: int = 10, log: bool = False
) -> BrierDecomposition:
    """Split the Brier score by bins of the probability of each class, summed over the classes.

    Example:
        >>> probabilities, labels = jnp.array([[0.75, 0.25], [0.75, 0.25]]), jnp.array([0, 1])
        >>> [float(part) for part in brier_decomposition(probabilities, labels)]
        [0.125, 0.0, 0.5, 0.0]
    """
    check_whole("bins", bins, 1)
    return _brier_decomposition(*check_probabilities(probabilities, labels, log), bins)


@partial(jax.jit, static_argnames="bins")
def _reliability_curve(
    probabilities: Float[Array, "points classes"], labels: Int[Array, " points"], bins: int
) -> ReliabilityCurve:
    confidence, hits = confidence_and_hits(probabilities, labels)
    edges = _edges(bins, confidence.dtype)

    def point_on_curve(bounds: tuple[jax.Array, jax.Array]) -> ReliabilityCurve:
        lower, upper = bounds
        inside = ~(confidence <= lower) & ~(confidence > upper)  # NaN is in every bin, and shows
        count = inside.sum()
        of_bin = jnp.where(inside, jnp.stack([confidence, hits]), 0).sum(axis=1)
        return ReliabilityCurve(count, *(of_bin / jnp.maximum(count, 1)))

    return jax.lax.map(point_on_curve, (edges[:-1], edges[1:]))


@partial(jax.jit, static_argnames=("bins", "reference"))
def _ece(
    probabilities: Float[Array, "points classes"],
    labels: Int[Array, " points"],
    bins: int,
    reference: str,
) -> Float[Array, ""]:
    curve = _reliability_curve(probabilities, labels, bins)
    centre = (jnp.arange(bins, dtype=probabilities.dtype) + 0.5) / bins
    expected = curve.confidence if reference == "confidence" else centre
    return (curve.count * jnp.abs(curve.accuracy - expected)).sum() / labels.shape[0]


@partial(jax.jit, static_argnames="bins")
def _adaptive_ece(
    probabilities: Float[Array, "points classes"], labels: Int[Array, " points"], bins: int
) -> Float[Array, ""]:
    confidence, hits = confidence_and_hits(probabilities, labels)
    points = len(hits)
    place = jnp.asarray(np.arange(points) * bins // points)
    difference = (hits - confidence)[jnp.argsort(confidence)]
    each = jax.ops.segment_sum(difference, place, bins, indices_are_sorted=True)
    return jnp.abs(each).sum() / points


class _Bins(NamedTuple):
    """Shares of the points, mean probabilities and frequencies in the bins of each class."""

    share: Float[Array, "classes bins"]
    mean: Float[Array, "classes bins"]
    frequency: Float[Array, "classes bins"]


def _bin_classes(
    probabilities: Float[Array, "points classes"], labels: Int[Array, " points"], bins: int
) -> _Bins:
    def of_class(each):
        column, c = each
        # A point of NaN is in a bin, and shows.
        place = jnp.searchsorted(_edges(bins, column.dtype)[1:-1], column, side="left")
        place = jnp.minimum(place, bins - 1)
        truth = (labels == c).astype(column.dtype)
        summed = jax.ops.segment_sum(
            jnp.stack([jnp.ones_like(column), column, truth], axis=1), place, bins
        )
        count = jnp.maximum(summed[:, 0], 1)
        return _Bins(summed[:, 0] / len(column), summed[:, 1] / count, summed[:, 2] / count)

    probabilities = nan_unless_sound(probabilities, labels)
    return jax.lax.map(of_class, (probabilities.T, jnp.arange(probabilities.shape[1])))


@partial(jax.jit, static_argnames="bins")
def _classwise_ece(
    probabilities: Float[Array, "points classes"], labels: Int[Array, " points"], bins: int
) -> Float[Array, ""]:
    binned = _bin_classes(probabilities, labels, bins)
    return (binned.share * jnp.abs(binned.frequency - binned.mean)).sum(axis=1).mean()


@partial(jax.jit, static_argnames="bins")
def _brier_decomposition(
    probabilities: Float[Array, "points classes"], labels: Int[Array, " points"], bins: int
) -> BrierDecomposition:
    binned = _bin_classes(probabilities, labels, bins)
    base = (binned.share * binned.frequency).sum(axis=1)
    reliability = (binned.share * (binned.mean - binned.frequency) ** 2).sum()
    resolution = (binned.share * (binned.frequency - base[:, None]) ** 2).sum()
    uncertainty = (base * (1 - base)).sum()
    truth = labels[:, None] == jnp.arange(probabilities.shape[1])
    score = ((probabilities - truth) ** 2).sum(axis=1).mean()
    within = score - (reliability - resolution + uncertainty)
    return BrierDecomposition(reliability, resolution, uncertainty, within)


def _edges(bins: int, dtype: jnp.dtype) -> Float[Array, " edges"]:
    """Return the edges of bins of equal width, the outer ones at infinity.

    They are rounded quotients, so that a confidence written as 0.3 is at the edge 3/10 and not
    beside it, as it can be with multiples of 1/bins or with confidence · bins.
    """
    return jnp.asarray([-np.inf, *(np.arange(1, bins) / bins), np.inf], dtype=dtype)
