"""How good the ensemble is, and against what."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from bqnes_jax.metrics import reliability_curve
from bqnes_jax.report import figures, html
from bqnes_jax.report.html import Cell, Drawing, Section
from bqnes_jax.report.plots import with_sign
from bqnes_jax.report.rivals import Compared
from bqnes_jax.report.table import name_of
from bqnes_jax.report.uncertainty import Estimate, Measured, measure_each
from bqnes_jax.runs import Ensemble, Run

INTERVALS = (
    "In brackets: between which values 95 % of the draws of as many test {points} lie, so how far "
    "the number depends on which of them were drawn. What training the networks anew would change "
    "is not in it."
)
BARS = (
    "A bar shows how often predictions of that confidence are right, its dark line how often they "
    "claim to be: a bar that ends below its line is overconfident. The small bars count the points."
)
HEAD = ("Ensemble", "Size", "Error rate", "Loss", "ECE", "Loss beyond")


class Part(NamedTuple):
    """A section of the page, and the figures in it."""

    section: Section
    drawings: Sequence[Drawing] = ()


def point_of(run: Run) -> str:
    """Return what a test point is called: an image, if it looks like one."""
    return "image" if len(run.record.input_shape) == 3 else "point"


def result(ensemble: Ensemble, compared: Sequence[Compared], looks: int) -> str:
    """Say in a few sentences what came out."""
    run, point = ensemble.run, point_of(ensemble.run)
    own = compared[0].measured
    assert own is not None
    count = len(ensemble.members)
    members = f"{count} member{'s' if count > 1 else ''}"
    said = (
        f"{name_of(ensemble)} with {members} gets {percent(own.error)} of the test {point}s wrong, "
        f"and its loss is {nats(own.loss)} nats per {point}."
    )
    if ensemble.members.tolist() == run.ensemble(1, "top").members.tolist():
        said += " It is the network that is best on the validation data."
    else:
        single, member = (_found(compared, name) for name in ("Best single", "Best member"))
        said += (
            f" The network that is best on the validation data: {percent(single.error)} and "
            f"{nats(single.loss)}. The best of its members alone, known from the test data only: "
            f"{percent(member.error)} and {nats(member.loss)}."
        )
    if looks:
        said += f" {looks} check{'s need' if looks > 1 else ' needs'} a look."
    return said


def how_good(ensemble: Ensemble, compared: Sequence[Compared]) -> Part:
    """Answer with three metrics, before and after calibration."""
    run, labels = ensemble.run, ensemble.run.record.test_labels
    point, plain = point_of(run), ensemble.without_temperature()
    own, single = compared[0].measured, _found(compared, "Best single")
    assert own is not None
    (before,) = measure_each([np.asarray(plain.test_log_probs)[None]], labels)
    wrong = round(own.error.value * len(labels))
    sentence = (
        f"It gets {wrong} of {len(labels)} test {point}s wrong. "
        + INTERVALS.format(points=f"{point}s")
        + " All three are better when lower."
    )
    rows = [
        [name, *(Cell(*write(getattr(one, field))) for one in (own, before, single))]
        for name, field, write in (
            (Cell("Error rate", f"share of the test {point}s that it gets wrong"), "error", _rate),
            (Cell("Loss", f"−log p of the true class, nats per {point}"), "loss", _loss),
            (
                Cell("ECE", "how far confidence is from the share that is right, on average"),
                "ece",
                _loss,
            ),
        )
    ]
    head = ("", "This ensemble", "Before calibration", "Best single network")
    drawings = _reliability(ensemble, own, before, single)
    body = html.table(head, rows) + html.paragraph(
        f"{_describe_calibration(ensemble, own, before)} {BARS}"
    )
    return Part(Section("How good is it?", sentence, body + html.figures(drawings)), drawings)


def against_what(ensemble: Ensemble, compared: Sequence[Compared]) -> Part:
    """Answer with a table of rivals, each by name, and with the losses drawn."""
    point = point_of(ensemble.run)
    sentence = (
        "Each rival is made of the same trained networks, and calibrated in the same way. “Loss "
        "beyond” is how much larger its loss is than this ensemble's on the same "
        f"{point}s: where the interval holds 0, the test data do not tell the two apart."
    )
    rows = [_row(i == 0, *one) for i, one in enumerate(compared)]
    known = [one for one in compared if one.measured is not None]
    names = [one.rival.name for one in known]
    losses = [one.measured.loss for one in known if one.measured is not None]
    said = [f"{name} {nats(loss)}" for name, loss in zip(names, losses, strict=True)]
    drawing = Drawing(
        "rivals",
        f"Loss on the test data in nats per {point}: {'; '.join(said)}.",
        figures.rivals(names, losses),
        "The line is this ensemble's loss. Intervals of two rivals may overlap though one is "
        "better on nearly every draw: the table compares them on the same draws.",
    )
    best = known[int(np.argmin([loss.value for loss in losses]))].rival
    count = f"{best.members} network{'s' if best.members > 1 else ''}"
    last = f" The smallest loss here is that of {best.name} ({count})."
    last = "" if best is known[0].rival else last
    body = html.table(HEAD, rows, own=0) + '<div class="figures">\n' + html.figure(drawing)
    body += f"<div>{html.items(_notes(compared))}</div>\n</div>\n"
    return Part(Section("Against what?", sentence + last, body), [drawing])


def _row(is_own: bool, rival, measured: Measured | None) -> list[str | Cell]:
    name = Cell(rival.name)
    if measured is None:
        unknown = Cell("not known", "", "unknown")
        return [name, "–", unknown, unknown, unknown, unknown]
    beyond = Cell("–") if is_own else Cell(*_gap(measured.beyond))
    cells = Cell(*_rate(measured.error)), Cell(*_loss(measured.loss)), Cell(*_loss(measured.ece))
    return [name, str(rival.members), *cells, beyond]


def _notes(compared: Sequence[Compared]) -> list[str]:
    return [
        f"{rival.name} is not known: {rival.is_what}."
        if measured is None
        else f"{rival.name}: {rival.is_what}."
        for rival, measured in compared[1:]
    ]


def _reliability(
    ensemble: Ensemble, own: Measured, before: Measured, single: Measured
) -> list[Drawing]:
    """Draw calibration before and after the temperature; without one, that of the best single."""
    drawn = [("reliability", "After calibration", ensemble, own)]
    if ensemble.temperature != 1:
        drawn.append(
            ("reliability-before", "Before calibration", ensemble.without_temperature(), before)
        )
    else:
        drawn[0] = ("reliability", name_of(ensemble), ensemble, own)
        drawn.append(("reliability-single", "Best single", ensemble.run.ensemble(1, "top"), single))
    drawings = []
    for name, title, one, measured in drawn:
        labels = ensemble.run.record.test_labels
        curve = reliability_curve(one.test_log_probs, labels, log=True)
        figure = figures.reliability(curve, f"{title}: ECE {measured.ece.value:.4f}")
        shows = (
            f"{title}: accuracy by confidence, in ten bins. "
            + "; ".join(
                f"of {int(count)} points of confidence {sure:.2f}, {right:.0%} are right"
                for count, sure, right in zip(*map(np.asarray, curve), strict=True)
                if count
            )
            + "."
        )
        drawings.append(Drawing(name, shows, figure))
    return drawings


def _describe_calibration(ensemble: Ensemble, own: Measured, before: Measured) -> str:
    """Say what the temperature after pooling has changed."""
    temperature = ensemble.temperature
    if temperature == 1:
        return "Predictions are as the members' pool gives them: no temperature follows."
    return (
        f"The temperature {temperature:.2f} after pooling, fitted to validation points that were "
        f"left out when members were selected, makes predictions "
        f"{'surer' if temperature < 1 else 'less sure'}: it changes the ECE from "
        f"{before.ece.value:.4f} to {own.ece.value:.4f}, and the loss from "
        f"{nats(before.loss)} to {nats(own.loss)}."
    )


def _found(compared: Sequence[Compared], name: str) -> Measured:
    (one,) = (one.measured for one in compared if one.rival.name == name)
    assert one is not None
    return one


def percent(rate: Estimate) -> str:
    """Write a share in percent."""
    return f"{100 * rate.value:.1f} %"


def nats(loss: Estimate) -> str:
    """Write a loss."""
    return with_sign(loss.value, 4 if loss.value < 1 else 3)


def _rate(rate: Estimate) -> tuple[str, str]:
    return percent(rate), f"[{100 * rate.low:.1f}, {100 * rate.high:.1f}]"


def _loss(loss: Estimate) -> tuple[str, str]:
    return nats(loss), f"[{with_sign(loss.low, 4)}, {with_sign(loss.high, 4)}]"


def _gap(gap: Estimate) -> tuple[str, str, str]:
    """Write a difference, and in which direction it differs from 0, if it does."""
    value = ("+" if gap.value > 0 else "") + with_sign(gap.value, 4)
    ends = f"[{with_sign(gap.low, 4)}, {with_sign(gap.high, 4)}]"
    if gap.low > 0:
        return f"{value} worse", ends, "look"
    return (f"{value} better", ends, "good") if gap.high < 0 else (value, ends, "")
