"""How good predictions are: accuracy, likelihood, calibration, diversity, and surrogate errors.

Classification metrics take `probabilities` (n, C) and integer `labels` (n,); they compute in the
floating type of the probabilities (half precision in float32). Where classes tie for the highest
probability, the first of them is the predicted one. What an eager call refuses, a compiled one
answers with NaN: it has no other way to report.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int

from bqnes_jax.errors import (
    BQNESError,
    as_float,
    check_choice,
    check_distribution,
    check_finite,
    check_positive,
    check_shape,
    check_whole,
    concrete,
    is_distribution,
)

REFERENCES = ("confidence", "centre")


class ReliabilityCurve(NamedTuple):
    """Calibration by bins of the top-class confidence, each of shape (bins,).

    An empty bin has count 0, and then mean confidence and accuracy 0.
    """

    count: jax.Array
    confidence: jax.Array
    accuracy: jax.Array


class Disagreement(NamedTuple):
    """Fractions of points at which members predict different classes."""

    pairwise: jax.Array  # (N, N), symmetric, 0 on the diagonal
    per_member: jax.Array  # (N,), the mean over the other members


def accuracy(probabilities: ArrayLike, labels: ArrayLike) -> jax.Array:
    """Fraction of points whose predicted class, argmax_c p_ic, is the label.

    Example:
        >>> float(accuracy(jnp.array([[0.9, 0.1], [0.5, 0.5]]), jnp.array([0, 1])))
        0.5
    """
    return _accuracy(*_checked(probabilities, labels))


def log_likelihood(probabilities: ArrayLike, labels: ArrayLike) -> jax.Array:
    """Log-likelihood summed over the points, Σ_i log p_i(y_i).

    A label of probability 0 makes it -inf, which is the truth.

    Example:
        >>> round(float(log_likelihood(jnp.array([[0.5, 0.5], [0.5, 0.5]]), jnp.array([0, 1]))), 4)
        -1.3863
    """
    return _log_likelihood(*_checked(probabilities, labels))


def mean_log_likelihood(probabilities: ArrayLike, labels: ArrayLike) -> jax.Array:
    """Log-likelihood per point, (1/n) Σ_i log p_i(y_i).

    Example:
        >>> round(float(mean_log_likelihood(jnp.array([[0.5, 0.5]]), jnp.array([0]))), 4)
        -0.6931
    """
    probabilities, labels = _checked(probabilities, labels)
    return _log_likelihood(probabilities, labels) / labels.shape[0]


def brier_score(probabilities: ArrayLike, labels: ArrayLike) -> jax.Array:
    """Brier score, (1/n) Σ_i Σ_c (p_ic - 1[y_i = c])², from 0 (perfect) to 2.

    With two classes it is twice the one-column form that scikit-learn reports by default.

    Example:
        >>> float(brier_score(jnp.array([[0.5, 0.5]]), jnp.array([0])))
        0.5
    """
    return _brier_score(*_checked(probabilities, labels))


def reliability_curve(
    probabilities: ArrayLike, labels: ArrayLike, bins: int = 10
) -> ReliabilityCurve:
    """Accuracy against confidence, by equal-width bins of the top-class confidence.

    Bin b holds the points with b/bins < max_c p_ic ≤ (b+1)/bins, so that a confidence of exactly 1
    is in the last bin; 0 would be in the first.

    Example:
        >>> curve = reliability_curve(jnp.array([[0.75, 0.25], [0.25, 0.75]]), jnp.array([0, 0]), 2)
        >>> curve.count.tolist(), curve.confidence.tolist(), curve.accuracy.tolist()
        ([0, 2], [0.0, 0.75], [0.0, 0.5])
    """
    check_whole("bins", bins, 1)
    return _reliability_curve(*_checked(probabilities, labels), bins)


def ece(
    probabilities: ArrayLike, labels: ArrayLike, bins: int = 10, reference: str = "confidence"
) -> jax.Array:
    """Expected calibration error, Σ_b (n_b/n) |accuracy_b - reference_b|.

    The bins are those of `reliability_curve`; empty ones add nothing.

    Args:
        probabilities: of shape (n, C).
        labels: of shape (n,).
        bins: how many bins of equal width.
        reference: `"confidence"`, the bin's mean confidence (the standard definition), or
            `"centre"`, the middle of the bin, (b + ½)/bins (the one behind the paper's tables).

    Example:
        >>> probabilities, labels = jnp.array([[0.75, 0.25], [0.25, 0.75]]), jnp.array([0, 0])
        >>> float(ece(probabilities, labels)), float(ece(probabilities, labels, 2, "centre"))
        (0.25, 0.25)
    """
    check_whole("bins", bins, 1)
    check_choice("reference", reference, REFERENCES)
    return _ece(*_checked(probabilities, labels), bins, reference)


def per_member(
    metric: Callable[..., Any],
    member_probabilities: ArrayLike,
    labels: ArrayLike,
    **options: Any,
) -> Any:
    """Map any metric of this module over members: probabilities (N, n, C) and labels (n,).

    Returns what the metric returns, with a leading axis N.

    Example:
        >>> members = jnp.array([[[0.9, 0.1]], [[0.2, 0.8]]])
        >>> per_member(accuracy, members, jnp.array([0])).tolist()
        [1.0, 0.0]
    """
    members = _checked_members(member_probabilities)
    labels = _checked_labels(labels, members.shape[1:])
    return jax.vmap(lambda probabilities: metric(probabilities, labels, **options))(members)


def disagreement(member_probabilities: ArrayLike) -> Disagreement:
    """How often members (N, n, C) predict different classes, in pairs and on average.

    D_ab = (1/n) Σ_i 1[argmax_c p_aic ≠ argmax_c p_bic]; a member's own number is the mean of D_ab
    over the N - 1 others, and 0 for a member that is alone.

    Example:
        >>> members = jnp.array([[[0.9, 0.1], [0.9, 0.1]], [[0.8, 0.2], [0.2, 0.8]]])
        >>> disagreement(members).pairwise.tolist()
        [[0.0, 0.5], [0.5, 0.0]]
    """
    return _disagreement(_checked_members(member_probabilities))


def rmse(predictions: ArrayLike, targets: ArrayLike, normalised: bool = True) -> jax.Array:
    """Root mean squared error, divided by the size of the mean target unless `normalised=False`.

    sqrt((1/n) Σ_i (m_i - t_i)²) / |(1/n) Σ_i t_i|, for predictions and targets of shape (n,).

    Example:
        >>> predictions, targets = jnp.array([1.0, 5.0]), jnp.array([2.0, 6.0])
        >>> float(rmse(predictions, targets)), float(rmse(predictions, targets, normalised=False))
        (0.25, 1.0)
    """
    predictions, targets = _checked_columns(predictions=predictions, targets=targets)
    values = concrete(targets)
    if normalised and values is not None and values.mean(dtype=float) == 0:
        raise BQNESError(
            "targets have mean 0, by which nothing can be normalised; use normalised=False."
        )
    return _rmse(predictions, targets, normalised)


def nlpd(means: ArrayLike, variances: ArrayLike, targets: ArrayLike) -> jax.Array:
    """Negative log predictive density of independent Gaussians, averaged over the test points.

    (1/n) Σ_i ½ [log 2πσ²_i + (t_i - m_i)²/σ²_i], for means, variances and targets of shape (n,).

    Example:
        >>> round(float(nlpd(jnp.array([0.0]), jnp.array([1.0]), jnp.array([1.0]))), 4)
        1.4189
    """
    means, variances, targets = _checked_columns(means=means, variances=variances, targets=targets)
    check_positive("variances", variances)
    return _nlpd(means, variances, targets)


@jax.jit
def _accuracy(
    probabilities: Float[Array, "points classes"], labels: Int[Array, " points"]
) -> Float[Array, ""]:
    return _confidence_and_hits(probabilities, labels)[1].mean()


@jax.jit
def _log_likelihood(
    probabilities: Float[Array, "points classes"], labels: Int[Array, " points"]
) -> Float[Array, ""]:
    probabilities = _nan_unless_sound(probabilities, labels)
    return jnp.log(jnp.take_along_axis(probabilities, labels[:, None], axis=1)).sum()


@jax.jit
def _brier_score(
    probabilities: Float[Array, "points classes"], labels: Int[Array, " points"]
) -> Float[Array, ""]:
    truth = labels[:, None] == jnp.arange(probabilities.shape[1])
    return ((_nan_unless_sound(probabilities, labels) - truth) ** 2).sum(axis=1).mean()


@partial(jax.jit, static_argnames="bins")
def _reliability_curve(
    probabilities: Float[Array, "points classes"], labels: Int[Array, " points"], bins: int
) -> ReliabilityCurve:
    confidence, hits = _confidence_and_hits(probabilities, labels)
    # Edges as rounded quotients, so that a confidence written as 0.3 is at the edge 3/10 and not
    # beside it, as it can be with multiples of 1/bins or with confidence · bins.
    inner = np.arange(1, bins) / bins
    edges = jnp.asarray([-np.inf, *inner, np.inf], dtype=confidence.dtype)

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


@jax.jit
def _disagreement(members: Float[Array, "members points classes"]) -> Disagreement:
    count, points, _ = members.shape
    predicted = jnp.argmax(members, axis=-1)
    differing = jax.lax.map(lambda mine: (mine != predicted).sum(axis=1), predicted)
    unsound = ~is_distribution(members).all(axis=1)
    pairwise = jnp.where(unsound | unsound[:, None], jnp.nan, differing.astype(members.dtype))
    pairwise = pairwise / points
    return Disagreement(pairwise, pairwise.sum(axis=1) / max(count - 1, 1))


@partial(jax.jit, static_argnames="normalised")
def _rmse(
    predictions: Float[Array, " points"], targets: Float[Array, " points"], normalised: bool
) -> Float[Array, ""]:
    errors = predictions - targets
    largest = jax.lax.stop_gradient(jnp.abs(errors).max())
    perfect = largest == 0
    scale = jnp.where(perfect, 1, largest)  # squares of likelihoods would underflow
    mean_square = ((errors / scale) ** 2).mean()
    # sqrt has no finite derivative at 0: take 0 there, the subgradient at the minimum.
    root = jnp.where(perfect, 0, scale * jnp.sqrt(jnp.where(perfect, 1, mean_square)))
    return root / jnp.abs(targets.mean()) if normalised else root


@jax.jit
def _nlpd(
    means: Float[Array, " points"],
    variances: Float[Array, " points"],
    targets: Float[Array, " points"],
) -> Float[Array, ""]:
    standardised = (targets - means) / jnp.sqrt(variances)
    return (jnp.log(2 * jnp.pi) + jnp.log(variances) + standardised**2).mean() / 2


def _confidence_and_hits(
    probabilities: Float[Array, "points classes"], labels: Int[Array, " points"]
) -> tuple[Float[Array, " points"], Float[Array, " points"]]:
    """Highest probability of each point, and 1 where its class is the label, otherwise 0."""
    probabilities = _nan_unless_sound(probabilities, labels)
    confidence = probabilities.max(axis=1)
    hits = (probabilities.argmax(axis=1) == labels).astype(confidence.dtype)
    return confidence, jnp.where(jnp.isnan(confidence), jnp.nan, hits)


def _nan_unless_sound(
    probabilities: Float[Array, "points classes"], labels: Int[Array, " points"]
) -> Float[Array, "points classes"]:
    in_range = (labels >= 0) & (labels < probabilities.shape[1])
    sound = is_distribution(probabilities) & in_range
    return jnp.where(sound[:, None], probabilities, jnp.nan)


def _checked(probabilities: ArrayLike, labels: ArrayLike) -> tuple[jax.Array, jax.Array]:
    probabilities = _at_least_single(probabilities)
    check_shape("probabilities", probabilities, (None, None))
    _check_not_empty("probabilities", probabilities)
    check_distribution("probabilities", probabilities)
    return probabilities, _checked_labels(labels, probabilities.shape)


def _checked_members(member_probabilities: ArrayLike) -> jax.Array:
    members = _at_least_single(member_probabilities)
    check_shape("member_probabilities", members, (None, None, None))
    _check_not_empty("member_probabilities", members)
    check_distribution("member_probabilities", members)
    return members


def _checked_labels(labels: ArrayLike, shape: tuple[int, int]) -> jax.Array:
    points, classes = shape
    values = concrete(labels)
    labels = jnp.asarray(labels)
    check_shape("labels", labels, (points,))
    if not jnp.issubdtype(labels.dtype, jnp.integer):
        raise BQNESError(f"labels are {labels.dtype}; they must be integers from 0 to C - 1.")
    if values is not None and (outside := (values < 0) | (values >= classes)).any():
        place = int(np.flatnonzero(outside)[0])
        raise BQNESError(
            f"labels[{place}] is {values[place]} ({int(outside.sum())} bad of {points}); "
            f"with {classes} classes a label is from 0 to {classes - 1}."
        )
    return labels.astype(jnp.result_type(int))


def _checked_columns(**columns: ArrayLike) -> tuple[jax.Array, ...]:
    arrays = {name: _at_least_single(column) for name, column in columns.items()}
    points = jnp.size(arrays["targets"])
    for name, array in arrays.items():
        check_shape(name, array, (points,))
        _check_not_empty(name, array)
        check_finite(name, array)
    dtype = jnp.result_type(*arrays.values())
    return tuple(array.astype(dtype) for array in arrays.values())


def _check_not_empty(name: str, array: jax.Array) -> None:
    if array.size == 0:
        raise BQNESError(f"{name} has shape {array.shape}; at least one point is needed.")


def _at_least_single(array: ArrayLike) -> jax.Array:
    array = as_float(array)
    return array.astype(jnp.promote_types(array.dtype, jnp.float32))
