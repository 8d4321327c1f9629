"""The figures of a report: each a function from arrays to a `Figure`, and what turns it to bytes.

No figure depends on matplotlib's global settings or touches them, so that they can be drawn in any
thread. All are as wide as a telephone, so that their letters can be read there; a page puts them
side by side where there is room.
"""

import io
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.ticker import MaxNLocator

from bqnes_jax.files.text import plain
from bqnes_jax.metrics import ReliabilityCurve

WIDTH, HEIGHT = 3.6, 2.9  # inches; at 96 to the inch, what a telephone shows
TEXT, SMALL = 9, 8

# Colours that people with any colour vision tell apart (Okabe and Ito).
BLUE, ORANGE, GREEN = "#0072B2", "#D55E00", "#009E73"
PALE, GREY, INK = "#A9CCE3", "#8A8A8A", "#222222"


class Predicted(NamedTuple):
    """What a surrogate said of candidates that it had not seen, as logarithms of ℓ.

    Attributes:
        actual: the tempered log-likelihood.
        mean: its prediction; −inf where the predicted likelihood is not positive.
        low: the prediction less one standard deviation.
        high: the prediction and one standard deviation more.
    """

    actual: Float[np.ndarray, " k"]
    mean: Float[np.ndarray, " k"]
    low: Float[np.ndarray, " k"]
    high: Float[np.ndarray, " k"]


def reliability(curve: ReliabilityCurve, title: str) -> Figure:
    """Draw accuracy against confidence by bins, and how many points each bin has."""
    figure = Figure(figsize=(WIDTH, 3.5), layout="constrained", facecolor="white")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3.4, 1))
    count, confidence, accuracy = (np.asarray(values, float) for values in curve)
    width = 1 / len(count)
    centres = (np.arange(len(count)) + 0.5) * width
    used = count > 0
    _style(above, title, "", "accuracy")
    above.plot([0, 1], [0, 1], color=GREY, linewidth=1, linestyle=(0, (4, 3)))
    above.bar(centres[used], accuracy[used], 0.88 * width, color=PALE)
    ends = centres[used] - 0.44 * width, centres[used] + 0.44 * width
    above.hlines(confidence[used], *ends, color=INK, linewidth=1.8)
    above.set(xlim=(0, 1), ylim=(0, 1.03))
    _style(below, "", "confidence", "points")
    below.bar(centres[used], count[used], 0.88 * width, color=GREY)
    for centre, number in zip(centres[used], count[used], strict=True):
        _note(below, f"{number:.0f}", (centre, number), (0, 1), "center", 7)
    below.set(ylim=(0, 1.45 * max(count.max(), 1)), yticks=[])
    return figure


def weights(
    members: Int[np.ndarray, " M"],
    values: Float[np.ndarray, " M"],
    accuracies: Sequence[float],
    log_likelihoods: Sequence[float],
) -> Figure:
    """Draw the weights of the members, each with what it does alone."""
    figure, axes = _figure("Weights of the members", "weight", "", 1.1 + 0.42 * len(members))
    places = np.arange(len(members))
    axes.barh(places, values, 0.55, color=BLUE)
    for place, value in zip(places, values, strict=True):
        _note(axes, f"{value:.2f}", (value, place), (4, -3), "left")
    alone = zip(members, accuracies, log_likelihoods, strict=True)
    labels = [f"#{i}\n{100 * a:.1f} %, {signed(value, 1)}" for i, a, value in alone]
    axes.set_yticks(places, labels)
    axes.tick_params(axis="y", length=0)
    axes.set(xlim=(0, 1.18 * max(values)), ylim=(len(members) - 0.45, -0.55))
    axes.spines["left"].set_color("#CCCCCC")
    return figure


def likelihoods(
    values: Float[np.ndarray, " n"], members: Int[np.ndarray, " M"], initial: int
) -> Figure:
    """Draw the log-likelihood of each candidate in their order, and the best so far.

    The first `initial` were drawn at random.
    """
    figure, axes = _figure("Candidates in their order", "candidate", "log-likelihood", 3.2)
    low, high = shown_range(values)
    places, failed = np.arange(len(values)), np.isnan(values)
    if initial:
        axes.axvspan(-0.5, initial - 0.5, color="#F1F1F1", linewidth=0, label="drawn at random")
    best = np.maximum.accumulate(np.where(failed, -np.inf, values))
    axes.step(
        places,
        np.where(best >= low, best, np.nan),
        where="post",
        color=BLUE,
        linewidth=1.2,
        label="best so far",
    )
    _mark(axes, places, values, low, GREY, "candidate")
    _mark(axes, members, values[members], low, ORANGE, "member")
    _mark_failed(axes, places[failed], np.full(failed.sum(), low))
    for i in members:
        _note(axes, f"#{i}", (i, max(values[i], low)), (0, 5), "center", SMALL, ORANGE)
    axes.set(xlim=(-0.7, len(values) - 0.3), ylim=_padded(low, high, 0.1))
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    _legend(figure)
    return figure


def evidence(
    counts: Int[np.ndarray, " T"], values: Float[np.ndarray, " T"], sds: Float[np.ndarray, " T"]
) -> Figure | None:
    """Draw log Ẑ against evaluations, ± one standard deviation; None where none is finite."""
    known = np.isfinite(values)
    if not known.any():
        return None
    counts, values, sds = counts[known], values[known], sds[known]
    sds = np.where(np.isfinite(sds), sds, 0)
    bars = 1.0 if len(counts) == 1 else 0.0  # one point has no band
    figure, axes = _figure("Evidence", "candidates evaluated", "log Ẑ", 3.2)
    axes.fill_between(counts, values - sds, values + sds, color=PALE, linewidth=0, label="± 1 sd")
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
    if len(counts) <= 6:
        axes.set_xticks(counts)
    _legend(figure)
    return figure


def kernel_map(
    places: Float[np.ndarray, "n 2"],
    shares: Sequence[float],
    values: Float[np.ndarray, " n"],
    members: Int[np.ndarray, " M"],
) -> Figure:
    """Draw candidates where the kernel places them; `shares` of the spread are the axes."""
    x, y = (f"axis {i + 1} ({100 * share:.0f} % of the spread)" for i, share in enumerate(shares))
    figure, axes = _figure("Candidates by kernel", x, y, 3.9)
    low, high = shown_range(values)
    failed = np.isnan(values)
    worst_first = np.argsort(values, kind="stable")[: (~failed).sum()]  # NaN is sorted last
    points = axes.scatter(
        *places[worst_first].T,
        s=42,
        c=np.maximum(values[worst_first], low),
        cmap="viridis",
        vmin=low,
        vmax=max(high, low + 1e-9),
        edgecolors="white",
        linewidths=0.6,
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
        _note(axes, f"#{i}", tuple(places[i]), (0, 8), "center", SMALL, ORANGE)
    _mark_failed(axes, *places[failed].T)
    clipped = bool(np.any(values < low))
    bar = figure.colorbar(points, extend="min" if clipped else "neither", pad=0.02, aspect=30)
    bar.ax.tick_params(labelsize=SMALL, color=GREY, labelcolor=INK)
    bar.set_label("log-likelihood", fontsize=TEXT, color=INK)
    bar.outline.set_visible(False)
    axes.margins(0.09)
    axes.set(xticks=[], yticks=[])
    _legend(figure)
    return figure


def predictions(predicted: Predicted, correlation: float) -> Figure:
    """Draw what the surrogate predicted against what came out, in logarithms."""
    rank = f"rank correlation {signed(correlation, 2)}" if np.isfinite(correlation) else ""
    title = f"Surrogate: {rank}" if rank else "Surrogate"
    figure, axes = _figure(title, "log ℓ after training", "log ℓ predicted", 3.6)
    low, high = shown_range(predicted.actual)
    high = max(high, float(np.max(predicted.mean, initial=low)))
    floor = low - 0.25 * max(high - low, 1e-3)  # for those that are lower, or have no logarithm
    x, y = np.maximum(predicted.actual, low), np.maximum(predicted.mean, floor)
    # Large uncertainty must not squeeze what was predicted well.
    bottom = min(low, max(floor, float(predicted.low.min())))
    top = max(high, min(2 * high - low, float(predicted.high.max())))
    lower, upper = (np.clip(end, bottom, top) for end in (predicted.low, predicted.high))
    axes.plot([low, high], [low, high], color=GREY, linewidth=1, linestyle=(0, (4, 3)))
    axes.vlines(x, lower, upper, color=PALE, linewidth=1.6)
    axes.plot(x, y, "o", color=BLUE, markersize=4.5, markeredgecolor="white", markeredgewidth=0.5)
    axes.set(xlim=_padded(low, high, 0.05), ylim=_padded(bottom, top, 0.05))
    axes.xaxis.set_major_locator(MaxNLocator(5))
    return figure


def disagreement(pairwise: Float[np.ndarray, "M M"], members: Int[np.ndarray, " M"]) -> Figure:
    """Draw for each pair of members how often they predict different classes."""
    figure, axes = _figure("Test points on which two members differ, %", "", "", 3.2)
    percent = 100 * pairwise
    top = max(float(percent.max()), 1e-9)
    axes.imshow(percent, cmap="Blues", vmin=0, vmax=1.35 * top)
    size = TEXT if len(members) <= 6 else 6
    for i, j in np.ndindex(percent.shape):
        text = "–" if i == j else f"{percent[i, j]:.1f}"
        colour = "white" if percent[i, j] > 0.8 * top else INK
        axes.text(j, i, text, ha="center", va="center", fontsize=size, color=colour)
    names = [f"#{i}" for i in members]
    axes.set_xticks(range(len(names)), names)
    axes.set_yticks(range(len(names)), names)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    return figure


def under_shift(
    severities: Sequence[int],
    each: Float[np.ndarray, "corruptions severities"],
    single: Float[np.ndarray, " severities"],
    name: str,
) -> Figure:
    """Draw a metric of an ensemble against severity, for each corruption and on average."""
    figure, axes = _figure("", "severity of the corruption", name, 3.2)
    for i, values in enumerate(each):
        label = "each corruption" if i == 0 else None
        axes.plot(severities, values, color=PALE, linewidth=0.8, label=label)
    style: dict[str, Any] = {"linewidth": 1.6, "markersize": 4.5}
    axes.plot(severities, single, "s--", color=ORANGE, label="best single", **style)
    axes.plot(severities, each.mean(axis=0), "o-", color=BLUE, label="ensemble", **style)
    axes.set_xticks(severities, ["clean" if s == 0 else str(s) for s in severities])
    _legend(figure)
    return figure


def loss_by_size(sizes: Sequence[int], losses: Sequence[float], own: int) -> Figure:
    """Draw the loss against the number of members, the chosen number marked."""
    figure, axes = _figure("What further members add", "members", "loss, nats per point", 3.2)
    axes.plot(sizes, losses, "o-", color=BLUE, linewidth=1.4, markersize=4.5)
    if own in sizes:
        place = (own, losses[list(sizes).index(own)])
        axes.plot(*place, "o", color=ORANGE, markersize=7, label="this ensemble, temperature 1")
        _legend(figure)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    return figure


def cost_and_loss(
    costs: Float[np.ndarray, " k"],
    losses: Float[np.ndarray, " k"],
    singles: int,
    sizes: Sequence[int],
) -> Figure:
    """Draw loss against cost, of `singles` models and then ensembles, and what nothing beats."""
    figure, axes = _figure("Cost and loss", "cost", "loss, nats per point", 3.4)
    low, high = shown_range(-losses)  # the best are the highest
    front = pareto_front(costs, losses)
    steps = {"where": "post", "color": GREEN, "linewidth": 1.2, "label": "best for the cost"}
    axes.step(costs[front], losses[front], **steps)
    for part, colour, label in (
        (slice(None, singles), GREY, "one model"),
        (slice(singles, None), BLUE, "ensemble"),
    ):
        axes.plot(costs[part], np.minimum(losses[part], -low), "o", color=colour, label=label)
    for size, cost, loss in zip(sizes, costs[singles:], losses[singles:], strict=True):
        _note(axes, f"{size}", (cost, loss), (0, 5), "center", SMALL, BLUE)
    axes.set(ylim=_padded(-high, -low, 0.1))
    _legend(figure)
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


def shown_range(values: Float[np.ndarray, " n"]) -> tuple[float, float]:
    """Return from where to where values are drawn; hopeless ones lie below, and at its edge.

    Networks that learnt nothing would otherwise squeeze all the others together.
    """
    values = values[np.isfinite(values)]
    if not values.size:
        return -1.0, 0.0
    worst, median, best = (float(f(values)) for f in (np.min, np.median, np.max))
    low = max(worst, median - 3 * (best - median)) if best > median else worst
    return (low, best) if best > low else (low - 0.5, best + 0.5)


def signed(value: float, digits: int) -> str:
    """Write a number with a true minus sign.

    Example:
        >>> signed(-1.25, 1), signed(-float("inf"), 1)
        ('−1.2', '−∞')
    """
    text = f"{value:.{digits}f}".replace("inf", "∞").replace("nan", "–")
    return text.replace("-", "−")


def settle(figure: Figure) -> None:
    """Arrange a figure once for all the forms in which it is written: that takes half the time."""
    _show_as_text(figure)
    figure.draw_without_rendering()
    figure.set_layout_engine("none")


def to_bytes(figure: Figure, form: str) -> bytes:
    """Return a figure as a PNG or PDF file, the same each time."""
    date = {"CreationDate": None} if form == "pdf" else {}
    return save(figure, format=form, dpi=200, metadata=date)


def save(figure: Figure, **options: Any) -> bytes:
    """Return a figure as a file, its words as they are: they may come from other files."""
    _show_as_text(figure)
    content = io.BytesIO()
    figure.savefig(content, **options)
    return content.getvalue()


def _show_as_text(figure: Figure) -> None:
    """Let no word be taken for a formula or a control sequence."""
    for text in figure.findobj(Text):
        assert isinstance(text, Text)
        text.set_text(plain(text.get_text()))
        text.set_parse_math(False)
        text.set_usetex(False)


def _figure(title: str, x: str, y: str, height: float = HEIGHT) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(WIDTH, height), layout="constrained", facecolor="white")
    axes = figure.add_subplot()
    _style(axes, title, x, y)
    return figure, axes


def _style(axes: Axes, title: str, x: str, y: str) -> None:
    axes.set_title(title, fontsize=TEXT, color=INK, loc="left")
    axes.set_xlabel(x, fontsize=TEXT, color=INK)
    axes.set_ylabel(y, fontsize=TEXT, color=INK)
    axes.tick_params(labelsize=SMALL, color=GREY, labelcolor=INK, length=3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(GREY)


def _mark(
    axes: Axes,
    x: Int[np.ndarray, " k"],
    y: Float[np.ndarray, " k"],
    low: float,
    colour: str,
    label: str,
) -> None:
    """Draw points; those below what is shown as triangles at its edge."""
    style: dict[str, Any] = {"color": colour, "linestyle": "none", "markeredgecolor": "white"}
    axes.plot(x, np.where(y >= low, y, np.nan), marker="o", markersize=5.5, label=label, **style)
    if (y < low).any():
        axes.plot(x[y < low], np.full((y < low).sum(), low), marker="v", markersize=6, **style)


def _mark_failed(axes: Axes, x: np.ndarray, y: np.ndarray) -> None:
    if len(x):
        style = {"color": INK, "markersize": 6, "markeredgewidth": 1.4}
        axes.plot(x, y, "x", label="failed", **style)


def _legend(figure: Figure) -> None:
    axes = figure.axes[0]
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(
        handles,
        labels,
        loc="outside lower center",
        ncols=2 if len(labels) > 3 else 3,
        fontsize=SMALL,
        labelcolor=INK,
        frameon=False,
        handlelength=1.4,
        columnspacing=1.4,
    )


def _note(
    axes: Axes,
    text: str,
    place: tuple,
    offset: tuple[int, int],
    align: str,
    size: int = TEXT,
    colour: str = INK,
) -> None:
    """Write beside a point; the offset is in the units of letters."""
    axes.annotate(
        text, place, offset, textcoords="offset points", ha=align, fontsize=size, color=colour
    )


def _padded(low: float, high: float, share: float) -> tuple[float, float]:
    return low - share * (high - low), high + share * (high - low)
