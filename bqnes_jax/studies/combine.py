"""Ensembles of models that exist already: selected, calibrated, and beside what others would do."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int

from bqnes_jax.calibration import (
    WHEN,
    Calibration,
    calibrate,
    fit_temperature,
    left_out_predictions,
)
from bqnes_jax.errors import BQNESError, check_choice, check_whole
from bqnes_jax.files.text import align
from bqnes_jax.kernels import prediction_gram
from bqnes_jax.metrics import (
    Interval,
    accuracy,
    bootstrap_interval,
    brier_score,
    ece,
    mean_log_likelihood,
)
from bqnes_jax.pooling import Pool, apply_temperature, ensemble_log_probabilities
from bqnes_jax.selection import Selection, methods, needs_classes, select
from bqnes_jax.studies.models import Models
from bqnes_jax.types import Status

MEMBERS = "members"  # a temperature for each model, and none after pooling
BASELINES = ("beam", "caruana", "stack")
_DEFAULT = 3  # members
_NOISE = 0.01
_DRAWS = 300
_SIZES = (1, 2, 3, 4, 5, 7, 10)  # those for which the loss is shown


class Measured(NamedTuple):
    """How good predictions are, each with a 95 % interval over draws of the points.

    Loss is −log p of the true class in nats per point. Where only the probabilities of the true
    class are known, the others are NaN.
    """

    loss: Interval
    ece: Interval
    accuracy: Interval
    brier: Interval


class Row(NamedTuple):
    """An ensemble of the table: what it is called, how many members it has, how good it is."""

    name: str
    size: int
    metrics: Measured
    status: Status = Status.OK


class Chosen(NamedTuple):
    """An ensemble: members of positive weight, ascending, and the temperature after pooling."""

    method: str
    members: Int[np.ndarray, " M"]
    weights: Float[np.ndarray, " M"]
    pool: Pool
    temperature: float
    status: Status


class Study(NamedTuple):
    """An ensemble, and what it rests on.

    Attributes:
        models: what was given.
        chosen: the ensemble.
        calibration: how its temperature came about; None if none was fitted.
        size: how many members were asked for.
    """

    models: Models
    chosen: Chosen
    calibration: Calibration | None
    size: int

    @property
    def labels(self) -> Int[np.ndarray, " m"]:
        """The true classes of the points that ensembles are measured on."""
        models = self.models
        return models.valid_labels if models.test_labels is None else models.test_labels


class Table(NamedTuple):
    """An ensemble beside others, on test points, if there are any.

    Otherwise each is measured on validation points, by members and weights that the other four
    fifths of them have selected.

    Attributes:
        rows: the ensemble itself first.
        said: its log-probabilities, before calibration.
    """

    rows: list[Row]
    said: Float[Array, "m C"]


def resolve_size(size: int | None, models: int) -> int:
    """Return how many members an ensemble may have, by default 3; refuse more than models."""
    size = min(_DEFAULT, models) if size is None else size
    check_whole("size", size, 1, models)
    return int(size)


def study_models(models: Models, size: int | None, *, method: str, when: str = "auto") -> Study:
    """Select and calibrate an ensemble."""
    size = resolve_size(size, len(models.names))
    check_choice("method", method, methods())
    check_choice("calibrate", when, (*WHEN, MEMBERS))
    if needs_classes(method) and not models.all_classes:
        raise BQNESError(
            f"method is {method!r}, which needs the probabilities of all classes, and valid has "
            "those of the true class only; pass (models, points, classes), or take 'corrective'."
        )
    if when == MEMBERS:
        models, when = _temper_each(models), "off"
    found = select_models(models, method, size)
    calibration, temperature = None, 1.0
    if when != "off" and models.all_classes and len(models.valid_labels) > 1:
        calibration = calibrate(_left_out(models, method, size), models.valid_labels)
        temperature = float(calibration.use(when))
    return Study(models, _make_chosen(method, found, temperature), calibration, size)


def _temper_each(models: Models) -> Models:
    """Give each model the temperature that fits it best, before any is selected."""
    if not models.all_classes:
        raise BQNESError(
            f"calibrate is {MEMBERS!r}, which needs the probabilities of all classes, and valid "
            "has those of the true class only; pass (models, points, classes)."
        )
    fit = jax.jit(fit_temperature)
    fitted = [
        float(fit(said, models.valid_labels)) if usable else 1.0
        for said, usable in zip(models.valid, models.usable, strict=True)
    ]
    temperatures = np.array(fitted)

    def temper(said: np.ndarray | None) -> np.ndarray | None:
        return None if said is None else np.asarray(apply_temperature(said, temperatures))

    valid = temper(models.valid)
    assert valid is not None
    return models._replace(valid=valid, test=temper(models.test), temperatures=temperatures)


def measure_study(study: Study, *, seed: int = 0) -> Table:
    """Measure an ensemble, and the best single model, other methods and all models beside it."""
    models, chosen, key = study.models, study.chosen, jax.random.key(seed)

    def row(name: str, count: int, said: Array, status: Status = Status.OK) -> Row:
        return Row(name, count, _measure(key, said, study.labels, models.all_classes), status)

    method, count, temperature = chosen.method, len(chosen.members), chosen.temperature
    own = _out_of_sample(models, method, study.size)
    rows = [row(method, count, apply_temperature(own, temperature), chosen.status)]
    if temperature != 1:
        rows.append(row(f"{method}, temperature 1", count, own))
    others = [(name, name, study.size) for name in BASELINES if name != method]
    for name, other, size in [("best single", "top", 1), *others]:
        info = select_models(models, other, size).info
        status = Status(int(info.status))
        rows.append(row(name, int(info.used), _out_of_sample(models, other, size), status))
    everyone = models.usable / models.usable.sum()
    said_by_all = models.valid if models.test is None else models.test
    rows.append(row("all equal", int(models.usable.sum()), _pool(everyone, said_by_all)))
    return Table(rows, own)


def points_of(study: Study) -> str:
    """Say which points the table is about."""
    if study.models.test is not None:
        return f"{len(study.labels)} test points"
    return f"{len(study.labels)} validation points, each predicted by members that others selected"


def loss_by_size(study: Study) -> list[tuple[int, float, Int[np.ndarray, " M"]]]:
    """Return for several numbers of members the loss, without calibration, and the members.

    The points are those of the table: what each further member would have added.
    """
    models, method = study.models, study.chosen.method
    usable = int(models.usable.sum())
    found = []
    for size in sorted({s for s in (*_SIZES, study.size) if s <= usable}):
        chosen = _make_chosen(method, select_models(models, method, size), 1.0)
        said = _out_of_sample(models, method, size)
        found.append((size, -float(mean_log_likelihood(said, study.labels, log=True)), chosen[1]))
    return found


def select_models(models: Models, method: str, size: int) -> Selection:
    """Select members and weights by the validation points."""
    true = _true(models.valid, models.valid_labels)
    return select(method, true, size, **_arguments(models))


def likeness(
    classes: ArrayLike, *, mask: ArrayLike | None = None
) -> tuple[Float[Array, "N N"], Float[Array, " N"]]:
    """Return what `restack`, `recombine` and `quadrature` need to know where there is no space.

    The kernel is `prediction_gram`, between what the models predict. The quadrature rule is
    v = (K + ρI)⁻¹ 1 with ρ = 0.01: models that say the same share what one of them would get.
    """
    gram = prediction_gram(classes, mask=mask)
    noise = _NOISE * jnp.eye(len(gram), dtype=gram.dtype)
    rule = jnp.linalg.solve(gram + noise, jnp.ones(len(gram), gram.dtype))
    return gram, rule / jnp.sum(jnp.abs(rule))


def _arguments(models: Models) -> dict:
    kernel, rule = likeness(models.valid, mask=models.usable)
    return {"classes": models.valid, "kernel": kernel, "rule": rule, "mask": models.usable}


def _make_chosen(method: str, found: Selection, temperature: float) -> Chosen:
    weights, members = np.asarray(found.weights, float), np.asarray(found.members)
    used = np.flatnonzero(weights > 0)
    used = used[np.argsort(members[used])]
    status = Status(int(found.info.status))
    return Chosen(method, members[used], weights[used], found.pool, temperature, status)


def _out_of_sample(models: Models, method: str, size: int) -> Float[Array, "m C"]:
    """Return what an ensemble says about points that did not select it, if there are any."""
    if models.test is None and len(models.valid_labels) > 1:
        return _left_out(models, method, size)
    return _predict(models, select_models(models, method, size))


def _left_out(models: Models, method: str, size: int) -> Float[Array, "n C"]:
    true = _true(models.valid, models.valid_labels)
    return left_out_predictions(method, true, size, **_arguments(models))


def _predict(models: Models, found: Selection) -> Float[Array, "m C"]:
    said = models.valid if models.test is None else models.test
    return _pool(found.weights, said[np.asarray(found.members)], pool=found.pool)


def _pool(weights: ArrayLike, said: ArrayLike, *, pool: Pool = Pool.MIXTURE) -> Array:
    said = jnp.asarray(said)
    return ensemble_log_probabilities(jnp.asarray(weights, said.dtype), said, pool=pool)


def _true(said: np.ndarray, labels: np.ndarray) -> Float[np.ndarray, "N n"]:
    return said[:, np.arange(len(labels)), labels]


def _measure(key, said: Array, labels: np.ndarray, all_classes: bool) -> Measured:
    found = _intervals(key, said, labels)
    columns = np.asarray([found.estimate, found.low, found.high], float).T
    columns[0] = np.where(np.isnan(columns[0]), np.inf, columns[0])  # between two infinities
    if not all_classes:
        columns[1:] = np.nan
    return Measured(*(Interval(*column.tolist()) for column in columns))


@jax.jit
def _intervals(key, said: Float[Array, "m C"], labels: Int[Array, " m"]) -> Interval:
    return bootstrap_interval(key, _metrics, said, labels, draws=_DRAWS, log=True)


def _metrics(said: ArrayLike, labels: ArrayLike, *, log: bool) -> Float[Array, " 4"]:
    loss = -mean_log_likelihood(said, labels, log=log)
    others = [metric(said, labels, log=log) for metric in (ece, accuracy, brier_score)]
    return jnp.stack([loss, *others])


HEADERS = ("ensemble", "M", "loss", "ECE", "accuracy, %", "Brier")
_SCALES, _DIGITS = (1, 1, 100, 1), (4, 4, 2, 4)


def format_rows(rows: Sequence[Row]) -> list[list[str]]:
    """Write the rows of the table, the interval behind each value."""
    return [[row.name, str(row.size), *map(_cell, row.metrics, range(4))] for row in rows]


def as_text(rows: Sequence[Row]) -> str:
    """Write the table as columns of text."""
    return align([HEADERS, *format_rows(rows)])


def _cell(value: Interval, column: int) -> str:
    if np.isnan(value.estimate):
        return "–"
    estimate, low, high = (f"{_SCALES[column] * v:.{_DIGITS[column]}f}" for v in value)
    return f"{estimate} [{low}, {high}]"
