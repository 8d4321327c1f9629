"""The page of a report: one file that needs nothing else, for telephones, screens and paper."""

import html
import re
from collections.abc import Sequence
from typing import NamedTuple

from matplotlib.figure import Figure

from bqnes_jax.files.text import count_members, plain
from bqnes_jax.report.plots import save, signed
from bqnes_jax.runs import Metrics
from bqnes_jax.types import Status

_CSS = """
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; text-size-adjust: 100%; }
body { margin: 0 auto; padding: 1.25rem 1rem 3rem; max-width: 66rem; color: #222; background: #fff;
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Liberation Sans", sans-serif; }
h1 { font-size: 1.5rem; line-height: 1.25; margin: 0 0 .5rem; }
h2 { font-size: 1.15rem; margin: 0 0 .25rem; }
p { margin: 0 0 .75rem; max-width: 46rem; }
.result { font-size: 1.15rem; line-height: 1.4; }
.facts { display: grid; grid-template-columns: max-content 1fr; gap: .1rem 1rem; margin: 0; }
.facts dt { color: #666; }
.facts dd { margin: 0; overflow-wrap: anywhere; min-width: 0; }
section { margin-top: 1.5rem; padding-top: 1.25rem; border-top: 1px solid #ddd; }
.figures { display: grid; gap: 1rem 1.5rem;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 19rem), 1fr)); }
figure { margin: 0; }
figure svg { display: block; width: 100%; max-width: 23rem; height: auto; }
table { border-collapse: collapse; table-layout: fixed; width: 100%; max-width: 40rem;
  font-size: .875rem; font-variant-numeric: tabular-nums; }
th, td { padding: .35rem .25rem; text-align: right; border-bottom: 1px solid #eee; }
th { width: 21%; font-weight: 600; font-size: .8125rem; color: #555; vertical-align: bottom; }
th:nth-child(1) { width: 26%; }
th:nth-child(2) { width: 12%; }
th:nth-child(4) { width: 19%; }
.figures + table { margin-top: 1rem; }
.plain th:nth-child(n) { width: auto; }
.plain small { color: #666; }
th:first-child, td:first-child { text-align: left; overflow-wrap: anywhere; }
td b { font-weight: 700; }
tr.own td { background: #eaf3fa; }
pre { margin: 0 0 .75rem; padding: .75rem; background: #f6f6f6; border-radius: 4px;
  font: .8125rem/1.45 ui-monospace, Menlo, Consolas, "Liberation Mono", monospace;
  white-space: pre-wrap; overflow-wrap: anywhere; }
@media screen and (min-width: 60rem) {
  body { padding: 2.5rem 2rem 4rem; font-size: 15px; }
  h1 { font-size: 1.75rem; }
  section { display: grid; grid-template-columns: 15rem 1fr; column-gap: 2.5rem; }
  section h2 { grid-row: 1; }
  section > p { grid-row: 2; color: #444; font-size: .9375rem; }
  section > div { grid-column: 2; grid-row: 1 / span 3; min-width: 0; }
  table { font-size: .9375rem; }
}
@page { margin: 15mm; }
@media print {
  body { padding: 0; max-width: none; font-size: 10.5pt; }
  section { margin-top: 1rem; padding-top: .75rem; break-inside: avoid; }
  section:last-child { break-inside: auto; }
  h1, h2, h2 + p { break-after: avoid; }
  figure, table, tr, p { break-inside: avoid; }
  .figures { gap: .5rem 1rem; grid-template-columns: repeat(auto-fit, minmax(17rem, 1fr)); }
  figure svg { max-width: 18.5rem; }
  th, td { padding-top: .2rem; padding-bottom: .2rem; }
  pre { font-size: 8pt; }
  tr.own td, pre { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
}
"""


HOW_TO_READ = {
    "Results": (
        "On the test data, from the same candidates: accuracy and log-likelihood are better when "
        "higher, ECE (expected calibration error) when lower; the best of each column is bold, and "
        "the shaded row is the ensemble of this report."
    ),
    "Warnings": "What went differently than it should, and what helps.",
    "Calibration": (
        "A bar shows how often predictions of that confidence are right, its black line how often "
        "they claim to be; a bar that ends below its line is overconfident, and the small bars "
        "count the points."
    ),
    "Weights": (
        "How much each member counts; below its number, what it does alone on the test data: "
        "accuracy and log-likelihood."
    ),
    "Architectures": "What the members are built of: {drawing}.",
    "Search": (
        "How well each candidate explains the validation data, with triangles for those far "
        "below; and log Ẑ, the logarithm of the tempered likelihood averaged over the whole space "
        "as it was believed at that time, whose band narrows as more is known."
    ),
    "Map": (
        "Candidates near each other are alike to the kernel, and the brighter the better; members "
        "that lie far apart are different networks."
    ),
    "Surrogate": (
        "Each point is a candidate that was predicted, ± 1 standard deviation, from those trained "
        "before it was chosen, and the dashed line is where predictions are right; ℓ is the "
        "tempered likelihood: log ℓ is the log-likelihood divided by {temperature:g}."
    ),
    "Dataset shift": (
        "On corrupted test images, members and weights being those for clean ones: averages over "
        "all corruptions, with a pale line for each, and below them each corruption averaged over "
        "its severities, the best single network in small letters."
    ),
    "Disagreement": (
        "How often two members predict different classes for a test point: those that differ more "
        "can correct more of each other's mistakes."
    ),
    "How to do it again": (
        "Save the config as config.yaml, and give the command; the versions are those it ran with."
    ),
}


_METRICS = ("Accuracy %", "ECE", "Log-lik.")
_INTERVAL, _BELOW = re.compile(r" (\[[^\[\]a-zA-Z<>&]*\])$"), r"<br><small>\1</small>"


class Row(NamedTuple):
    """An ensemble of the table: what it is called, how many members were asked for, how good.

    The status says what went differently when it was selected; `used` is how many members it has.
    """

    name: str
    size: int
    metrics: Metrics
    status: Status
    used: int
    temperature: float = 1.0  # after pooling
    uncalibrated: Metrics = Metrics(0.0, 0.0, 0.0)  # how good without it

    @property
    def members(self) -> str:
        """How many members, as text: those in use, if they are fewer than were asked for."""
        return count_members(self.size, self.used)


class Drawing(NamedTuple):
    """A figure; its name is that of its files, what it shows is for those who cannot see it."""

    name: str
    shows: str
    figure: Figure


class Section(NamedTuple):
    """A part of the page: a title, a sentence that says how to read it, and HTML."""

    title: str
    sentence: str
    body: str


def escape(text: str) -> str:
    """Return text as it is read, whatever it holds: no markup, no control characters."""
    return html.escape(plain(text))


def page(title: str, result: str, facts: dict[str, str], sections: Sequence[Section]) -> str:
    """Return the whole page."""
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<style>{_CSS}</style>
</head>
<body>
<header>
<h1>{escape(title)}</h1>
<p class="result">{escape(result)}</p>
{definitions(facts)}
</header>
<main>
{"".join(map(_section, sections))}</main>
</body>
</html>
"""


def table(rows: Sequence[Row], own: Row) -> str:
    """Return the table of results, the best of each column in bold, one row marked."""
    texts = [_texts(row.metrics) for row in rows]
    best = [_best(rows, texts, field) for field in range(len(Metrics._fields))]
    lines = []
    for row, shown in zip(rows, texts, strict=True):
        cells = "".join(map(_cell, row.metrics, shown, best))
        mark = ' class="own"' if row == own else ""
        lines.append(f"<tr{mark}><td>{_name(row)}</td><td>{row.members}</td>{cells}</tr>\n")
    head = ("Ensemble", "Size", *_METRICS)
    return (
        f"<table>\n<thead><tr>{''.join(f'<th>{name}</th>' for name in head)}</tr></thead>\n"
        f"<tbody>\n{''.join(lines)}</tbody>\n</table>\n"
    )


def paired_table(first: str, names: Sequence[str], pairs: Sequence[tuple[Metrics, Metrics]]) -> str:
    """Return a table with two values in each cell, the second below the first in small letters."""
    lines = []
    for name, (above, below) in zip(names, pairs, strict=True):
        texts = zip(_texts(above), _texts(below), strict=True)
        cells = "".join(f"<td>{a}<br><small>{b}</small></td>" for a, b in texts)
        lines.append(f"<tr><td>{escape(name)}</td>{cells}</tr>\n")
    head = "".join(f"<th>{name}</th>" for name in (escape(first), *_METRICS))
    return (
        f'<table class="plain">\n<thead><tr>{head}</tr></thead>\n'
        f"<tbody>\n{''.join(lines)}</tbody>\n</table>\n"
    )


def plain_table(head: Sequence[str], rows: Sequence[Sequence[str]], *, own: int = -1) -> str:
    """Return a table of texts, one row marked."""
    lines = []
    for i, row in enumerate(rows):
        cells = "".join(f"<td>{_INTERVAL.sub(_BELOW, escape(text))}</td>" for text in row)
        mark = ' class="own"' if i == own else ""
        lines.append(f"<tr{mark}>{cells}</tr>\n")
    names = "".join(f"<th>{escape(name)}</th>" for name in head)
    return (
        f'<table class="plain">\n<thead><tr>{names}</tr></thead>\n'
        f"<tbody>\n{''.join(lines)}</tbody>\n</table>\n"
    )


def figures(drawings: Sequence[Drawing]) -> str:
    """Return figures side by side, or one below the other where it is narrow."""
    drawn = (f"<figure>{to_svg(*drawing)}</figure>\n" for drawing in drawings)
    return f'<div class="figures">\n{"".join(drawn)}</div>\n'


def definitions(facts: dict[str, str]) -> str:
    """Return names and what they are."""
    lines = (f"<dt>{escape(k)}</dt><dd>{escape(v)}</dd>\n" for k, v in facts.items())
    return f'<dl class="facts">\n{"".join(lines)}</dl>'


def paragraph(text: str) -> str:
    """Return a paragraph of text."""
    return f"<p>{escape(text)}</p>\n"


def block(text: str) -> str:
    """Return text as it is, such as a file or a command."""
    return f"<pre>{escape(text)}</pre>\n"


def to_svg(name: str, shows: str, figure: Figure) -> str:
    """Return a figure as an element of a page, its ids unlike those of other names."""
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    text = save(figure, format="svg", metadata=nothing).decode()
    text = text[text.index("<svg") :].strip()
    # Its style would hold for the whole page.
    text = re.sub(r"<style.*?</style>|<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(r"\n\s*", "\n", text).replace("xlink:href", "href")
    box, *_ = re.findall(r'viewBox="[^"]*"', text)
    opening = f'<svg {box} role="img" aria-label="{escape(shows)}" stroke-linejoin="round">'
    return _renamed(re.sub(r"<svg[^>]*>", lambda _: opening, text, count=1), name)


def _renamed(svg: str, name: str) -> str:
    """Number the ids that are used, and leave the others out."""
    used = dict.fromkeys(re.findall(r'(?:href="|url\()#([^")]+)', svg))
    new = {old: f"{name}-{number}" for number, old in enumerate(used)}
    svg = re.sub(
        r' id="([^"]+)"', lambda match: f' id="{new[match[1]]}"' if match[1] in new else "", svg
    )
    return re.sub(r'(href="|url\()#([^")]+)', lambda match: f"{match[1]}#{new[match[2]]}", svg)


def _section(section: Section) -> str:
    return (
        f"<section>\n<h2>{escape(section.title)}</h2>\n{paragraph(section.sentence)}"
        f"<div>\n{section.body}</div>\n</section>\n"
    )


def _texts(metrics: Metrics) -> tuple[str, str, str]:
    return (
        f"{100 * metrics.accuracy:.2f}",
        f"{metrics.ece:.4f}",
        signed(metrics.log_likelihood, 1),
    )


def _best(rows: Sequence[Row], texts: Sequence[tuple[str, ...]], field: int) -> str:
    """Return how the best value of a column is written: those that look the same are as good."""
    better = min if Metrics._fields[field] == "ece" else max
    return texts[better(range(len(rows)), key=lambda i: rows[i].metrics[field])][field]


def _name(row: Row) -> str:
    return escape(row.name).replace("+", "+<wbr>")  # where a narrow column may break it


def _cell(value: float, text: str, best: str) -> str:
    inner = f'<data value="{value!r}">{text}</data>'
    return f"<td>{f'<b>{inner}</b>' if text == best else inner}</td>"
