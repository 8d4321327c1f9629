"""One temperature after pooling, and whether it helps on points that did not choose it.

A temperature T makes p(c|x)^(1/T) of a prediction, normalised: below 1 it is surer, above 1 less
sure. It is the log-linear pool of one member with the weight 1/T, and is fitted as such.

Points that chose the members of an ensemble flatter it. So a temperature is fitted to predictions
for points that were left out when the members were chosen (`left_out_predictions`), and its loss is
measured on points that were left out when it was fitted (`calibrate`). `select_calibrated` does
both.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int

from bqnes_jax.compiling import jit_quickly
from bqnes_jax.errors import (
    BQNESError,
    as_float,
    check_choice,
    check_labels,
    check_shape,
    check_whole,
    concrete,
)
from bqnes_jax.pooling import LOG_FLOOR, Pool, apply_temperature, ensemble_log_probabilities
from bqnes_jax.selection import Selection, needs_classes, select
from bqnes_jax.selection.loglinear import Problem, best_pool

__all__ = [
    "WHEN",
    "Calibration",
    "calibrate",
    "calibrate_ensemble",
    "calibrated_log_likelihood",
    "fit_temperature",
    "left_out_predictions",
    "select_calibrated",
]


def __dir__() -> list[str]:
    return __all__  # and nothing that is imported


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


def fit_temperature(log_probs: ArrayLike, labels: ArrayLike) -> Float[Array, ""]:
    """Return the temperature with which predictions (n, C) have the smallest loss.

    For one temperature per member, map it over them: `jax.vmap(fit_temperature, (0, None))`.

    Example:
        >>> sure = jnp.log(jnp.array([[0.99, 0.01]] * 4))
        >>> temperature = fit_temperature(sure, jnp.array([0, 0, 0, 1]))  # 3 of 4 are right
        >>> jnp.exp(apply_temperature(sure[0], temperature)).round(2).tolist()
        [0.75, 0.25]
    """
    log_probs, labels = _check(log_probs, labels)
    return _fit(_margins(log_probs, labels), jnp.ones(len(labels), log_probs.dtype))


def calibrate(log_probs: ArrayLike, labels: ArrayLike, *, folds: int = _FOLDS) -> Calibration:
    """Fit a temperature to predictions (n, C), and tell whether it helps where it was not fitted.

    Args:
        log_probs: of all classes, best for points that did not choose what predicts them.
        labels: of shape (n,).
        folds: into how many parts the points are divided; each is left out once.
    """
    log_probs, labels = _check(log_probs, labels)
    check_whole("folds", folds, 2)
    return _calibrate(log_probs, labels, folds)


@jit_quickly("folds")
def _calibrate(log_probs: Float[Array, "n C"], labels: Int[Array, " n"], folds: int) -> Calibration:
    points = len(labels)
    margins, before = _margins(log_probs, labels), -jnp.mean(_true(log_probs, labels))
    fold_of = np.empty(points, int)
    for fold, left in enumerate(np.array_split(_order(points), min(folds, points))):
        fold_of[left] = fold
    # Without each fold, and at last with all points.
    kept = jnp.asarray(fold_of != np.arange(fold_of.max() + 2)[:, None], log_probs.dtype)
    temperatures = lax.map(lambda counts: _fit(margins, counts), kept)
    fitted = temperatures[-1]
    if points < 2:  # nothing is left out of one point
        return Calibration(jnp.ones_like(fitted), fitted, before, before)
    after = -jnp.mean(_true(apply_temperature(log_probs, temperatures[fold_of]), labels))
    return Calibration(jnp.where(after < before, fitted, 1), fitted, before, after)


def calibrated_log_likelihood(probabilities: ArrayLike, labels: ArrayLike) -> Float[Array, ""]:
    """Return the log-likelihood per point at the best temperature, as Ashukha et al. (2020) do.

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


def select_calibrated(
    name: str,
    log_probs: ArrayLike,
    size: int,
    *,
    classes: ArrayLike,
    folds: int = _FOLDS,
    **options: ArrayLike | None,
) -> tuple[Selection, Calibration]:
    """Select an ensemble, and fit its temperature by points that were left out of selecting it.

    The arguments are those of `left_out_predictions`. The true class of a point is the one that
    `log_probs` are of.
    """
    chosen, said = _select_and_predict(name, log_probs, size, classes, folds, options)
    labels = _labels_of(as_float(log_probs), as_float(classes), options.get("mask"))
    return chosen, _calibrate(said, labels, folds)


def calibrate_ensemble(
    weights: ArrayLike, log_probs: ArrayLike, classes: ArrayLike, *, pool: Pool = Pool.MIXTURE
) -> Calibration:
    """Fit the temperature of an ensemble that is given, by what its members say.

    Points that chose the members flatter it; where the selection can be done again,
    `select_calibrated` does not let them.

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

    The points are divided into folds; for each, an ensemble is selected by the others, of which
    some count twice: so there are as many as in all, and one program selects every time. Where the
    points do not divide evenly, a few are left out twice.

    Args:
        name: of the selection method.
        log_probs: N×n, of the true class.
        size: M.
        classes: N×n×C, of all classes.
        folds: how many.
        **options: what else the method needs: arguments of `selection.select` about candidates.

    Returns:
        Log-probabilities of all classes at each point.
    """
    return _select_and_predict(name, log_probs, size, classes, folds, options)[1]


def _select_and_predict(
    name: str, log_probs: ArrayLike, size: int, classes: ArrayLike, folds: int, options: dict
) -> tuple[Selection, Float[Array, "n C"]]:
    """Select by all points, and predict each by what was selected without it."""
    log_probs, classes = as_float(log_probs), as_float(classes)
    check_whole("folds", folds, 2)
    check_shape("classes", classes, (*log_probs.shape, None))
    views, left = _views(log_probs.shape[1], folds)

    traced = any(
        isinstance(leaf, Tracer) for leaf in jax.tree.leaves((log_probs, classes, options))
    )
    # On the host points are picked without a program.
    true, every = (log_probs, classes) if traced else map(np.asarray, (log_probs, classes))

    def select_by(view: Int[Array | np.ndarray, " n"]) -> Selection:
        own = every[:, view] if needs_classes(name) else None
        return select(name, true[:, view], size, classes=own, **options)

    if traced:
        chosen = lax.map(select_by, jnp.asarray(views))
        whole = jax.tree.map(lambda leaf: leaf[0], chosen)
        others = jax.tree.map(lambda leaf: leaf[1:], chosen)
    else:  # each by the program of the first
        whole, *others = map(select_by, views)
        others = jax.tree.map(lambda *leaves: np.stack(leaves), *others)
    return whole, _predict_left_out(others, classes, jnp.asarray(left))


def _views(points: int, folds: int) -> tuple[Int[np.ndarray, "k1 n"], Int[np.ndarray, "k few"]]:
    """Return all points, and all but those of each fold, filled up; and the points of each fold.

    A point that is left out for the second time has a number beyond the last in its second fold.
    """
    if points < 2:
        raise BQNESError(
            f"log_probs has {points} points; at least two are needed to leave one out."
        )
    parts, order = min(folds, points), _order(points)
    width = -(-points // parts)
    places = np.arange(parts)[:, None] * width + np.arange(width)
    left = order[places % points]
    kept = np.stack([order[~np.isin(order, each)] for each in left])
    filled = kept[:, np.arange(points) % kept.shape[1]]
    first = np.where(places < points, left, points)  # beyond the last: said once already
    return np.concatenate([np.arange(points)[None], filled]), first


@jit_quickly()
def _predict_left_out(
    chosen: Selection, classes: Float[Array, "N n C"], left: Int[Array, "k few"]
) -> Float[Array, "n C"]:
    dtype = jnp.promote_types(classes.dtype, jnp.float32)

    def predict(fold):
        found, points = fold
        members = classes[found.members[:, None], points].astype(dtype)
        members = jax.nn.log_softmax(members, axis=-1)
        # A member without a weight has no part in it, even if it failed.
        members = jnp.where(found.weights[:, None, None] > 0, members, 0)
        return ensemble_log_probabilities(found.weights, members, pool=found.pool)

    said = lax.map(predict, (chosen, jnp.minimum(left, classes.shape[1] - 1)))
    return jnp.zeros(classes.shape[1:], dtype).at[left].set(said, mode="drop")


@jit_quickly()
def _labels_of(
    log_probs: Float[Array, "N n"], classes: Float[Array, "N n C"], mask: ArrayLike | None
) -> Int[Array, " n"]:
    """Return of which class the log-probabilities are: of several that are alike, any will do."""
    usable = ~jnp.any(jnp.isnan(log_probs), axis=1)
    usable = usable if mask is None else usable & jnp.asarray(mask)
    true, others = jnp.maximum(log_probs, LOG_FLOOR), jnp.maximum(classes, LOG_FLOOR)
    distance = jnp.abs(others.astype(true.dtype) - true[..., None])
    return jnp.argmin(jnp.sum(distance, axis=0, where=usable[:, None, None]), axis=-1)


@jax.jit  # or each call compiles its loop again
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


def _check(log_probs: ArrayLike, labels: ArrayLike) -> tuple[jax.Array, jax.Array]:
    log_probs = as_float(log_probs)
    log_probs = log_probs.astype(jnp.promote_types(log_probs.dtype, jnp.float32))
    check_shape("log_probs", log_probs, (None, None))
    if log_probs.size == 0:
        raise BQNESError(f"log_probs has shape {log_probs.shape}; at least one point is needed.")
    known = concrete(log_probs)
    if known is not None and np.isnan(known).any():
        raise BQNESError("log_probs holds NaN; leave out points that were not predicted.")
    return log_probs, check_labels("labels", labels, log_probs.shape)
