"""What a page is made of: one file that needs nothing else, and text that stays text."""

import html
import re
from collections.abc import Sequence
from typing import NamedTuple

from matplotlib.figure import Figure

from bqnes_jax.files.text import plain
from bqnes_jax.report.plots import save, settle
from bqnes_jax.report.style import CSS, THEMED


class Drawing(NamedTuple):
    """A figure.

    Attributes:
        name: of its files.
        shows: what it shows and says, for those who cannot see it.
        figure: the figure.
        caption: how to read it, below it.
    """

    name: str
    shows: str
    figure: Figure
    caption: str = ""


class Cell(NamedTuple):
    """A cell of a table: its text, what is below it in small letters, and a mark in its style."""

    text: str
    below: str = ""
    mark: str = ""


class Section(NamedTuple):
    """A part of the page: a title, a sentence that answers it, and HTML."""

    title: str
    sentence: str
    body: str


def escape(text: str) -> str:
    """Return text as it is read, whatever it holds: no markup, no control characters."""
    return html.escape(plain(text))


def page(title: str, result: str, facts: dict[str, str], sections: Sequence[Section]) -> str:
    """Return the whole page."""
    links = "".join(
        f'<li><a href="#{_id(section)}">{escape(section.title)}</a></li>\n' for section in sections
    )
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{escape(title)}</title>
<style>{CSS}</style>
</head>
<body>
<a class="skip" href="#content">Skip to the content</a>
<header>
<h1>{escape(title)}</h1>
<p class="result">{escape(result)}</p>
{definitions(facts)}
<nav aria-label="Sections">
<ul>
{links}</ul>
</nav>
</header>
<main id="content" tabindex="-1">
{"".join(map(_section, sections))}</main>
</body>
</html>
"""


def table(
    head: Sequence[str],
    rows: Sequence[Sequence[str | Cell]],
    *,
    own: int = -1,
    words: bool = False,
) -> str:
    """Return a table whose rows begin with a name; one row may be marked.

    Cells of `words` begin at the left, as text does; numbers end at the right.
    """
    lines = []
    for i, row in enumerate(rows):
        name, *others = (cell if isinstance(cell, Cell) else Cell(cell) for cell in row)
        # A narrow screen shows a table as a grid, which must stay a table to those who hear it.
        cells = f'<th scope="row" role="rowheader">{_inside(name)}</th>'
        for cell in others:
            mark = f' class="{cell.mark}"' if cell.mark else ""
            cells += f'<td role="cell"{mark}>{_inside(cell)}</td>'
        mark = ' class="own"' if i == own else ""
        lines.append(f'<tr role="row"{mark}>{cells}</tr>\n')
    names = "".join(f'<th scope="col" role="columnheader">{escape(name)}</th>' for name in head)
    kind = ' class="words"' if words else ""
    return (
        f'<table role="table"{kind} style="--columns: {len(head) - 1}">\n'
        f'<thead role="rowgroup"><tr role="row">{names}</tr></thead>\n'
        f'<tbody role="rowgroup">\n{"".join(lines)}</tbody>\n</table>\n'
    )


def figures(drawings: Sequence[Drawing], *, small: bool = False) -> str:
    """Return figures side by side, or one below the other where it is narrow."""
    kind = "figures small" if small else "figures"
    return f'<div class="{kind}">\n{"".join(map(figure, drawings))}</div>\n' if drawings else ""


def figure(drawing: Drawing) -> str:
    """Return a figure with its caption."""
    settle(drawing.figure)
    caption = f"<figcaption>{escape(drawing.caption)}</figcaption>\n" if drawing.caption else ""
    return f"<figure>{to_svg(*drawing[:3])}\n{caption}</figure>\n"


def definitions(facts: dict[str, str]) -> str:
    """Return names and what they are."""
    lines = (f"<dt>{escape(k)}</dt><dd>{escape(v)}</dd>\n" for k, v in facts.items())
    return f'<dl class="facts">\n{"".join(lines)}</dl>'


def paragraph(text: str) -> str:
    """Return a paragraph of text."""
    return f"<p>{escape(text)}</p>\n"


def items(texts: Sequence[str]) -> str:
    """Return a list of sentences."""
    return f"<ul>\n{''.join(f'<li>{escape(text)}</li>{chr(10)}' for text in texts)}</ul>\n"


def block(text: str) -> str:
    """Return text as it is, such as a file or a command."""
    return f"<pre>{escape(text)}</pre>\n"


def fold(summary: str, body: str) -> str:
    """Return HTML that is shown when it is asked for."""
    return f"<details>\n<summary>{escape(summary)}</summary>\n{body}</details>\n"


def to_svg(name: str, shows: str, figure: Figure) -> str:
    """Return a figure as an element of a page, its ids unlike those of other names.

    Its colours are variables of the page's style, which has others for dark screens.
    """
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    text = save(figure, format="svg", metadata=nothing).decode()
    text = text[text.index("<svg") :].strip()
    # Its style would hold for the whole page.
    text = re.sub(r"<style.*?</style>|<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(r"\n\s*", "\n", text).replace("xlink:href", "href")
    text = re.sub(r'(?<=style=")[^"]*', lambda style: _apply_theme(style[0]), text)
    box, *_ = re.findall(r'viewBox="[^"]*"', text)
    opening = f'<svg {box} role="img" aria-label="{escape(shows)}" stroke-linejoin="round">'
    return _rename_ids(re.sub(r"<svg[^>]*>", lambda _: opening, text, count=1), name)


def _apply_theme(style: str) -> str:
    """Put the variables of the page's style in place of colours."""
    return re.sub(
        r"#[0-9a-f]{6}",
        lambda colour: f"var(--{THEMED[colour[0]]})" if colour[0] in THEMED else colour[0],
        style,
    )


def _rename_ids(svg: str, name: str) -> str:
    """Number the ids that are used, and leave the others out."""
    used = dict.fromkeys(re.findall(r'(?:href="|url\()#([^")]+)', svg))
    new = {old: f"{name}-{number}" for number, old in enumerate(used)}
    svg = re.sub(
        r' id="([^"]+)"', lambda match: f' id="{new[match[1]]}"' if match[1] in new else "", svg
    )
    return re.sub(r'(href="|url\()#([^")]+)', lambda match: f"{match[1]}#{new[match[2]]}", svg)


def _inside(cell: Cell) -> str:
    # Where a narrow column may break a name.
    text = re.sub(r"(?<=[a-z])\+(?=[a-z])", "+<wbr>", escape(cell.text))
    return text + (f"<small>{escape(cell.below)}</small>" if cell.below else "")


def _section(section: Section) -> str:
    return (
        f'<section id="{_id(section)}">\n<h2>{escape(section.title)}</h2>\n'
        f"{paragraph(section.sentence) if section.sentence else ''}{section.body}</section>\n"
    )


def _id(section: Section) -> str:
    return re.sub(r"[^a-z]+", "-", section.title.lower()).strip("-")
