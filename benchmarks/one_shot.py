"""What cells that share the weights of one network say about cells that are trained alone.

One network holds the parameters of every operation, and is trained with a random cell in each step:
all cells are then evaluated in minutes. This compares such a table with one of cells trained alone:
how alike they rank the cells that both have, and what NES-BS finds when its distribution is learnt
through the shared network, as Shu et al. (2022) do, instead of from the networks themselves.

    bqnes tabulate --family shared --count 4915 --neighbours … --table shared.npz
    python benchmarks/one_shot.py results/cifar10-16.npz --shared shared.npz
"""

import functools
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tyro
from against_paper import as_markdown
from scipy.stats import kendalltau, spearmanr
from shared import RESULTS, console, one_sentence, show, with_error, write

from bqnes_jax import algorithms, tables
from bqnes_jax.algorithms import variational_ensemble
from bqnes_jax.candidates import SearchConfig
from bqnes_jax.errors import BQNESError
from bqnes_jax.files import write_whole
from bqnes_jax.spaces import Subset
from bqnes_jax.studies.comparison import compare_on_table
from bqnes_jax.studies.rows import Row
from bqnes_jax.tables import Tabulated, evaluator

LEARNT_SHARED = "NES-BS, learnt with shared weights"
NAMES = ("NES-BS", LEARNT_SHARED, "Random", "NES-RE", "BQ-S", "BQ-L")
SIZES = (3, 5, 10)


@dataclass(frozen=True)
class Options:
    """Compare a table of cells that share their weights with one of cells trained alone."""

    alone: tyro.conf.Positional[Path]
    """A table that `bqnes tabulate` wrote."""
    shared: Path
    """Another, by `bqnes tabulate --family shared`, on the same data."""
    seeds: int = 10
    """How many searches of each kind."""
    out: Path = RESULTS
    """Where to write one-shot-TABLE.json and .md."""


def numbers_of(tabulated: Tabulated) -> np.ndarray:
    assert isinstance(tabulated.space, Subset)
    return np.array(tabulated.space.numbers)


def correlate(alone: Tabulated, shared: Tabulated) -> dict[str, float]:
    """Return how alike both rank the cells that they have in common."""
    _, in_alone, in_shared = np.intersect1d(
        numbers_of(alone), numbers_of(shared), return_indices=True
    )
    if len(in_alone) < 3:
        raise BQNESError(f"the tables share {len(in_alone)} cells; at least 3 are needed.")
    if not np.array_equal(alone.test_labels, shared.test_labels):
        raise BQNESError("the tables are about other test points; make both from the same data.")
    found: dict[str, float] = {"cells in common": len(in_alone)}
    for what in ("log_likelihoods", "accuracies"):
        own, theirs = (
            np.asarray(getattr(one.table, what), float)[rows]
            for one, rows in ((alone, in_alone), (shared, in_shared))
        )
        name = what.replace("_", " ")
        found[f"Spearman's ρ of {name}"] = float(spearmanr(own, theirs).statistic)
        found[f"Kendall's τ of {name}"] = float(kendalltau(own, theirs).statistic)
        tenth = max(len(own) // 10, 1)
        best, seen = (set(np.argsort(-values)[:tenth].tolist()) for values in (own, theirs))
        found[f"best tenth by {name} that is the best tenth of both"] = len(best & seen) / tenth
    return found


def compare(alone: Tabulated, shared: Tabulated, options: Options) -> list[Row]:
    """Compare NES-BS by either way of learning, and other algorithms, on cells trained alone."""
    supernet = shared.space, evaluator(shared.table, shared.space)
    algorithms.register(LEARNT_SHARED, functools.partial(variational_ensemble, supernet=supernet))
    return compare_on_table(
        alone,
        NAMES,
        SIZES,
        options.seeds,
        config=SearchConfig(),
        report=lambda what: console.print(f"  {what}", style="dim"),
    )


def main(options: Options) -> None:
    alone, shared = tables.read(options.alone), tables.read(options.shared)
    found = correlate(alone, shared)
    columns, lines = ["", "value"], [[name, f"{value:.3g}"] for name, value in found.items()]
    name = options.alone.stem
    show(f"{name}: shared weights against training alone", columns, lines)
    rows = compare(alone, shared, options)
    metrics = ["", "M", "accuracy %", "ECE", "log-likelihood"]
    measured = [
        [
            row.algorithm,
            row.members,
            with_error(100 * row.accuracy, 2),
            with_error(row.ece, 4),
            with_error(row.log_likelihood, 1),
        ]
        for row in rows
    ]
    show(f"{name}: ensembles of cells trained alone", metrics, measured, names=2)
    path = options.out / f"one-shot-{name}.json"
    results = {
        f"{row.algorithm}, {row.size}": np.stack([row.accuracy, row.ece, row.log_likelihood])
        for row in rows
    }
    write(path, {"correlations": found, "results": results})
    parts = [
        f"# Shared weights: {name}\n",
        f"{shared.space.size} cells that share the weights of one network, {alone.space.size} that "
        f"were trained alone; {options.seeds} searches.\n",
        as_markdown(columns, lines),
        "## Ensembles of cells trained alone\n",
        as_markdown(metrics, measured, names=2),
    ]
    write_whole(path.with_suffix(".md"), "\n".join(parts).encode())


if __name__ == "__main__":
    one_sentence(main, tyro.cli(Options, description=__doc__))
