"""The front door for models that exist already: predictions in, a small calibrated ensemble out."""

import dataclasses
import functools
import os
from collections.abc import Sequence
from pathlib import Path

import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Float, Int

from bqnes_jax.errors import BQNESError
from bqnes_jax.files.text import in_a_line
from bqnes_jax.pooling import Pool, apply_temperature, ensemble_log_probabilities
from bqnes_jax.studies.combine import (
    Measured,
    Study,
    Table,
    as_text,
    measure_study,
    points_of,
    study_models,
)
from bqnes_jax.studies.models import check_costs, check_models, log_probabilities
from bqnes_jax.types import explain_each

__all__ = [
    "Combination",
    "combine",
]


def __dir__() -> list[str]:
    return __all__  # and nothing that is imported


@dataclasses.dataclass(frozen=True, eq=False)
class Combination:
    """An ensemble of models that exist already. Make one with `bqnes_jax.combine`.

    Attributes:
        study: all that was found.
        inputs: what predictions are given as.
        costs: of the models, or None.
        seed: of the draws for intervals.
    """

    study: Study
    inputs: str
    costs: Float[np.ndarray, " N"] | None
    seed: int

    @property
    def members(self) -> Int[np.ndarray, " M"]:
        """Which of the models are members, in the order of the models."""
        return self.study.chosen.members

    @property
    def names(self) -> tuple[str, ...]:
        """What the members are called."""
        return tuple(self.study.models.names[member] for member in self.members)

    @property
    def weights(self) -> Float[np.ndarray, " M"]:
        """How much each member counts; those of a log pool have any sum."""
        return self.study.chosen.weights

    @property
    def pool(self) -> Pool:
        """Where the ensemble averages: a mixture, or a pool in log space."""
        return self.study.chosen.pool

    @property
    def temperature(self) -> float:
        """The temperature after pooling; 1 where none helps."""
        return self.study.chosen.temperature

    @functools.cached_property
    def measured(self) -> Table:
        """The ensemble beside others; measured when it is first asked for."""
        return measure_study(self.study, seed=self.seed)

    @property
    def metrics(self) -> Measured:
        """How good the ensemble is, with intervals: on test points, if there were any."""
        return self.measured.rows[0].metrics

    @property
    def warnings(self) -> list[str]:
        """What was changed, and what went differently than it should."""
        rows = [(row.name, row.status) for row in self.measured.rows]
        return [*self.study.models.notes, *explain_each(rows)]

    def predict(self, new: ArrayLike) -> Float[np.ndarray, "k C"]:
        """Return the probabilities of all classes at new points.

        Args:
            new: what all N models say about them, N×k×C, or what the M members say, in the order
                of `members`, M×k×C; given as the validation predictions were.
        """
        models = self.study.models
        if not models.all_classes:
            raise BQNESError(
                "the ensemble was made from probabilities of the true class only; to predict, "
                "combine what the models say about all classes."
            )
        new, count, classes = np.asarray(new), len(models.names), models.valid.shape[2]
        if new.ndim != 3 or len(new) not in (count, len(self.members)) or new.shape[2] != classes:
            raise BQNESError(
                f"new has shape {new.shape}; it must be ({count}, points, {classes}) with all "
                f"models, or ({len(self.members)}, points, {classes}) with the members."
            )
        new = new[self.members] if len(new) == count else new
        said = log_probabilities("new", new, inputs=self.inputs, notes=[])
        if (failed := np.isnan(said).any(axis=(1, 2))).any():
            raise BQNESError(f"new holds NaN for {', '.join(np.array(self.names)[failed])}.")
        said = apply_temperature(said, models.temperatures[self.members])
        weights = jnp.asarray(self.weights, said.dtype)
        pooled = ensemble_log_probabilities(
            weights, said, pool=self.pool, temperature=self.temperature
        )
        return np.exp(np.asarray(pooled))

    def report(self, path: str | os.PathLike[str]) -> Path:
        """Write a page about the ensemble; returns its path."""
        from bqnes_jax.report.combination import write_page  # matplotlib takes a second to import

        return write_page(self.study, path, table=self.measured, costs=self.costs)

    def __repr__(self) -> str:
        members = ", ".join(
            f"{in_a_line(n)}: {w:.3g}" for n, w in zip(self.names, self.weights, strict=True)
        )
        return (
            f"Combination({self.study.chosen.method}, {members}; "
            f"temperature {self.temperature:.3g})"
        )

    def __str__(self) -> str:
        return "\n".join([self.table(), *self.warnings])

    def table(self) -> str:
        """Write members, weights, and the ensemble beside others, as columns of text."""
        study = self.study
        lines = [f"{study.chosen.method} with {len(self.members)} of {len(study.models.names)}:"]
        lines += [
            f"  {w:.3f}  {in_a_line(n)}" for n, w in zip(self.names, self.weights, strict=True)
        ]
        lines += [f"{points_of(study)}, with 95 % intervals:"]
        lines += [as_text(self.measured.rows).rstrip(), _describe_temperature(study)]
        return "\n".join(line for line in lines if line)

    def as_dict(self) -> dict:
        """Return what is needed to predict, as JSON has it."""
        return {
            "method": self.study.chosen.method,
            "pool": self.pool.value,
            "members": self.members.tolist(),
            "names": list(self.names),
            "weights": self.weights.tolist(),
            "temperature": self.temperature,
            "member_temperatures": self.study.models.temperatures[self.members].tolist(),
            "inputs": self.inputs,
        }


def _describe_temperature(study: Study) -> str:
    if study.calibration is None:
        return ""
    before, after = float(study.calibration.before), float(study.calibration.after)
    return (
        f"Temperature {study.chosen.temperature:.3f}: on validation points that did not fit it the "
        f"loss is {after:.4f} at {float(study.calibration.fitted):.3f}, {before:.4f} at 1."
    )


def combine(
    valid: ArrayLike,
    valid_labels: ArrayLike | None = None,
    *,
    size: int | None = None,
    method: str = "logpool",
    names: Sequence[str] | np.ndarray | None = None,
    test: ArrayLike | None = None,
    test_labels: ArrayLike | None = None,
    inputs: str = "probabilities",
    costs: Sequence[float] | ArrayLike | None = None,
    calibrate: str = "auto",
    seed: int = 0,
) -> Combination:
    """Make a small ensemble of models that exist already, from what they predict.

    Where a method needs to know how alike models are (`restack`, `recombine`, `quadrature`), it is
    told by `kernels.prediction_gram`, a Gaussian kernel of the Hellinger distance between what they
    predict.

    Args:
        valid: N×n×C, what N models say about all C classes at n validation points; or N×n, of the
            true class only, for methods other than `logpool`. A model with NaN has failed and is
            never a member.
        valid_labels: n true classes, from 0 to C − 1; not needed for N×n.
        size: M, how many members, at most N; fewer where further ones would get no weight. By
            default 3, or N if that is less.
        method: of selection, as in `selection.select`.
        names: of the models; by default their numbers.
        test: N×m×C, the same for points on which the ensemble is measured. Without them it is
            measured on validation points, each by members that the others have selected.
        test_labels: m true classes.
        inputs: `"probabilities"`, `"logits"` or `"log_probabilities"`: what is given.
        costs: N, what each model costs to run, in any unit; for the report.
        calibrate: whether a temperature follows the pool: `"on"`, `"off"`, or `"auto"`, if it
            lowers the loss of validation points that were left out when it was fitted; or
            `"members"`, for a temperature of each model before any is selected.
        seed: of the draws for intervals.

    Example:
        >>> valid = np.array([[[0.9, 0.1], [0.6, 0.4]], [[0.4, 0.6], [0.1, 0.9]]]).repeat(50, 1)
        >>> combination = combine(valid, np.array([0, 1]).repeat(50), size=2, method="beam")
        >>> combination.members.tolist(), combination.predict(valid).shape
        ([0, 1], (100, 2))
    """
    models = check_models(
        valid, valid_labels, test=test, test_labels=test_labels, names=names, inputs=inputs
    )
    if costs is not None:
        costs = check_costs(costs, len(models.names))
    study = study_models(models, size, method=method, when=calibrate)
    return Combination(study, inputs, costs, seed)
