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
from shared import RESULTS, console, show, with_error, write
from slimmable import SEARCH, TASKS, open_store, what_was_scaled_down

from bqnes_jax.cli.shell import progress_bar
from bqnes_jax.comparison import choose_live
from bqnes_jax.config import supernet_config
from bqnes_jax.data import channel_moments
from bqnes_jax.live import stored_evaluator
from bqnes_jax.prediction import predict_slices_of
from bqnes_jax.robustness import SEVERITIES, collect, conditions, shifted_test_images, study

_AT_ONCE = 8  # slices that predict together

# Severity 1, 3 and 5 for M = 3, 5, 10: Hamid et al. 2023, table "robustness". Its log-likelihoods
# are sums over all corruptions; here they are means over them.
PAPER = {
    "cifar10_subset": {
        ("NES-RE", 3): ("86.2, .046", "73.2, .147", "55.5, .285"),
        ("NES-RE", 5): ("86.3, .046", "73.2, .148", "55.5, .286"),
        ("NES-RE", 10): ("86.3, .043", "73.2, .143", "55.5, .279"),
        ("BQ-S", 3): ("86.3, .036", "73.3, .131", "55.7, .265"),
        ("BQ-S", 5): ("86.2, .032", "73.2, .125", "55.5, .260"),
        ("BQ-S", 10): ("86.2, .029", "73.4, .120", "55.6, .254"),
    },
    "cifar100_subset": {
        ("NES-RE", 3): ("62.4, .151", "49.2, .235", "34.0, .339"),
        ("NES-RE", 5): ("62.4, .155", "49.2, .239", "34.0, .344"),
        ("NES-RE", 10): ("62.5, .145", "49.3, .227", "34.1, .331"),
        ("BQ-S", 3): ("62.5, .093", "49.5, .193", "34.2, .291"),
        ("BQ-S", 5): ("62.6, .103", "49.6, .175", "34.4, .270"),
        ("BQ-S", 10): ("62.5, .093", "49.6, .163", "34.4, .257"),
    },
}


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


def measure(name: str, options: Options):
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


def main(options: Options) -> None:
    for name in options.datasets:
        pairs, robustness = measure(name, options)
        shape = (len(pairs), options.seeds)
        clean = robustness.clean.reshape(*shape, 1, 3)
        means = robustness.by_severity().reshape(*shape, len(SEVERITIES), 3)
        every = np.concatenate([clean, means], axis=2)
        for i, severity in enumerate((0, *SEVERITIES)):
            rows = [
                [
                    *map(str, pair),
                    with_error(100 * values[:, i, 0], 2),
                    with_error(values[:, i, 1], 4),
                    with_error(values[:, i, 2], 1),
                    PAPER.get(name, {}).get(pair, ("–",) * 3)[i - 1] if i else "",
                ]
                for pair, values in zip(pairs, every, strict=True)
            ]
            columns = ["", "M", "accuracy %", "ECE", "log-lik.", "paper: accuracy, ECE"]
            of = f"severity {severity}, mean over 19 corruptions" if severity else "clean"
            show(f"{name}: {of}; {options.seeds} searches", columns, rows, names=1)
        console.print(what_was_scaled_down(name))
        each = robustness.shifted.reshape(*shape, *robustness.shifted.shape[1:])
        results = {
            f"{algorithm}, {size}": {
                "clean": clean[i, :, 0],
                "by severity": means[i],
                "by corruption, mean over seeds": dict(
                    zip(robustness.corruptions, each[i].mean(axis=0), strict=True)
                ),
            }
            for i, (algorithm, size) in enumerate(pairs)
        }
        content = {
            "scaled down": what_was_scaled_down(name),
            "metrics": ["accuracy", "ece", "log_likelihood"],
            "severities": list(SEVERITIES),
            "seeds": options.seeds,
            "jax": jax.__version__,
            "results": results,
        }
        write(options.out / f"robustness-{name}.json", content)


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
