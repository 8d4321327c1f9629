"""Figures of a search: its candidates, what was believed of them, and how alike they are."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from bqnes_jax.report.plots import (
    BLUE,
    GREEN,
    GREY,
    INK,
    ORANGE,
    PALE,
    PAPER,
    SHADE,
    SMALL,
    TEXT,
    add_legend,
    frame,
    mark,
    mark_failed,
    note,
    pad,
    range_of,
    with_sign,
)
from bqnes_jax.report.surrogate import Predicted
from bqnes_jax.report.uncertainty import Estimate


def candidates(
    losses: Float[np.ndarray, " n"],
    members: Int[np.ndarray, " M"],
    initial: int,
    expected: Float[np.ndarray, " k"],
) -> Figure:
    """Draw the validation loss of each candidate in their order, and the smallest so far.

    The first `initial` were drawn at random; `expected` is the smallest of 1, 2, … of them on
    average, and goes on as a line where further draws are not known.
    """
    figure, axes = frame(
        "Candidates in their order", "candidate", "validation loss, nats", height=3.2
    )
    worst = -range_of(-losses)[0]
    best_loss = -range_of(-losses)[1]
    places, failed = np.arange(len(losses)), np.isnan(losses)
    if initial:
        axes.axvspan(-0.5, initial - 0.5, color=SHADE, linewidth=0, label="drawn at random")
    best = np.minimum.accumulate(np.where(failed, np.inf, losses))
    shown = np.where(best <= worst, best, np.nan)
    axes.step(places, shown, where="post", color=BLUE, linewidth=1.4, label="best so far")
    if len(expected):
        line = {"color": GREEN, "linewidth": 1.2, "linestyle": (0, (5, 2))}
        axes.plot(np.arange(len(expected)), np.minimum(expected, worst), **line)
        ends = (len(expected) - 1, len(losses) - 1)
        axes.hlines(expected[-1], *ends, **line, label="best of random draws")
    mark(axes, places, losses, worst, GREY, "candidate")
    mark(axes, members, losses[members], worst, ORANGE, "member")
    mark_failed(axes, places[failed], np.full(failed.sum(), worst))
    for i in members:
        note(axes, f"#{i}", (i, min(losses[i], worst)), (0, 5), "center", size=SMALL, colour=ORANGE)
    axes.set(xlim=(-0.7, len(losses) - 0.3), ylim=pad(best_loss, worst, 0.13))
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    add_legend(figure)
    return figure


def evidence(
    counts: Int[np.ndarray, " T"],
    values: Float[np.ndarray, " T"],
    sds: Float[np.ndarray, " T"],
    *,
    draws: Estimate | None = None,
) -> Figure | None:
    """Draw log Ẑ against evaluations, ± two standard deviations; None where none is finite.

    Beside it stands what random draws alone say, with their interval.
    """
    known = np.isfinite(values)
    if not known.any():
        return None
    counts, values, sds = counts[known], values[known], sds[known]
    sds = 2 * np.where(np.isfinite(sds), sds, 0)
    bars = 1.0 if len(counts) == 1 else 0.0  # one point has no band
    figure, axes = frame("Evidence", "candidates evaluated", "log Ẑ", height=3.2)
    axes.fill_between(counts, values - sds, values + sds, color=PALE, linewidth=0, label="± 2 sd")
    axes.errorbar(
        counts,
        values,
        sds,
        color=BLUE,
        linewidth=1.4,
        marker="o",
        markersize=4,
        elinewidth=bars,
        label="log Ẑ",
    )
    if draws is not None and np.isfinite(draws).all():
        errors = [[draws.value - draws.low], [draws.high - draws.value]]
        style = {"color": GREEN, "marker": "s", "markersize": 4, "linestyle": "none"}
        axes.errorbar([counts[0]], [draws.value], errors, **style, label="random draws alone")
    if len(counts) <= 6:
        axes.set_xticks(counts)
    add_legend(figure)
    return figure


def kernel_map(
    places: Float[np.ndarray, "n 2"],
    shares: Sequence[float],
    values: Float[np.ndarray, " n"],
    members: Int[np.ndarray, " M"],
) -> Figure:
    """Draw candidates where the kernel places them; `shares` of the spread are the axes.

    The values are better when higher.
    """
    x, y = (f"axis {i + 1} ({100 * share:.0f} % of the spread)" for i, share in enumerate(shares))
    figure, axes = frame("Candidates by kernel", x, y, height=3.4)
    low, high = range_of(values)
    failed = np.isnan(values)
    worst_first = np.argsort(values, kind="stable")[: (~failed).sum()]  # NaN is sorted last
    points = axes.scatter(
        *places[worst_first].T,
        s=42,
        c=np.maximum(values[worst_first], low),
        cmap="viridis",
        vmin=low,
        vmax=max(high, low + 1e-9),
        edgecolors=GREY,
        linewidths=0.5,
        zorder=2,
    )
    axes.scatter(
        *places[members].T,
        s=120,
        facecolors="none",
        edgecolors=ORANGE,
        linewidths=1.8,
        zorder=3,
        label="member",
    )
    for i in members:
        note(axes, f"#{i}", tuple(places[i]), (0, 8), "center", size=SMALL, colour=ORANGE)
    mark_failed(axes, *places[failed].T)
    clipped = bool(np.any(values < low))
    bar = figure.colorbar(points, extend="min" if clipped else "neither", pad=0.02, aspect=30)
    bar.ax.tick_params(labelsize=SMALL, color=GREY, labelcolor=INK)
    bar.set_label("−loss, nats per point", fontsize=TEXT, color=INK)
    bar.outline.set_visible(False)
    axes.margins(0.09)
    axes.set(xticks=[], yticks=[])
    add_legend(figure)
    return figure


def predictions(predicted: Predicted, correlation: float) -> Figure:
    """Draw what the surrogate predicted against what came out, in logarithms."""
    rank = f"rank correlation {with_sign(correlation, 2)}" if np.isfinite(correlation) else ""
    title = f"Surrogate: {rank}" if rank else "Surrogate"
    figure, axes = frame(title, "log ℓ after training", "log ℓ predicted", height=3.4)
    low, high = range_of(predicted.actual)
    high = max(high, float(np.max(predicted.mean, initial=low)))
    floor = low - 0.25 * max(high - low, 1e-3)  # for those that are lower, or have no logarithm
    x, y = np.maximum(predicted.actual, low), np.maximum(predicted.mean, floor)
    # Large uncertainty must not squeeze what was predicted well.
    bottom = min(low, max(floor, float(predicted.low.min())))
    top = max(high, min(2 * high - low, float(predicted.high.max())))
    lower, upper = (np.clip(end, bottom, top) for end in (predicted.low, predicted.high))
    axes.plot([low, high], [low, high], color=GREY, linewidth=1, linestyle=(0, (4, 3)))
    axes.vlines(x, lower, upper, color=PALE, linewidth=1.6)
    axes.plot(x, y, "o", color=BLUE, markersize=4.5, markeredgecolor=PAPER, markeredgewidth=0.5)
    axes.set(xlim=pad(low, high, 0.05), ylim=pad(bottom, top, 0.05))
    axes.xaxis.set_major_locator(MaxNLocator(5))
    return figure
