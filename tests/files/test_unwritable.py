"""Directories that cannot be written, or vanish: one sentence, and nothing is lost."""

import contextlib
import json
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import bqnes_jax
from bqnes_jax.cli.compare import write_tables
from bqnes_jax.data import from_arrays
from bqnes_jax.errors import BQNESError
from bqnes_jax.families import from_functions
from bqnes_jax.runs import Run
from bqnes_jax.spaces import Product
from bqnes_jax.studies.rows import Row
from bqnes_jax.training.checkpoints import Checkpoints
from tests.helpers.commands import call
from tests.storage.test_kills import TASK, TRAINING
from tests.storage.test_leftovers import state_at

pytestmark = pytest.mark.parametrize("precision", ["float32"], indirect=True)

SENTENCE = r"cannot be written \(.*\); what was stored before is intact: choose a directory"


def train(key, choices, data):
    return {"scale": np.array(choices["scale"])}


def predict(variables, choices, inputs):
    said = inputs * variables["scale"]
    return said - np.log(np.exp(said).sum(axis=1, keepdims=True))


FAMILY = from_functions(Product(scale=(0.5, 1.0, 2.0, 4.0)), train, predict, jit=False)
NAMED = ("--family", "tests.files.test_unwritable:FAMILY")
BUDGET = 4


def search(out, progress=None):
    draw = np.random.default_rng(0)
    inputs, labels = draw.normal(size=(60, 3)).astype(np.float32), np.arange(60) % 3
    return bqnes_jax.search(
        family=FAMILY,
        data=from_arrays(inputs, labels),
        algorithm="evolution+beam",
        initial=2,
        batch=1,
        budget=BUDGET,
        ensemble_size=2,
        calibrate="off",
        out=out,
        progress=progress,
    )


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run that nobody writes to."""
    folder = tmp_path_factory.mktemp("finished")
    search(folder / "run")
    return folder / "run"


@pytest.fixture
def lock_up():
    """Return a function that makes a folder unwritable until the test ends, or the next call.

    To root no mode of a directory means anything, but that it is immutable does.
    """
    opened = contextlib.ExitStack()

    def lock(folder):
        if os.geteuid() != 0:
            folder.chmod(0o500)
            opened.callback(folder.chmod, 0o700)
        elif shutil.which("chattr") and not subprocess.call(["chattr", "+i", folder]):
            opened.callback(subprocess.run, ["chattr", "-i", folder], check=True)
        try:
            (folder / "probe").write_bytes(b"")
        except OSError:
            return opened.close
        pytest.skip("this file system lets everything be written")

    with opened:
        yield lock


def content(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def refused(folder, *arguments):
    """Give a command that ends in one sentence about writing."""
    code, _, err = call(folder, *arguments)
    (said,) = [line for line in err.splitlines() if line.startswith("error: ")]
    assert code == 1 and "Traceback" not in err and "unexpected" not in err
    assert "cannot be written (" in said and "choose a directory that can be written" in said


@pytest.fixture
def combined(tmp_path):
    """A file of predictions, and the command that combines them."""
    draw = np.random.default_rng(0)
    said = draw.dirichlet(np.ones(3), (4, 40))
    np.savez(tmp_path / "models.npz", valid=said, valid_labels=draw.integers(0, 3, 40))
    given = ["--size", "2", "--method", "caruana", "--calibrate", "off"]
    return ["combine", tmp_path / "models.npz", *given]


@pytest.mark.slow
def test_commands_whose_results_cannot_be_written(finished, combined, lock_up, tmp_path, no_files):
    run, out = tmp_path / "run", tmp_path / "out"
    shutil.copytree(finished, run)
    out.mkdir()
    np.save(tmp_path / "x.npy", np.ones((2, 3), np.float32))
    commands = [
        ("predict", run, "--input", tmp_path / "x.npy", "--out", out / "said.csv", *NAMED),
        ("predict", run, "--input", tmp_path / "x.npy", "--out", tmp_path / "no/said.npy", *NAMED),
        ("report", run, *NAMED),
        ("reselect", run, "--method", "top", "--save", *NAMED),
        (*combined, "--out", out / "combined"),
        (*combined, "--out", tmp_path / "x.npy" / "combined"),
    ]
    before = Run.load(run, family=FAMILY).saved_ensemble()
    lock_up(run)
    unlock = lock_up(out)
    for command in commands:
        refused(Path.cwd(), *command)
    after = Run.load(run, family=FAMILY).saved_ensemble()
    assert (after.method, after.texts) == (before.method, before.texts) and not content(out)
    unlock()
    for command in (commands[0], commands[3]):
        assert call(Path.cwd(), *command)[0] == 0
    assert Run.load(run, family=FAMILY).saved_ensemble().method == "top"


def test_tables_that_cannot_be_written(lock_up, tmp_path):
    rows = [Row("Random", 3, *(np.array([0.5, 0.6]),) * 3)]
    write_tables(rows, tmp_path / "out")
    before = content(tmp_path / "out")
    unlock = lock_up(tmp_path / "out")
    with pytest.raises(BQNESError, match=SENTENCE):
        write_tables([rows[0]._replace(size=5)], tmp_path / "out")
    with pytest.raises(BQNESError, match=SENTENCE):
        write_tables(rows, tmp_path / "out" / "deeper")
    assert content(tmp_path / "out") == before
    unlock()
    shutil.rmtree(tmp_path / "out")
    write_tables(rows, tmp_path / "out")
    assert content(tmp_path / "out") == before


@pytest.mark.slow
def test_a_table_that_cannot_be_written_leaves_what_was_trained(lock_up, tmp_path):
    typed, made = TRAINING["tabulate"]
    (tmp_path / "task.json").write_text(json.dumps(TASK))
    (tmp_path / "locked").mkdir()
    unlock = lock_up(tmp_path / "locked")
    command = [*typed.split()[:-1], tmp_path / "locked" / made]
    refused(tmp_path, *command)
    entries = content(tmp_path / "store")
    assert len([path for path in entries if path.suffix == ".bqe"]) == 4
    unlock()
    assert call(tmp_path, *command)[0] == 0
    assert content(tmp_path / "store") == entries, "nothing is trained again"


def test_checkpoints_that_cannot_be_written_between_saves(lock_up, tmp_path, capfd, caplog):
    folder = tmp_path / "checkpoints"
    with Checkpoints(folder) as checkpoints:
        checkpoints.save(state_at(1))
        unlock = lock_up(folder)
        with pytest.raises(BQNESError, match=SENTENCE):
            checkpoints.save(state_at(2))
    with Checkpoints(folder) as checkpoints:
        assert int(checkpoints.latest(state_at(0)).step) == 1
    unlock()
    with Checkpoints(folder) as checkpoints:
        checkpoints.save(state_at(2))
        assert int(checkpoints.latest(state_at(0)).step) == 2
    assert "Traceback" not in capfd.readouterr().err + caplog.text


def test_checkpoints_that_vanish_between_saves(tmp_path, capfd, caplog):
    folder = tmp_path / "checkpoints"
    with Checkpoints(folder) as checkpoints:
        checkpoints.save(state_at(1))
        shutil.rmtree(folder)
        with pytest.raises(BQNESError, match=SENTENCE):
            checkpoints.save(state_at(2))
    with Checkpoints(folder) as checkpoints:
        assert int(checkpoints.latest(state_at(0)).step) == 0
        checkpoints.save(state_at(1))
    assert "Traceback" not in capfd.readouterr().err + caplog.text


@pytest.mark.slow
@pytest.mark.parametrize("moment", range(1, BUDGET + 1))
def test_a_run_that_vanishes_while_it_trains(moment, finished, tmp_path):
    """Whenever that is, a sentence says so, and the same call begins anew."""

    def vanish(done, total, what):
        if done == moment:
            shutil.rmtree(tmp_path / "run", ignore_errors=True)

    with pytest.raises(BQNESError) as error:
        search(tmp_path / "run", vanish)
    assert len(str(error.value).splitlines()) == 1
    run, whole = search(tmp_path / "run"), Run.load(finished, family=FAMILY)
    for ours, theirs in zip(run.record, whole.record, strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("place", ["", "store", "store/entries"])
def test_a_run_that_cannot_be_written_any_more(place, finished, tmp_path, lock_up):
    unlock = []

    def lock(done, total, what):
        if done == 2 and not unlock:
            unlock.append(lock_up(tmp_path / "run" / place))

    with contextlib.ExitStack() as stack:
        if place != "store":  # where nothing more is written
            stack.enter_context(pytest.raises(BQNESError, match=SENTENCE))
        search(tmp_path / "run", lock)
    unlock[0]()
    run, whole = search(tmp_path / "run"), Run.load(finished, family=FAMILY)
    for ours, theirs in zip(run.record, whole.record, strict=True):
        np.testing.assert_array_equal(ours, theirs)
