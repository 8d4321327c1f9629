"""What models that exist already predict: read from arrays, checked, and put into logarithms."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Bool, Float, Int

from bqnes_jax.errors import BQNESError, check_choice, check_shape

INPUTS = ("probabilities", "logits", "log_probabilities")
_EXACT, _ROUNDED = 1e-4, 0.05  # how far from 1 a sum is silently, and with a note, made 1


class Models(NamedTuple):
    """What N models say about n validation points, and maybe about m test points.

    Attributes:
        names: one for each model.
        usable: false where a model says NaN anywhere.
        valid: log-probabilities of all classes; NaN throughout where not usable. Where only those
            of the true class are known, of it and of all others together.
        valid_labels: the true classes; 0 throughout where only they are known.
        test: the like for the test points, or None.
        test_labels: the true classes of the test points, or None.
        all_classes: whether the probabilities of all classes are known.
        notes: what had to be changed.
        temperatures: at which what each model says was put into logarithms; 1 as it was given.
    """

    names: tuple[str, ...]
    usable: Bool[np.ndarray, " N"]
    valid: Float[np.ndarray, "N n C"]
    valid_labels: Int[np.ndarray, " n"]
    test: Float[np.ndarray, "N m C"] | None
    test_labels: Int[np.ndarray, " m"] | None
    all_classes: bool
    notes: tuple[str, ...]
    temperatures: Float[np.ndarray, " N"]


def check_models(
    valid: ArrayLike,
    valid_labels: ArrayLike | None = None,
    *,
    test: ArrayLike | None = None,
    test_labels: ArrayLike | None = None,
    names: Sequence[str] | np.ndarray | None = None,
    inputs: str = "probabilities",
) -> Models:
    """Check what models predict; for the arguments see `bqnes_jax.combine`."""
    check_choice("inputs", inputs, INPUTS)
    notes: list[str] = []
    said, labels, all_classes = _part("valid", valid, valid_labels, inputs, notes)
    told = answers = None
    if test is not None:
        told, answers, whole = _part("test", test, test_labels, inputs, notes)
        if all_classes != whole or len(told) != len(said) or told.shape[2] != said.shape[2]:
            raise BQNESError(
                f"valid has shape {np.shape(valid)} and test {np.shape(test)}; both must be about "
                "the same models (the first axis) and the same classes (the last)."
            )
    elif test_labels is not None:
        raise BQNESError("test_labels are given without test; pass the predictions, too.")
    names = tuple(map(str, range(len(said)) if names is None else np.asarray(names).tolist()))
    if len(names) != len(said):
        raise BQNESError(
            f"names has {len(names)} entries; valid has {len(said)} models (its first axis)."
        )
    usable = np.asarray(~np.isnan(said).any(axis=(1, 2)))
    if told is not None:
        usable &= ~np.isnan(told).any(axis=(1, 2))
        told[~usable] = np.nan
    said[~usable] = np.nan
    if not usable.any():
        raise BQNESError("every model says NaN somewhere; at least one must say numbers only.")
    if not usable.all():
        failed = ", ".join(np.array(names)[~usable])
        notes.append(f"Left out, because they say NaN or infinity somewhere: {failed}.")
    as_given = np.ones(len(said))
    return Models(names, usable, said, labels, told, answers, all_classes, tuple(notes), as_given)


def _part(
    name: str, given: ArrayLike, labels: ArrayLike | None, inputs: str, notes: list[str]
) -> tuple[np.ndarray, np.ndarray, bool]:
    """Return log-probabilities, labels, and whether those of all classes are given."""
    array = np.asarray(given)
    if array.dtype.kind not in "fiub" or array.ndim not in (2, 3) or array.size == 0:
        raise BQNESError(
            f"{name} has shape {array.shape} and type {array.dtype}; it must hold numbers, of "
            "shape (models, points, classes), or (models, points) for those of the true class."
        )
    if array.ndim == 3:
        labels = _check_axes(name, array, labels)
        return log_probabilities(name, array, inputs=inputs, notes=notes), labels, True
    if labels is not None and np.shape(labels) == array.shape[:1] != array.shape[1:]:
        raise BQNESError(
            f"{name} has shape {array.shape}, and its first axis is as long as {name}_labels; "
            f"models come first: for one model with all classes pass {name}[None]."
        )
    if inputs == "logits":
        raise BQNESError(
            f"{name} has shape {array.shape}; logits of the true class alone are no probabilities: "
            "pass those of all classes, of shape (models, points, classes)."
        )
    given_as = array.astype(np.promote_types(array.dtype, np.float32))
    with np.errstate(all="ignore"):
        true = np.exp(given_as) if inputs == "log_probabilities" else given_as
        if (true[np.isfinite(true)] < 0).any() or (true[np.isfinite(true)] > 1 + _EXACT).any():
            raise BQNESError(
                f"{name} holds values outside of [0, 1] as probabilities; those of the true class "
                "are expected: say what they are with inputs='log_probabilities'."
            )
        logs = given_as if inputs == "log_probabilities" else np.log(true)
        both = np.stack([np.minimum(logs, 0), np.log1p(-np.minimum(true, 1))], axis=2)
    both[~np.isfinite(true).all(axis=1)] = np.nan
    return both, np.zeros(array.shape[1], int), False


def _check_axes(name: str, array: np.ndarray, labels: ArrayLike | None) -> np.ndarray:
    """Refuse an array whose axes are not models, points, classes, and say which one is wrong."""
    if labels is None:
        raise BQNESError(f"{name}_labels is None; pass the true class of each point of {name}.")
    labels = np.asarray(labels)
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise BQNESError(
            f"{name}_labels have shape {labels.shape} and type {labels.dtype}; they must be whole "
            "numbers, one for each point."
        )
    shape, points = array.shape, len(labels)
    wanted = "its axes must be (models, points, classes)"
    if shape[1] != points:
        place = next((axis for axis in (0, 2) if shape[axis] == points), None)
        remedy = f"axis 1 has {shape[1]} entries for {points} labels"
        if place is not None:
            order = "(1, 0, 2)" if place == 0 else "(0, 2, 1)"
            remedy = f"axis {place} is the points: pass {name}.transpose{order}"
        raise BQNESError(f"{name} has shape {shape} for {points} labels; {wanted}: {remedy}.")
    lowest, highest = int(labels.min()), int(labels.max())
    if lowest < 0 or highest >= shape[2]:
        remedy = f"labels are from 0 to {shape[2] - 1}"
        if lowest >= 0 and highest < shape[0]:
            remedy = f"axis 0 may be the classes: then pass {name}.transpose(2, 1, 0)"
        wrong = lowest if lowest < 0 else highest
        raise BQNESError(
            f"{name}_labels hold {wrong}, and {name} of shape {shape} has {shape[2]} classes; "
            f"{wanted}, and {remedy}."
        )
    return labels.astype(int)


def log_probabilities(
    name: str, array: np.ndarray, *, inputs: str, notes: list[str]
) -> Float[np.ndarray, "N n C"]:
    """Return normalised log-probabilities; NaN where a model says NaN or what has no meaning."""
    array = array.astype(np.promote_types(array.dtype, np.float32))
    with np.errstate(all="ignore"):
        if inputs == "probabilities":
            if (array < 0).any():
                raise BQNESError(
                    f"{name} holds {np.nanmin(array):.4g}; probabilities are not negative: say "
                    "what they are with inputs='logits' or inputs='log_probabilities'."
                )
            total = array.sum(axis=-1, keepdims=True)
            _check_sums(name, array, total, notes)
            logs = np.log(array) - np.log(total)
        else:
            highest = array.max(axis=-1, keepdims=True)
            total = np.exp(array - highest).sum(axis=-1, keepdims=True)
            if inputs == "log_probabilities":
                _check_sums(f"exp({name})", np.exp(array), total * np.exp(highest), notes)
            logs = array - highest - np.log(total)
    logs[~np.isfinite(total[..., 0]).all(axis=1) | np.isnan(logs).any(axis=(1, 2))] = np.nan
    return logs


def _check_sums(name: str, values: np.ndarray, total: np.ndarray, notes: list[str]) -> None:
    """Refuse what does not add up to 1 over the classes, and note what does so roughly."""
    finite = np.isfinite(total)
    off = np.abs(total[finite] - 1).max(initial=0)
    if off > _ROUNDED:
        where = total[finite][np.abs(total[finite] - 1).argmax()]
        first = np.abs(values.sum(axis=0) - 1)
        remedy = "apply a softmax, or say what they are with inputs='logits'"
        if np.nanmax(first) < _ROUNDED:
            remedy = "over axis 0 they do, so that it is the classes: move it to the end"
        raise BQNESError(
            f"{name} sums to {where:.4g} over its last axis, the classes; probabilities sum to 1: "
            f"{remedy}."
        )
    if off > _EXACT:
        notes.append(
            f"{name} summed to 1 within {off:.1g} only, as rounded probabilities do, and was "
            "divided by its sums."
        )


def check_costs(costs: Sequence[float] | ArrayLike, count: int) -> Float[np.ndarray, " N"]:
    """Check what the models cost: one number each, not negative."""
    costs = np.asarray(costs, float)
    check_shape("costs", costs, (count,))
    if not (np.isfinite(costs) & (costs >= 0)).all():
        raise BQNESError("costs hold a number that is negative or not finite; each is at least 0.")
    return costs
