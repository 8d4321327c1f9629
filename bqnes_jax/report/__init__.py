"""What came out of a run, for people: a table, figures, and one HTML page with both.

write_report(run)  # report.html in the directory of the run, and its figures in plots/
"""

import dataclasses
import datetime
import json
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import yaml
from jax import lax
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int

from bqnes_jax import algorithms
from bqnes_jax.compiling import jit_quickly
from bqnes_jax.errors import BQNESError
from bqnes_jax.families import families, is_named
from bqnes_jax.files import as_path, make_folder, sweep, write_whole, writing
from bqnes_jax.kernels import KernelConfig, make_kernel
from bqnes_jax.metrics import (
    accuracy,
    disagreement,
    log_likelihood,
    per_member,
    reliability_curve,
)
from bqnes_jax.report import architectures, html, plots
from bqnes_jax.report.html import Drawing, Row, Section
from bqnes_jax.report.plots import Predicted, signed
from bqnes_jax.report.selections import list_selections, rehearse
from bqnes_jax.runs import Ensemble, Metrics, Run
from bqnes_jax.spaces import Space
from bqnes_jax.studies import robustness
from bqnes_jax.surrogates import FitConfig, WarpConfig, wsabi
from bqnes_jax.types import explain_each

__all__ = [
    "Row",
    "kernel_coordinates",
    "predict_each",
    "rank_correlation",
    "rehearse",
    "row_of",
    "summary",
    "warnings_of",
    "write_report",
]

_SHIFT = ("shift-accuracy", "shift-ece", "shift-log-likelihood")
_METRICS = ("accuracy, %", "ECE", "log-likelihood")
# The figures that are not in every report: an older one's must not stay beside a new page.
_MAY_BE_OLD = re.compile(
    r"(architecture-\d+|evidence|surrogate|disagreement|shift-[a-z-]+)\.(png|pdf)"
)


def summary(run: Run, sizes: Sequence[int] = ()) -> list[Row]:
    """Return the table of results: the best single network, and ensembles of these sizes.

    They are selected from the same candidates in several ways; that of the run is among them. By
    default they are as large as that of the run.
    """
    if not np.any(run.record.log_likelihoods < np.inf):
        raise BQNESError(
            f"run {run.directory} has no network whose training succeeded; train longer, or with "
            "a smaller learning rate."
        )
    asked = list_selections(run.config, len(run.record.archs), sizes=sizes)
    return [row_of(run.ensemble(size, method)) for method, size in asked]


def warnings_of(ensemble: Ensemble, rows: Sequence[Row]) -> list[str]:
    """Say what went differently for an ensemble and for others of a table, and what helps."""
    others = [row for row in rows if row[:2] != (_label(ensemble), ensemble.size)]
    of_others = explain_each((f"{row.name} {row.size}", row.status) for row in others)
    return [*ensemble.warnings(), *of_others]


def write_report(run: Run, directory: str | os.PathLike[str] | None = None) -> Path:
    """Write a page about the saved ensemble of a run, and its figures; returns the path.

    Args:
        run: what to report.
        directory: where `report.html` and `plots/` go; by default that of the run.
    """
    directory = run.directory if directory is None else as_path(directory)
    rows, ensemble = summary(run), run.saved_ensemble()
    own = row_of(ensemble)
    rows = [own if row[:2] == own[:2] else row for row in rows]
    rows = rows if own in rows else [*rows, own]
    drawings = {drawing.name: drawing for drawing in _drawings(ensemble)}
    for drawing in drawings.values():
        plots.settle(drawing.figure)
    content = html.page(
        f"{run.config.data_name}: ensemble by {_called(ensemble)}",
        _result(ensemble),
        _facts(run),
        _sections(ensemble, rows, own, drawings),
    )
    with writing(f"report {directory}"):
        _write_plots(directory / "plots", list(drawings.values()))
        write_whole(directory / "report.html", content.encode())
    return directory / "report.html"


@jit_quickly(("warp", "fit", "space", "chosen"))
def predict_each(
    archs: Int[Array, "n length"],
    log_likelihoods: Float[Array, " n"],
    counts: Int[Array, " T"],
    warp: WarpConfig,
    fit: FitConfig,
    space: Space,
    chosen: KernelConfig,
    temperature: ArrayLike,
) -> tuple[Float[Array, " n"], Float[Array, " n"], Float[Array, " n"]]:
    """Predict each candidate from those before its step: mean, standard deviation, log-scale.

    `counts` tells how many candidates there were before each step. A candidate from before the
    first has no prediction: NaN.
    """
    kernel, places = make_kernel(space, chosen), jnp.arange(len(archs))
    known = jnp.where(jnp.isfinite(log_likelihoods), log_likelihoods, -jnp.inf)  # failed: ℓ = 0

    def after(count: Int[Array, ""]) -> tuple[Array, Array, Array]:
        model = wsabi.fit(
            kernel,
            archs,
            known,
            mask=places < count,
            temperature=temperature,
            config=warp,
            fit_config=fit,
        )
        mean, variance = model.predict(archs)
        return mean, jnp.sqrt(variance), jnp.broadcast_to(model.log_scale, mean.shape)

    step = jnp.searchsorted(counts, places, side="right") - 1
    mean, deviation, scale = (
        jnp.where(step >= 0, said[jnp.maximum(step, 0), places], jnp.nan)
        for said in lax.map(after, counts)
    )
    return mean, deviation, scale


def rank_correlation(a: np.ndarray, b: np.ndarray) -> float:
    """Return Spearman's correlation; NaN where one of the two has no order.

    Example:
        >>> rank_correlation(np.array([1.0, 2.0, 9.0]), np.array([0.0, 5.0, 6.0]))
        1.0
    """
    ranks = np.stack([_ranks(a), _ranks(b)])
    ranks -= ranks.mean(axis=1, keepdims=True) if ranks.size else 0
    norm = float(np.sqrt(np.prod((ranks**2).sum(axis=1))))
    return float(np.prod(ranks, axis=0).sum()) / norm if norm > 0 else float("nan")


def kernel_coordinates(
    gram: Float[np.ndarray, "n n"],
) -> tuple[Float[np.ndarray, "n 2"], tuple[float, float]]:
    """Return the two leading coordinates of kernel PCA, and their shares of the spread.

    These are the coordinates of classical scaling of the kernel's distances, too.
    """
    gram = np.asarray(gram, float)
    centred = gram - gram.mean(axis=0) - gram.mean(axis=1)[:, None] + gram.mean()
    spread, vectors = np.linalg.eigh((centred + centred.T) / 2)
    spread = np.maximum(np.append([0.0], spread), 0)  # one candidate has one coordinate only
    vectors = np.hstack([np.zeros((len(gram), 1)), vectors])
    places = (vectors * np.sqrt(spread))[:, [-1, -2]]
    # The sign of an eigenvector is arbitrary: the one farthest from the middle is on the right.
    farthest = places[np.abs(places).argmax(axis=0), [0, 1]]
    shares = spread[[-1, -2]] / max(spread.sum(), np.finfo(float).tiny)
    return places * np.where(farthest < 0, -1.0, 1.0), (float(shares[0]), float(shares[1]))


def row_of(ensemble: Ensemble, name: str | None = None) -> Row:
    """Measure an ensemble, with the temperature after pooling and without it."""
    return Row(
        _label(ensemble) if name is None else name,
        ensemble.size,
        ensemble.metrics,
        ensemble.status,
        len(ensemble.members),
        ensemble.temperature,
        ensemble.uncalibrated().metrics,
    )


def _label(ensemble: Ensemble) -> str:
    """Return what an ensemble is called in the table."""
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


def _called(ensemble: Ensemble) -> str:
    """Return the name of an ensemble: the algorithm's, unless another was selected later."""
    name = ensemble.run.config.algorithm
    return name if algorithms.find_trainable(name).method == ensemble.method else _label(ensemble)


def _result(ensemble: Ensemble) -> str:
    """Say in one sentence what came out."""
    metrics, single = ensemble.metrics, ensemble.run.ensemble(1, "top")
    members = f"{len(ensemble.members)} member{'s' if len(ensemble.members) > 1 else ''}"
    compared = f" against {signed(single.metrics.log_likelihood, 1)} of the best single network"
    if ensemble.members.tolist() == single.members.tolist():
        compared = "; it is the best single network"
    return (
        f"{_called(ensemble)} with {members}: {100 * metrics.accuracy:.1f} % accuracy, "
        f"log-likelihood {signed(metrics.log_likelihood, 1)}{compared}."
    )


def _calibrated(row: Row) -> str:
    """Say what the temperature after pooling has changed."""
    if row.temperature == 1:
        return "Predictions are as the members' pool gives them: no temperature follows."
    before, after = row.uncalibrated, row.metrics
    return (
        f"The temperature {row.temperature:.2f} after pooling, fitted to validation points that "
        f"were left out when members were selected, changes the ECE from {before.ece:.4f} to "
        f"{after.ece:.4f} and the log-likelihood from {signed(before.log_likelihood, 1)} to "
        f"{signed(after.log_likelihood, 1)}."
    )


def _scale(run: Run) -> str:
    """Say how much the likelihood tells the candidates apart."""
    count, points = run.record.log_probs.shape
    temperature = float(run.record.temperature)
    return (
        f"At the temperature {temperature:.4g} the {points} validation points count as "
        f"{points / temperature:.3g} observations, and the posterior over the {count} candidates "
        f"is worth {run.record.effective_sizes[-1]:.1f} equally likely ones: near 1 one network "
        f"stands for all, near {count} the likelihood tells nothing apart."
    )


def _facts(run: Run) -> dict[str, str]:
    record, config = run.record, run.config
    shape = "×".join(map(str, record.input_shape)) or "one number"
    failed = int(np.isnan(record.log_likelihoods).sum())
    trained = f"{len(record.archs)} networks" + (f", of which {failed} failed" if failed else "")
    if run.first_stage is not None:
        trained += f", of {len(run.first_stage.record.archs)} searched with shared weights"
    return {
        "Data set": f"{config.data_name} ({shape}, {int(record.classes)} classes)",
        "Points": f"{record.log_probs.shape[1]} to validate, {len(record.test_labels)} to test",
        "Family": f"{run.family.name} ({run.space.name})",
        "Trained": trained,
        "Seed": f"{config.seed}" + (f", {config.seeds} of weights" if config.seeds > 1 else ""),
        "Written": datetime.date.today().isoformat(),
    }


def _drawings(ensemble: Ensemble) -> Iterator[Drawing]:
    """Draw everything there is to draw."""
    run, members = ensemble.run, ensemble.members
    record, labels = run.record, run.record.test_labels
    yield _reliability("reliability", _called(ensemble), ensemble)
    yield _reliability("reliability-single", "Best single", run.ensemble(1, "top"))
    yield from _under_shift(run)
    said = run.test_log_probs(members)
    alone = (per_member(f, said, labels, log=True).tolist() for f in (accuracy, log_likelihood))
    figure = plots.weights(members, ensemble.weights, *alone)
    yield Drawing("weights", "weight of each member", figure)
    for member, arch, weight in zip(members, ensemble.archs, ensemble.weights, strict=True):
        figure = architectures.draw(run.space, arch, f"#{member}, weight {weight:.2f}")
        yield Drawing(f"architecture-{member}", run.space.to_string(arch), figure)
    at_random = int(record.counts[0]) if run.first_stage is None else 0
    figure = plots.likelihoods(record.log_likelihoods, members, at_random)
    yield Drawing("likelihoods", "log-likelihood of each candidate", figure)
    figure = plots.evidence(record.counts, record.log_evidence, record.evidence_sd)
    if figure is not None and run.first_stage is None:  # a shortlist stands for no space
        yield Drawing("evidence", "log evidence against evaluations", figure)
    figure = plots.kernel_map(*kernel_coordinates(record.gram), record.log_likelihoods, members)
    yield Drawing("map", "map of the candidates", figure)
    predicted = _predicted(run)
    if predicted.actual.size:
        correlation = rank_correlation(predicted.actual, predicted.mean)
        figure = plots.predictions(predicted, correlation)
        yield Drawing("surrogate", "predicted against actual likelihood", figure)
    if len(members) > 1:
        pairwise = np.asarray(disagreement(said, log=True).pairwise)
        figure = plots.disagreement(pairwise, members)
        yield Drawing("disagreement", "how often two members differ", figure)


def _under_shift(run: Run) -> Iterator[Drawing]:
    """Draw metrics against severity, where `bqnes robustness` has measured them."""
    found = robustness.read_study(run)
    if found is None:
        return
    study, _ = found
    severities = (0, *study.severities)
    clean = np.broadcast_to(study.clean[:, None, None], (*study.shifted.shape[:2], 1, 3))
    every = np.concatenate([clean, study.shifted], axis=2)
    for i, (name, called) in enumerate(zip(_SHIFT, _METRICS, strict=True)):
        scale = 100 if i == 0 else 1
        each, single = scale * every[0, :, :, i], scale * every[1, :, :, i].mean(axis=0)
        figure = plots.under_shift(severities, each, single, called)
        yield Drawing(name, f"{called} against the severity of corruptions", figure)


def _by_corruption(run: Run) -> str:
    found = robustness.read_study(run)
    if found is None:
        return ""
    study, images = found
    own, single = ([Metrics(*row) for row in one] for one in study.shifted.mean(axis=2))
    names = [name.replace("_", " ") for name in study.corruptions]
    table = html.paired_table("Corruption", names, list(zip(own, single, strict=True)))
    return table + html.paragraph(f"Images: {images}.")


def _reliability(name: str, title: str, ensemble: Ensemble) -> Drawing:
    labels = ensemble.run.record.test_labels
    curve = reliability_curve(ensemble.test_log_probs, labels, log=True)
    figure = plots.reliability(curve, f"{title}: ECE {ensemble.metrics.ece:.4f}")
    return Drawing(name, f"accuracy by confidence, {title}", figure)


def _predicted(run: Run) -> Predicted:
    """Ask the surrogate for each candidate that it helped to choose, as it was then."""
    record, search = run.record, run.config.search
    counts = record.counts[record.counts < len(record.archs)]
    if not counts.size:
        return Predicted(*(np.zeros(0) for _ in Predicted._fields))
    said = predict_each(
        jnp.asarray(record.archs),
        jnp.asarray(record.log_likelihoods),
        jnp.asarray(counts),
        search.warp,
        search.fit,
        run.space,
        search.kernel,
        record.temperature,
    )
    actual = record.log_likelihoods / record.temperature
    known = np.isfinite(actual) & (np.arange(len(actual)) >= counts[0])
    mean, sd, log_scale = (np.asarray(values, float)[known] for values in said)
    with np.errstate(divide="ignore"):
        ends = [np.log(np.maximum(mean + step * sd, 0)) + log_scale for step in (0, -1, 1)]
    return Predicted(actual[known].astype(float), *ends)


def _sections(
    ensemble: Ensemble, rows: Sequence[Row], own: Row, drawings: dict[str, Drawing]
) -> list[Section]:
    """Put tables and figures in their order, each below how to read it."""

    def drawn(*names: str) -> str:
        return html.figures([drawings[name] for name in names if name in drawings])

    def drawn_or(name: str, otherwise: str) -> str:
        return drawn(name) if name in drawings else html.paragraph(otherwise)

    warnings = "".join(map(html.paragraph, warnings_of(ensemble, rows)))
    bodies = {
        "Results": html.table(rows, own),
        "Warnings": warnings,
        "Calibration": drawn("reliability", "reliability-single")
        + html.paragraph(_calibrated(own)),
        "Dataset shift": drawn(*_SHIFT) + _by_corruption(ensemble.run),
        "Weights": drawn("weights"),
        "Architectures": drawn(*(f"architecture-{member}" for member in ensemble.members)),
        "Search": drawn("likelihoods", "evidence") + html.paragraph(_scale(ensemble.run)),
        "Map": drawn("map"),
        "Surrogate": drawn_or("surrogate", "No candidate was trained after the first ones."),
        "Disagreement": drawn_or("disagreement", "The ensemble has one member."),
        "How to do it again": html.block(_commands(ensemble))
        + html.block(_config(ensemble.run))
        + html.definitions(ensemble.run.versions),
    }
    if _SHIFT[0] not in drawings:
        del bodies["Dataset shift"]
    if not warnings:
        del bodies["Warnings"]
    if "evidence" not in drawings:
        bodies["Search"] += html.paragraph("The evidence was never positive.")
    fills = {
        "temperature": float(ensemble.run.record.temperature),
        "drawing": architectures.how_to_read(ensemble.run.space),
    }
    return [
        Section(title, html.HOW_TO_READ[title].format(**fills), body)
        for title, body in bodies.items()
    ]


def _commands(ensemble: Ensemble) -> str:
    """Return what does the run again, and selects the ensemble if that is not the run's own."""
    config = ensemble.run.config
    again = "bqnes run --config config.yaml --out again"
    family = "" if config.family in families() else f" --family {config.family}"
    if not is_named(config.family):
        again = f"bqnes_jax.search(family=family, data=data, budget={config.search.budget}, …)"
        family = " --family package.module:family"
    if (ensemble.method, ensemble.size) == (
        algorithms.find_trainable(config.algorithm).method,
        config.ensemble_size,
    ):
        return again
    selected = f"--method {ensemble.method} --size {ensemble.size} --save"
    return f"{again}\nbqnes reselect again{family} {selected}"


def _config(run: Run) -> str:
    plain = json.loads(json.dumps(dataclasses.asdict(run.config)))  # YAML has no tuples
    return yaml.safe_dump(plain, sort_keys=False, default_flow_style=None, width=30)


def _ranks(values: np.ndarray) -> Float[np.ndarray, " n"]:
    """Return ranks from 1, the mean of them where values are equal."""
    _, group, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[group]


def _write_plots(directory: Path, drawings: Sequence[Drawing]) -> None:
    make_folder(directory)
    sweep(directory)
    forms = [(drawing, form) for drawing in drawings for form in ("png", "pdf")]
    written = {directory / f"{drawing.name}.{form}": (drawing, form) for drawing, form in forms}
    for path, (drawing, form) in written.items():
        write_whole(path, plots.to_bytes(drawing.figure, form), swept=True)
    for path in set(directory.iterdir()) - set(written):
        if _MAY_BE_OLD.fullmatch(path.name):
            path.unlink()
