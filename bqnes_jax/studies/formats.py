"""The rows of a comparison as text, CSV, Markdown and LaTeX: means, errors, and what is best."""

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from bqnes_jax.files.text import align, in_a_line, plain
from bqnes_jax.studies.rows import Row

_LOWER_IS_BETTER = ("ece", "calibrated_ece")


class Cell(NamedTuple):
    """A mean over seeds, its standard error, and whether nothing is better beyond the errors."""

    mean: float
    error: float
    best: bool


def summarise(rows: Sequence[Row]) -> list[list[Cell]]:
    """Return the cells of each row, in the order of `metrics_of`.

    What is best is best among ensembles of one size and the single networks, which compete with
    ensembles of every size. Others count as equally good when they fall short of the best by less
    than the standard error of the difference.
    """
    names = metrics_of(rows)
    cells = [[_mean_and_error(getattr(row, name)) for name in names] for row in rows]
    sizes = {row.size for row in rows if row.size > 1} or {1}
    for column, name in enumerate(names):
        sign = -1 if name in _LOWER_IS_BETTER else 1
        means, errors = (
            np.array([getattr(row[column], field) for row in cells]) for field in ("mean", "error")
        )
        tied = _find_ties(sign * means, np.nan_to_num(errors), [row.size for row in rows], sizes)
        for row, best in zip(cells, tied, strict=True):
            row[column] = row[column]._replace(best=bool(best))
    return cells


def _find_ties(scores: np.ndarray, errors: np.ndarray, size_of: list[int], sizes: set[int]):
    """Tell which scores are as good as the best of each group that they belong to."""
    tied = np.ones(len(scores), bool)
    for size in sizes:
        group = np.isin(size_of, (1, size))
        best = np.argmax(np.where(group, scores, -np.inf))
        short = scores[best] - scores
        tied &= ~group | (short <= np.hypot(errors[best], errors))
    return tied


def _mean_and_error(values: np.ndarray) -> Cell:
    error = values.std(ddof=1) / np.sqrt(len(values)) if len(values) > 1 else np.nan
    return Cell(float(values.mean()), float(error), False)


_HEADERS = {
    "accuracy": "Accuracy (%)",
    "ece": "ECE",
    "log_likelihood": "Log-likelihood",
    "calibrated_ece": "calibrated ECE",
    "calibrated_log_likelihood": "calibrated log-lik.",
}
_SCALES, _DIGITS = (100, 1, 1, 1, 1), (2, 4, 1, 4, 1)


def metrics_of(rows: Sequence[Row]) -> list[str]:
    """Return the names of the metrics that all rows have."""
    return [name for name in _HEADERS if all(getattr(row, name) is not None for row in rows)]


def headers(rows: Sequence[Row]) -> list[str]:
    """Return what the columns of metrics are called."""
    return [_HEADERS[name] for name in metrics_of(rows)]


def format_cell(cell: Cell, column: int) -> str:
    """Write a cell as mean ± standard error."""
    scale, digits = _SCALES[column], _DIGITS[column]
    mean = f"{cell.mean * scale:.{digits}f}"
    return mean if np.isnan(cell.error) else f"{mean} ± {cell.error * scale:.{digits}f}"


def as_csv(rows: Sequence[Row]) -> str:
    """Write one line for each algorithm, size and seed: what other programs read.

    Members are those that were asked for, used are those that have a weight.
    """
    names = metrics_of(rows)
    lines = ["algorithm,members,seed,used," + ",".join(names)]
    for row in rows:
        columns = [getattr(row, name) for name in names]
        used = np.full(len(columns[0]), row.size) if row.used is None else row.used
        for seed, (count, *values) in enumerate(zip(used, *columns, strict=True)):
            begin = f"{_csv(row.algorithm)},{row.size},{seed},{count},"
            lines.append(begin + ",".join(f"{v:.6g}" for v in values))
    return "\n".join(lines) + "\n"


def _csv(name: str) -> str:
    """Return a name as a cell; after an apostrophe a spreadsheet takes it for no formula.

    Some take the wide forms of signs for the signs, and a semicolon for the end of a cell.
    """
    name = "'" + plain(name) if name[:1] in tuple("=+-@＝＋－＠\t\r\n") else plain(name)
    return '"' + name.replace('"', '""') + '"' if set(name) & set(',;"\n') else name


def as_text(rows: Sequence[Row]) -> str:
    """Write columns of text; * marks what is best."""
    lines = [["", "M", *headers(rows)]]
    for row, cells in zip(rows, summarise(rows), strict=True):
        marks = ("*" if cell.best else " " for cell in cells)
        texts = (
            f"{format_cell(c, j)} {m}" for j, (c, m) in enumerate(zip(cells, marks, strict=True))
        )
        lines.append([in_a_line(row.algorithm), row.members, *texts])
    return align(lines)


def as_markdown(rows: Sequence[Row]) -> str:
    """Write a Markdown table."""
    columns = ["Algorithm", "M", *headers(rows)]
    lines = [f"| {' | '.join(columns)} |", f"|---|{'--:|' * (len(columns) - 1)}"]
    for row, cells in zip(rows, summarise(rows), strict=True):
        texts = [
            f"**{format_cell(c, j)}**" if c.best else format_cell(c, j) for j, c in enumerate(cells)
        ]
        name = re.sub(r"([\\`*_\[\]<>|~$])", r"\\\1", in_a_line(row.algorithm))
        lines.append(f"| {name} | {row.members} | " + " | ".join(texts) + " |")
    return "\n".join(lines) + "\n"


def as_latex(rows: Sequence[Row]) -> str:
    """Write a LaTeX table for the package booktabs."""
    columns = [header.replace("%", r"\%") for header in headers(rows)]
    lines = [
        rf"\begin{{tabular}}{{lr{'r' * len(columns)}}}",
        r"\toprule",
        rf"Algorithm & $M$ & {' & '.join(columns)} \\",
        r"\midrule",
    ]
    for row, cells in zip(rows, summarise(rows), strict=True):
        texts = [_latex_number(format_cell(cell, j), cell.best) for j, cell in enumerate(cells)]
        name = "".join(_LATEX.get(letter, letter) for letter in in_a_line(row.algorithm))
        lines.append(f"{name} & {row.members} & " + " & ".join(texts) + r" \\")
    lines += [r"\bottomrule", r"\end{tabular}"]
    return "\n".join(lines) + "\n"


# How LaTeX shows what it would obey.
_LATEX = {letter: f"\\{letter}" for letter in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
}


def _latex_number(text: str, best: bool) -> str:
    number = text.replace("±", r"\pm")
    return rf"$\mathbf{{{number}}}$" if best else f"${number}$"
