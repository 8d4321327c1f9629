"""One temperature after pooling, and whether it helps on points that did not choose it.

A temperature T makes p(c|x)^(1/T) of a prediction, normalised: below 1 it is surer, above 1 less
sure. It is the log-linear pool of one member with the weight 1/T, and is fitted as such.

Points that chose the members of an ensemble flatter it. So a temperature is fitted to predictions
for points that were left out when the members were chosen (`left_out_predictions`), and its loss is
measured on points that were left out when it was fitted (`calibrate`). `calibrate_selection` does
both.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int

from bqnes_jax.errors import (
    BQNESError,
    as_float,
    check_choice,
    check_labels,
    check_shape,
    check_whole,
)
from bqnes_jax.pooling import LOG_FLOOR, Pool, ensemble_log_probabilities
from bqnes_jax.selection import select
from bqnes_jax.selection.loglinear import Problem, best_pool

_FOLDS = 5
WHEN = ("auto", "on", "off")  # on: always; auto: where it lowers the loss of left-out points


class Calibration(NamedTuple):
    """A temperature, and what it changes.

    Attributes:
        temperature: the one to use: as fitted, or 1 where that does not lower the loss.
        fitted: the one that lowers the loss of all points most.
        before: mean of −log p of the predictions as they are.
        after: the same at points that were left out when the temperature was fitted.
    """

    temperature: Float[Array, ""]
    fitted: Float[Array, ""]
    before: Float[Array, ""]
    after: Float[Array, ""]

    def use(self, when: str) -> Float[Array, ""]:
        """Return the temperature to use: "on" as fitted, "auto" where it helps, "off" none."""
        check_choice("calibrate", when, WHEN)
        return {"auto": self.temperature, "on": self.fitted, "off": jnp.ones_like(self.fitted)}[
            when
        ]


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
    return _fit(_margins(log_probs, labels), jnp.ones(len(labels), log_probs.dtype))


def calibrate(log_probs: ArrayLike, labels: ArrayLike, *, folds: int = _FOLDS) -> Calibration:
    """Fit a temperature to predictions (n, C), and tell whether it helps where it was not fitted.

    Args:
        log_probs: of all classes, best for points that did not choose what predicts them.
        labels: of shape (n,).
        folds: into how many parts the points are divided; each is left out once.
    """
    log_probs, labels = _checked(log_probs, labels)
    check_whole("folds", folds, 2)
    return _calibrate(log_probs, labels, folds)


@functools.partial(jax.jit, static_argnames="folds")
def _calibrate(log_probs: Float[Array, "n C"], labels: Int[Array, " n"], folds: int) -> Calibration:
    points = len(labels)
    margins, everyone = _margins(log_probs, labels), jnp.ones(points, log_probs.dtype)
    fitted, before = _fit(margins, everyone), -jnp.mean(_true(log_probs, labels))
    if points < 2:  # nothing is left out of one point
        return Calibration(jnp.ones_like(fitted), fitted, before, before)
    fold_of = np.empty(points, int)
    for fold, left in enumerate(np.array_split(_order(points), min(folds, points))):
        fold_of[left] = fold
    kept = jnp.asarray(fold_of != np.arange(fold_of.max() + 1)[:, None], log_probs.dtype)
    temperatures = lax.map(lambda counts: _fit(margins, counts), kept)[fold_of]
    after = -jnp.mean(_true(apply_temperature(log_probs, temperatures), labels))
    return Calibration(jnp.where(after < before, fitted, 1), fitted, before, after)


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


def calibrate_selection(
    name: str,
    log_probs: ArrayLike,
    size: int,
    *,
    classes: ArrayLike,
    folds: int = _FOLDS,
    **options: ArrayLike | None,
) -> Calibration:
    """Fit the temperature of an ensemble by points that were left out when it was selected.

    The arguments are those of `left_out_predictions`. The true class of a point is the one that
    `log_probs` are of.
    """
    said = left_out_predictions(name, log_probs, size, classes=classes, folds=folds, **options)
    labels = _labels_of(as_float(log_probs), as_float(classes), options.get("mask"))
    return _calibrate(said, labels, folds)


def calibrate_ensemble(
    weights: ArrayLike, log_probs: ArrayLike, classes: ArrayLike, *, pool: Pool = Pool.MIXTURE
) -> Calibration:
    """Fit the temperature of an ensemble that is given, by what its members say.

    Points that chose the members flatter it; where the selection can be done again,
    `calibrate_selection` does not let them.

    Args:
        weights: of the members.
        log_probs: M×n, of the true class.
        classes: M×n×C, of all classes.
        pool: what the weights are for.
    """
    log_probs, classes = as_float(log_probs), as_float(classes)
    labels = _labels_of(log_probs, classes, as_float(weights) > 0)
    said = jax.nn.log_softmax(classes, axis=-1)  # may have been rounded
    return _calibrate(ensemble_log_probabilities(weights, said, pool=pool), labels, _FOLDS)


def left_out_predictions(
    name: str,
    log_probs: ArrayLike,
    size: int,
    *,
    classes: ArrayLike,
    folds: int = _FOLDS,
    **options: ArrayLike | None,
) -> Float[Array, "n C"]:
    """Return what ensembles say about points that were left out when they were selected.

    The points are divided into folds; for each, an ensemble is selected by the others. All folds
    have as many points, so that one program does for all of them; where that does not come out
    even, a few points are left out twice.

    Args:
        name: of the selection method.
        log_probs: N×n, of the true class.
        size: M.
        classes: N×n×C, of all classes.
        folds: how many.
        **options: what else the method needs: arguments of `selection.select` about candidates. A
            temperature is that of all points; fewer of them have a lower one.

    Returns:
        Log-probabilities of all classes at each point.
    """
    log_probs, classes = as_float(log_probs), as_float(classes)
    check_whole("folds", folds, 2)
    check_shape("classes", classes, (*log_probs.shape, None))
    points = log_probs.shape[1]
    if points < 2:
        raise BQNESError(
            f"log_probs has {points} points; at least two are needed to leave one out."
        )
    parts = min(folds, points)
    width = -(-points // parts)
    places = (np.arange(parts)[:, None] * width + np.arange(width)) % points
    left = np.sort(_order(points)[places], axis=1)
    kept = np.stack([np.setdiff1d(np.arange(points), each) for each in left])
    if options.get("temperature") is not None and options.get("measures") is None:
        options["temperature"] = jnp.asarray(options["temperature"]) * (kept.shape[1] / points)
    return _left_out(name, int(size), log_probs, classes, options, kept, left)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _left_out(
    name: str,
    size: int,
    log_probs: Float[Array, "N n"],
    classes: Float[Array, "N n C"],
    options: dict,
    kept: Int[Array, "k rest"],
    left: Int[Array, "k few"],
) -> Float[Array, "n C"]:
    dtype = jnp.promote_types(log_probs.dtype, jnp.float32)

    def predict(fold):
        kept, left = fold
        chosen = select(name, log_probs[:, kept], size, classes=classes[:, kept], **options)
        members = classes[chosen.members[:, None], left].astype(dtype)
        members = jax.nn.log_softmax(members, axis=-1)
        # Of members without a weight nothing counts, not even that they failed.
        members = jnp.where(chosen.weights[:, None, None] > 0, members, 0)
        return ensemble_log_probabilities(chosen.weights, members, pool=chosen.pool)

    said = lax.map(predict, (kept, left))
    return jnp.zeros(classes.shape[1:], dtype).at[left].set(said)


def _labels_of(
    log_probs: Float[Array, "N n"], classes: Float[Array, "N n C"], mask: ArrayLike | None
) -> Int[Array, " n"]:
    """Return of which class the log-probabilities are: of several that are alike, any will do."""
    usable = ~jnp.any(jnp.isnan(log_probs), axis=1)
    usable = usable if mask is None else usable & jnp.asarray(mask)
    true, others = jnp.maximum(log_probs, LOG_FLOOR), jnp.maximum(classes, LOG_FLOOR)
    distance = jnp.abs(others.astype(true.dtype) - true[..., None])
    return jnp.argmin(jnp.sum(distance, axis=0, where=usable[:, None, None]), axis=-1)


def _fit(margins: Float[Array, "n C"], counts: Float[Array, " n"]) -> Float[Array, ""]:
    """Return the temperature that fits the points, each of which counts so often."""
    alone, none = jnp.ones(1, bool), jnp.zeros((), margins.dtype)
    return 1 / best_pool(Problem(margins[None], alone, counts, none)).weights[0]


def _margins(log_probs: Float[Array, "n C"], labels: Int[Array, " n"]) -> Float[Array, "n C"]:
    floored = jnp.maximum(log_probs, LOG_FLOOR)
    return floored - _true(floored, labels)[:, None]


def _true(log_probs: Float[Array, "n C"], labels: Int[Array, " n"]) -> Float[Array, " n"]:
    return jnp.take_along_axis(log_probs, labels[:, None], axis=1)[:, 0]


def _order(points: int) -> Int[np.ndarray, " n"]:
    """Return the points shuffled, the same way each time."""
    return np.random.default_rng(0).permutation(points)


def _checked(log_probs: ArrayLike, labels: ArrayLike) -> tuple[jax.Array, jax.Array]:
    log_probs = as_float(log_probs)
    log_probs = log_probs.astype(jnp.promote_types(log_probs.dtype, jnp.float32))
    check_shape("log_probs", log_probs, (None, None))
    if log_probs.size == 0:
        raise BQNESError(f"log_probs has shape {log_probs.shape}; at least one point is needed.")
    return log_probs, check_labels("labels", labels, log_probs.shape)
