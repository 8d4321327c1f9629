"""Figures of how good an ensemble is, what it is compared with, and how its members differ."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from bqnes_jax.metrics import ReliabilityCurve
from bqnes_jax.report.plots import (
    BLUE,
    GREEN,
    GREY,
    INK,
    ORANGE,
    PALE,
    PAPER,
    RULE,
    SHADE,
    SMALL,
    TEXT,
    WIDTH,
    add_legend,
    frame,
    note,
    pad,
    range_of,
    style,
)
from bqnes_jax.report.uncertainty import Estimate

_STRONGEST = 0.62  # how opaque the largest value is: letters are read on it, in light and dark
MOST_CLASSES = 20  # of which columns can be read


def reliability(curve: ReliabilityCurve, title: str) -> Figure:
    """Draw accuracy against confidence by bins, and how many points each bin has."""
    figure = Figure(figsize=(WIDTH, 3.2), layout="constrained", facecolor=PAPER)
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3.4, 1))
    count, confidence, accuracy = (np.asarray(values, float) for values in curve)
    width = 1 / len(count)
    centres = (np.arange(len(count)) + 0.5) * width
    used = count > 0
    style(above, title, "", "accuracy")
    above.plot([0, 1], [0, 1], color=GREY, linewidth=1, linestyle=(0, (4, 3)))
    above.bar(centres[used], accuracy[used], 0.88 * width, color=PALE)
    ends = centres[used] - 0.44 * width, centres[used] + 0.44 * width
    above.hlines(confidence[used], *ends, color=INK, linewidth=1.8)
    above.set(xlim=(0, 1), ylim=(0, 1.03))
    style(below, "", "confidence", "points")
    below.bar(centres[used], count[used], 0.88 * width, color=GREY)
    for centre, number in zip(centres[used], count[used], strict=True):
        note(below, f"{number:.0f}", (centre, number), (0, 1), "center", size=7)
    below.set(ylim=(0, 1.45 * max(count.max(), 1)), yticks=[])
    return figure


def under_shift(
    severities: Sequence[int],
    each: Float[np.ndarray, "corruptions severities"],
    single: Float[np.ndarray, " severities"],
    name: str,
) -> Figure:
    """Draw a metric of an ensemble against severity, for each corruption and on average."""
    figure, axes = frame("", "severity of the corruption", name, height=3.2)
    for i, values in enumerate(each):
        label = "each corruption" if i == 0 else None
        axes.plot(severities, values, color=PALE, linewidth=0.8, label=label)
    style: dict[str, Any] = {"linewidth": 1.6, "markersize": 4.5}
    axes.plot(severities, single, "s--", color=ORANGE, label="best single", **style)
    axes.plot(severities, each.mean(axis=0), "o-", color=BLUE, label="ensemble", **style)
    axes.set_xticks(severities, ["clean" if s == 0 else str(s) for s in severities])
    add_legend(figure)
    return figure


def loss_by_size(sizes: Sequence[int], losses: Sequence[float], own: int) -> Figure:
    """Draw the loss against the number of members, the chosen number marked."""
    figure, axes = frame("What further members add", "members", "loss, nats per point", height=3.2)
    axes.plot(sizes, losses, "o-", color=BLUE, linewidth=1.4, markersize=4.5)
    if own in sizes:
        place = (own, losses[list(sizes).index(own)])
        axes.plot(*place, "o", color=ORANGE, markersize=7, label="this ensemble, temperature 1")
        add_legend(figure)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    return figure


def cost_and_loss(
    costs: Float[np.ndarray, " k"],
    losses: Float[np.ndarray, " k"],
    singles: int,
    sizes: Sequence[int],
) -> Figure:
    """Draw loss against cost, of `singles` models and then ensembles, and what nothing beats."""
    figure, axes = frame("Cost and loss", "cost", "loss, nats per point", height=3.4)
    low, high = range_of(-losses)  # the best are the highest
    front = pareto_front(costs, losses)
    steps = {"where": "post", "color": GREEN, "linewidth": 1.2, "label": "best for the cost"}
    axes.step(costs[front], losses[front], **steps)
    for part, colour, label in (
        (slice(None, singles), GREY, "one model"),
        (slice(singles, None), BLUE, "ensemble"),
    ):
        axes.plot(costs[part], np.minimum(losses[part], -low), "o", color=colour, label=label)
    for size, cost, loss in zip(sizes, costs[singles:], losses[singles:], strict=True):
        note(axes, f"{size}", (cost, loss), (0, 5), "center", size=SMALL, colour=BLUE)
    axes.set(ylim=pad(-high, -low, 0.1))
    add_legend(figure)
    return figure


def pareto_front(costs: Float[np.ndarray, " k"], losses: Float[np.ndarray, " k"]) -> list[int]:
    """Return the places that no other beats in cost and loss, the cheapest first.

    Example:
        >>> pareto_front(np.array([1.0, 2.0, 3.0, 3.0]), np.array([0.5, 0.6, 0.2, 0.3]))
        [0, 2]
    """
    front: list[int] = []
    for i in np.lexsort((losses, costs)).tolist():
        if not front or losses[i] < losses[front[-1]]:
            front.append(i)
    return front


def rivals(names: Sequence[str], losses: Sequence[Estimate]) -> Figure:
    """Draw the loss of an ensemble, the first, and of its rivals, each with its interval."""
    title = "Test loss, with 95 % intervals"
    figure, axes = frame(title, "loss, nats per point", "", height=0.95 + 0.27 * len(names))
    ends = np.array(losses, float)
    worst = -range_of(-ends[:, 2])[0]  # hopeless ones end at the edge
    shown = np.clip(ends, None, worst)
    axes.axvline(shown[0, 0], color=RULE, linewidth=1, zorder=0)
    for place, (value, start, end) in enumerate(shown):
        colour, size = (BLUE, 6) if place == 0 else (GREY, 5)
        axes.hlines(place, start, end, color=colour, linewidth=1.8)
        axes.plot(value, place, "o", color=colour, markersize=size)
    axes.set_yticks(range(len(names)), names)
    axes.tick_params(axis="y", length=0)
    axes.set(ylim=(len(names) - 0.4, -0.6))
    axes.xaxis.set_major_locator(MaxNLocator(5))
    return figure


def by_class(
    rows: Sequence[str], shares: Float[np.ndarray, "rows classes"], classes: Sequence[str]
) -> Figure:
    """Draw shares of the points of each class, a row for each member, their ensemble, and so on."""
    title = "Test points of each class, %"
    figure, axes = frame(title, "class", "", height=1.0 + 0.3 * len(rows))
    _heat(axes, 100 * shares, "{:.0f}", TEXT if len(classes) <= 12 else 6)
    axes.set_xticks(range(len(classes)), classes)
    axes.set_yticks(range(len(rows)), rows)
    return figure


def disagreement(pairwise: Float[np.ndarray, "M M"], members: Int[np.ndarray, " M"]) -> Figure:
    """Draw for each pair of members how often they predict different classes."""
    title = "Test points on which two members differ, %"
    figure, axes = frame(title, "", "", height=1.2 + 0.36 * len(members))
    shown = 100 * pairwise.astype(float)
    np.fill_diagonal(shown, np.nan)
    _heat(axes, shown, "{:.1f}", TEXT if len(members) <= 6 else 6)
    names = [f"#{i}" for i in members]
    axes.set_xticks(range(len(names)), names)
    axes.set_yticks(range(len(names)), names)
    return figure


def _heat(axes, values: Float[np.ndarray, "rows columns"], form: str, size: int) -> None:
    """Draw a table whose cells are the darker the larger their values are; NaN has none."""
    top = max(float(np.nanmax(values, initial=0)), 1e-9)
    for i, j in np.ndindex(values.shape):
        value = float(values[i, j])
        known = bool(np.isfinite(value))
        share = _STRONGEST * value / top if known else 0.0
        place = (j - 0.5, i - 0.5)
        box = Rectangle(place, 1, 1, facecolor=BLUE if known else SHADE, edgecolor="none")
        box.set_alpha(share if known else 1.0)
        axes.add_patch(box)
        text = form.format(value) if known else "–"
        axes.text(j, i, text, ha="center", va="center", fontsize=size, color=INK)
    axes.set(xlim=(-0.5, values.shape[1] - 0.5), ylim=(values.shape[0] - 0.5, -0.5))
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
