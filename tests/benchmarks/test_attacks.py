"""What the attacks of `benchmarks/reliability.py` count: what is lost or silent is seen as such."""

import importlib
import shutil
import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from bqnes_jax.errors import BQNESError
from bqnes_jax.types import Status

pytestmark = pytest.mark.parametrize("precision", ["float32"], indirect=True)

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def attacks(monkeypatch):
    """Return a function that imports a module of the attacks."""
    monkeypatch.syspath_prepend(FOLDER)
    yield lambda name: importlib.import_module(f"attacks.{name}")
    for name in [name for name in sys.modules if name.partition(".")[0] == "attacks"]:
        del sys.modules[name]


def test_a_tally_goes_on_where_it_was_stopped(attacks, tmp_path):
    kind = attacks("tally").Tally
    tally = kind(tmp_path / "t.json")
    tally.add("kills", "run", tried=2, survived=1, lost=1, note="gone")
    tally.write()
    tally = kind(tmp_path / "t.json")
    tally.add("kills", "run", tried=1, survived=1)
    assert tally.tried("kills") == tally.tried("kills", "run") == 3
    assert tally.tried("kills", "predict") == tally.tried("calls") == 0
    assert "| run | 3 | 2 | 1 | 0 |" in tally.as_markdown() and "gone" in tally.as_markdown()


def refuse(_):
    raise BQNESError("no")


@pytest.mark.parametrize(
    ("call", "given", "expected"),
    [
        (jnp.log, 1.0, "survived"),
        (jnp.log, -1.0, "silent"),
        (jnp.log, np.nan, "survived"),  # what goes in comes out
        (lambda x: {"status": jnp.int32(Status.EMPTY), "x": jnp.log(x)}, -1.0, "survived"),
        (refuse, -1.0, "survived"),
        (lambda x: 1 // 0, 1.0, "lost"),
    ],
)
def test_calls_are_judged(attacks, call, given, expected):
    calls = attacks("calls")
    found, note = calls.outcome(calls.Form(call, None), (jnp.asarray(given),))
    assert found == expected and bool(note) == (expected != "survived")


def test_every_public_function_is_called(attacks, monkeypatch):
    functions = attacks("functions")
    assert functions.left_out() == []
    monkeypatch.setattr(functions, "OF_CALIBRATION", {})
    assert "bqnes_jax.calibration.calibrate" in functions.left_out()


def test_functions_are_called_without_rows(attacks):
    calls = attacks("calls")
    form = calls.with_rows(calls.Form(jnp.sum, lambda key: (jnp.ones((8, 2)),)), 0)
    assert form.make(None)[0].shape == (0, 2) and calls.outcome(form, form.make(None))[1] == ""


def test_altered_files_are_judged(attacks, tmp_path):
    altered = attacks("altered")
    contents = iter(["same", "another", BQNESError("no"), ValueError("crash")])

    def read(_):
        one = next(contents)
        if isinstance(one, Exception):
            raise one
        return one

    found = [altered.outcome(read, tmp_path, "same")[0] for _ in range(4)]
    assert found == ["survived", "silent", "survived", "lost"]


def test_altered_checkpoints_are_judged(attacks, tmp_path, monkeypatch):
    altered = attacks("altered")
    altered.write_checkpoints(tmp_path)
    assert altered.outcome(altered.read_checkpoints, tmp_path, "2") == ("survived", "")
    shutil.rmtree(tmp_path / "checkpoints" / "2")  # nothing says that it was there
    assert altered.outcome(altered.read_checkpoints, tmp_path, "2")[0] == "silent"
    monkeypatch.setattr("bqnes_jax.training.checkpoints.is_noted", lambda *_: True)
    monkeypatch.setattr(altered, "state_at", lambda _: altered.State(np.int32(1), {}))
    assert altered.outcome(altered.read_checkpoints, tmp_path, "1")[0] != "silent"
