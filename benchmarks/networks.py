"""Are the networks trained here real? How they spread, agree with NAS-Bench-201, and team up.

For 8×8 digits (the table inside the package) and for CIFAR-10 shrunk to 8×8 (from BQNES_DATA_DIR):
the spread of test accuracies, their rank correlation with NAS-Bench-201's on CIFAR-10, how much of
it is noise from seed to seed, and the test log-likelihood of ensembles beside that of the network
that is best on the validation data. Networks that are not there yet are trained into a store; stop
it whenever you like, the same command goes on.

    python benchmarks/networks.py
"""

import dataclasses
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np
import tyro
from scipy.stats import spearmanr
from shared import RESULTS, console, show, with_error, write

from bqnes_jax import tables
from bqnes_jax.candidates import SearchConfig
from bqnes_jax.cli.shell import progress_bar
from bqnes_jax.families import CellFamily
from bqnes_jax.runs import RunConfig, load_data, open_workbench, preset_config
from bqnes_jax.runs.fields import replace_fields
from bqnes_jax.spaces import NATS
from bqnes_jax.studies.comparison import compare_on_table

_SHRUNK = {
    "image_size": 8,
    "split": [4000, 1000, 2000],
    "train": {
        "steps": 300,
        "network": {"channels": 8},
        "augment": {"flip": True, "padding": 1},
    },
}
TASKS: dict[str, RunConfig] = {
    "digits": preset_config(),
    **{
        name: replace_fields(preset_config(data=name), _SHRUNK)
        for name in ("cifar10_subset", "cifar100_subset")
    },
}


@dataclass(frozen=True)
class Options:
    """Train what is missing, and judge it."""

    datasets: tuple[str, ...] = ("digits", "cifar10_subset")
    """Which; there is cifar100_subset, too."""
    count: int = 128
    """Architectures trained on CIFAR; of digits the package has 1,024."""
    repeated: int = 24
    """Architectures trained with several seeds."""
    seeds: int = 4
    """How many seeds for those."""
    searches: int = 10
    """Seeds of each search for an ensemble."""
    stores: Path = Path("stores")
    """Where predictions are kept."""
    out: Path = RESULTS / "networks.json"
    """Where to write the results."""


def accuracies(log_probs, labels):
    return (np.asarray(log_probs).argmax(-1) == np.asarray(labels)).mean(axis=-1)


def train_missing(name, options: Options, numbers, seeds):
    """Return what networks [architecture, seed] predict for the test images, and those images."""
    data, family = load_data(TASKS[name]), CellFamily(TASKS[name].train, keep=False)
    benches = [
        open_workbench(family, data, options.stores / name, seed=seed, dtype="float32")
        for seed in seeds
    ]
    archs = np.asarray(NATS.from_index(numbers))
    done = 0

    def count(more):
        nonlocal done
        done += more
        progress(done, len(archs) * len(seeds))

    with progress_bar(f"training on {name}") as progress:
        for bench in benches:
            bench.train(archs, count)
    texts = [NATS.to_string(arch) for arch in archs]
    return [bench.store.predictions(texts, bench.seed) for bench in benches], data


def tabulated(name, options: Options) -> tables.Tabulated:
    if name == "digits":
        return tables.load(name)
    numbers = tables.choose_different(options.count, options.count // 16)
    (stored,), data = train_missing(name, options, numbers, [0])
    path = options.stores / f"{name}.npz"
    tables.pack(path, numbers, stored, data)
    return tables.read(path)


def noise(name, options: Options, numbers):
    """Return the standard deviation of accuracies over seeds, and over architectures' means."""
    draw = np.random.default_rng(0).choice(numbers, options.repeated, replace=False)
    stored, data = train_missing(name, options, draw, range(options.seeds))
    by_seed = np.stack([accuracies(one.test_log_probs, data.test.labels) for one in stored])
    able = by_seed.mean(axis=0) > 0.2  # constant predictors have no noise
    within = np.sqrt(by_seed[:, able].var(axis=0, ddof=1).mean())
    means = by_seed[:, able].mean(axis=0)
    between = np.sqrt(max(means.var(ddof=1) - within**2 / options.seeds, 0))
    return float(within), float(between)


def judge(name, options: Options) -> dict:
    space, table, labels = made = tabulated(name, options)
    test = accuracies(table.test_log_probs, labels)
    published = np.asarray(tables.nb201_proxy("cifar10").accuracies)[list(space.numbers)]
    within, between = noise(name, options, np.array(space.numbers))
    config = SearchConfig(budget=min(150, space.size // 2))
    names = ("Best single", "NES-RE", "BQ-S")
    rows = compare_on_table(made, names, (3, 5), options.searches, config=config)
    return {
        "networks": space.size,
        "accuracy": np.quantile(test, [0, 0.05, 0.5, 0.95, 1]),
        "rank_correlation": float(spearmanr(test, published).statistic),
        "seed_sd": within,
        "architecture_sd": between,
        "log_likelihoods": {f"{row.algorithm}, {row.size}": row.log_likelihood for row in rows},
    }


def main(options: Options) -> None:
    results = {name: judge(name, options) for name in options.datasets}
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
    names = list(next(iter(results.values()))["log_likelihoods"])
    show(
        f"test log-likelihood, {options.searches} searches",
        ["", *names],
        [
            [name, *(with_error(values, 1) for values in result["log_likelihoods"].values())]
            for name, result in results.items()
        ],
    )
    for name, result in results.items():
        single = result["log_likelihoods"]["Best single, 1"]
        better = {
            kind: int(np.sum(values > single))
            for kind, values in result["log_likelihoods"].items()
            if kind != "Best single, 1"
        }
        console.print(f"{name}: searches whose ensemble beats the best single network: {better}")
    options_used = dataclasses.asdict(options) | {"stores": "", "out": ""}
    write(options.out, {"options": options_used, "jax": jax.__version__, **results})


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
