"""The paper's robustness table: ensembles of slices on corrupted test images.

The searches are those of `slimmable.py`, from its stores, with clean validation images; then every
ensemble predicts the test images under 19 corruptions at severities 1, 3 and 5. Stop it whenever
you like: the same command goes on.

    python benchmarks/robustness.py --datasets digits
"""

import functools
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import jax.numpy as jnp
import numpy as np
import slimmable
import tyro
from against_paper import Results, keep, kept, show_beside
from shared import RESULTS, console, one_sentence
from slimmable import LIKE, SEARCH, TASKS, open_slices, what_was_scaled_down

import bqnes_jax
from bqnes_jax.cli.shell import progress_bar
from bqnes_jax.data import CORRUPTIONS
from bqnes_jax.errors import check_whole
from bqnes_jax.files import write_whole
from bqnes_jax.studies.comparison import choose_live
from bqnes_jax.studies.robustness import (
    PAPER_SEVERITIES,
    Robustness,
    collect,
    conditions,
    shifted_test_images,
    study,
)

NOTE = (
    "The paper speaks of 30 corruptions, here there are 19; its log-likelihoods are larger than "
    "one test set allows, so presumably sums over corruptions, where ours are means."
)
SHRUNK = " Images are corrupted at 32×32 and shrunk after that, which averages much noise away."

_AT_ONCE = 8  # slices that predict together
_VERSION = bqnes_jax.__version__


@dataclass(frozen=True)
class Options:
    """Search, corrupt, compare."""

    datasets: tuple[Literal["digits", "cifar10_subset", "cifar100_subset"], ...] = tuple(TASKS)
    """Which data sets; those of CIFAR are in BQNES_DATA_DIR."""
    algorithms: tuple[str, ...] = ("NES-RE", "BQ-S")
    """Which algorithms."""
    sizes: tuple[int, ...] = (3, 5, 10)
    """Numbers of members."""
    seeds: int = 10
    """Searches of each algorithm, on one supernet."""
    stores: Path = Path("stores")
    """Where `slimmable.py` keeps supernets and predictions."""
    out: Path = RESULTS
    """Where to write the results, a file table6-live-<dataset>.json for each data set."""


def measure(name: str, options: Options) -> tuple[list[tuple[str, int]], Robustness]:
    """Return the names of all ensembles, algorithm by size by seed, and how robust they are."""
    check_whole("seeds", options.seeds, 1)
    bench = open_slices(name, options.stores)
    choose = choose_live(bench.space, bench.evaluator(), options.seeds, config=SEARCH)
    pairs = [(algorithm, size) for algorithm in options.algorithms for size in options.sizes]
    chosen = [choose(*pair) for pair in pairs]
    texts = [[list(map(bench.space.to_string, one)) for one in c.archs] for c in chosen]
    members = sorted({text for per_seed in texts for one in per_seed for text in one})
    place = {text: i for i, text in enumerate(members)}
    weights = np.zeros((len(pairs), options.seeds, len(members)), np.float32)
    for i, ensembles in enumerate(chosen):
        for seed, row in enumerate(texts[i]):
            for text, weight in zip(row, ensembles.weights[seed], strict=True):
                weights[i, seed, place[text]] += weight
    archs = np.stack([bench.space.from_string(text) for text in members])
    statistics = np.stack([bench.store.variables(text, bench.seed) for text in members])

    def predict(images):
        parts = []
        for start in range(0, len(members), _AT_ONCE):
            some = np.arange(start, start + _AT_ONCE) % len(members)
            own = statistics[some], archs[some]
            parts.append(bench.family.predict(bench.trainer.shared, *own, images))
        return jnp.concatenate(parts)[: len(members)]

    flat = jnp.asarray(weights.reshape(-1, len(members)))
    pools = tuple(ensembles.pool for ensembles in chosen for _ in range(options.seeds))
    setting = {"members": members, "weights": flat.round(4).tolist(), "bqnes-jax": _VERSION}
    measure = functools.partial(study, predict, flat, pools=pools)
    measured = measure_what_is_missing(name, measure, setting | {"pools": pools}, options.stores)
    return pairs, collect([str(pair) for pair in pairs], measured, conditions())


def measure_what_is_missing(name: str, measure, setting: dict, stores: Path) -> dict:
    key = hashlib.sha256(json.dumps(setting).encode()).hexdigest()[:12]
    path = stores / f"slimmable-{name}" / f"robustness-{key}.json"
    content = kept(path, setting) or {"measured": []}
    found = {tuple(key): np.array(values) for key, values in content["measured"]}
    under = conditions()
    missing = [condition for condition in under if condition not in found]
    with progress_bar(f"conditions of {name}") as progress:
        for condition, values in measure(shifted_test_images(TASKS[name]), missing):
            found[condition] = values
            pairs = [[list(key), values.tolist()] for key, values in found.items()]
            write_whole(path, json.dumps(setting | {"measured": pairs}).encode())
            progress(len(found), len(under))
    return found


def setting_of(name: str, options: Options) -> dict:
    """Describe all that results depend on."""
    shrunk = "" if name == "digits" else SHRUNK
    return slimmable.setting_of(name, options) | {
        "scaled down": what_was_scaled_down(name) + shrunk,
        "corruptions": list(CORRUPTIONS),
    }


def as_results(pairs: list[tuple[str, int]], robustness: Robustness, seeds: int) -> Results:
    """Name the means over corruptions as the rows of the paper's table."""
    clean = robustness.clean[:, None]
    every = np.concatenate([clean, robustness.by_severity()], axis=1)
    every = every.reshape(len(pairs), seeds, 1 + len(PAPER_SEVERITIES), 3)
    headings = ["clean", *(f"severity {severity}" for severity in PAPER_SEVERITIES)]
    return {
        f"{heading}: {algorithm}, {size}": values[:, i]
        for i, heading in enumerate(headings)
        for (algorithm, size), values in zip(pairs, every, strict=True)
    }


def by_corruption(pairs: list[tuple[str, int]], robustness: Robustness, seeds: int) -> dict:
    """Return the metrics of each corruption at each severity, means over seeds."""
    each = robustness.shifted.reshape(len(pairs), seeds, *robustness.shifted.shape[1:])
    return {
        f"{algorithm}, {size}": dict(zip(robustness.corruptions, values, strict=True))
        for (algorithm, size), values in zip(pairs, each.mean(axis=1), strict=True)
    }


def main(options: Options) -> None:
    for name in options.datasets:
        found = *measure(name, options), options.seeds
        results, setting = as_results(*found), setting_of(name, options)
        title = f"{name}: means over 19 corruptions, {options.seeds} searches"
        show_beside(title, "table6", LIKE.get(name, "CIFAR-10"), results)
        console.print(f"{setting['scaled down']} {NOTE}")
        path = options.out / f"table6-live-{name}.json"
        keep(path, setting, results, each=by_corruption(*found))


if __name__ == "__main__":
    one_sentence(main, tyro.cli(Options, description=__doc__))
