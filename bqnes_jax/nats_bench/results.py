"""Losses and accuracies of NATS-Bench in one small file, and the figures that it must agree with.

The file is an `.npz` with the fields of `Results`.
"""

import io
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float32

from bqnes_jax.files import explain_writing, refuse_damaged, write_whole
from bqnes_jax.files.arrays import read_arrays
from bqnes_jax.nats_bench.archive import DATASETS, SEEDS, Training
from bqnes_jax.spaces import NATS
from bqnes_jax.surrogates import TEMPERATURE

Scores = Float32[np.ndarray, "15625 3"]


class Results(NamedTuple):
    """What each architecture scored on one data set after 200 epochs; NaN where there is nothing.

    Rows are architectures in the order of their index in `NATS`, columns the seeds 777, 888, 999.

    Attributes:
        dataset: "cifar10", "cifar100" or "imagenet16-120".
        imported: which architectures have been read.
        valid_losses: mean negative log-likelihoods on the validation images.
        valid_accuracies: from 0 to 1.
        test_losses: likewise on the test images.
        test_accuracies: from 0 to 1.
    """

    dataset: str
    imported: Bool[np.ndarray, "15625"]
    valid_losses: Scores
    valid_accuracies: Scores
    test_losses: Scores
    test_accuracies: Scores


class Figures(NamedTuple):
    """What a table comes down to.

    Attributes:
        log_evidence: exact log Z with the seed 777 at the default temperature.
        best_accuracy: the highest test accuracy of an architecture, averaged over its seeds.
    """

    log_evidence: float
    best_accuracy: float


# What the real archives give, log Z to three digits and accuracies to a hundredth of a per cent.
PUBLISHED_FIGURES = {
    "cifar100": Figures(-50.043, 0.7351),
    "imagenet16-120": Figures(-53.367, 0.4731),
}
_ROUNDING = Figures(6e-4, 6e-5)


def empty(dataset: str) -> Results:
    """Return results of nothing yet."""
    scores = (np.full((NATS.size, len(SEEDS)), np.nan, np.float32) for _ in range(4))
    return Results(dataset, np.zeros(NATS.size, bool), *scores)


def record(results: Results, number: int, trainings: dict[int, Training]) -> None:
    """Write the trainings of one architecture into its row, in place."""
    for column, seed in enumerate(SEEDS):
        if seed in trainings:
            scores = trainings[seed][:4]  # in the order of the fields here
            for array, score in zip(results[2:], scores, strict=True):
                array[number, column] = score
    results.imported[number] = True


def figures(results: Results) -> Figures:
    """Return what must agree with the benchmark; NaN while not all architectures are there.

    Example:
        >>> results = empty("cifar100")
        >>> results.valid_losses[:] = 2.0
        >>> results.test_accuracies[:, :2] = 0.5
        >>> figures(results)  # the mean loss, times 5,000 images, by the temperature 128
        Figures(log_evidence=-78.125, best_accuracy=0.5)
    """
    points = DATASETS[results.dataset].valid_points
    tempered = -results.valid_losses[:, 0].astype(float) * points / TEMPERATURE
    highest = tempered.max()
    log_evidence = highest + np.log(np.mean(np.exp(tempered - highest)))
    accuracies = results.test_accuracies.astype(float)
    there = np.isfinite(accuracies)
    total = np.where(there, accuracies, 0).sum(axis=1)
    with np.errstate(invalid="ignore"):  # no seed at all: 0/0
        best = (total / there.sum(axis=1)).max()
    return Figures(float(log_evidence), float(best))


def agree(found: Figures, published: Figures) -> tuple[bool, bool]:
    """Tell which of the figures are the published ones, to their last digit."""
    evidence, accuracy = (
        abs(a - b) <= rounding for a, b, rounding in zip(found, published, _ROUNDING, strict=True)
    )
    return evidence, accuracy


def read_results(path: Path) -> Results:
    """Read a table of NATS-Bench."""
    with refuse_damaged(
        path,
        "is not a table of NATS-Bench, or damaged",
        remedy="remove it and make it again with: bqnes nats import",
        absent="is not there; make it with: bqnes nats import",
    ):
        results = read_arrays(path, Results)
        if results.dataset not in DATASETS:
            raise ValueError(f"it is of {results.dataset[:40]!r}")
    return results


def write_results(path: Path, results: Results) -> None:
    """Write a table of NATS-Bench, whole or not at all."""
    content = io.BytesIO()
    np.savez_compressed(content, **results._asdict())
    with explain_writing(f"table {path}"):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, content.getvalue())
