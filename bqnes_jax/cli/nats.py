"""Commands about the published archives of NATS-Bench: `nats import` and `nats check`."""

import dataclasses
from pathlib import Path
from typing import Literal

import numpy as np
import tyro

from bqnes_jax import nats_bench
from bqnes_jax.cli.shell import (
    console,
    interruptible,
    prepare_jax,
    progress_bar,
    say,
    show_table,
)
from bqnes_jax.data import load, split
from bqnes_jax.errors import BQNESError
from bqnes_jax.models import NATSNetworkConfig
from bqnes_jax.spaces import NATS
from bqnes_jax.storage import Store

_WHERE = "https://github.com/D-X-Y/AutoDL-Projects"
_SPLITS = {
    "cifar10": "cifar-split.txt",
    "cifar100": "cifar100-test-split.txt",
    "imagenet16-120": "imagenet-16-120-test-split.txt",
}


@dataclasses.dataclass(frozen=True)
class ImportCommand:
    """Import the published results of NATS-Bench, and what its trained networks predict.

    One architecture at a time; the same command goes on where it was stopped. Losses and accuracies
    of all seeds go into a table. With --store DIR/store the trained networks of the full archive
    predict the images, too, and `bqnes compare --live --preset paper --data … --seed 777 --out
    DIR` (with --split-file, if one is given here) finds them there, as if it had trained them.

    Args:
        archive: NATS-tss-v1_0-3ffb9-simple or -full, the directory or its .tar.
        dataset: which of the three data sets.
        table: the .npz; by default nats-<dataset>.npz.
        count: how many architectures; their order in the archive is random.
        store: a directory for predictions; needs the full archive, and the images.
        seed: which training of each architecture predicts, with --store.
        split_file: the benchmark's split of the images, with --store; without one the test set is
            cut into halves here. CIFAR-10 needs it: half of its training images were trained on.
        directory: where data sets are, with --store; by default $BQNES_DATA_DIR.
    """

    archive: Path
    dataset: Literal["cifar10", "cifar100", "imagenet16-120"]
    table: Path | None = None
    count: int = NATS.size
    store: Path | None = None
    seed: Literal[777, 888, 999] = 777
    split_file: Path | None = None
    directory: Path | None = None

    def __call__(self) -> None:
        """Import what was asked for."""
        table = self.table or Path(f"nats-{self.dataset}.npz")
        if table.suffix != ".npz":
            raise BQNESError(f"table is {table}; it must end in .npz.")
        if self.store is None and (self.seed, self.split_file, self.directory) != (777, None, None):
            raise BQNESError("seed, split-file and directory are about predictions; give --store.")
        farewell = (
            "Stopped. What was read is kept, but for the last seconds; the same command goes on."
        )
        with nats_bench.open_archive(self.archive) as archive:
            if self.store is not None:  # networks at work do not hear Ctrl-C
                interruptible(lambda: self._import(archive, table), farewell)
                return
            try:
                self._import(archive, table)
            except KeyboardInterrupt:
                console(stderr=True).print(farewell, markup=False)
                raise

    def _import(self, archive: nats_bench.Archive, table: Path) -> None:
        predictions = None if self.store is None else self._predictions(self.store)
        with progress_bar("reading" if self.store is None else "predicting") as progress:
            results = nats_bench.import_archive(
                archive,
                self.dataset,
                table,
                count=self.count,
                predictions=predictions,
                report=progress,
            )
        seeds = np.isfinite(results.valid_losses).sum(axis=0)
        say(
            f"table: {table} ({results.imported.sum():,} architectures; with seed "
            + ", ".join(f"{s}: {n:,}" for s, n in zip(nats_bench.SEEDS, seeds, strict=True))
            + ")"
        )
        if predictions is not None:
            stored = predictions.store.summaries()
            failed = sum(entry.status != "ok" for entry in stored)
            apart = f", {failed:,} of them with other losses than published" if failed else ""
            say(f"store: {self.store} ({len(stored):,} networks{apart})")

    def _predictions(self, folder: Path) -> nats_bench.Destination:
        if self.dataset == "cifar10" and self.split_file is None:
            raise BQNESError(
                "cifar10 needs --split-file: half of the training images were trained on, and only "
                f"the benchmark's {_SPLITS[self.dataset]} says which (configs/nas-benchmark in "
                f"{_WHERE})."
            )
        prepare_jax()
        dataset = load(self.dataset, self.directory)
        data = split(dataset, file=self.split_file)
        if self.split_file is None:
            say(
                "no --split-file: the test images are cut into halves here, and not as the "
                f"benchmark's {_SPLITS[self.dataset]} says (configs/nas-benchmark in {_WHERE})"
            )
        task = nats_bench.make_task(dataset, data, NATSNetworkConfig(classes=dataset.classes))
        store = Store.open(folder, nats_bench.store_manifest(task))
        return nats_bench.Destination(task, store, self.seed)


@dataclasses.dataclass(frozen=True)
class CheckCommand:
    """Compare a table of NATS-Bench with the figures that the real archives give.

    Args:
        table: an .npz that `bqnes nats import` has written.
    """

    table: tyro.conf.Positional[Path]

    def __call__(self) -> None:
        """Check the table, and print what it holds."""
        results = nats_bench.read_results(self.table)
        there = int(results.imported.sum())
        if there < NATS.size:
            raise BQNESError(
                f"table {self.table} has {there:,} of {NATS.size:,} architectures; import the rest."
            )
        if results.dataset not in nats_bench.PUBLISHED_FIGURES:
            known = " and ".join(nats_bench.PUBLISHED_FIGURES)
            raise BQNESError(f"table {self.table} is of {results.dataset}; only {known} are known.")
        found = nats_bench.figures(results)
        published = nats_bench.PUBLISHED_FIGURES[results.dataset]
        same = nats_bench.agree(found, published)
        names = ("log Z (seed 777, temperature 128)", "best mean test accuracy")
        forms = ("{:.3f}", "{:.2%}")
        show_table(
            [results.dataset, "table", "published", ""],
            [
                [name, form.format(ours), form.format(theirs), "ok" if ok else "differs"]
                for name, form, ours, theirs, ok in zip(
                    names, forms, found, published, same, strict=True
                )
            ],
        )
        if not all(same):
            raise BQNESError(f"table {self.table} differs from the benchmark; import it again.")
