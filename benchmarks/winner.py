"""Which algorithm should be the default: every strategy with every method of selection.

They are compared on cells of a table or on slices of a supernet, for several numbers of members,
with and without a temperature after pooling, after 25, 50, 100 and 150 candidates. The gates come
first: where one fails there are figures and no verdict. An algorithm wins if, for every number of
members and seed by seed, it has a higher test log-likelihood and a lower ECE than NES-RE and BQ-S
by more than two standard errors, and with 3 members beats both with 10. That is asked of ensembles
as they are; of ensembles with a temperature after pooling, the rivals' too; and of the latter by
log-likelihood alone, where too few test points leave nothing to be seen of the ECE. Where there is
a second training, an error is that of searches and that of trainings together. Where two take the
same network alone, M = 1 is left out. What is measured is kept, one strategy after another.

    python benchmarks/winner.py digits
    python benchmarks/winner.py cifar100.npz cifar10_subset-slices
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import gates
import jax
import jax.numpy as jnp
import numpy as np
import retrained
import sources
import tyro
from against_paper import as_markdown
from jax import lax
from jaxtyping import Array
from shared import RESULTS, console, one_sentence, show, with_error, write
from sources import Compare, Source

from bqnes_jax.errors import check_whole
from bqnes_jax.files import write_whole
from bqnes_jax.metrics import ece
from bqnes_jax.pooling import ensemble_log_probabilities
from bqnes_jax.studies.rows import Row

STRATEGIES = ("us", "posterior", "ei", "evolution", "random")
METHODS = ("beam", "restack", "corrective", "logpool")
SIZES = (1, 3, 5, 10)
BUDGETS = (150, 100, 50, 25)
RIVALS = {"NES-RE": "evolution+beam", "BQ-S": "us+restack"}
FEW, MANY = 3, 10
_MIXED = 5
JUDGED = {
    "as they are": ("log-likelihood", "ECE"),
    "all calibrated": ("calibrated log-likelihood", "calibrated ECE"),
    "all calibrated, log-likelihood alone": ("calibrated log-likelihood",),
}
COLUMNS = ("log-likelihood", "calibrated log-likelihood", "accuracy", "ECE", "calibrated ECE")

# (strategy+method, members, candidates) as text -> metric -> a value for each seed.
Results = dict[str, dict[str, list[float]]]

# (metric, members) -> how much a lead differs from training to training.
Trainings = dict[tuple[str, int], float]


@dataclass(frozen=True)
class Options:
    """Compare all pairs."""

    sources: tyro.conf.Positional[tuple[str, ...]] = ("digits",)
    """Tables of the package, or files that `bqnes tabulate` wrote. Some of the cells with several
    weight seeds, for the gates, are in NAME-seeds.npz beside a table NAME.npz, some that were
    trained once more in NAME-again.npz; for tables of the package both are in results/. Slices of
    supernets on a data set of `slimmable.py` are DATASET-slices."""
    seeds: int = 10
    """How many searches of each kind."""
    budgets: tuple[int, ...] = BUDGETS
    """After how many candidates; the first is what algorithms are judged after."""
    strategies: tuple[str, ...] = STRATEGIES
    """Which strategies; NES-RE and BQ-S are compared in any case."""
    methods: tuple[str, ...] = METHODS
    """Which methods of selection."""
    observations: float | None = None
    """How many independent observations all validation points count as in a search; by default as
    in any search."""
    stores: Path = Path("stores")
    """Where supernets and their slices are kept."""
    out: Path = RESULTS
    """Where to write winner-SOURCE.json and .md."""

    def command(self, asked: str) -> str:
        """Return what makes the same results of a source again, in the folder of this script."""
        words = ["python winner.py", asked]
        for name in ("seeds", "budgets", "strategies", "methods", "observations"):
            value, default = getattr(self, name), getattr(Options, name)
            if value != default:
                words += [f"--{name}", *map(str, value if isinstance(value, tuple) else [value])]
        return " ".join(words)


def key_of(name: str, size: int, budget: int) -> str:
    return f"{name}, {size} of {budget}"


def pairs_of(options: Options) -> list[str]:
    return [f"{strategy}+{method}" for strategy in options.strategies for method in options.methods]


def measure(source: Source, options: Options, path: Path) -> dict:
    """Show the gates, and measure what is not measured yet; return the gates and all results."""
    same = {"seeds": options.seeds, **source.described}
    known = json.loads(path.read_text()) if path.exists() else {}
    content = known if known.get("of") == same else {"of": same, "results": {}, "twice": []}
    content["ECE by chance"] = ece_by_chance(source.best(_MIXED))
    measured = source.gates(options.budgets[0])
    content["gates"] = gates.as_lists(measured)
    show(f"{source.name}: gates", gates.COLUMNS, gates.lines(measured))
    results: Results = content["results"]
    for budget in options.budgets:
        for found in complete(results, source.compare, budget, options):
            results |= found
            write(path, content)
    twice = content["twice"] = content["twice"] or [{} for _ in source.trainings]
    budget = source.largest(options.budgets[0])
    for compare, own in zip(source.trainings, twice, strict=False):
        if compare is source.compare:
            own |= {key: one for key, one in results.items() if is_of(key, budget)}
        for found in complete(own, compare, budget, options):
            own |= found
            write(path, content)
    write(path, content)
    return content


def complete(known: Results, compare: Compare, budget: int, options: Options) -> Iterator[Results]:
    """Compare the pairs that are not known yet, and yield what each strategy reaches."""
    asked = sorted({*pairs_of(options), *RIVALS.values()})
    for strategy in dict.fromkeys(name.partition("+")[0] for name in asked):
        own = [name for name in asked if name.startswith(f"{strategy}+")]
        missing = [name for name in own if key_of(name, SIZES[-1], budget) not in known]
        if missing:
            console.print(f"{strategy}, {budget} candidates", style="dim")
            yield as_results(compare(missing, SIZES, options.seeds, budget), budget)


def is_of(key: str, budget: int) -> bool:
    return key.endswith(f" of {budget}")


def ece_by_chance(members: Array, draws: int = 200) -> np.ndarray:
    """Return the ECE of a predictor that is calibrated, for several draws of the test labels.

    It is what the equal mixture of some networks says, with labels drawn from just that: so much
    is left when nothing is wrong, because each bin has few points.
    """
    said = ensemble_log_probabilities(jnp.full(len(members), 1 / len(members)), members)

    def once(key):
        return ece(said, jax.random.categorical(key, said), log=True)

    return np.asarray(lax.map(once, jax.random.split(jax.random.key(0), draws)))


def as_results(rows: Sequence[Row], budget: int) -> Results:
    results = {}
    for row in rows:
        values = (
            row.log_likelihood,
            row.calibrated_log_likelihood,
            row.accuracy,
            row.ece,
            row.calibrated_ece,
        )
        results[key_of(row.algorithm, row.size, budget)] = {
            column: np.asarray(one, float).round(6).tolist()
            for column, one in zip(COLUMNS, values, strict=True)
        }
    return results


def deviations(twice: Sequence[Results], budget: int) -> Trainings:
    """Return how much leads over NES-RE and BQ-S differ from training to training.

    They are the leads after so many candidates of all pairs that were measured with each training.
    """
    both = [key for key in twice[0] if is_of(key, budget) and all(key in one for one in twice)]

    def leads(column: str, size: int) -> np.ndarray:
        """Return all leads there are with so many members, trainings×leads×seeds."""
        rivals = [key_of(rival, size, budget) for rival in RIVALS.values()]
        ours = [key for key in both if key.endswith(f", {size} of {budget}")]
        pairs = [(key, rival) for key in ours for rival in rivals]
        values = np.array(
            [
                [of(each, one, column) - of(each, other, column) for one, other in pairs]
                for each in twice
            ]
        )
        return values[:, values.any(axis=(0, 2))]  # not those of one with itself

    return {
        (column, size): retrained.deviation(*leads(column, size))
        for columns in JUDGED.values()
        for column in columns
        for size in SIZES
    }


def of(results: Results, key: str, column: str) -> np.ndarray:
    return np.array(results[key][column])


def lead(results: Results, ours: str, theirs: str, column: str) -> tuple[float, float]:
    """Return mean and standard error of how far one is ahead of another, seed by seed."""
    sign = -1 if "ECE" in column else 1
    ahead = sign * (of(results, ours, column) - of(results, theirs, column))
    return float(ahead.mean()), float(ahead.std(ddof=1) / np.sqrt(len(ahead)))


def is_ahead(
    results: Results, ours: str, theirs: str, columns: Sequence[str], between: dict[str, float]
) -> bool:
    """Tell whether each of these metrics is ahead by two standard errors.

    An error has a part from search to search, and one from training to training (`between`).
    """
    leads = {column: lead(results, ours, theirs, column) for column in columns}
    return all(
        mean > 2 * np.hypot(error, between.get(column, 0.0))
        for column, (mean, error) in leads.items()
    )


def wins(
    results: Results,
    name: str,
    budget: int,
    columns: Sequence[str],
    trainings: Trainings | None = None,
) -> dict[str, bool]:
    """Return for each comparison that the goal asks for whether it is won in these metrics."""
    asked = {
        f"{rival}, M = {size}": (pair, size, size)
        for rival, pair in RIVALS.items()
        for size in SIZES
    }
    asked |= {
        f"{rival}, M = {FEW} against {MANY}": (pair, FEW, MANY) for rival, pair in RIVALS.items()
    }
    won = {}
    for what, (pair, size, their_size) in asked.items():
        ours, theirs = key_of(name, size, budget), key_of(pair, their_size, budget)
        if results[ours] != results[theirs]:
            between = {c: s for (c, m), s in (trainings or {}).items() if m == size}
            won[what] = is_ahead(results, ours, theirs, columns, between)
    return won


def needed(results: Results, name: str, size: int, budgets: tuple[int, ...]) -> str:
    """Return after how many candidates it has what NES-RE has in the end."""
    goal = of(results, key_of(RIVALS["NES-RE"], size, budgets[0]), COLUMNS[1]).mean()
    enough = [b for b in budgets if of(results, key_of(name, size, b), COLUMNS[1]).mean() >= goal]
    return str(min(enough)) if enough else f"> {budgets[0]}"


def report(source: Source, asked: str, content: dict, options: Options) -> str:
    """Print the tables of a source; return them as Markdown, with the command that was `asked`."""
    results, budgets, name = content["results"], options.budgets, source.name
    names = pairs_of(options)
    found = gates.from_lists(content["gates"])
    parts = [f"# Pairs of strategy and method on {name}\n"]
    parts += [f"Made by `{options.command(asked)}`, {options.seeds} searches.\n"]
    parts += [as_markdown(gates.COLUMNS, gates.lines(found))]
    chance = np.array(content["ECE by chance"])
    said = (
        f"A calibrated predictor would have an ECE of {chance.mean():.4f} ± {chance.std():.4f} "
        "(standard deviation) on so few test points.\n"
    )
    console.print(said)
    parts.append(said)
    for column in COLUMNS:
        digits = 1 if "log" in column else 4
        columns = ["", *(f"M = {size}" for size in SIZES)]
        rows = [
            [
                one,
                *(
                    with_error(of(results, key_of(one, m, budgets[0]), column), digits)
                    for m in SIZES
                ),
            ]
            for one in names
        ]
        show(f"{name}: {column}", columns, rows)
        parts += [f"## Test {column}\n", as_markdown(columns, rows)]
    columns = ["", *(f"M = {size}" for size in SIZES)]
    rows = [[one, *(needed(results, one, size, budgets) for size in SIZES)] for one in names]
    title = f"Candidates until the calibrated log-likelihood of NES-RE after {budgets[0]}"
    show(f"{name}: {title}", columns, rows)
    parts += [f"## {title}\n", as_markdown(columns, rows)]
    largest = source.largest(budgets[0])
    trainings = deviations(content["twice"], largest) if source.trainings else None
    if trainings is not None:
        judged = dict.fromkeys(column for columns in JUDGED.values() for column in columns)
        rows = [
            [
                column,
                *(f"{trainings[column, m]:.{1 if 'log' in column else 4}f}" for m in SIZES),
            ]
            for column in judged
        ]
        title = "Standard deviation of a lead from training to training"
        show(f"{name}: {title}", columns, rows)
        parts += [f"## {title}\n", as_markdown(columns, rows)]
    failed = [gate.asks for gate in found if not gate.passed]
    for how, judged in JUDGED.items():
        title = f"Comparisons with NES-RE and BQ-S, {how}"
        parts.append(f"## {title}\n")
        parts += compare_with_rivals(
            {one: wins(results, one, budgets[0], judged, trainings) for one in names},
            f"{name}: {title}",
            failed,
        )
    return "\n".join(parts)


def compare_with_rivals(
    won: dict[str, dict[str, bool]], title: str, failed: Sequence[str]
) -> list[str]:
    """Print who wins most of the comparisons, and the verdict; return them as Markdown."""
    columns = ["", "won", "not won"]
    rows = [
        [
            one,
            f"{sum(each.values())} of {len(each)}",
            "; ".join(what for what, is_won in each.items() if not is_won),
        ]
        for one, each in won.items()
        if sum(each.values()) > len(each) // 2
    ]
    show(title, columns, rows, names=3)
    table = as_markdown(columns, rows, names=3) if rows else "No pair wins more than half.\n"
    winners = [one for one, each in won.items() if all(each.values())]
    verdict = f"Winners: {', '.join(winners)}.\n" if winners else "No pair wins all.\n"
    if failed:
        verdict = f"No verdict: {len(failed)} gates failed ({'; '.join(failed)}).\n"
    console.print(verdict)
    return [table, verdict]


def main(options: Options) -> None:
    check_whole("seeds", options.seeds, 2)
    for asked in options.sources:
        source = sources.find(asked, options.stores, options.observations)
        path = options.out / f"winner-{source.name}.json"
        said = report(source, asked, measure(source, options, path), options)
        write_whole(path.with_suffix(".md"), said.encode())


if __name__ == "__main__":
    one_sentence(main, tyro.cli(Options, description=__doc__))
