"""Are the networks trained here real? How they spread, agree with NAS-Bench-201, and team up.

For tables of cells: the spread of test accuracies, their rank correlation with NAS-Bench-201's on
CIFAR-10, how much of it is noise from seed to seed, and the test log-likelihood of ensembles beside
that of the network that is best on the validation data. Where cells were trained from several
weight seeds, searches among all of these networks tell what a deep ensemble, which is the best cell
several times, is worth beside ensembles of different cells.

    python benchmarks/networks.py digits cifar10
"""

import dataclasses
from dataclasses import dataclass
from pathlib import Path

import gates
import jax
import numpy as np
import tyro
from scipy.stats import spearmanr
from shared import RESULTS, console, one_sentence, show, with_error, write

from bqnes_jax import tables
from bqnes_jax.candidates import SearchConfig
from bqnes_jax.spaces import count_seeds
from bqnes_jax.studies.comparison import compare_on_table
from bqnes_jax.tables import Tabulated

ALONE = ("Best single", "NES-RE", "BQ-S", "BQ-L")
SEVERAL = ("Deep ensemble", "BQ-W", "NES-RE", "BQ-S", "BQ-L")


@dataclass(frozen=True)
class Options:
    """Judge the networks of tables."""

    tables: tyro.conf.Positional[tuple[str, ...]] = ("digits", "cifar10")
    """Tables of the package, or files that `bqnes tabulate` wrote; some of the cells with several
    weight seeds are in NAME-seeds.npz beside a table NAME.npz."""
    searches: int = 10
    """Seeds of each search for an ensemble."""
    out: Path = RESULTS / "networks.json"
    """Where to write the results."""


def accuracies(tabulated: Tabulated) -> np.ndarray:
    """Return the test accuracy of each network."""
    right = np.asarray(tabulated.table.test_log_probs).argmax(-1) == np.asarray(tabulated[2])
    return right.mean(axis=-1)


def noise(seeded: Tabulated | None) -> tuple[float, float]:
    """Return the standard deviation of accuracies over seeds, and over architectures' means."""
    if seeded is None:
        return float("nan"), float("nan")
    seeds = count_seeds(seeded.space)
    own = accuracies(seeded).reshape(-1, seeds)
    chance = 1 / np.shape(seeded.table.test_log_probs)[-1]
    own = own[own.mean(axis=1) > gates.CHANCES * chance]  # constant predictors have no noise
    within = own.var(axis=1, ddof=1).mean()
    between = own.mean(axis=1).var(ddof=1) - within / seeds
    return float(np.sqrt(within)), float(np.sqrt(max(between, 0)))


def team_up(tabulated: Tabulated, names: tuple[str, ...], sizes: tuple[int, ...], searches: int):
    """Return the test log-likelihoods of ensembles, from as many trainings for each algorithm.

    They are at most half of the networks, and no more than there are cells: most algorithms train
    each but once.
    """
    networks = tabulated.space.size
    most = min(networks // 2, networks // count_seeds(tabulated.space))
    config = SearchConfig(budget=min(SearchConfig().budget, most))
    rows = compare_on_table(tabulated, names, sizes, searches, config=config)
    return {f"{row.algorithm}, {row.size}": row.log_likelihood for row in rows}


def judge(name: str, options: Options) -> dict:
    tabulated, seeded = gates.read(name)
    space = tabulated.space
    test = accuracies(tabulated)
    published = np.asarray(tables.nb201_proxy("cifar10").accuracies)[list(space.numbers)]
    within, between = noise(seeded)
    found = {
        "networks": space.size,
        "accuracy": np.quantile(test, [0, 0.05, 0.5, 0.95, 1]),
        "rank_correlation": float(spearmanr(test, published).statistic),
        "seed_sd": within,
        "architecture_sd": between,
        "log_likelihoods": team_up(tabulated, ALONE, (3, 5), options.searches),
    }
    if seeded is not None:
        sizes = (min(count_seeds(seeded.space), 3),)
        found["several_seeds"] = team_up(seeded, SEVERAL, sizes, options.searches)
    return found


def show_log_likelihoods(field: str, what: str, results: dict, options: Options) -> None:
    """Print the test log-likelihoods of ensembles, for the tables that have them."""
    known = {name: result[field] for name, result in results.items() if field in result}
    names = list(dict.fromkeys(one for found in known.values() for one in found))
    rows = [
        [name, *(with_error(found[one], 1) if one in found else "" for one in names)]
        for name, found in known.items()
    ]
    if rows:
        title = f"test log-likelihood, {options.searches} searches: {what}"
        show(title, ["", *names], rows)


def main(options: Options) -> None:
    results = {Path(name).stem: judge(name, options) for name in options.tables}
    show(
        "test accuracy of single networks, trained once each",
        [
            "",
            "networks",
            "worst",
            "5 %",
            "median",
            "95 %",
            "best",
            "ρ NB201",
            "sd seeds",
            "sd archs",
        ],
        [
            [
                name,
                str(result["networks"]),
                *(f"{value:.3f}" for value in result["accuracy"]),
                *(f"{result[field]:.2f}" for field in ("rank_correlation",)),
                *(f"{result[field]:.4f}" for field in ("seed_sd", "architecture_sd")),
            ]
            for name, result in results.items()
        ],
    )
    show_log_likelihoods("log_likelihoods", "all cells, trained once each", results, options)
    show_log_likelihoods("several_seeds", "some cells, several seeds of each", results, options)
    for name, result in results.items():
        single = result["log_likelihoods"]["Best single, 1"]
        better = {
            kind: int(np.sum(values > single))
            for kind, values in result["log_likelihoods"].items()
            if kind != "Best single, 1"
        }
        console.print(f"{name}: searches whose ensemble beats the best single network: {better}")
    options_used = dataclasses.asdict(options) | {"out": ""}
    write(options.out, {"options": options_used, "jax": jax.__version__, **results})


if __name__ == "__main__":
    one_sentence(main, tyro.cli(Options, description=__doc__))
