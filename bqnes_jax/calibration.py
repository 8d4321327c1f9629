"""One temperature after pooling, and whether it helps on points that did not choose it.

A temperature T makes p(c|x)^(1/T) of a prediction, normalised: below 1 it is surer, above 1 less
sure. It is the log-linear pool of one member with the weight 1/T, and is fitted as such.

Points that chose the members of an ensemble flatter it. So a temperature is fitted to predictions
for points that were left out when the members were chosen (`left_out_predictions`), and its loss is
measured on points that were left out when it was fitted (`calibrate`).
"""

from collections.abc import Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int, Int32

from bqnes_jax.errors import BQNESError, as_float, check_labels, check_shape, check_whole
from bqnes_jax.pooling import LOG_FLOOR, ensemble_log_probabilities
from bqnes_jax.selection import log_pool_weights, select

_FOLDS = 5


class Calibration(NamedTuple):
    """A temperature, and what it changes.

    Attributes:
        temperature: the one to use: as fitted, or 1 where that does not lower the loss.
        fitted: the one that lowers the loss of all points most.
        before: mean of −log p of the predictions as they are.
        after: the same at points that were left out when the temperature was fitted.
        status: of the fit.
    """

    temperature: Float[Array, ""]
    fitted: Float[Array, ""]
    before: Float[Array, ""]
    after: Float[Array, ""]
    status: Int32[Array, ""]


def apply_temperature(log_probs: ArrayLike, temperature: ArrayLike) -> Float[Array, "*batch C"]:
    """Return log-probabilities at a temperature; what is below −12 counts as −12, unless T is 1.

    Args:
        log_probs: of all classes, on the last axis.
        temperature: a positive number, or one for each of the leading axes.

    Example:
        >>> even = apply_temperature(jnp.log(jnp.array([0.9, 0.1])), 2.0)
        >>> [round(p, 3) for p in jnp.exp(even).tolist()]
        [0.75, 0.25]
    """
    log_probs = as_float(log_probs)
    temperature = jnp.asarray(temperature, log_probs.dtype)
    temperature = temperature.reshape(
        temperature.shape + (1,) * (log_probs.ndim - temperature.ndim)
    )
    tempered = jax.nn.log_softmax(jnp.maximum(log_probs, LOG_FLOOR) / temperature, axis=-1)
    return jnp.where(temperature == 1, log_probs, tempered)


def fit_temperature(log_probs: ArrayLike, labels: ArrayLike) -> Float[Array, ""]:
    """Return the temperature with which predictions (n, C) have the smallest loss.

    For one temperature per member, map it over them: `jax.vmap(fit_temperature, (0, None))`.

    Example:
        >>> sure = jnp.log(jnp.array([[0.99, 0.01]] * 4))
        >>> temperature = fit_temperature(sure, jnp.array([0, 0, 0, 1]))  # 3 of 4 are right
        >>> jnp.exp(apply_temperature(sure[0], temperature)).round(2).tolist()
        [0.75, 0.25]
    """
    log_probs, labels = _checked(log_probs, labels)
    return 1 / _fit(log_probs, labels).weights[0]


def calibrate(log_probs: ArrayLike, labels: ArrayLike, *, folds: int = _FOLDS) -> Calibration:
    """Fit a temperature to predictions (n, C), and tell whether it helps where it was not fitted.

    Args:
        log_probs: of all classes, best for points that did not choose what predicts them.
        labels: of shape (n,).
        folds: into how many parts the points are divided; each is left out once.
    """
    log_probs, labels = _checked(log_probs, labels)
    check_whole("folds", folds, 2)
    points = len(labels)
    total = jnp.zeros((), log_probs.dtype)
    for kept, left in _parts(points, folds):
        temperature = 1 / _fit(log_probs[kept], labels[kept]).weights[0]
        total = total - _true(apply_temperature(log_probs[left], temperature), labels[left]).sum()
    found = _fit(log_probs, labels)
    fitted, before, after = 1 / found.weights[0], -_true(log_probs, labels).mean(), total / points
    if points < 2:  # nothing is left out of one point
        after = before
    temperature = jnp.where(after < before, fitted, 1)
    return Calibration(temperature, fitted, before, after, found.status)


def calibrated_log_likelihood(probabilities: ArrayLike, labels: ArrayLike) -> Float[Array, ""]:
    """Log-likelihood per point at the best temperature, as Ashukha et al. (2020) compare ensembles.

    The points are halved; each half is judged at the temperature that fits the other. What is left
    to tell ensembles apart is not that one of them is too sure, which a temperature cures.

    Example:
        >>> sure = jnp.array([[0.999, 0.001]] * 40)
        >>> labels = jnp.array([0, 0, 0, 1] * 10)  # 3 of 4 are right
        >>> bool(calibrated_log_likelihood(sure, labels) > -1)  # of -1.7 as it is
        True
    """
    probabilities = as_float(probabilities)
    log_probs = jnp.where(probabilities > 0, jnp.log(probabilities), -jnp.inf)
    return -calibrate(log_probs, labels, folds=2).after


def left_out_predictions(
    name: str,
    log_probs: ArrayLike,
    size: int,
    *,
    classes: ArrayLike,
    kernel: ArrayLike | None = None,
    rule: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    folds: int = _FOLDS,
) -> Float[Array, "n C"]:
    """Return what ensembles say about points that were left out when they were selected.

    The points are divided into folds; for each, an ensemble is selected by the others.

    Args:
        name: of the selection method.
        log_probs: N×n, of the true class.
        size: M.
        classes: N×n×C, of all classes.
        kernel: N×N, where the method needs it.
        rule: N, where the method needs it.
        mask: N, false for candidates to leave out.
        folds: how many.

    Returns:
        Log-probabilities of all classes at each point.
    """
    log_probs, classes = as_float(log_probs), as_float(classes)
    check_whole("folds", folds, 2)
    check_shape("classes", classes, (*log_probs.shape, None))
    dtype = jnp.promote_types(log_probs.dtype, jnp.float32)
    said = jnp.zeros(classes.shape[1:], dtype)
    for kept, left in _parts(log_probs.shape[1], folds):
        chosen = select(
            name,
            log_probs[:, kept],
            size,
            classes=classes[:, kept],
            kernel=kernel,
            rule=rule,
            mask=mask,
        )
        members = jax.nn.log_softmax(classes[chosen.members][:, left].astype(dtype), axis=-1)
        pooled = ensemble_log_probabilities(chosen.weights, members, pool=chosen.pool)
        said = said.at[left].set(pooled)
    return said


def _fit(log_probs: Float[Array, "n C"], labels: Int[Array, " n"]):
    return log_pool_weights(_true(log_probs, labels)[None], log_probs[None], strengths=(0.0,))


def _true(log_probs: Float[Array, "n C"], labels: Int[Array, " n"]) -> Float[Array, " n"]:
    return jnp.take_along_axis(log_probs, labels[:, None], axis=1)[:, 0]


def _parts(points: int, folds: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the points that are kept and those that are left out; the same way each time."""
    if points < 2:
        return
    order = np.random.default_rng(0).permutation(points)
    for left in np.array_split(order, min(folds, points)):
        yield np.setdiff1d(order, left), np.sort(left)


def _checked(log_probs: ArrayLike, labels: ArrayLike) -> tuple[jax.Array, jax.Array]:
    log_probs = as_float(log_probs)
    log_probs = log_probs.astype(jnp.promote_types(log_probs.dtype, jnp.float32))
    check_shape("log_probs", log_probs, (None, None))
    if log_probs.size == 0:
        raise BQNESError(f"log_probs has shape {log_probs.shape}; at least one point is needed.")
    return log_probs, check_labels("labels", labels, log_probs.shape)
