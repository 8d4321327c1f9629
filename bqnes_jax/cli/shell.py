"""What the commands print with, and how they stop."""

import contextlib
import datetime
import importlib.util
import os
import re
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path

import jax
from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table
from rich.text import Text

from bqnes_jax import families
from bqnes_jax.errors import BQNESError, check_whole
from bqnes_jax.families import NetworkFamily
from bqnes_jax.files.text import plain
from bqnes_jax.parallel import Cluster, is_first, open_cluster, use_all_cores

_PLAIN_WIDTH = 160  # where there is no terminal to ask


def console(stderr: bool = False) -> Console:
    """Return the console; in a pipe, one that is wide enough for every table."""
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else _PLAIN_WIDTH
    wrap = not stream.isatty()
    return Console(file=stream, width=width, highlight=False, emoji=False, soft_wrap=wrap)


def warn(sentences: Sequence[str]) -> None:
    """Print one line of warnings, if there are any, beside the output."""
    if sentences:
        complain(f"warning: {' '.join(sentences)}")


def complain(text: str) -> None:
    """Print a sentence beside the output; no line of it begins like another one."""
    console(stderr=True).print(plain(text).replace("\n", "\n  "), markup=False)


@contextlib.contextmanager
def warnings_in_a_line() -> Iterator[None]:
    """Print what Python code warns of as a line, once, without the place that it comes from."""
    said = set()

    def show(message: Warning | str, *_: object, **__: object) -> None:
        if str(message) not in said:
            said.add(str(message))
            warn([str(message)])

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield


def import_family(name: str | None) -> NetworkFamily | None:
    """Import the family that a flag names; a run knows those of the package itself."""
    if name is None:
        return None
    if ":" not in name:
        raise BQNESError(f"family is {name!r}; it must be package.module:family.")
    kind = families.find(name)
    return kind.make(kind.options)


def say(text: str) -> None:
    """Print a line as it is."""
    console().print(plain(text), markup=False)


def show_table(
    columns: list[str],
    rows: list[list[str]],
    names: int = 1,
    title: str = "",
    bold: Collection[tuple[int, int]] = (),
) -> None:
    """Print a table whose first columns are names; some cells, by row and column, in bold."""
    table = Table(title=Text(plain(title)) if title else None, title_justify="left")
    for i, column in enumerate(columns):
        table.add_column(Text(plain(column)), justify="left" if i < names else "right")
    for i, row in enumerate(rows):
        styles = ("bold" if (i, j) in bold else "" for j in range(len(row)))
        table.add_row(*(Text(plain(c), style) for c, style in zip(row, styles, strict=True)))
    console().print(table)


@contextlib.contextmanager
def progress_bar(what: str) -> Iterator[Callable[..., None]]:
    """Yield a function (done, total, what): a bar with the time left, or lines without a terminal.

    All of it goes to the standard error, so that the output is the result alone.
    """
    if not is_first():
        yield lambda *_, **__: None
        return
    out = console(stderr=True)
    if not out.is_terminal:
        yield _lines(out, what)
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        _Count(),
        TimeElapsedColumn(),
        TextColumn("elapsed"),
        _Left(),
    )
    with Progress(*columns, console=out) as bar:
        task = bar.add_task(f"{plain(what)}: compiling its program", total=None)

        def update(done: int, total: int, what: str = what) -> None:
            if bar.tasks[task].total is None:  # what was compiled says nothing of what is left
                bar.tasks[task].fields["begun"] = done, time.monotonic()
            bar.tasks[task].fields["seen"] = done, time.monotonic()
            bar.update(task, description=plain(what), completed=done, total=total)

        yield update


class _Count(ProgressColumn):
    """How many are done, and of how many, once that is known."""

    def render(self, task: Task) -> Text:
        """Return it as 4/40."""
        return Text("" if task.total is None else f"{int(task.completed)}/{int(task.total)}")


class _Left(ProgressColumn):
    """How long it will take, by what was done since the first were: nothing until that is known."""

    def render(self, task: Task) -> Text:
        """Return it as 0:01:30 left."""
        total = None if task.total is None else float(task.total)
        begun, seen = task.fields.get("begun"), task.fields.get("seen")
        left = estimate_left(begun, seen, total, time.monotonic())
        return Text("" if left is None else f"{datetime.timedelta(seconds=round(left))} left")


Mark = tuple[int, float]  # how many were done, and when


def estimate_left(
    begun: Mark | None, seen: Mark | None, total: float | None, now: float
) -> float | None:
    """Return in how many seconds all will be done; None where nothing tells.

    It counts down between two marks. Nothing tells when the next mark is overdue: another program
    may be compiling. The time before the first mark is left out, because most of it is compiling.

    Example:
        >>> estimate_left((10, 30.0), (20, 40.0), 40.0, now=44.0)
        16.0
    """
    if begun is None or seen is None or total is None or seen[0] <= begun[0]:
        return None
    each = (seen[1] - begun[1]) / (seen[0] - begun[0])
    left = each * (total - seen[0]) - (now - seen[1])
    return 0.0 if seen[0] >= total else left if left > 0 else None


@contextlib.contextmanager
def status_line() -> Iterator[Callable[[str], None]]:
    """Yield a function that says what is done next: in place, or in lines without a terminal."""
    out = console(stderr=True)
    if not out.is_terminal:
        yield complain
        return
    with out.status("") as status:
        yield lambda text: status.update(Text(plain(text)))


def _lines(out: Console, what: str) -> Callable[..., None]:
    shown: dict[str, int] = {}

    def update(done: int, total: int, what: str = what) -> None:
        tenth = 10 * done // max(total, 1)
        if tenth > shown.get(what, -1):
            shown[what] = tenth
            out.print(f"{plain(what)}: {done} of {total}", markup=False)

    return update


_CLUSTERS = ("SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE")  # how many processes there are


def join_hosts(count: int | None, index: int | None, coordinator: str | None) -> None:
    """Make this process one of several that do the same work together, if there are several.

    What is not given is what $JAX_NUM_PROCESSES, $JAX_PROCESS_ID and $JAX_COORDINATOR_ADDRESS say;
    Slurm, Open MPI and TPU slices tell JAX themselves.
    """
    count = _number("JAX_NUM_PROCESSES") if count is None else count
    index = _number("JAX_PROCESS_ID") if index is None else index
    coordinator = coordinator or os.environ.get("JAX_COORDINATOR_ADDRESS")
    in_cluster = any((_number(name) or 1) > 1 for name in _CLUSTERS)
    in_cluster |= "," in os.environ.get("TPU_WORKER_HOSTNAMES", "")
    if count == 1:
        return
    if not in_cluster:
        if count is None:
            return
        check_whole("hosts", count, 1)
        if index is None and coordinator is None and _is_tpu():
            jax.distributed.initialize()
            return
        if index is None or coordinator is None:
            raise BQNESError(
                f"hosts is {count}, but {'which this is' if coordinator else 'where they meet'} is "
                "not known; give --host INDEX and --coordinator ADDRESS:PORT on each, or start "
                "them with srun or mpirun."
            )
        check_whole("host", index, 0, count - 1)
        if not _is_number(coordinator.rpartition(":")[2]):
            raise BQNESError(f"coordinator is {coordinator!r}; it must be ADDRESS:PORT.")
    jax.distributed.initialize(coordinator, count, index)


@contextlib.contextmanager
def cluster_of(workers: str | None) -> Iterator[Cluster | None]:
    """Yield the cluster that a flag names; None where there is no flag."""
    if workers is None:
        yield None
        return
    with open_cluster(workers) as cluster:
        yield cluster


def stop(code: int) -> int:
    """Return the code of a command that failed, unless other hosts wait for it: then end at once.

    They would wait for minutes; like this they hear of it and end, too.
    """
    if jax.distributed.is_initialized():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


def _is_tpu() -> bool:
    """Tell whether JAX runs on a TPU, whose machines it asks who they are."""
    return importlib.util.find_spec("libtpu") is not None


def _number(variable: str) -> int | None:
    text = os.environ.get(variable)
    if text is not None and not _is_number(text):
        raise BQNESError(f"${variable} is {text!r}; it must be a whole number.")
    return None if text is None else int(text)


def _is_number(text: str) -> bool:
    return re.fullmatch(r"[0-9]{1,9}", text) is not None


def prepare_jax() -> None:
    """Let JAX use every core, and keep compiled programs, so that the next command starts sooner.

    They go where $JAX_COMPILATION_CACHE_DIR says, or into the user's cache directory: also small
    ones, of which a command has dozens, unless $JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS is set.
    """
    use_all_cores()
    if jax.config.values["jax_compilation_cache_dir"] is None:
        home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        jax.config.update("jax_compilation_cache_dir", str(home / "bqnes-jax"))
    if "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in os.environ:
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)


def interruptible(function: Callable[[], None], farewell: str) -> None:
    """Call a function so that Ctrl-C stops it at once, even in the middle of a compiled program.

    Python hears a signal only between two of its own instructions, and a program of XLA's may take
    hours: the work is done in a thread that is left behind. What is on disk is whole at any moment.
    """
    errors = []

    def work() -> None:
        try:
            function()
        except BaseException as error:
            errors.append(error)

    def stop_now(number: int, _: object) -> None:  # an exception could be lost in a callback
        out = console(stderr=True)
        out.show_cursor()
        out.print(f"\n{plain(farewell)}", markup=False)
        sys.stdout.flush()
        os._exit(128 + number)

    thread = threading.Thread(target=work, daemon=True)
    stopping = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, stop_now) for number in stopping]
    try:
        thread.start()
        while thread.is_alive():
            thread.join(0.2)
    finally:
        for number, handler in zip(stopping, before, strict=True):
            signal.signal(number, handler)
    if errors:
        raise errors[0]
