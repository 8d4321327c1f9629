"""Training on the workers of an executor: a task is a family, an architecture, a seed and data.

Family and data are written once, into a file, and a task names it; a worker that does not see the
file gets what is in it with its next task. Workers need no other files: what they find comes back
as arrays.
"""

import contextlib
import functools
import hashlib
import itertools
import os
import pickle
import sys
from collections.abc import Iterator
from concurrent.futures import Executor
from pathlib import Path
from typing import NamedTuple

import cloudpickle
import jax
import numpy as np
from jaxtyping import Int32

from bqnes_jax.data import Split
from bqnes_jax.errors import BQNESError
from bqnes_jax.families import Evaluation, NetworkFamily, Setting, Trainer
from bqnes_jax.files import Remote, explain_writing, open_file, write_whole
from bqnes_jax.parallel import Calls, Lost, Workers, is_out_of_memory

_FILE = "task.pickle"


class Task(NamedTuple):
    """What a worker is asked to do.

    Attributes:
        arch: what it trains.
        digest: of the family, the data and the setting, pickled.
        path: where they are; empty if they are in no file.
        double: whether JAX computes in float64.
        content: what is there, for a worker that does not see it.
    """

    arch: Int32[np.ndarray, " length"]
    digest: str
    path: str
    double: bool
    content: bytes | None = None


class Absent(NamedTuple):
    """What a worker answers that does not see the file."""


class Mistake(NamedTuple):
    """What a worker answers whose work raised an error, which another would raise again."""

    message: str


class Team:
    """Workers of an executor that train architectures; make one with `open_team`."""

    def __init__(self, calls: Calls, task: Task, content: bytes) -> None:
        self._calls, self._task, self._content = calls, task, content
        self._archs: dict[int, np.ndarray] = {}

    @property
    def size(self) -> int:
        """How many there are."""
        return self._calls.size

    def start(self, number: int, arch: Int32[np.ndarray, " length"]) -> None:
        """Let one of them train an architecture."""
        self._archs[number] = np.asarray(arch)
        self._calls.start(number, self._task._replace(arch=self._archs[number]))

    def collect(self, *, wait: bool) -> list[tuple[int, Evaluation]]:
        """Return what has been trained; what was lost too often has failed."""
        ended = []
        for number, answer in self._calls.collect(wait=wait):
            if isinstance(answer, Absent):
                whole = self._task._replace(arch=self._archs[number], content=self._content)
                self._calls.start(number, whole)
                continue
            if isinstance(answer, Mistake):
                raise BQNESError(answer.message)
            del self._archs[number]
            ended.append((number, Evaluation() if isinstance(answer, Lost) else answer))
        return ended

    def train(self, archs: Int32[np.ndarray, "K length"]) -> Iterator[list[tuple[int, Evaluation]]]:
        """Train architectures, and yield the places and evaluations of those that are done."""
        begun = done = 0
        while done < len(archs):
            while begun < len(archs) and begun - done < max(self.size, 1):
                self.start(begun, archs[begun])
                begun += 1
            ended = self.collect(wait=True)
            done += len(ended)
            if ended:
                yield ended


@contextlib.contextmanager
def open_team(
    executor: Executor,
    workers: Workers,
    *,
    family: NetworkFamily,
    data: Split,
    seed: int,
    directory: Path,
) -> Iterator[Team]:
    """Let the workers of an executor train architectures of a family.

    Args:
        executor: any `concurrent.futures.Executor`.
        workers: how many architectures to train at once, or a function that tells.
        family: what is trained.
        data: on what.
        seed: of the weights.
        directory: of the run, where workers may look for what the family has prepared.
    """
    local = not isinstance(directory, Remote)  # a worker may not be let into an object store
    place = os.path.abspath(directory) if local else ""
    offer = (family, jax.tree.map(np.asarray, data), seed, place)
    try:
        content = cloudpickle.dumps(offer)
    except Exception as error:
        raise BQNESError(
            f"the family {family.name!r} and its data cannot be sent to workers "
            f"({type(error).__name__}: {error}); put its functions into a module that workers can "
            "import, without open files or devices."
        ) from error
    path = directory / _FILE
    if local:
        with explain_writing(f"run {directory}"):
            directory.mkdir(parents=True, exist_ok=True)
            write_whole(path, content)
    digest, double = hashlib.sha256(content).hexdigest(), jax.config.values["jax_enable_x64"]
    task = Task(np.zeros(0, np.int32), digest, os.path.abspath(path) if local else "", double)
    calls = Calls(executor, perform, workers)
    try:
        yield Team(calls, task, content)
    finally:
        calls.cancel()
        if local:
            with contextlib.suppress(OSError):
                path.unlink()


def perform(task: Task) -> Evaluation | Absent | Mistake | Lost:
    """Train an architecture, on a worker; whatever goes wrong is an answer, too."""
    try:
        if task.content is not None:
            _contents[task.digest] = task.content
        jax.config.update("jax_enable_x64", task.double)
        trainer = _prepare(task.digest, task.path)
        (evaluation,) = itertools.chain.from_iterable(trainer.train(task.arch[None]))
        return jax.device_get(evaluation)
    except FileNotFoundError as error:
        if error.filename == task.path:
            return Absent()
        return Mistake(f"training on a worker raised {type(error).__name__}: {error}")
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        cause = error.__cause__ or error
        if isinstance(cause, MemoryError) or is_out_of_memory(cause):
            return Lost(reason)
        own = isinstance(error, BQNESError)
        return Mistake(str(error) if own else f"training on a worker raised {reason}")


_contents: dict[str, bytes] = {}  # that came with tasks


def _read(path: Path) -> bytes:
    """Read what was written for workers; nothing where there is no file."""
    try:
        with open_file(path, follow=False) as file:
            return file.read()
    except OSError:
        return b""


@functools.lru_cache(maxsize=2)
def _prepare(digest: str, path: str) -> Trainer:
    """Let a family prepare itself, once in a worker; FileNotFoundError if it is nowhere."""
    content = _contents.pop(digest, None) or (_read(Path(path)) if path else b"")
    if hashlib.sha256(content).hexdigest() != digest:  # another run's, or half of a copy
        raise FileNotFoundError(2, os.strerror(2), path)
    if os.getcwd() not in sys.path:  # as where the command was given
        sys.path.insert(0, os.getcwd())
    family, data, seed, directory = pickle.loads(content)
    seen = os.path.isdir(directory)
    return family.prepare(data, Setting(seed, Path(directory) if seen else None, asked=1))
