"""Several algorithms × ensemble sizes × seeds, as in the paper's tables.

`compare_on_table` runs everything compiled on a table of results, `compare_live` trains on a store
that all share. Both search once for each strategy and seed, whatever is then selected from it.
"""

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int32

from bqnes_jax import algorithms, candidates, live
from bqnes_jax.algorithms import Evaluate, Pair, search, select_ensemble
from bqnes_jax.candidates import History, Info, SearchConfig
from bqnes_jax.devices import spread
from bqnes_jax.ensemble import ensemble_probabilities
from bqnes_jax.errors import BQNESError, check_whole
from bqnes_jax.live import Predict
from bqnes_jax.metrics import accuracy, ece, log_likelihood
from bqnes_jax.spaces import Space
from bqnes_jax.tables import Tabulated, evaluator

METRICS = ("accuracy", "ece", "log_likelihood")
LOWER_IS_BETTER = ("ece",)


class Row(NamedTuple):
    """What one algorithm with M members reached on the test points, for each seed."""

    algorithm: str
    size: int
    accuracy: Float[np.ndarray, " seeds"]
    ece: Float[np.ndarray, " seeds"]
    log_likelihood: Float[np.ndarray, " seeds"]


class Chosen(NamedTuple):
    """Ensembles of all seeds."""

    archs: Int32[ArrayLike, "seeds M length"]
    weights: Float[ArrayLike, "seeds M"]


Choose = Callable[[str, int], Chosen]


def compare_on_table(
    tabulated: Tabulated,
    names: Sequence[str],
    sizes: Sequence[int],
    seeds: int,
    config: SearchConfig = SearchConfig(),  # noqa: B008 (immutable)
    report: Callable[[str], None] | None = None,
    predict: Predict | None = None,
    mesh: Mesh | None = None,
    ece_reference: str = "confidence",
) -> list[Row]:
    """Compare algorithms on a table of predictions, all seeds of a search in one program.

    Test predictions are those of the table; where they do not fit into memory, `predict` returns
    those of some architectures. Seeds are divided among the devices of a mesh; by default all.
    For `ece_reference` see `metrics.ece`.
    """
    space, table = tabulated.space, tabulated.table
    if table.log_probs is None or (table.probabilities is None and predict is None):
        raise BQNESError("the table has no predictions; comparing ensembles needs them.")
    evaluate = evaluator(table, space)
    keys = jax.random.key_data(jax.vmap(jax.random.key)(jnp.arange(seeds)))

    @functools.cache
    def searched(strategy: str):
        made = candidates.make(strategy, space, None, config)
        return _repeat(lambda key, evaluate: search(made, config, key, evaluate), mesh)(
            keys, evaluate
        )

    def choose(name: str, size: int) -> Chosen:
        algorithm = algorithms.find(name)
        if isinstance(algorithm, Pair) and not algorithm.only_members:
            found = searched(algorithm.strategy)
            return _select_all(algorithm, space, size, config, found, mesh)
        run = algorithms.make(name, space, size, config=config)
        return _repeat(lambda key, evaluate: _chosen(run(key, evaluate)), mesh)(keys, evaluate)

    def look_up(archs: Int32[Array, "M length"]) -> Float[Array, "M m classes"]:
        return table.probabilities[space.index(archs)]

    labels = tabulated.test_labels
    return _compare(names, sizes, seeds, choose, predict or look_up, labels, report, ece_reference)


def compare_live(
    space: Space,
    evaluate: Evaluate,
    predict: Predict,
    test_labels: Int32[Array, " m"],
    names: Sequence[str],
    sizes: Sequence[int],
    seeds: int,
    config: SearchConfig = SearchConfig(),  # noqa: B008 (immutable)
    report: Callable[[str], None] | None = None,
) -> list[Row]:
    """Compare algorithms that train what they ask for; `evaluate` should remember what it did.

    Args:
        space: what to search.
        evaluate: trains architectures, as `live.stored_evaluator`.
        predict: returns the class probabilities of trained architectures at the test points.
        test_labels: the classes of the test points.
        names: of algorithms that need no table.
        sizes: numbers of members.
        seeds: how many searches of each strategy.
        config: of the searches.
        report: called with the name of what is done next.
    """
    for name in names:
        live.trainable(name)
    choose = choose_live(space, evaluate, seeds, config)
    return _compare(names, sizes, seeds, choose, predict, test_labels, report)


def choose_live(
    space: Space,
    evaluate: Evaluate,
    seeds: int,
    config: SearchConfig = SearchConfig(),  # noqa: B008 (immutable)
) -> Choose:
    """Return a function (algorithm, size) that returns the ensembles of all seeds.

    It searches once for each strategy; see `compare_live`.
    """

    @functools.cache
    def searched(strategy: str, config: SearchConfig):
        made = candidates.make(strategy, space, None, config)
        keys = [jax.random.key(seed) for seed in range(seeds)]
        found = live.search_all(made, config, keys, evaluate)
        return jax.tree.map(lambda *leaves: jnp.stack(leaves), *found)

    def choose(name: str, size: int) -> Chosen:
        algorithm = live.trainable(name)
        budgeted = algorithm.budgeted(config, size)
        found = searched(algorithm.strategy, budgeted)
        return _select_all(algorithm, space, size, budgeted, found)

    return choose


def _compare(
    names,
    sizes,
    seeds,
    choose: Choose,
    predict: Predict,
    test_labels,
    report,
    ece_reference: str = "confidence",
):
    check_whole("seeds", seeds, 1)
    for size in sizes:
        check_whole("size", size, 1)
    rows = []
    for name in names:
        for size in sizes if name != "Best single" else (1,):
            if report is not None:
                report(f"{name}, {size} members")
            chosen = choose(name, size)
            metrics = [
                _measure(ece_reference, weights, predict(jnp.asarray(archs)), test_labels)
                for archs, weights in zip(*chosen, strict=True)
            ]
            rows.append(Row(name, size, *np.asarray(metrics, float).T))
    return rows


def _repeat(run: Callable, mesh: Mesh | None) -> Callable:
    """Do for many keys, one after another on each device, what a function does for one."""

    def every(keys, evaluate):
        return lax.map(lambda key: run(jax.random.wrap_key_data(key), evaluate), keys)

    return spread(every, mesh)


def _select_all(
    algorithm: Pair,
    space: Space,
    size: int,
    config: SearchConfig,
    found: tuple[History, Info],
    mesh: Mesh | None = None,
) -> Chosen:
    made = candidates.make(algorithm.strategy, space, None, config)

    def select_one(one):
        return _chosen(select_ensemble(algorithm.method, made, *one, size, config))

    return spread(lambda found: lax.map(select_one, found), mesh)(found)


def _chosen(result: algorithms.Result) -> Chosen:
    return Chosen(result.archs, result.weights)


@functools.partial(jax.jit, static_argnums=0)
def _measure(ece_reference: str, weights, members, labels):
    """Return the metrics of one ensemble."""
    of = ensemble_probabilities(weights, members), labels
    return jnp.stack([accuracy(*of), ece(*of, reference=ece_reference), log_likelihood(*of)])


class Cell(NamedTuple):
    """A mean over seeds, its standard error, and whether nothing is better beyond the errors."""

    mean: float
    error: float
    best: bool


def summarise(rows: Sequence[Row]) -> list[list[Cell]]:
    """Return the cells of each row, in the order of METRICS.

    What is best is best among ensembles of one size and the single networks, which compete with
    ensembles of every size. Others count as equally good when they fall short of the best by less
    than the standard error of the difference.
    """
    cells = [[_mean_and_error(getattr(row, name)) for name in METRICS] for row in rows]
    sizes = {row.size for row in rows if row.size > 1} or {1}
    for column, name in enumerate(METRICS):
        sign = -1 if name in LOWER_IS_BETTER else 1
        means, errors = (
            np.array([getattr(row[column], field) for row in cells]) for field in ("mean", "error")
        )
        tied = _tied(sign * means, np.nan_to_num(errors), [row.size for row in rows], sizes)
        for row, best in zip(cells, tied, strict=True):
            row[column] = row[column]._replace(best=bool(best))
    return cells


def _tied(scores: np.ndarray, errors: np.ndarray, size_of: list[int], sizes: set[int]):
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


HEADERS = ("Accuracy (%)", "ECE", "Log-likelihood")
_SCALES, _DIGITS = (100, 1, 1), (2, 4, 1)


def written(cell: Cell, column: int) -> str:
    """Write a cell as mean ± standard error."""
    scale, digits = _SCALES[column], _DIGITS[column]
    mean = f"{cell.mean * scale:.{digits}f}"
    return mean if np.isnan(cell.error) else f"{mean} ± {cell.error * scale:.{digits}f}"


def as_csv(rows: Sequence[Row]) -> str:
    """Write one line for each algorithm, size and seed: what other programs read."""
    lines = ["algorithm,members,seed," + ",".join(METRICS)]
    for row in rows:
        for seed, values in enumerate(zip(*(getattr(row, name) for name in METRICS), strict=True)):
            lines.append(
                f"{row.algorithm},{row.size},{seed}," + ",".join(f"{v:.6g}" for v in values)
            )
    return "\n".join(lines) + "\n"


def as_text(rows: Sequence[Row]) -> str:
    """Write columns of text; * marks what is best."""
    lines = [["", "M", *HEADERS]]
    for row, cells in zip(rows, summarise(rows), strict=True):
        marks = ("*" if cell.best else " " for cell in cells)
        texts = (f"{written(c, j)} {m}" for j, (c, m) in enumerate(zip(cells, marks, strict=True)))
        lines.append([row.algorithm, str(row.size), *texts])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "".join(
        name.ljust(widths[0])
        + "".join(f"  {t.rjust(w)}" for t, w in zip(rest, widths[1:], strict=True)).rstrip()
        + "\n"
        for name, *rest in lines
    )


def as_markdown(rows: Sequence[Row]) -> str:
    """Write a Markdown table."""
    lines = ["| Algorithm | M | " + " | ".join(HEADERS) + " |", "|---|--:|--:|--:|--:|"]
    for row, cells in zip(rows, summarise(rows), strict=True):
        texts = [f"**{written(c, j)}**" if c.best else written(c, j) for j, c in enumerate(cells)]
        lines.append(f"| {row.algorithm} | {row.size} | " + " | ".join(texts) + " |")
    return "\n".join(lines) + "\n"


def as_latex(rows: Sequence[Row]) -> str:
    """Write a LaTeX table for the package booktabs."""
    headers = " & ".join(header.replace("%", r"\%") for header in HEADERS)
    lines = [
        r"\begin{tabular}{lrrrr}",
        r"\toprule",
        rf"Algorithm & $M$ & {headers} \\",
        r"\midrule",
    ]
    for row, cells in zip(rows, summarise(rows), strict=True):
        texts = [_latex_number(written(cell, j), cell.best) for j, cell in enumerate(cells)]
        name = row.algorithm.replace("_", r"\_")
        lines.append(f"{name} & {row.size} & " + " & ".join(texts) + r" \\")
    lines += [r"\bottomrule", r"\end{tabular}"]
    return "\n".join(lines) + "\n"


def _latex_number(text: str, best: bool) -> str:
    number = text.replace("±", r"\pm")
    return rf"$\mathbf{{{number}}}$" if best else f"${number}$"
