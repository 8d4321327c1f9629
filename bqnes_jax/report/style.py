"""The style of a page: for telephones, screens and paper, in light and dark."""

from bqnes_jax.report import plots

# The colours of figures by the names that the style gives them.
THEMED = {
    plots.BLUE: "blue",
    plots.ORANGE: "orange",
    plots.GREEN: "green",
    plots.PALE: "pale",
    plots.GREY: "grey",
    plots.INK: "ink",
    plots.MUTED: "muted",
    plots.SHADE: "shade",
    plots.RULE: "rule",
    plots.PAPER: "paper",
}
_LIGHT = {name: colour for colour, name in THEMED.items()} | {
    "line": "#dddddd",
    "own": "#e6f1f9",
    "soft": "#f5f5f5",
    "link": "#00568a",
    "good": "#00704f",
    "look": "#a84300",
}
_DARK = {
    "ink": "#e4e6e9",
    "paper": "#15181d",
    "muted": "#a4abb6",
    "grey": "#949ca8",
    "rule": "#505863",
    "shade": "#262b33",
    "pale": "#2c5f86",
    "blue": "#55b1ee",
    "orange": "#ff9145",
    "green": "#37cb9b",
    "line": "#363c46",
    "own": "#1b3044",
    "soft": "#20252c",
    "link": "#7cc4f5",
    "good": "#4fd6a8",
    "look": "#ffab70",
}


def _variables(colours: dict[str, str]) -> str:
    return " ".join(f"--{name}: {colour};" for name, colour in colours.items())


_RULES = """
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; text-size-adjust: 100%; scroll-padding-top: 1rem; }
body { margin: 0 auto; padding: 1.25rem 1rem 3rem; max-width: 68rem; color: var(--ink);
  background: var(--paper);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Liberation Sans", sans-serif; }
h1 { font-size: 1.5rem; line-height: 1.25; margin: 0 0 .5rem; overflow-wrap: anywhere; }
h2 { font-size: 1.25rem; line-height: 1.3; margin: 0 0 .35rem; }
p, li { margin: 0 0 .75rem; max-width: 48rem; overflow-wrap: anywhere; }
ul { margin: 0 0 .75rem; padding-left: 1.2rem; }
li { margin-bottom: .35rem; }
a { color: var(--link); }
a:focus-visible, summary:focus-visible, [tabindex]:focus-visible {
  outline: 3px solid var(--link); outline-offset: 2px; border-radius: 2px; }
main:focus { outline: none; }
.skip { position: absolute; left: -100vw; top: 0; padding: .5rem 1rem; background: var(--paper);
  z-index: 1; }
.skip:focus { left: 0; }
.result { font-size: 1.15rem; line-height: 1.45; max-width: 56rem; }
nav ul { display: flex; flex-wrap: wrap; gap: .25rem 1.25rem; list-style: none; padding: 0;
  margin: 1rem 0 0; font-size: .9375rem; }
nav li { margin: 0; }
.facts { display: grid; grid-template-columns: max-content 1fr; gap: .1rem 1rem; margin: 0 0 .75rem;
  font-size: .9375rem; }
.facts dt { color: var(--muted); }
.facts dd { margin: 0; overflow-wrap: anywhere; min-width: 0; }
section { margin-top: 1.75rem; padding-top: 1.25rem; border-top: 1px solid var(--line); }
.figures { display: grid; gap: 1.25rem 2rem; margin: 1rem 0;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 24rem), 1fr)); }
.small { grid-template-columns: repeat(auto-fill, minmax(min(100%, 18rem), 1fr)); }
figure { margin: 0; min-width: 0; }
figure svg { display: block; width: 100%; max-width: 34rem; height: auto; color: var(--ink); }
figcaption { color: var(--muted); font-size: .875rem; line-height: 1.4; margin-top: .35rem;
  max-width: 34rem; }
table { border-collapse: collapse; width: 100%; margin: .75rem 0 1rem; font-size: .9375rem;
  font-variant-numeric: tabular-nums; }
th, td { padding: .4rem .5rem; text-align: right; vertical-align: top; font-weight: 400;
  border-bottom: 1px solid var(--line); }
thead th { font-weight: 600; font-size: .8125rem; color: var(--muted); vertical-align: bottom; }
th:first-child, td:first-child { text-align: left; overflow-wrap: anywhere; padding-left: .35rem; }
tbody th { font-weight: 600; }
td small, th small { display: block; color: var(--muted); font-weight: 400; font-size: .8125rem;
  line-height: 1.35; white-space: nowrap; }
th small { white-space: normal; max-width: 26rem; }
.words td, .words th { text-align: left; }
.words td small { white-space: normal; }
tr.own > * { background: var(--own); }
.good { color: var(--good); } .look { color: var(--look); font-weight: 600; }
.unknown { color: var(--muted); }
details { margin: 0 0 .75rem; }
summary { cursor: pointer; padding: .25rem 0; font-weight: 600; }
pre { margin: 0 0 .75rem; padding: .75rem; background: var(--soft); border-radius: 4px;
  font: .8125rem/1.45 ui-monospace, Menlo, Consolas, "Liberation Mono", monospace;
  white-space: pre-wrap; overflow-wrap: anywhere; }
@media (max-width: 45rem) {
  table, tbody, thead { display: block; }
  tr { display: grid; grid-template-columns: repeat(var(--columns), minmax(0, 1fr));
    border-bottom: 1px solid var(--line); padding: .35rem 0; }
  tr > * { border: 0; padding: .1rem .2rem; }
  tr > :first-child { grid-column: 1 / -1; }
  td, thead th:not(:first-child) { text-align: left; }
  td small { white-space: normal; font-size: .75rem; }
  td { font-size: .8125rem; }
  td small { letter-spacing: -.02em; }
  td.look, td.good { font-weight: 400; }
}
@media screen and (min-width: 60rem) {
  body { padding: 2.5rem 2rem 4rem; }
  h1 { font-size: 1.75rem; }
  header .facts { grid-template-columns: max-content 1fr max-content 1fr; max-width: 56rem; }
}
@media (min-width: 50rem) {
  .figures:not(.small) > figure:last-child:nth-child(odd) { grid-column: 1 / -1; display: grid;
    grid-template-columns: 1fr 1fr; gap: 2rem; align-items: center; }
}
@page { margin: 15mm; }
@media print {
  body { padding: 0; max-width: none; font-size: 10pt; }
  nav, .skip { display: none; }
  section { margin-top: 1rem; padding-top: .75rem; }
  h1, h2, h2 + p { break-after: avoid; }
  figure, tr, li { break-inside: avoid; }
  .figures { gap: .75rem 1rem; grid-template-columns: 1fr 1fr; }
  .small { grid-template-columns: 1fr 1fr 1fr; }
  th, td { padding-top: .2rem; padding-bottom: .2rem; }
  pre { font-size: 8pt; }
  details::details-content { content-visibility: visible; block-size: auto; }
  tr.own > *, pre { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
}
"""

CSS = (
    f":root {{ color-scheme: light dark; {_variables(_LIGHT)} }}\n"
    "@media screen and (prefers-color-scheme: dark) {\n"
    f"  :root {{ {_variables(_DARK)} }}\n"
    f"}}{_RULES}"
)
