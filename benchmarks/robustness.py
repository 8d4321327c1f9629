"""The paper's robustness table: ensembles of slices on corrupted test images.

The searches are those of `slimmable.py`, from its stores, with clean validation images; then every
ensemble predicts the test images under 19 corruptions at severities 1, 3 and 5. Stop it whenever
you like: the same command goes on.

    python benchmarks/robustness.py --datasets digits
"""

import json
from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from against_paper import Results, show_beside
from shared import RESULTS, console, write
from slimmable import LIKE, SEARCH, TASKS, open_store, what_was_scaled_down

from bqnes_jax.cli.shell import progress_bar
from bqnes_jax.comparison import choose_live
from bqnes_jax.config import supernet_config
from bqnes_jax.data import channel_moments
from bqnes_jax.live import stored_evaluator
from bqnes_jax.prediction import predict_slices_of
from bqnes_jax.robustness import (
    SEVERITIES,
    Robustness,
    collect,
    conditions,
    shifted_test_images,
    study,
)

_AT_ONCE = 8  # slices that predict together


@dataclass(frozen=True)
class Options:
    """Search, corrupt, compare."""

    datasets: tuple[str, ...] = tuple(TASKS)
    """Which data sets."""
    algorithms: tuple[str, ...] = ("NES-RE", "BQ-S")
    """Which algorithms."""
    sizes: tuple[int, ...] = (3, 5, 10)
    """Numbers of members."""
    seeds: int = 10
    """Searches of each algorithm, on one supernet."""
    stores: Path = Path("stores")
    """Where `slimmable.py` keeps supernets and predictions."""
    out: Path = RESULTS
    """Where to write the results, a file robustness-<dataset>.json for each data set."""


def measure(name: str, options: Options) -> tuple[list[tuple[str, int]], Robustness]:
    """Return the names of all ensembles, algorithm by size by seed, and how robust they are."""
    task = TASKS[name]
    trainer, store, dataset, data = open_store(name, options.stores)
    evaluate = stored_evaluator(store, trainer)
    choose = choose_live(trainer.space, evaluate, options.seeds, SEARCH)
    pairs = [(algorithm, size) for algorithm in options.algorithms for size in options.sizes]
    chosen = [choose(*pair) for pair in pairs]
    texts = [[list(map(trainer.space.to_string, one)) for one in c.archs] for c in chosen]
    members = sorted({text for per_seed in texts for one in per_seed for text in one})
    place = {text: i for i, text in enumerate(members)}
    weights = np.zeros((len(pairs), options.seeds, len(members)), np.float32)
    for i, ensembles in enumerate(chosen):
        for seed, row in enumerate(texts[i]):
            for text, weight in zip(row, ensembles.weights[seed], strict=True):
                weights[i, seed, place[text]] += weight
    archs = np.stack([trainer.space.from_string(text) for text in members])
    statistics = np.stack([store.weights(text, 0) for text in members])
    config = supernet_config(task, dataset.classes)
    moments = jnp.stack(channel_moments(jnp.asarray(data.train.images)))

    def predict(images):
        parts = []
        for start in range(0, len(members), _AT_ONCE):
            some = np.arange(start, start + _AT_ONCE) % len(members)
            parts.append(
                predict_slices_of(
                    config, trainer.shared, statistics[some], archs[some], images, moments
                )
            )
        return jnp.concatenate(parts)[: len(members)]

    flat = jnp.asarray(weights.reshape(-1, len(members)))
    measured = measure_what_is_missing(name, predict, flat, task, options)
    return pairs, collect([str(pair) for pair in pairs], measured, conditions())


def measure_what_is_missing(name, predict, weights, task, options: Options) -> dict:
    path = options.stores / f"slimmable-{name}" / "robustness.json"
    setting = np.asarray(weights).round(4).tolist()
    content = json.loads(path.read_text()) if path.is_file() else {}
    same = content.get("weights") == setting
    found = {tuple(key): np.array(values) for key, values in (content["measured"] if same else ())}
    under = conditions()
    missing = [condition for condition in under if condition not in found]
    with progress_bar(f"conditions of {name}") as progress:
        for condition, values in study(predict, weights, shifted_test_images(task), missing):
            found[condition] = values
            pairs = [[list(key), values.tolist()] for key, values in found.items()]
            path.write_text(json.dumps({"weights": setting, "measured": pairs}))
            progress(len(found), len(under))
    return found


def as_results(pairs: list[tuple[str, int]], robustness: Robustness, seeds: int) -> Results:
    """Name the means over corruptions as the rows of the paper's table."""
    clean = robustness.clean[:, None]
    every = np.concatenate([clean, robustness.by_severity()], axis=1)
    every = every.reshape(len(pairs), seeds, 1 + len(SEVERITIES), 3)
    headings = ["clean", *(f"severity {severity}" for severity in SEVERITIES)]
    return {
        f"{heading}: {algorithm}, {size}": values[:, i]
        for i, heading in enumerate(headings)
        for (algorithm, size), values in zip(pairs, every, strict=True)
    }


def main(options: Options) -> None:
    for name in options.datasets:
        pairs, robustness = measure(name, options)
        results = as_results(pairs, robustness, options.seeds)
        title = f"{name}: means over 19 corruptions, {options.seeds} searches"
        show_beside(title, "table6", LIKE.get(name, "CIFAR-10"), results)
        console.print(what_was_scaled_down(name))
        console.print("The paper's log-likelihoods are sums over corruptions; here they are means.")
        each = robustness.shifted.reshape(len(pairs), options.seeds, *robustness.shifted.shape[1:])
        by_corruption = {
            f"{algorithm}, {size}": dict(zip(robustness.corruptions, values, strict=True))
            for (algorithm, size), values in zip(pairs, each.mean(axis=1), strict=True)
        }
        content = {
            "scaled down": what_was_scaled_down(name),
            "metrics": ["accuracy", "ece", "log_likelihood"],
            "severities": list(SEVERITIES),
            "seeds": options.seeds,
            "jax": jax.__version__,
            "results": results,
            "each corruption by severity, mean over seeds": by_corruption,
        }
        write(options.out / f"robustness-{name}.json", content)


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
