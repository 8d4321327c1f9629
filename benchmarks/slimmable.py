"""The paper's supernet table: BQ-S against NES-RE on slices of a slimmable MobileNetV2.

A supernet is trained on real images (8×8 digits; CIFAR-10 and CIFAR-100 shrunk to 8×8, from
BQNES_DATA_DIR), slices are evaluated as the searches ask for them, into a store that all searches
share, and ensembles of 3, 5 and 10 are judged on test images. Stop it whenever you like: the same
command goes on. The paper's rows are printed beside: its supernet is full-size, trained on all of
CIFAR at 32×32; here everything but the space and the searches is scaled down, and errors are over
searches on one supernet.

    python benchmarks/slimmable.py --datasets digits
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import jax.numpy as jnp
import numpy as np
import tyro
from against_paper import from_rows, keep, show_beside
from shared import RESULTS, console, one_sentence

from bqnes_jax.algorithms import find
from bqnes_jax.candidates import SearchConfig
from bqnes_jax.cli.shell import progress_bar
from bqnes_jax.comparison import Row, compare_live
from bqnes_jax.config import PRESETS, RunConfig, load_data, updated
from bqnes_jax.data import Dataset, Split
from bqnes_jax.live import stored_evaluator, stored_predictor
from bqnes_jax.metrics import accuracy, ece, log_likelihood
from bqnes_jax.models import MobileNetConfig
from bqnes_jax.store import Store
from bqnes_jax.trainers import Trainer, make_trainer

_SHRUNK = {
    "data": {"size": 8, "split": [8000, 1000, 1000]},
    "supernet": {
        "steps": 1000,
        "learning_rate": 0.2,
        "weight_decay": 1e-4,
        "augment": {"flip": True, "padding": 0},
    },
}
TASKS: dict[str, RunConfig] = {
    "digits": updated(PRESETS["tiny"], {"space": "slimmable", "data": {"split": [600, 500, 697]}}),
    **{
        name: updated(PRESETS["tiny"], {"space": "slimmable", "dataset": name, **_SHRUNK})
        for name in ("cifar10_subset", "cifar100_subset")
    },
}

SEARCH = SearchConfig(batch=2)  # 10 slices to begin with, 150 in all

LIKE = {"cifar100_subset": "CIFAR-100"}  # whose numbers in the paper stand beside; else CIFAR-10's


@dataclass(frozen=True)
class Options:
    """Train, search, compare."""

    datasets: tuple[Literal["digits", "cifar10_subset", "cifar100_subset"], ...] = tuple(TASKS)
    """Which data sets; those of CIFAR are in BQNES_DATA_DIR."""
    algorithms: tuple[str, ...] = ("NES-RE", "BQ-R", "BQ-S")
    """Which algorithms; the paper's table has NES-RE and BQ-S."""
    sizes: tuple[int, ...] = (3, 5, 10)
    """Numbers of members."""
    seeds: int = 10
    """Searches of each algorithm, on one supernet."""
    stores: Path = Path("stores")
    """Where supernets and predictions are kept."""
    out: Path = RESULTS
    """Where to write the results, a file table5-live-<dataset>.json for each data set."""


def open_store(name: str, stores: Path) -> tuple[Trainer, Store, Dataset, Split]:
    """Train the supernet, or read it, and open the store of its slices."""
    folder = stores / f"slimmable-{name}"
    dataset, data = load_data(TASKS[name])
    with progress_bar(f"supernet on {name}") as progress:
        trainer = make_trainer(TASKS[name], dataset, data, folder / "supernet", progress=progress)
    return trainer, Store.open(folder / "store", trainer.manifest), dataset, data


def compare(name: str, options: Options) -> list[Row]:
    trainer, store, _, data = open_store(name, options.stores)
    predict, labels = stored_predictor(store, trainer.space), jnp.asarray(data.test.labels)
    searches = len({find(algorithm).strategy for algorithm in options.algorithms})
    done = 0

    def count(more: int) -> None:
        nonlocal done
        done += more
        progress(min(done, total), total)

    total = searches * options.seeds * SEARCH.budget
    with progress_bar(f"slices of {name}") as progress:
        evaluate = stored_evaluator(store, trainer, report=count)
        largest = jnp.asarray(trainer.space.largest)[None]
        evaluate(largest)
        alone = predict(largest)[0], labels
        metrics = [[accuracy(*alone)], [ece(*alone)], [log_likelihood(*alone)]]
        rows = compare_live(
            trainer.space,
            evaluate,
            predict,
            labels,
            options.algorithms,
            options.sizes,
            options.seeds,
            SEARCH,
        )
    return [Row("Largest network", 1, *np.array(metrics)), *rows]


def what_was_scaled_down(name: str) -> str:
    task = TASKS[name]
    train, valid, test = task.data.split
    network, steps, batch = task.supernet.network, task.supernet.steps, task.supernet.batch
    return (
        f"{name}: 8×8 pixels instead of 32×32; {train} images to train on, {valid} to validate, "
        f"{test} to test; {network.channels} channels with expansion {network.expansion} instead "
        f"of {MobileNetConfig().channels} with {MobileNetConfig().expansion}; {steps} steps of "
        f"{batch} images; two slices are asked for at a time; one supernet."
    )


def setting_of(name: str, options: Options) -> dict:
    """Describe all that results depend on."""
    return {
        "seeds": options.seeds,
        "algorithms": list(options.algorithms),
        "sizes": list(options.sizes),
        "scaled down": what_was_scaled_down(name),
    }


def main(options: Options) -> None:
    for name in options.datasets:
        results = from_rows(compare(name, options))
        title = f"{name}: {options.seeds} searches on one supernet"
        show_beside(title, "table5", LIKE.get(name, "CIFAR-10"), results)
        console.print(what_was_scaled_down(name))
        keep(options.out / f"table5-live-{name}.json", setting_of(name, options), results)


if __name__ == "__main__":
    one_sentence(main, tyro.cli(Options, description=__doc__))
