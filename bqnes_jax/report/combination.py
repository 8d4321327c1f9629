"""The page about an ensemble of models that exist already."""

import datetime
import os
from collections.abc import Iterator
from pathlib import Path

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bqnes_jax.files import write_whole, writing
from bqnes_jax.metrics import (
    accuracy,
    disagreement,
    ece,
    log_likelihood,
    mean_log_likelihood,
    mutual_information,
    per_member,
    reliability_curve,
)
from bqnes_jax.pooling import apply_temperature
from bqnes_jax.report import html, plots
from bqnes_jax.report.html import Drawing, Section
from bqnes_jax.studies.combine import HEADERS, Study, Table, loss_by_size, points_of, written
from bqnes_jax.types import explain_each

_HOW_TO_READ = {
    "Results": (
        "Loss is −log p of the true class, in nats per point; it, ECE (expected calibration error) "
        "and the Brier score are better when lower. In brackets: between which values 95 % of "
        "draws of as many points lie. The shaded row is the ensemble of this report."
    ),
    "Warnings": "What was changed, and what went differently than it should.",
    "Members": "What each member does alone, and how much it counts; {weights}.",
    "Calibration": html.HOW_TO_READ["Calibration"],
    "Diversity": html.HOW_TO_READ["Disagreement"],
    "Why this many": (
        "The loss of the best ensembles that were found with fewer and with more members, on the "
        "points of the table: where the line is flat, further members add nothing."
    ),
    "Cost": (
        "Each grey point is one model and each blue one an ensemble, with its number of members; "
        "its cost is the sum of theirs. On the green line nothing cheaper is as good."
    ),
}


def write_page(
    study: Study,
    path: str | os.PathLike[str],
    *,
    table: Table,
    costs: Float[np.ndarray, " N"] | None = None,
) -> Path:
    """Write one HTML file about an ensemble; returns its path."""
    path, chosen, own = Path(path), study.chosen, table.rows[0]
    single = next(row for row in table.rows if row.name == "best single")
    count = len(chosen.members)
    result = (
        f"{chosen.method} with {count} member{'s' if count > 1 else ''}: loss "
        f"{own.metrics.loss.estimate:.4f} against {single.metrics.loss.estimate:.4f} of the best "
        "single model."
    )
    facts = {
        "Models": f"{len(study.models.names)}, of which {study.models.usable.sum()} are usable",
        "Selected by": f"{len(study.models.valid_labels)} validation points",
        "Measured on": points_of(study),
        "Temperature": f"{chosen.temperature:.3f}",
        "Written": datetime.date.today().isoformat(),
    }
    content = html.page("Ensemble of models", result, facts, list(_sections(study, table, costs)))
    with writing(f"report {path}"):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, content.encode())
    return path


def _sections(
    study: Study, table: Table, costs: Float[np.ndarray, " N"] | None
) -> Iterator[Section]:
    models, chosen = study.models, study.chosen
    pooled = {"mixture": "the weights sum to 1", "log": "the weights of a log pool have any sum"}

    def section(title: str, body: str) -> Section:
        text = _HOW_TO_READ[title].format(weights=pooled[chosen.pool])
        return Section(title, text, body)

    yield section("Results", html.plain_table(HEADERS, written(table.rows), own=0))
    warnings = [*models.notes, *explain_each([(chosen.method, chosen.status)])]
    if warnings:
        yield section("Warnings", "".join(map(html.paragraph, warnings)))
    said = jnp.asarray((models.valid if models.test is None else models.test)[chosen.members])
    if models.all_classes:
        yield section("Members", _members(study, said))
        yield section("Calibration", _calibration(study, table.said))
    if models.all_classes and len(chosen.members) > 1:
        yield section("Diversity", _diversity(study, said))
    found = loss_by_size(study)
    sizes, losses, members = zip(*found, strict=True)
    figure = plots.loss_by_size(sizes, losses, study.size)
    yield section("Why this many", html.figures([Drawing("sizes", "loss by members", figure)]))
    if costs is not None:
        yield section("Cost", _cost(study, costs, sizes, losses, members))


def _members(study: Study, said: Float[Array, "M m C"]) -> str:
    alone = [per_member(f, said, study.labels, log=True) for f in (log_likelihood, ece, accuracy)]
    columns = (-np.asarray(alone[0]) / len(study.labels), *map(np.asarray, alone[1:]))
    rows = [
        [
            f"#{member} {study.models.names[member]}",
            f"{weight:.3f}",
            f"{loss:.4f}",
            f"{error:.4f}",
            f"{100 * right:.2f}",
        ]
        for member, weight, loss, error, right in zip(
            study.chosen.members, study.chosen.weights, *columns, strict=True
        )
    ]
    return html.plain_table(("member", "weight", "loss", "ECE", "accuracy, %"), rows)


def _calibration(study: Study, own: Float[Array, "m C"]) -> str:
    tempered = apply_temperature(own, study.chosen.temperature)
    drawings = []
    for name, said in (("before", own), ("after", tempered)):
        curve = reliability_curve(said, study.labels, log=True)
        title = f"{name.capitalize()}: ECE {float(ece(said, study.labels, log=True)):.4f}"
        shows = f"accuracy by confidence, {name} calibration"
        drawings.append(Drawing(f"reliability-{name}", shows, plots.reliability(curve, title)))
    if study.chosen.temperature == 1:
        text = "The temperature is 1: another would not lower the loss of points that are left out."
        return html.figures(drawings[:1]) + html.paragraph(text)
    return html.figures(drawings)


def _diversity(study: Study, said: Float[Array, "M m C"]) -> str:
    pairwise = np.asarray(disagreement(said, log=True).pairwise)
    figure = plots.disagreement(pairwise, study.chosen.members)
    knowing = float(jnp.mean(mutual_information(said, log=True)))
    text = f"Knowing which member is right would tell {knowing:.4f} nats about the class."
    drawing = Drawing("disagreement", "how often two members differ", figure)
    return html.figures([drawing]) + html.paragraph(text)


def _cost(study: Study, costs, sizes, losses, members) -> str:
    models = study.models
    usable = np.flatnonzero(models.usable)
    said = (models.valid if models.test is None else models.test)[usable]
    alone = [-float(mean_log_likelihood(jnp.asarray(one), study.labels, log=True)) for one in said]
    every = np.array([*costs[usable], *(costs[each].sum() for each in members)])
    figure = plots.cost_and_loss(every, np.array([*alone, *losses]), len(usable), sizes)
    return html.figures([Drawing("cost", "loss against cost", figure)])
