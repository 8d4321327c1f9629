"""What is measured here beside what the paper reports, and whether what it claims holds here."""

import json
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import numpy as np
import retrained
from scipy.stats import t
from shared import show, write

import bqnes_jax
from bqnes_jax.studies.rows import Row

# Row -> [seeds, metrics].
Results = dict[str, np.ndarray]


class Metric(NamedTuple):
    """How a metric is written, and whether more of it is better (1) or worse (-1)."""

    name: str
    scale: float
    digits: int
    sign: int


ENSEMBLES = (
    Metric("accuracy %", 100, 2, 1),
    Metric("ECE", 1, 4, -1),
    Metric("log-likelihood", 1, 1, 1),
)
SURROGATES = (Metric("RMSE", 1, 3, -1), Metric("NLPD", 1, 3, -1))
ACCURACY, ECE, LL = range(3)
PAPER_ECE = "centre"  # of bins, see `metrics.ece`: what the paper's code compares accuracy with
RMSE, NLPD = range(2)


MARGIN = 0.01  # what "not worse" allows, as a share of what is compared with


class Claim(NamedTuple):
    """What the paper says of two rows: that one is better, or not worse.

    Attributes:
        says: in words.
        better: a row.
        worse: another.
        metric: its number.
        about: the paper's data sets that it is about.
        strictly: better, or only not worse.
    """

    says: str
    better: str
    worse: str
    metric: int
    about: tuple[str, ...]
    strictly: bool = True


HOLDS, FAILS, UNKNOWN = "holds", "does not hold", "cannot be told"


LEVEL = 0.05  # how likely it may be that any verdict on a data set is wrong


def judge(
    claims: Sequence[Claim],
    results: Results,
    metrics: Sequence[Metric],
    between: Sequence[float] | None = None,
) -> list[tuple[str, str]]:
    """Return for each claim whether it holds here, and by how much.

    A lead has an error from search to search, and one from training to training (`between`).

    Student's t decides, seed by seed, with Holm's correction for all claims together: the k-th
    smallest of n p-values is compared with LEVEL / (n − k + 1), until one is larger.
    """
    between = [0.0] * len(claims) if between is None else between
    tests = [
        _test(claim, results, metrics[claim.metric], own)
        for claim, own in zip(claims, between, strict=True)
    ]
    p_values = np.array([p for p, _, _ in tests])
    order = np.argsort(p_values)  # NaN comes last
    bounds = LEVEL / np.arange(len(tests), 0, -1)
    certain = np.zeros(len(tests), bool)
    certain[order] = np.cumprod(p_values[order] <= bounds).astype(bool)
    return [
        ((HOLDS if ahead else FAILS) if sure else UNKNOWN, by)
        for sure, (_, ahead, by) in zip(certain, tests, strict=True)
    ]


def deviations(claims: Sequence[Claim], twice: Sequence[Results]) -> list[float] | None:
    """Return for each claim how much such a lead differs from training to training.

    Claims of one metric about the same two algorithms are taken together, whatever the number of
    members: a second training says little about a single lead. Those about others are not: which
    single network is best differs far more than which ensembles are.
    """
    if not twice:
        return None

    def kind_of(claim: Claim) -> tuple[int, frozenset[str]]:
        rows = claim.better, claim.worse
        return claim.metric, frozenset(row.rpartition(", ")[0] for row in rows)

    kinds = list(map(kind_of, claims))

    def leads(results: Results, kind: tuple[int, frozenset[str]]) -> np.ndarray:
        """Return the leads of a kind, claims×seeds."""
        pairs = [c for c, own in zip(claims, kinds, strict=True) if own == kind]
        return np.array(
            [results[c.better][:, kind[0]] - results[c.worse][:, kind[0]] for c in pairs]
        )

    found = {kind: retrained.deviation(*(leads(r, kind) for r in twice)) for kind in set(kinds)}
    return [found[kind] for kind in kinds]


def _test(
    claim: Claim, results: Results, metric: Metric, between: float
) -> tuple[float, bool, str]:
    """Return a two-sided p-value, whether the claim looks true, and by how much one is ahead."""
    one, other = (results[row][:, claim.metric] for row in (claim.better, claim.worse))
    gain = metric.sign * (one - other)
    mean, error = gain.mean(), np.hypot(_error(gain), between)
    over = mean if claim.strictly else mean + MARGIN * abs(other.mean())
    with np.errstate(divide="ignore", invalid="ignore"):
        p = 2 * t.sf(np.abs(np.divide(over, error)), max(len(gain) - 1, 1))
    mean, error = metric.scale * mean, metric.scale * error
    return float(p), bool(over > 0), f"{mean:+.{metric.digits}f} ± {error:.{metric.digits}f}"


def published(table: str, like: str) -> dict[str, list]:
    """Return the paper's rows: [mean, standard error] of each metric."""
    return json.loads((Path(__file__).parent / "paper.json").read_text())[table][like]


def from_rows(rows: Sequence[Row]) -> Results:
    """Turn a comparison into results."""
    return {
        f"{row.algorithm}, {row.size}": np.stack(
            [row.accuracy, row.ece, row.log_likelihood], axis=1
        )
        for row in rows
    }


def lines(
    results: Results, metrics: Sequence[Metric], paper: dict[str, list]
) -> tuple[list[str], list[list[str]]]:
    """Return the columns and rows of a table, the paper's own numbers on the right."""
    names = [metric.name for metric in metrics]
    columns = ["", *names, f"paper: {names[0]}", *names[1:]]
    rows = []
    for name, values in results.items():
        ours = [_written(values[:, i], metric) for i, metric in enumerate(metrics)]
        rows.append([name, *ours, *map(_quoted, paper.get(name, [(None, None)] * len(metrics)))])
    return columns, rows


def show_beside(
    title: str, table: str, like: str, results: Results, metrics: Sequence[Metric] = ENSEMBLES
) -> None:
    """Print a table of ours, with the paper's numbers for a data set beside it."""
    columns, rows = lines(results, metrics, published(table, like))
    show(f"{title} (paper: {like})", columns, rows)


def keep(path: Path, setting: dict, results: Results, **more: object) -> None:
    """Write the results of a data set, with what they were made by."""
    versions = {"bqnes-jax": bqnes_jax.__version__}
    versions |= {package: version(package) for package in ("jax", "numpy")}
    write(path, setting | {"versions": versions, "results": results} | more)


def as_arrays(content: dict[str, list]) -> Results:
    """Return results as they were read from a file."""
    return {row: np.array(values, float) for row, values in content.items()}


def kept(path: Path, setting: dict) -> dict | None:
    """Read the results of a data set, if they were made in that setting.

    What is not there, or cannot be read, was not measured.
    """
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    if not isinstance(content, dict):
        return None
    return content if {key: content.get(key) for key in setting} == setting else None


def tally(claims: Sequence[Claim], verdicts: Sequence[str]) -> str:
    """Count what holds, apart for each choice of data sets: across them claims contradict."""
    everywhere = max((claim.about for claim in claims), key=len)
    parts = []
    for about in dict.fromkeys(claim.about for claim in claims):
        those = [v for claim, v in zip(claims, verdicts, strict=True) if claim.about == about]
        counted = f"{those.count(HOLDS)} of {len(those)} about "
        parts.append(counted + " and ".join(about) + (" alone" if about != everywhere else ""))
    return ", ".join(parts)


def as_markdown(columns: Sequence[str], rows: Sequence[Sequence[str]], names: int = 1) -> str:
    """Write a table in Markdown, the first columns to the left."""
    rule = ["---" if i < names else "--:" for i in range(len(columns))]
    return "\n".join("| " + " | ".join(row) + " |" for row in (columns, rule, *rows)) + "\n"


def _error(values: np.ndarray) -> float:
    return float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else np.nan


def _written(values: np.ndarray, metric: Metric) -> str:
    text = f"{metric.scale * values.mean():.{metric.digits}f}"
    error = metric.scale * _error(values)
    return text if np.isnan(error) else f"{text} ± {error:.{metric.digits}f}"


def _quoted(cell: Sequence[float | None]) -> str:
    mean, error = cell
    if mean is None:
        return "–"
    return f"{mean:g}" if error is None else f"{mean:g} ± {error:g}"
