"""A run that is disturbed: what it says, and that it ends with the same result when it goes on."""

import contextlib
import errno
import multiprocessing
import os
import stat
import time
from pathlib import Path

import jax
import numpy as np
import pytest

import bqnes_jax
from bqnes_jax.cli import main
from bqnes_jax.data import from_arrays
from bqnes_jax.errors import BQNESError
from bqnes_jax.families import cells, from_functions
from bqnes_jax.files import hold_lock
from bqnes_jax.runs import Run, preset_config
from bqnes_jax.runs.fields import replace_fields
from bqnes_jax.spaces import Product
from bqnes_jax.storage import DamagedEntryWarning
from bqnes_jax.surrogates import FitConfig
from tests.cli.test_cli import SMALL

pytestmark = pytest.mark.parametrize("precision", ["float32"], indirect=True)

KILLS = 20
CONFIG = replace_fields(preset_config("tiny"), SMALL)


def content(directory, family=None, budget=8):
    """Return what a run has found and selected, as bytes and numbers that can be compared."""
    run = Run.load(directory, family=family)
    ensemble = run.saved_ensemble()
    assert len(run.store.keys()) == budget
    return [*run.record, ensemble.members, ensemble.weights, np.array(ensemble.metrics)]


def same(one, other, **options):
    for a, b in zip(content(one, **options), content(other, **options), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    directory = tmp_path_factory.mktemp("failures") / "undisturbed"
    bqnes_jax.search(CONFIG, out=directory)
    return directory


@pytest.fixture
def counted(monkeypatch):
    """Return a list of the architectures that are trained from now on."""
    trained, make = [], cells.population_trainer

    def counting(*arguments, **options):
        train = make(*arguments, **options)

        def count(key, archs):
            trained.extend(map(tuple, archs.tolist()))
            yield from train(key, archs)

        return count

    monkeypatch.setattr(cells, "population_trainer", counting)
    return trained


def entries(directory):
    folder = directory / "store" / "entries"
    return len(list(folder.glob("*.bqe"))) if folder.is_dir() else 0


def train_means(key, choices, data):
    """Average the inputs of each class; it takes a moment, in which a process can be killed."""
    time.sleep(0.1)
    inputs, labels = data.train
    means = np.stack([inputs[labels == label].mean(axis=0) for label in range(data.classes)])
    return {"means": means * (1 - choices["shrinkage"])}


def predict_means(variables, choices, inputs):
    distances = ((inputs[:, None] - variables["means"]) ** 2).sum(axis=2)
    logits = -choices["sharpness"] * distances
    return logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)


def search_alone(directory):
    """Do a run of 12 candidates whose training needs no program, so that a process is short."""
    space = Product(sharpness=(0.1, 0.3, 1.0, 3.0), shrinkage=(0.0, 0.2, 0.5, 0.8))
    labels = np.arange(90) % 3
    inputs = np.random.default_rng(0).normal(size=(90, 4)) + np.eye(3, 4)[labels]
    family = from_functions(space, train_means, predict_means, jit=False)
    search = {"initial": 4, "budget": 12, "batch": 2, "fit": FitConfig(kernel_steps=0)}
    bqnes_jax.search(family=family, data=from_arrays(inputs, labels), out=directory, **search)
    return family


def search_without_keeping(directory):
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 1e9)  # no half of a program
    search_alone(directory)


@pytest.mark.slow
def test_twenty_kills_change_nothing(tmp_path):
    family = search_alone(tmp_path / "undisturbed")
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(["bqnes_jax.runs"])
    directory, random, killed = tmp_path / "run", np.random.default_rng(0), 0
    for i in range(KILLS):
        process = processes.Process(target=search_without_keeping, args=(directory,))
        process.start()
        # A little after one more entry was stored than the kill before has seen; the last ones
        # in the middle of what comes after the training.
        goal = min(12, 1 + i * 12 // KILLS)
        while process.is_alive() and entries(directory) < goal:
            time.sleep(0.005)
        process.join(random.uniform(0, 0.3))
        killed += process.is_alive()
        process.kill()
        process.join()
    assert killed >= KILLS - 2
    process = processes.Process(target=search_without_keeping, args=(directory,))
    process.start()
    process.join()
    assert process.exitcode == 0
    same(directory, tmp_path / "undisturbed", family=family, budget=12)


@pytest.mark.slow
def test_a_full_disk_loses_nothing(undisturbed, tmp_path, monkeypatch, counted):
    writes, fsync = [], os.fsync

    def full(file):
        writes.append(file)
        if len(writes) == 12:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(file)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(BQNESError, match=r"No space left on device.*intact: free some space"):
            bqnes_jax.search(CONFIG, out=tmp_path / "run")
    there = entries(tmp_path / "run")
    assert 0 < there < 8
    assert not list((tmp_path / "run").rglob("*.tmp"))
    counted.clear()
    bqnes_jax.search(CONFIG, out=tmp_path / "run")
    assert len(counted) == 8 - there
    same(tmp_path / "run", undisturbed)


class Killed(BaseException):
    """What no part of a program expects."""


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["csv", "npy"])
def test_predictions_are_written_whole_or_not_at_all(undisturbed, ending, tmp_path, monkeypatch):
    """On a full disk or killed before the end, the file before stays; a new one has its mode."""
    images, out = tmp_path / "x.npy", tmp_path / f"said.{ending}"
    np.save(images, np.arange(48, dtype=np.uint8).reshape(3, 4, 4, 1) * 5)
    command = ["predict", str(undisturbed), "--input", str(images), "--out", str(out)]
    assert main(command) == 0
    whole = out.read_bytes()
    out.write_bytes(b"the one before")
    out.chmod(0o640)

    def fail(error):
        def call(*_):
            raise error

        return call

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))))
        assert main(command) == 1
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", fail(Killed()))
        with pytest.raises(Killed):
            main(command)
    assert out.read_bytes() == b"the one before"
    assert sorted(path.name for path in tmp_path.iterdir()) == [out.name, "x.npy"]
    assert main(command) == 0
    assert out.read_bytes() == whole and stat.S_IMODE(out.stat().st_mode) == 0o640


def test_a_directory_that_cannot_be_written_is_refused_before_training(tmp_path, counted):
    (tmp_path / "file").write_text("")
    read_only = tmp_path / "read-only"
    read_only.mkdir(mode=0o500)
    places = [tmp_path / "file" / "run"]
    if os.geteuid() != 0:  # to root no mode of a directory means anything
        places.append(read_only / "run")
    elif os.path.ismount("/sys"):  # where even root can make none
        places.append(Path("/sys/run"))
    for place in places:
        with pytest.raises(BQNESError, match=r"cannot be written .*choose a directory that can be"):
            bqnes_jax.search(CONFIG, out=place)
    assert not counted


def test_flipped_bits_are_trained_again(undisturbed, tmp_path, counted):
    bqnes_jax.search(CONFIG, out=tmp_path / "run")
    paths = sorted((tmp_path / "run" / "store" / "entries").iterdir())
    counted.clear()
    for path, place in zip(paths[:2], (20, -5), strict=True):  # a header, and variables
        altered = bytearray(path.read_bytes())
        altered[place] ^= 4
        path.write_bytes(altered)
    with pytest.warns(DamagedEntryWarning, match="has been altered"):
        bqnes_jax.search(CONFIG, out=tmp_path / "run")
    assert len(counted) == 2
    same(tmp_path / "run", undisturbed)


@pytest.mark.slow
def test_images_that_are_cut_short_are_refused_and_the_run_stays(tmp_path, counted):
    random = np.random.default_rng(0)
    path, out = tmp_path / "images.npz", tmp_path / "run"
    np.savez(path, x=random.integers(0, 255, (150, 4, 4, 1), np.uint8), y=np.arange(150) % 10)
    config = replace_fields(CONFIG, {"data": str(path)})
    bqnes_jax.search(config, out=out)
    before, whole = content(out), path.read_bytes()
    counted.clear()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(BQNESError, match=r"images\.npz"):
        bqnes_jax.search(config, out=out)
    path.write_bytes(whole)
    bqnes_jax.search(config, out=out)
    assert not counted
    for a, b in zip(content(out), before, strict=True):
        np.testing.assert_array_equal(a, b)


def failing(monkeypatch, fails):
    """Let the training of some architectures end with NaN."""
    make = cells.population_trainer

    def with_failures(*arguments, **options):
        train = make(*arguments, **options)

        def spoil(key, archs):
            done = 0
            for trained, seconds in train(key, archs):
                count = len(trained.failed)
                bad = np.array([fails(arch) for arch in archs[done : done + count]])
                done += count
                nan = np.where(bad, np.nan, 0).astype(np.float32)
                yield (
                    trained._replace(
                        failed=bad,
                        valid_loss=trained.valid_loss + nan,
                        valid_log_probs=trained.valid_log_probs + nan[:, None, None],
                        test_log_probs=trained.test_log_probs + nan[:, None, None],
                    ),
                    seconds,
                )

        return spoil

    monkeypatch.setattr(cells, "population_trainer", with_failures)


def test_members_that_never_train_are_left_out(tmp_path, monkeypatch):
    failing(monkeypatch, lambda arch: arch[0] < 2)
    run = bqnes_jax.search(CONFIG, out=tmp_path / "run")
    failed = np.isnan(run.record.log_likelihoods)
    assert 0 < failed.sum() < 8
    assert not failed[run.ensemble().members].any()
    assert np.isfinite(run.ensemble().metrics).all()


def test_when_every_member_has_nan_losses_one_sentence_says_so(tmp_path, monkeypatch):
    failing(monkeypatch, lambda arch: True)
    with pytest.raises(BQNESError, match=r"every training failed.*lower train\.learning_rate"):
        bqnes_jax.search(CONFIG, out=tmp_path / "run")
    assert entries(tmp_path / "run") == 8


def test_two_runs_in_one_directory_are_refused(tmp_path, capsys, counted):
    out = tmp_path / "run"
    out.mkdir()
    with hold_lock(out / "lock", "run"):
        with pytest.raises(BQNESError, match="is at work in another process; wait for it"):
            bqnes_jax.search(CONFIG, out=out)
        assert main(["run", "--out", str(out)]) == 1
        assert "is at work in another process" in capsys.readouterr().err
    assert not counted


def test_a_clock_that_jumps_changes_nothing(undisturbed, tmp_path, monkeypatch):
    now, jumps = time.time(), iter(np.random.default_rng(0).uniform(-1e9, 1e9, 10**6))
    monkeypatch.setattr(time, "time", lambda: now + next(jumps))
    with contextlib.suppress(KeyboardInterrupt):
        bqnes_jax.search(CONFIG, out=tmp_path / "run", progress=interrupt)
    assert 0 < entries(tmp_path / "run") < 8
    bqnes_jax.search(CONFIG, out=tmp_path / "run")
    same(tmp_path / "run", undisturbed)


def interrupt(done, total, what):
    if done > 4:
        raise KeyboardInterrupt
