"""Drawings of architectures: cells as graphs or tables, slices as bars, other choices as lists."""

import functools
from collections.abc import Sequence

import numpy as np
from jaxtyping import Int
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle, FancyArrowPatch, Rectangle

from bqnes_jax.report.plots import (
    BLUE,
    GREEN,
    GREY,
    INK,
    MUTED,
    ORANGE,
    PAPER,
    SHADE,
    SMALL,
    TEXT,
    WIDTH,
)
from bqnes_jax.spaces import DARTSSpace, NATSSpace, Product, Seeded, Space
from bqnes_jax.spaces.nats import EDGES, OPERATIONS
from bqnes_jax.spaces.slimmable import SlimmableSpace

_LOOKS = {  # operation: what it is called, colour, line width
    "skip_connect": ("skip", GREY, 0.9),
    "nor_conv_1x1": ("conv 1×1", GREEN, 2.0),
    "nor_conv_3x3": ("conv 3×3", BLUE, 2.0),
    "avg_pool_3x3": ("pool 3×3", ORANGE, 2.0),
}
_CELLS = {"normal": "normal cell", "reduce": "reduction cell"}
_KINDS = {"sep": BLUE, "dil": GREEN, "max": ORANGE, "avg": ORANGE, "skip": GREY}
# How far each edge bends, in parts of its length; upwards is negative.
_BENDS = {(0, 1): 0, (1, 2): 0, (2, 3): 0, (0, 2): -0.68, (1, 3): 0.68, (0, 3): -0.8}


@functools.singledispatch
def draw(space: Space, arch: Int[np.ndarray, " length"], title: str) -> Figure:
    """Draw an architecture; that of a space without a drawing of its own is written out."""
    return listing([("", space.to_string(arch))], title)


@functools.singledispatch
def how_to_read(space: Space) -> str:
    """Say what a drawing shows, as the rest of a sentence."""
    return "each line is one choice"


@draw.register
def _(space: Seeded, arch: np.ndarray, title: str) -> Figure:
    return draw(space.base, arch[:-1], f"{title}, seed {arch[-1]}")


@how_to_read.register
def _(space: Seeded) -> str:
    return how_to_read(space.base)


@draw.register
def _(space: Product, arch: np.ndarray, title: str) -> Figure:
    return listing([(name, str(value)) for name, value in space.decode(arch).items()], title)


@draw.register
def _(space: NATSSpace, arch: np.ndarray, title: str) -> Figure:
    return cell(arch, title)


@how_to_read.register
def _(space: NATSSpace) -> str:
    return (
        "an arrow is an operation that leads from one node to another, a thin grey one passes on "
        "what it gets, and no arrow means no connection"
    )


@draw.register
def _(space: SlimmableSpace, arch: np.ndarray, title: str) -> Figure:
    return slices(space, arch, title)


@how_to_read.register
def _(space: SlimmableSpace) -> str:
    return (
        "a bar is a layer, as high as the part of its channels that is used; a layer without a "
        "bar is left out"
    )


@draw.register
def _(space: DARTSSpace, arch: np.ndarray, title: str) -> Figure:
    return pair_of_cells(space, arch, title)


@how_to_read.register
def _(space: DARTSSpace) -> str:
    return (
        "a column is a node that adds up two operations, a row is what they are applied to: the "
        "outputs of the two cells before, or an earlier node"
    )


def listing(lines: Sequence[tuple[str, str]], title: str) -> Figure:
    """Write choices below each other: names on the left, what was chosen on the right."""
    figure = Figure(
        figsize=(WIDTH, 0.45 + 0.22 * len(lines)), layout="constrained", facecolor=PAPER
    )
    axes = figure.add_subplot()
    axes.set_title(title, fontsize=TEXT, color=INK, loc="left")
    axes.set(xlim=(0, 1), ylim=(len(lines) - 0.4, -0.6))
    axes.axis("off")
    for place, (name, value) in enumerate(lines):
        axes.text(0.0, place, name, fontsize=SMALL, color=MUTED, va="center")
        axes.text(0.4 if name else 0.0, place, value, fontsize=SMALL, color=INK, va="center")
    return figure


def cell(arch: Int[np.ndarray, " edges"], title: str) -> Figure:
    """Draw a cell of the NATS space: its nodes in a row, its operations as arrows."""
    figure = Figure(figsize=(WIDTH, 2.45), layout="constrained", facecolor=PAPER)
    axes = figure.add_subplot()
    axes.set_title(title, fontsize=TEXT, color=INK, loc="left")
    axes.set(xlim=(-0.25, 3.25), ylim=(-0.8, 1.32), aspect="equal")
    axes.axis("off")
    for edge, operation in zip(EDGES, arch, strict=True):
        if OPERATIONS[operation] in _LOOKS:
            _arrow(axes, edge, *_LOOKS[OPERATIONS[operation]])
    for place, name in enumerate(("in", "1", "2", "out")):
        axes.add_patch(
            Circle((place, 0), 0.17, facecolor=PAPER, edgecolor=INK, linewidth=1.2, zorder=3)
        )
        axes.text(place, 0, name, ha="center", va="center", fontsize=SMALL, color=INK, zorder=4)
    return figure


def pair_of_cells(space: DARTSSpace, arch: Int[np.ndarray, " length"], title: str) -> Figure:
    """Draw both cells of DARTS: which node takes what from where, by which operation."""
    figure = Figure(figsize=(WIDTH, 3.4), layout="constrained", facecolor=PAPER)
    figure.suptitle(title, fontsize=TEXT, color=INK, x=0.01, ha="left")
    cells = space.decode(arch)
    for axes, (name, edges) in zip(figure.subplots(len(cells)), cells.items(), strict=True):
        nodes = len(edges) // 2
        sources = ["2 before", "1 before", *(f"node {i}" for i in range(1, nodes))]
        axes.set_title(_CELLS[name], fontsize=SMALL, color=INK)
        axes.set(xlim=(-0.5, nodes - 0.5), ylim=(len(sources) - 0.5, -0.5))
        axes.set_xticks(range(nodes), [f"node {i + 1}" for i in range(nodes)])
        axes.set_yticks(range(len(sources)), sources)
        axes.tick_params(labelsize=SMALL, length=0, colors=INK)
        axes.spines[:].set_visible(False)
        for place, (operation, source) in enumerate(edges):
            _box(axes, place // 2, source, operation)
    return figure


def _box(axes: Axes, node: int, source: int, operation: str) -> None:
    """Put an operation into its place of the table of a cell."""
    kind = operation.split("_")[0]
    size = "" if kind == "skip" else f" {operation[-3]}×{operation[-1]}"
    box = Rectangle((node - 0.46, source - 0.4), 0.92, 0.8, facecolor=_KINDS[kind], linewidth=0)
    axes.add_patch(box)
    axes.text(
        *(node, source, f"{kind}{size}"),
        ha="center",
        va="center",
        fontsize=SMALL,
        color=PAPER,
    )


def slices(space: SlimmableSpace, arch: Int[np.ndarray, " length"], title: str) -> Figure:
    """Draw how much of each layer a slice uses, block by block; absent layers are empty."""
    figure = Figure(figsize=(WIDTH, 1.6), layout="constrained", facecolor=PAPER)
    axes = figure.add_subplot()
    axes.set_title(title, fontsize=TEXT, color=INK, loc="left")
    option = np.asarray(arch).reshape(space.blocks, space.layers)
    used = np.where(option > 0, 0.5 + 0.5 * (option - 1) / max(space.widths - 1, 1), 0)
    places = np.arange(space.blocks)[:, None] * (space.layers + 0.8) + np.arange(space.layers)
    axes.bar(places.ravel(), np.ones(used.size), 0.8, color=SHADE)
    axes.bar(places.ravel(), used.ravel(), 0.8, color=BLUE)
    axes.set_xticks(places.mean(axis=1), [f"{i + 1}" for i in range(space.blocks)])
    axes.set_yticks([0, 0.5, 1], ["0", "½", "all"])
    axes.set_xlabel("block", fontsize=SMALL, color=INK)
    axes.tick_params(labelsize=SMALL, length=0, colors=INK)
    axes.spines[:].set_visible(False)
    return figure


def _arrow(axes: Axes, edge: tuple[int, int], name: str, colour: str, width: float) -> None:
    (source, target), bend = edge, _BENDS[edge]
    axes.add_patch(
        FancyArrowPatch(
            (source, 0),
            (target, 0),
            connectionstyle=f"arc3,rad={bend}",
            arrowstyle="-|>",
            mutation_scale=9,
            shrinkA=12,
            shrinkB=12,
            color=colour,
            linewidth=width,
            zorder=1,
        )
    )
    # The middle of an arc is half its bend away; a straight arrow is too short for a label on it.
    height = -bend * (target - source) / 2 if bend else 0.15
    behind = {"facecolor": PAPER, "edgecolor": "none", "pad": 1.5} if bend else None
    axes.text(
        (source + target) / 2,
        height,
        name,
        ha="center",
        va="center",
        fontsize=SMALL,
        color=colour if name != "skip" else MUTED,
        bbox=behind,
        zorder=2,
    )
