"""One file of a run is altered at a time: what is read is the same, or an error says so.

The checkpoints of a supernet are altered likewise: a training goes on from the newest, or says that
it is damaged and goes on from the one before.
"""

import hashlib
import random
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from attacks.tally import Tally
from bqnes_jax.errors import BQNESError
from bqnes_jax.runs import Run
from bqnes_jax.runs.launch import _order_of
from bqnes_jax.studies import robustness
from bqnes_jax.training.checkpoints import Checkpoints, check_same
from tests.helpers.alterations import Choices, altered_bytes
from tests.helpers.loaders import ARCH, a_run

FILES = 2_000
CHECKPOINT_FILES = 500
CHECKPOINT = "a supernet's checkpoints"
RECIPE = {"steps": 2}


class State(NamedTuple):
    """A small state of a training, whose numbers follow from its step."""

    step: np.ndarray
    params: dict[str, np.ndarray]


def state_at(step: int) -> State:
    """Return the state after a number of steps."""
    draws = np.random.default_rng(step)
    params = {name: draws.normal(size=(40, 5)).astype(np.float32) for name in "ab"}
    return State(np.array(step, np.int32), params)


def write_checkpoints(folder: Path) -> None:
    """Write what a supernet's training leaves after two steps, each with a checkpoint."""
    check_same(folder, RECIPE)
    with Checkpoints(folder / "checkpoints") as checkpoints:
        for step in (1, 2):
            checkpoints.save(state_at(step))


def read_checkpoints(folder: Path) -> str:
    """Return the step that a training goes on from; raise ValueError if its numbers are not its."""
    check_same(folder, RECIPE)
    with Checkpoints(folder / "checkpoints") as checkpoints:
        state = checkpoints.latest(state_at(0))
    expected = state_at(int(state.step))
    if not jax.tree.all(jax.tree.map(np.array_equal, state, expected)):
        raise ValueError(f"the numbers of step {int(state.step)} are others")
    return str(int(state.step))


def read_everything(folder: Path) -> str:
    """Read all that a run keeps; return a digest of every number in it."""
    run = Run.load(folder)
    ensemble = run.saved_ensemble()
    store = run.store
    entries = store.predictions([ARCH, "failed"], 0)
    found = [
        repr(run.config),
        run.versions,
        [ensemble.method, ensemble.members, ensemble.weights, ensemble.texts],
        [ensemble.size, ensemble.temperature, int(ensemble.status)],
        [*run.record],
        run._shared(),
        [*entries],
        store.variables(ARCH, 0),
        robustness.read_study(run),
        _order_of(folder, run.config, run.family),
    ]
    text = repr(jax.tree.map(lambda x: x.tolist() if isinstance(x, np.ndarray) else x, found))
    return hashlib.sha256(text.encode()).hexdigest()


def alter(draws: random.Random, content: bytes) -> bytes:
    """Flip one bit, or alter more of it."""
    tape = draws.randbytes(90)
    if draws.random() >= 0.5:
        return altered_bytes(Choices(tape), content)
    place = draws.randrange(8 * len(content))
    other = bytearray(content)
    other[place // 8] ^= 1 << place % 8
    return bytes(other)


def outcome(read: Callable[[Path], str], folder: Path, expected: str) -> tuple[str, str]:
    """Read a folder; return what came of it, and a note if that is a bug."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            same = read(folder) == expected
        except BQNESError:
            return "survived", ""
        except Exception as error:
            return "lost", f"{type(error).__name__}: {error}"[:200]
    told = same or any(_speaks_of_damage(warning) for warning in said)
    return ("survived", "") if told else ("silent", "")


def _speaks_of_damage(warning: warnings.WarningMessage) -> bool:
    return "Damaged" in warning.category.__name__ or "is damaged" in str(warning.message)


def attack(tally: Tally, scratch: Path) -> None:
    """Alter the files of a run, and those of checkpoints."""
    for folder in (scratch / "run", scratch / "training", scratch / "altered"):
        folder.mkdir()
    alter_run(tally, scratch / "run")
    alter_checkpoints(tally, scratch / "training", scratch / "altered")


def alter_run(tally: Tally, folder: Path) -> None:
    """Alter each file in turn, read the run, and put the file back."""
    a_run(folder)
    expected = read_everything(folder)
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    tried = tally.tried("altered") - tally.tried("altered", CHECKPOINT)
    draws = random.Random(tried)
    while tried < FILES:
        for path in files:
            content = path.read_bytes()
            other = alter(draws, content)
            if other == content:
                continue
            path.write_bytes(other)
            found, note = outcome(read_everything, folder, expected)
            path.write_bytes(content)
            name = path.name if path.suffix != ".bqe" else "store/entries/…"
            tally.add("altered", name, note, tried=1, **{found: 1})
            tried += 1
        tally.write()


def alter_checkpoints(tally: Tally, folder: Path, copy: Path) -> None:
    """Alter each file of a copy in turn, and go on from there: a damaged one is put aside."""
    write_checkpoints(folder)
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    draws = random.Random(tally.tried("altered", CHECKPOINT))
    while tally.tried("altered", CHECKPOINT) < CHECKPOINT_FILES:
        for path in files:
            content = path.read_bytes()
            other = alter(draws, content) if content else draws.randbytes(8)
            if other == content:
                continue
            shutil.rmtree(copy)
            shutil.copytree(folder, copy)
            (copy / path.relative_to(folder)).write_bytes(other)
            found, note = outcome(read_checkpoints, copy, "2")
            note = note and f"{path.name}: {note}"
            tally.add("altered", CHECKPOINT, note, tried=1, **{found: 1})
        tally.write()
