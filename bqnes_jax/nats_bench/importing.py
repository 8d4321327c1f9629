"""From an archive to a table and a store, one architecture at a time; both go on after a stop."""

from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

import numpy as np

from bqnes_jax.errors import BQNESError, check_choice, check_whole
from bqnes_jax.nats_bench.archive import DATASETS, SEEDS, Archive, numbers_by_text
from bqnes_jax.nats_bench.networks import Network, Task, predict_published
from bqnes_jax.nats_bench.results import Results, empty, read_results, record, write_results
from bqnes_jax.spaces import NATS
from bqnes_jax.storage import Store
from bqnes_jax.storage.records import FAILED

_SAVE_EVERY = 10.0  # seconds
_AT_ONCE = 4  # networks that predict together: twice as fast as one by one on a CPU


class Destination(NamedTuple):
    """Where predictions go, and of which networks.

    Attributes:
        task: what is predicted.
        store: made with `networks.store_manifest(task)`.
        seed: which training of each architecture.
    """

    task: Task
    store: Store
    seed: int = SEEDS[0]

    def wants(self, results: Results, row: int, text: str) -> bool:
        """Tell whether the network of an architecture, if there is one, has yet to predict."""
        known, score = results.imported[row], results.valid_losses[row, SEEDS.index(self.seed)]
        if known and np.isnan(score):  # it was not trained with this seed
            return False
        return bool(self.store.find_missing([text], [self.seed]))


def import_archive(
    archive: Archive,
    dataset: str,
    table: Path,
    *,
    count: int = NATS.size,
    predictions: Destination | None = None,
    report: Callable[[int, int], None] = lambda done, total: None,
) -> Results:
    """Read the first `count` architectures into a table; their networks predict, if wanted.

    What is in the table and in the store already is not read again.

    Args:
        archive: as `open_archive` opens it; with the trained weights, if predictions are wanted.
        dataset: "cifar10", "cifar100" or "imagenet16-120".
        table: the file; one that is there is completed.
        count: how many architectures; their order in the archive is random.
        predictions: where predictions go.
        report: called with how many architectures are done, and of how many.
    """
    check_choice("dataset", dataset, tuple(DATASETS))
    check_whole("count", count, 1, NATS.size)
    results = _table_so_far(table, dataset)
    archive.check_complete(count)
    waiting: list[Network] = []
    saved = perf_counter()
    try:
        for number, text in enumerate(archive.archs[:count]):
            row = numbers_by_text()[text]
            to = predictions if predictions and predictions.wants(results, row, text) else None
            if to or not results.imported[row]:
                trainings = archive.read(number, dataset)
                record(results, row, trainings)
                if to and to.seed in trainings:
                    training = trainings[to.seed]
                    arch = np.asarray(NATS.from_index(row))
                    waiting.append(Network(arch, archive.weights(number, training), training))
            enough = _AT_ONCE if number < count - 1 else 1
            if predictions and len(waiting) >= enough:
                _predict(predictions, waiting)
                waiting.clear()
            if perf_counter() - saved > _SAVE_EVERY:
                write_results(table, results)
                saved = perf_counter()
            report(number + 1, count)
    finally:  # a damaged file, or Ctrl-C: what was read is not lost
        if results.imported.any():
            write_results(table, results)
    return results


def _table_so_far(table: Path, dataset: str) -> Results:
    if not table.exists():
        return empty(dataset)
    results = read_results(table)
    if results.dataset != dataset:
        raise BQNESError(
            f"table {table} is of {results.dataset}, and not of {dataset}; give another --table."
        )
    return results


def _predict(predictions: Destination, networks: list[Network]) -> None:
    task, store, seed = predictions
    filled = networks + networks[-1:] * (_AT_ONCE - len(networks))  # one shape, compiled once
    entries = predict_published(task, filled, seed)[: len(networks)]
    none_fits = all(entry.status == FAILED for entry in entries)
    if none_fits and all(entry.status == FAILED for entry in store.summaries()):
        found, published = entries[0], networks[0].training
        raise BQNESError(
            f"{found.arch} predicts with mean losses of {found.valid_loss:.3f} and "
            f"{found.test_loss:.3f}, published are {published.valid_loss:.3f} and "
            f"{published.test_loss:.3f}: the images of {task.dataset} are not the benchmark's, or "
            "the archive is damaged."
        )
    store.put(entries)
