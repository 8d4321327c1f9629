"""How good an ensemble is on corrupted images, where `bqnes robustness` has measured it."""

from collections.abc import Iterator

import numpy as np

from bqnes_jax.report import figures, html
from bqnes_jax.report.answers import Part
from bqnes_jax.report.html import Cell, Drawing, Section
from bqnes_jax.report.plots import with_sign
from bqnes_jax.runs import Run
from bqnes_jax.studies import robustness

_NAMES = ("shift-error", "shift-ece", "shift-loss")
_CALLED = ("error rate, %", "ECE", "loss, nats per image")
HEAD = ("Corruption", "Error rate", "ECE", "Loss")


def under_shift(run: Run) -> Part | None:
    """Return how good the ensemble and the best single network are; None if nobody measured it."""
    found = robustness.read_study(run)
    if found is None:
        return None
    study, images = found
    points = len(run.record.test_labels)
    clean, shifted = (_people_know(one, points) for one in (study.clean, study.shifted))
    drawings = list(_drawings(study.severities, clean, shifted))
    own, single = shifted.mean(axis=2)
    rows = [
        [name.replace("_", " "), *map(_cell, own[i], single[i], range(3))]
        for i, name in enumerate(study.corruptions)
    ]
    sentence = (
        "On corrupted test images, members and weights being those for clean ones. The table "
        "averages over severities; below each number that of the best single network. Images: "
        f"{images}."
    )
    body = html.figures(drawings) + html.table(HEAD, rows)
    return Part(Section("How good is it on other images?", sentence, body), drawings)


def _people_know(measured: np.ndarray, points: int) -> np.ndarray:
    """Turn accuracy, ECE and log-likelihood into error rate, ECE, and loss per point."""
    accuracy, ece, log_likelihood = np.moveaxis(measured, -1, 0)
    return np.stack([100 * (1 - accuracy), ece, -log_likelihood / points], axis=-1)


def _drawings(
    severities: tuple[int, ...], clean: np.ndarray, shifted: np.ndarray
) -> Iterator[Drawing]:
    before = np.broadcast_to(clean[:, None, None], (*shifted.shape[:2], 1, 3))
    every = np.concatenate([before, shifted], axis=2)
    for i, (name, called) in enumerate(zip(_NAMES, _CALLED, strict=True)):
        each, single = every[0, :, :, i], every[1, :, :, i].mean(axis=0)
        shows = (
            f"{called} against the severity of corruptions: from {each[:, 0].mean():.3g} on clean "
            f"images to {each[:, -1].mean():.3g} on the worst, and of the best single network "
            f"from {single[0]:.3g} to {single[-1]:.3g}"
        )
        figure = figures.under_shift((0, *severities), each, single, called)
        yield Drawing(name, shows, figure, "A pale line for each corruption, and their average.")


def _cell(own: float, single: float, column: int) -> Cell:
    own, single = float(own), float(single)
    if column == 0:
        return Cell(f"{own:.1f} %", f"{single:.1f} %")
    return Cell(with_sign(own, 4), with_sign(single, 4))
