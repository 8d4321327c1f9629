"""Commands that end at any of their writes: what is there is whole, and can be done again."""

import contextlib
import json
import os
import shutil

import numpy as np
import pytest

from bqnes_jax.cli import main
from bqnes_jax.cli.compare import write_tables
from bqnes_jax.errors import BQNESError
from bqnes_jax.storage import Entry, Store
from bqnes_jax.studies.rows import Row
from tests.cli.test_cli import TASK
from tests.helpers.loaders import ARCH, MANIFEST, a_store, log_probs

pytestmark = pytest.mark.parametrize("precision", ["float32"], indirect=True)


class Killed(BaseException):
    """What no part of a program expects."""


def ended_at(monkeypatch, number, name="replace"):
    """Let the process end, as far as it can tell, at one of its calls to the system."""
    calls, call = [], getattr(os, name)

    def end(*arguments, **options):
        calls.append(arguments)
        if len(calls) == number:
            raise Killed
        return call(*arguments, **options)

    monkeypatch.setattr(os, name, end)


def content(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "report.html"}


@pytest.fixture(scope="module")
def combined(tmp_path_factory):
    folder = tmp_path_factory.mktemp("combined")
    draw = np.random.default_rng(0)
    said = draw.dirichlet(np.ones(3), (4, 40))
    np.savez(folder / "models.npz", valid=said, valid_labels=draw.integers(0, 3, 40))
    given = ["combine", str(folder / "models.npz"), "--size", "2", "--method", "caruana"]
    assert main([*given, "--calibrate", "off", "--out", str(folder / "out")]) == 0
    return [*given, "--calibrate", "off"], folder / "out"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["replace", "fsync"])
@pytest.mark.parametrize("number", [1, 2])
def test_combine_that_is_killed_is_done_again(number, name, combined, tmp_path, monkeypatch):
    given, whole = combined
    with monkeypatch.context() as patch:
        ended_at(patch, number, name)
        with pytest.raises(Killed):
            main([*given, "--out", str(tmp_path / "out")])
    there = content(tmp_path / "out") if (tmp_path / "out").is_dir() else {}
    assert there.items() <= content(whole).items(), "what is there is whole"
    assert main([*given, "--out", str(tmp_path / "out")]) == 0
    assert content(tmp_path / "out") == content(whole)


# What trains: what is typed, and what comes out of it.
TRAINING = {
    "tabulate": (
        "tabulate --config task.json --count 4 --best 0 --store store --table table.npz",
        "table.npz",
    ),
    "compare --live": (
        "compare --live --config task.json --algorithms Random BQ-S --sizes 2 --seeds 1 "
        "--initial 4 --budget 8 --batch 2 --fit.kernel-steps 0 --out compared",
        "compared/comparison.csv",
    ),
}


def result(path):
    """Return what a table holds, whatever else is in its file."""
    if path.suffix == ".csv":
        return path.read_text()
    with np.load(path) as file:
        return {name: file[name].tolist() for name in file}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    (folder / "task.json").write_text(json.dumps(TASK))
    with contextlib.chdir(folder):
        for typed, _ in TRAINING.values():
            assert main(typed.split()) == 0
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("number", [1, 5])
@pytest.mark.parametrize("name", TRAINING)
def test_a_command_that_trains_is_killed_and_done_again(
    name, number, undisturbed, tmp_path, monkeypatch
):
    """Killed twice: at its first or a later write, and at once when it goes on."""
    typed, made = TRAINING[name]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "task.json").write_text(json.dumps(TASK))
    for moment in (number, 1):
        with monkeypatch.context() as patch:
            ended_at(patch, moment)
            with pytest.raises(Killed):
                main(typed.split())
        assert not (tmp_path / made).exists()
    assert main(typed.split()) == 0
    assert result(tmp_path / made) == result(undisturbed / made)


@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_tables_of_a_comparison_are_whole_or_old(number, tmp_path, monkeypatch):
    old, new = ([Row("Random", 3, *(np.array([value, value + 0.1]),) * 3)] for value in (0.5, 0.7))
    write_tables(old, tmp_path / "old")
    write_tables(new, tmp_path / "new")
    shutil.copytree(tmp_path / "old", tmp_path / "out")
    ended_at(monkeypatch, number)
    with pytest.raises(Killed):
        write_tables(new, tmp_path / "out")
    before, after = content(tmp_path / "old"), content(tmp_path / "new")
    for name, found in content(tmp_path / "out").items():
        assert found in (before[name], after[name])
    write_tables(new, tmp_path / "out")
    assert content(tmp_path / "out") == after


def test_a_store_that_vanishes_is_one_sentence(tmp_path):
    store = a_store(tmp_path / "store")
    shutil.rmtree(tmp_path / "store")
    said = log_probs(7, 3)
    entry = Entry("a", 0, "ok", said[:4], said[4:])
    for use in (
        lambda: store.put(entry),
        lambda: store.keys(),
        lambda: store.predictions([ARCH], 0),
        lambda: Store.open(tmp_path / "store"),
    ):
        with pytest.raises(BQNESError):
            use()
    assert store.get(ARCH, 0) is None and store.find_missing([ARCH], [0])
    again = Store.open(tmp_path / "store", MANIFEST)
    again.put(entry)
    assert store.get("a", 0) is not None


@pytest.mark.parametrize("number", [13, 30])  # no permission, and a disk that is read only
def test_a_store_that_cannot_be_written_is_one_sentence(number, tmp_path, monkeypatch):
    """To root no mode of a directory means anything: here the system refuses to open a file."""
    store = a_store(tmp_path / "store")
    whole = store.get(ARCH, 0)

    def refuse(*_, **__):
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", refuse)
        with pytest.raises(BQNESError, match=r"cannot be written .* choose a directory that can"):
            store.put(whole._replace(train_loss=1.0))
    np.testing.assert_array_equal(store.get(ARCH, 0).valid_log_probs, whole.valid_log_probs)
    assert not list((tmp_path / "store").rglob("*.tmp"))
    read_only = Store.open(tmp_path / "store")
    assert read_only.keys() == store.keys()
