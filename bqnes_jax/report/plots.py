"""What all figures of a report have in common: their size, colours and letters, and their files.

No figure depends on matplotlib's global settings or touches them, so that they can be drawn in any
thread. All are as wide as a telephone, so that their letters can be read there; a page puts them
side by side where there is room.
"""

import io
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text

from bqnes_jax.files.text import plain

WIDTH, HEIGHT = 3.6, 2.9  # inches; at 96 to the inch, what a telephone shows
TEXT, SMALL = 9, 8

# Colours that people with any colour vision tell apart (Okabe and Ito), and greys. A page gives
# each a value of its own for dark screens (`html.to_svg`).
BLUE, ORANGE, GREEN = "#0072b2", "#d55e00", "#009e73"
PALE, GREY, INK, MUTED = "#a9cce3", "#8a8a8a", "#222222", "#666666"
SHADE, RULE, PAPER = "#f1f1f1", "#cccccc", "#ffffff"


def range_of(values: Float[np.ndarray, " n"]) -> tuple[float, float]:
    """Return from where to where values are drawn; hopeless ones lie below, and at its edge.

    Networks that learnt nothing would otherwise squeeze all the others together.
    """
    values = values[np.isfinite(values)]
    if not values.size:
        return -1.0, 0.0
    worst, median, best = (float(f(values)) for f in (np.min, np.median, np.max))
    low = max(worst, median - 3 * (best - median)) if best > median else worst
    return (low, best) if best > low else (low - 0.5, best + 0.5)


def with_sign(value: float, digits: int) -> str:
    """Write a number with a true minus sign.

    Example:
        >>> with_sign(-1.25, 1), with_sign(-float("inf"), 1)
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


def frame(title: str, x: str, y: str, *, height: float = HEIGHT) -> tuple[Figure, Axes]:
    """Return a figure with one panel in the common style."""
    figure = Figure(figsize=(WIDTH, height), layout="constrained", facecolor=PAPER)
    axes = figure.add_subplot()
    style(axes, title, x, y)
    return figure, axes


def style(axes: Axes, title: str, x: str, y: str) -> None:
    """Give a panel its title, labels and letters."""
    axes.set_title(title, fontsize=TEXT, color=INK, loc="left")
    axes.set_xlabel(x, fontsize=TEXT, color=INK)
    axes.set_ylabel(y, fontsize=TEXT, color=INK)
    axes.tick_params(labelsize=SMALL, color=GREY, labelcolor=INK, length=3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(GREY)


def mark(
    axes: Axes,
    x: Int[np.ndarray, " k"],
    y: Float[np.ndarray, " k"],
    top: float,
    colour: str,
    label: str,
) -> None:
    """Draw points; those above what is shown as triangles at its edge."""
    style: dict[str, Any] = {"color": colour, "linestyle": "none", "markeredgecolor": PAPER}
    axes.plot(x, np.where(y <= top, y, np.nan), marker="o", markersize=5.5, label=label, **style)
    if (y > top).any():
        axes.plot(x[y > top], np.full((y > top).sum(), top), marker="^", markersize=6, **style)


def mark_failed(axes: Axes, x: np.ndarray, y: np.ndarray) -> None:
    """Draw what failed as crosses."""
    if len(x):
        style = {"color": INK, "markersize": 6, "markeredgewidth": 1.4}
        axes.plot(x, y, "x", label="failed", **style)


def add_legend(figure: Figure) -> None:
    """Put a legend below the first panel."""
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


def note(
    axes: Axes,
    text: str,
    place: tuple,
    offset: tuple[int, int],
    align: str,
    *,
    size: int = TEXT,
    colour: str = INK,
) -> None:
    """Write beside a point; the offset is in the units of letters."""
    axes.annotate(
        text, place, offset, textcoords="offset points", ha=align, fontsize=size, color=colour
    )


def pad(low: float, high: float, share: float) -> tuple[float, float]:
    """Return a range with a share of its length added at both ends."""
    return low - share * (high - low), high + share * (high - low)
