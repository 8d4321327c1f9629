"""The table of a run: the best single network and ensembles of the same candidates, by name."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from bqnes_jax import algorithms
from bqnes_jax.errors import BQNESError
from bqnes_jax.files.text import count_members
from bqnes_jax.report.selections import list_selections
from bqnes_jax.runs import Ensemble, Metrics, Run
from bqnes_jax.types import Status, explain_each


class Row(NamedTuple):
    """An ensemble of the table: what it is called, how many members were asked for, how good.

    The status says what went differently when it was selected; `used` is how many members it has.
    """

    name: str
    size: int
    metrics: Metrics
    status: Status
    used: int
    temperature: float = 1.0  # after pooling
    uncalibrated: Metrics = Metrics(0.0, 0.0, 0.0)  # how good without it

    @property
    def members(self) -> str:
        """How many members, as text: those in use, if they are fewer than were asked for."""
        return count_members(self.size, self.used)


def summary(run: Run, sizes: Sequence[int] = ()) -> list[Row]:
    """Return the table of results: the best single network, and ensembles of these sizes.

    They are selected from the same candidates in several ways; that of the run is among them. By
    default they are as large as that of the run.
    """
    check_trained(run)
    asked = list_selections(run.config, len(run.record.archs), sizes=sizes)
    return [row_of(run.ensemble(size, method)) for method, size in asked]


def check_trained(run: Run) -> None:
    """Refuse a run in which every training failed."""
    if not np.any(run.record.log_likelihoods < np.inf):
        raise BQNESError(
            f"run {run.directory} has no network whose training succeeded; train longer, or with "
            "a smaller learning rate."
        )


def row_of(ensemble: Ensemble, name: str | None = None) -> Row:
    """Measure an ensemble, with the temperature after pooling and without it."""
    return Row(
        label_of(ensemble) if name is None else name,
        ensemble.size,
        ensemble.metrics,
        ensemble.status,
        len(ensemble.members),
        ensemble.temperature,
        ensemble.without_temperature().metrics,
    )


def warnings_of(ensemble: Ensemble, rows: Sequence[Row]) -> list[str]:
    """Say what went differently for an ensemble and for others of a table, and what helps."""
    others = [row for row in rows if row[:2] != (label_of(ensemble), ensemble.size)]
    of_others = explain_each((f"{row.name} {row.size}", row.status) for row in others)
    return [*ensemble.warnings(), *of_others]


def label_of(ensemble: Ensemble) -> str:
    """Return what an ensemble is called in a table."""
    algorithm = algorithms.find_trainable(ensemble.run.config.algorithm)
    strategy, method = algorithm.strategy, ensemble.method
    if method == "top" and ensemble.size == 1:
        return "Best single"
    if method in ("beam", "corrective"):
        return method
    if algorithm.one_architecture and method == algorithm.method:
        return ensemble.run.config.algorithm
    stacked = "BQ-S" if ensemble.run.config.seeds == 1 else "BQ-W"
    short = {"us+restack": stacked, "us+recombine": "BQ-R", "us+logpool": "BQ-L"}
    return short.get(f"{strategy}+{method}", f"{strategy}+{method}")


def name_of(ensemble: Ensemble) -> str:
    """Return the name of an ensemble: the algorithm's, unless another was selected later."""
    name = ensemble.run.config.algorithm
    return name if algorithms.find_trainable(name).method == ensemble.method else label_of(ensemble)
