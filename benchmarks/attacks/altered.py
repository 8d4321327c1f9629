"""One file of a run is altered at a time: what is read is the same, or an error says so."""

import hashlib
import random
import warnings
from pathlib import Path

import jax
import numpy as np

from attacks.tally import Tally
from bqnes_jax.errors import BQNESError
from bqnes_jax.runs import Run
from bqnes_jax.studies import robustness
from tests.alterations import Choices, altered_bytes
from tests.loaders import ARCH, a_run

FILES = 2_000


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
        [*run.record],
        run._shared(),
        [*entries],
        store.variables(ARCH, 0),
        robustness.read_study(run),
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


def outcome(folder: Path, expected: str) -> tuple[str, str]:
    """Read the run; return what came of it, and a note if that is a bug."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            same = read_everything(folder) == expected
        except BQNESError:
            return "survived", ""
        except Exception as error:
            return "lost", f"{type(error).__name__}: {error}"[:200]
    told = same or any("Damaged" in warning.category.__name__ for warning in said)
    return ("survived", "") if told else ("silent", "")


def attack(tally: Tally, scratch: Path) -> None:
    """Alter each file in turn, read the run, and put the file back."""
    a_run(scratch)
    expected = read_everything(scratch)
    files = sorted(path for path in scratch.rglob("*") if path.is_file())
    draws = random.Random(tally.tried("altered"))
    while tally.tried("altered") < FILES:
        for path in files:
            content = path.read_bytes()
            other = alter(draws, content)
            if other == content:
                continue
            path.write_bytes(other)
            found, note = outcome(scratch, expected)
            path.write_bytes(content)
            name = path.name if path.suffix != ".bqe" else "store/entries/…"
            tally.add("altered", name, note, tried=1, **{found: 1})
        tally.write()
