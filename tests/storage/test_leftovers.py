"""What killed processes leave behind is removed by the next one, and nothing else is."""

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from bqnes_jax.cli.compare import write_tables
from bqnes_jax.data import prepare
from bqnes_jax.data.prepared import _scratch
from bqnes_jax.data.splits import SplitIndices, write_split
from bqnes_jax.errors import BQNESError
from bqnes_jax.files import write_bound, write_whole
from bqnes_jax.storage import Entry
from bqnes_jax.studies.rows import Row
from bqnes_jax.training.checkpoints import Checkpoints
from tests.helpers.loaders import a_store, log_probs
from tests.helpers.pictures import images

pytestmark = pytest.mark.parametrize("precision", ["float32"], indirect=True)

LETTERS = 16 * "a"


def left(path, age=120.0):
    """Leave what a killed writer of a file leaves, so many seconds ago."""
    name = path.with_name(f"{path.stem[:40]}-{LETTERS}.tmp")
    name.write_bytes(b"half")
    os.utime(name, (time.time() - age,) * 2)
    return name


PLACES = SplitIndices(np.arange(2), np.arange(2, 4), np.arange(4, 5), "train")
WRITERS = {
    "said.csv": lambda path: write_whole(path, b"new"),
    "[ab] *?.csv": lambda path: write_whole(path, b"new"),
    f"{60 * 'long'}.npy": lambda path: write_whole(path, b"new"),
    "ensemble.json": lambda path: write_bound(path, b"new"),
    "split.json": lambda path: write_split(path, PLACES),
    "comparison.csv": lambda path: write_tables([Row("A", 3, *(np.ones(2),) * 3)], path.parent),
}


@pytest.mark.parametrize("name", WRITERS)
def test_a_writer_removes_what_killed_ones_of_the_same_file_left(name, tmp_path):
    others = ("a", "b", "sai", "said-more", "x-comparison", "ensembl", "spli")
    stay = [left(tmp_path / other) for other in others]
    path = tmp_path / name
    gone = left(path)
    WRITERS[name](path)
    assert path.is_file() and not gone.exists() and all(other.exists() for other in stay)
    young = left(path, age=0.0)  # of one that may be at work
    WRITERS[name](path)
    assert young.exists()


def test_a_store_is_not_listed_for_each_entry(tmp_path, monkeypatch):
    store = a_store(tmp_path / "store")
    said = log_probs(7, 3)
    for name in ("scandir", "listdir"):
        monkeypatch.setattr(os, name, lambda *_: pytest.fail("listed"))
    store.put(Entry("a", 0, "ok", said[:4], said[4:]))


def spoil_types(folder):
    (folder / "_CHECKPOINT_METADATA").write_text('{"item_handlers": 3}')


def empty(folder):
    shutil.rmtree(folder)
    folder.mkdir()


def leave_the_end(folder):
    empty(folder)
    (folder / "commit_success.txt").touch()


def test_a_description_with_an_unknown_name_is_put_aside(tmp_path):
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(state_at(1))
        checkpoints.save(state_at(2))
    description = tmp_path / "2" / "_CHECKPOINT_METADATA"
    text = description.read_text().replace("commit_time", "comiit_time")
    description.write_text(text.replace('"custom_metadata": {}', '"custom_metadata": {"a": 1}'))
    with pytest.warns(UserWarning, match="2 is damaged"):
        checkpoints = Checkpoints(tmp_path)
    with checkpoints:
        assert int(checkpoints.latest(state_at(0)).step) == 1


@pytest.mark.parametrize(
    "spoil", [empty, leave_the_end, spoil_types, lambda folder: shutil.rmtree(folder / "default")]
)
def test_a_spoilt_checkpoint_does_not_take_the_one_before_along(spoil, tmp_path):
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(state_at(1))
        checkpoints.save(state_at(2))
    spoil(tmp_path / "2")
    with pytest.warns(UserWarning, match=r"2 is damaged .* goes on from step 1"):
        checkpoints = Checkpoints(tmp_path)
    with checkpoints:
        assert int(checkpoints.latest(state_at(0)).step) == 1
        checkpoints.save(state_at(3))
    with Checkpoints(tmp_path) as checkpoints:
        assert int(checkpoints.latest(state_at(0)).step) == 3


def test_a_checkpoint_under_the_name_of_another_step_is_damaged(tmp_path):
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(state_at(2))
    shutil.copytree(tmp_path / "2", tmp_path / "5")
    with Checkpoints(tmp_path) as checkpoints:
        with pytest.warns(UserWarning, match=r"5 is damaged \(it is of step 2\)"):
            assert int(checkpoints.latest(state_at(0)).step) == 2
        checkpoints.save(state_at(3))  # which Orbax would leave out below step 5
    assert (tmp_path / "3").is_dir()


@pytest.fixture
def own(tmp_path):
    np.savez(tmp_path / "own.npz", x=images(12, 4).inputs, y=images(12, 4).labels)
    return tmp_path / "own.npz"


def test_preparing_data_removes_what_a_killed_one_left(own, tmp_path):
    data = tmp_path / "data"
    (data / ".prepare-killed" / "own" / "1.0.0").mkdir(parents=True)
    (data / "mine").mkdir()
    prepare("own", own, data)
    assert sorted(os.listdir(data)) == [".prepare.lock", "mine", "own"]


def test_who_prepares_waits_for_another_and_leaves_its_folder_alone(own, tmp_path):
    data, begun, go_on = tmp_path / "data", threading.Event(), threading.Event()
    data.mkdir()

    def first():
        with _scratch(data) as scratch:
            begun.set()
            go_on.wait(30)
            assert scratch.is_dir(), "it was removed by another"
            (data / "own" / "1.0.0").mkdir(parents=True)

    thread = threading.Thread(target=first)
    thread.start()
    begun.wait(30)
    threading.Timer(0.3, go_on.set).start()
    refused = pytest.raises(BQNESError, match="is there already; remove it to prepare it again")
    with refused, pytest.warns(UserWarning, match="at work in another process; waiting"):
        prepare("own", own, data)
    thread.join()
    assert not list(data.glob(".prepare-*"))


class State(NamedTuple):
    """A small state of a training."""

    step: np.ndarray
    params: np.ndarray


def state_at(step):
    return State(np.array(step, np.int32), np.arange(5.0, dtype=np.float32) + step)


KILLED = """
import os, signal, sys
from pathlib import Path
from bqnes_jax.training.checkpoints import Checkpoints
from tests.storage.test_leftovers import state_at
with Checkpoints(Path(sys.argv[1])) as checkpoints:
    checkpoints.save(state_at(1))
    os.rename = os.replace = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
    checkpoints.save(state_at(2))
"""


def test_what_orbax_was_saving_when_it_was_killed_is_removed(tmp_path):
    root = Path(__file__).parents[2]
    process = subprocess.run([sys.executable, "-c", KILLED, tmp_path / "checkpoints"], cwd=root)
    assert process.returncode == -signal.SIGKILL
    folder = tmp_path / "checkpoints"
    assert list(folder.glob("2.*")), "nothing was left that could be removed"
    with Checkpoints(folder) as checkpoints:
        assert sorted(path.name for path in folder.iterdir()) == ["1", "SHA256SUMS"]
        state = checkpoints.latest(state_at(0))
        np.testing.assert_array_equal(state.params, state_at(1).params)
        checkpoints.save(state_at(3))
    assert sorted(path.name for path in folder.iterdir()) == ["1", "3", "SHA256SUMS"]


def test_of_damaged_checkpoints_the_last_one_stays(tmp_path):
    folder = tmp_path / "checkpoints"
    for step in (1, 2, 3):
        with Checkpoints(folder) as checkpoints:
            checkpoints.save(state_at(step))
        shutil.rmtree(folder / str(step) / "default")
        with pytest.warns(UserWarning, match="is damaged"), Checkpoints(folder) as checkpoints:
            assert int(checkpoints.latest(state_at(0)).step) == 0
        assert len(list(folder.glob("damaged-*"))) == 1
        assert list(folder.glob(f"damaged-{step}-*"))
