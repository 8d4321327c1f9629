"""The page about an ensemble of models that exist already."""

import datetime
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bqnes_jax.files import explain_writing, write_whole
from bqnes_jax.metrics import (
    Interval,
    accuracy,
    ece,
    log_likelihood,
    mean_log_likelihood,
    mutual_information,
    per_member,
    reliability_curve,
)
from bqnes_jax.pooling import Pool, apply_temperature
from bqnes_jax.report import figures, html
from bqnes_jax.report.answers import BARS
from bqnes_jax.report.html import Cell, Drawing, Section
from bqnes_jax.report.members import differing_by_class, draw_by_class, draw_disagreement
from bqnes_jax.report.plots import with_sign
from bqnes_jax.report.trust import Check, can_it_be_trusted, name_bits
from bqnes_jax.report.uncertainty import Estimate
from bqnes_jax.studies.combine import Measured, Row, Study, Table, loss_by_size, points_of
from bqnes_jax.types import explain_each

_HEAD = ("Ensemble", "Size", "Error rate", "Loss", "ECE", "Brier")
_METRICS = (
    Cell("Error rate", "share of the points that it gets wrong"),
    Cell("Loss", "−log p of the true class, nats per point"),
    Cell("ECE", "how far confidence is from the share that is right, on average"),
    Cell("Brier score", "squared distance of the probabilities from the truth"),
)


def write_page(
    study: Study,
    path: str | os.PathLike[str],
    *,
    table: Table,
    costs: Float[np.ndarray, " N"] | None = None,
) -> Path:
    """Write one HTML file about an ensemble; returns its path."""
    path, chosen, own = Path(path), study.chosen, table.rows[0]
    single = _row_of(table, "best single")
    count = len(chosen.members)
    result = (
        f"{chosen.method} with {count} member{'s' if count > 1 else ''}: loss "
        f"{own.metrics.loss.estimate:.4f} nats per point, against "
        f"{single.metrics.loss.estimate:.4f} of the model that is best on the validation points."
    )
    facts = {
        "Models": f"{len(study.models.names)}, of which {study.models.usable.sum()} are usable",
        "Selected by": f"{len(study.models.valid_labels)} validation points",
        "Measured on": points_of(study),
        "Temperature": f"{chosen.temperature:.3f}",
        "Written": datetime.date.today().isoformat(),
    }
    content = html.page("Ensemble of models", result, facts, list(_sections(study, table, costs)))
    with explain_writing(f"report {path}"):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, content.encode())
    return path


def _sections(
    study: Study, table: Table, costs: Float[np.ndarray, " N"] | None
) -> Iterator[Section]:
    models, chosen = study.models, study.chosen
    yield _how_good(study, table)
    yield _against_what(table)
    found = loss_by_size(study)
    yield _at_which_cost(study, costs, found)
    yield _why_these_members(study, table, found)
    said = [*models.notes, *explain_each([(chosen.method, chosen.status)])]
    yield can_it_be_trusted(list(_checks(study)), said).section


def _how_good(study: Study, table: Table) -> Section:
    own, single = table.rows[0], _row_of(table, "best single")
    columns = {"This ensemble": own.metrics, "Best single model": single.metrics}
    if study.chosen.temperature != 1:
        before = _row_of(table, f"{study.chosen.method}, temperature 1")
        columns = {"This ensemble": own.metrics, "Before calibration": before.metrics} | columns
    rows = [
        [name, *(_cells(measured)[i] for measured in columns.values())]
        for i, name in enumerate(_METRICS)
    ]
    sentence = (
        "In brackets: between which values 95 % of the draws of as many points lie. All are better "
        "when lower."
    )
    body = html.table(("", *columns), rows)
    if study.models.all_classes:
        body += html.figures(_reliability(study, table.said))
    return Section("How good is it?", sentence, body)


def _against_what(table: Table) -> Section:
    rows = [[row.name, str(row.size), *_cells(row.metrics)] for row in table.rows]
    losses = [Estimate(*map(float, row.metrics.loss)) for row in table.rows]
    names = [row.name for row in table.rows]
    said = [f"{name} {one.value:.4f}" for name, one in zip(names, losses, strict=True)]
    drawing = Drawing(
        "rivals",
        f"Loss in nats per point: {'; '.join(said)}.",
        figures.rivals(names, losses),
        "The line is this ensemble's loss.",
    )
    notes = (
        "Best single: the model with the smallest loss on the validation points.",
        "All equal: every usable model, with equal weights.",
        "The others: selected from the same models in other ways, with as many members at most.",
    )
    body = html.table(_HEAD, rows, own=0) + '<div class="figures">\n' + html.figure(drawing)
    body += f"<div>{html.items(notes)}</div>\n</div>\n"
    best = min(table.rows, key=lambda row: row.metrics.loss.estimate)
    sentence = f"The smallest loss here is that of {best.name} ({best.size} models)."
    sentence = sentence if best is not table.rows[0] else "No rival here has a smaller loss."
    sentence += " Rivals are as their weights make them: only this ensemble is calibrated."
    return Section("Against what?", sentence, body)


def _at_which_cost(study: Study, costs, found) -> Section:
    title, count = "At which cost?", len(study.chosen.members)
    asked = f"Each prediction asks {count} of {len(study.models.names)} models."
    if costs is None:
        return Section(title, f"{asked} What one of them costs was not given (costs).", "")
    whole = float(costs[study.chosen.members].sum())
    sentence = (
        f"{asked} Its cost is {whole:.4g}, the sum of theirs, and that of all usable models "
        f"{costs[study.models.usable].sum():.4g}, in the unit that was given."
    )
    return Section(title, sentence, html.figures([_cost(study, costs, *zip(*found, strict=True))]))


def _why_these_members(study: Study, table: Table, found) -> Section:
    models, chosen = study.models, study.chosen
    sums = "sum to 1" if chosen.pool == Pool.MIXTURE else "of a pool in log space have any sum"
    body = ""
    if models.all_classes:
        said = jnp.asarray((models.valid if models.test is None else models.test)[chosen.members])
        body += html.table(("Member", "Weight", "Error rate", "Loss", "ECE"), _members(study, said))
        if len(chosen.members) > 1:
            body += html.figures(_diversity(study, said, table.said))
            knowing = float(jnp.mean(mutual_information(said, log=True)))
            body += html.paragraph(
                f"Knowing which member is right would tell {knowing:.4f} nats about the class."
            )
    else:
        pairs = zip(chosen.members, chosen.weights, strict=True)
        rows = [[f"#{i} {models.names[i]}", f"{weight:.3f}"] for i, weight in pairs]
        body += html.table(("Member", "Weight"), rows)
    sizes, losses, _ = zip(*found, strict=True)
    told = "; ".join(f"{s}: {loss:.4f}" for s, loss in zip(sizes, losses, strict=True))
    drawing = Drawing(
        "sizes",
        f"Loss by the number of members: {told}.",
        figures.loss_by_size(sizes, losses, study.size),
        "The loss of the best ensembles that were found with fewer and with more members, at "
        f"temperature 1 ({told}): where the line is flat, further members add nothing.",
    )
    return Section("Why these members?", f"The weights {sums}.", body + html.figures([drawing]))


def _checks(study: Study) -> Iterator[Check]:
    models, chosen = study.models, study.chosen
    usable, total = int(models.usable.sum()), len(models.names)
    found = f"{usable} of {total} usable"
    yield Check("Models", found, "all usable", usable == total, "numbers, and probabilities")
    found = name_bits(chosen.status)
    yield Check("Selection", found, "nothing", not chosen.status, "what it reported")
    apart = models.test is not None
    found = f"{len(study.labels)} {'test' if apart else 'validation'} points"
    means = "or validation points are left out in turn, which costs a little"
    yield Check("Measured on", found, "test points", apart, means)


def _cells(measured: Measured) -> list[Cell]:
    right = measured.accuracy
    wrong = Interval(1 - right.estimate, 1 - right.high, 1 - right.low)
    others = (measured.loss, measured.ece, measured.brier)
    return [_cell(wrong, 100.0, 1, " %"), *(_cell(one, 1.0, 4) for one in others)]


def _cell(value: Interval, scale: float, digits: int, unit: str = "") -> Cell:
    estimate, low, high = (float(one) for one in value)
    if np.isnan(estimate):
        return Cell("not known", "", "unknown")
    ends = f"[{with_sign(scale * low, digits)}, {with_sign(scale * high, digits)}]"
    return Cell(with_sign(scale * estimate, digits) + unit, ends)


def _row_of(table: Table, name: str) -> Row:
    return next(row for row in table.rows if row.name == name)


def _members(study: Study, said: Float[Array, "M m C"]) -> list[list[str | Cell]]:
    alone = [per_member(f, said, study.labels, log=True) for f in (accuracy, log_likelihood, ece)]
    right, likely, gaps = map(np.asarray, alone)
    columns = (100 * (1 - right), -likely / len(study.labels), gaps)
    chosen = zip(study.chosen.members, study.chosen.weights, *columns, strict=True)
    return [
        [
            Cell(f"#{member}", study.models.names[member]),
            f"{weight:.3f}",
            f"{wrong:.1f} %",
            with_sign(float(loss), 4),
            with_sign(float(gap), 4),
        ]
        for member, weight, wrong, loss, gap in chosen
    ]


def _reliability(study: Study, own: Float[Array, "m C"]) -> list[Drawing]:
    temperature, same = (
        study.chosen.temperature,
        (
            " The temperature is 1: none was fitted, or another would not lower the loss of points "
            "that are left out."
        ),
    )
    shown: list[tuple[str, Array]] = [(f"{study.chosen.method}, temperature 1", own)]
    if temperature != 1:
        tempered = ("After calibration", apply_temperature(own, temperature))
        shown, same = [tempered, ("Before calibration", own)], ""
    drawings = []
    for name, said in shown:
        curve = reliability_curve(said, study.labels, log=True)
        title = f"{name}: ECE {float(ece(said, study.labels, log=True)):.4f}"
        shows = f"Accuracy by confidence. {title}."
        figure = figures.reliability(curve, title)
        drawings.append(Drawing(f"reliability-{len(drawings)}", shows, figure, BARS + same))
    return drawings


def _diversity(
    study: Study, said: Float[Array, "M m C"], together: Float[Array, "m C"]
) -> Sequence[Drawing]:
    each, members = np.asarray(said), study.chosen.members
    shares = differing_by_class(
        each.argmax(axis=2), np.asarray(together).argmax(axis=1), study.labels, each.shape[2]
    )
    return [draw_disagreement(each, members), draw_by_class(shares, members)]


def _cost(study: Study, costs, sizes, losses, members) -> Drawing:
    models = study.models
    usable = np.flatnonzero(models.usable)
    said = (models.valid if models.test is None else models.test)[usable]
    alone = [-float(mean_log_likelihood(jnp.asarray(one), study.labels, log=True)) for one in said]
    every = np.array([*costs[usable], *(costs[each].sum() for each in members)])
    figure = figures.cost_and_loss(every, np.array([*alone, *losses]), len(usable), sizes)
    shows = (
        f"Loss against cost: one model has {min(alone):.4f} at best, an ensemble {min(losses):.4f}."
    )
    caption = (
        "Each grey point is one model and each blue one an ensemble, with its number of members; "
        "on the green line nothing cheaper is as good."
    )
    return Drawing("cost", shows, figure, caption)
