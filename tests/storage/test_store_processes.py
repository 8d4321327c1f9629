"""Processes that write to one store: killed, two at a time, or out of room."""

import dataclasses
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from bqnes_jax.storage import Key, Store
from tests.storage.test_store import MANIFEST, entry, temporary_files

# Nothing here is computed by JAX.
pytestmark = pytest.mark.parametrize("precision", ["float32"], indirect=True)

# Importing takes seconds, so one process imports and forks the writers.
SETUP = """
import os, random, resource, signal, sys, time
from bqnes_jax.errors import BQNESError
from bqnes_jax.storage import Store
from tests.storage.test_store import MANIFEST, entry
from tests.storage.test_store_processes import BIG
directory = sys.argv[1]

def fork(work, *args):
    pid = os.fork()
    if pid == 0:
        try:
            work(*args)
            os._exit(0)
        except BaseException:
            sys.excepthook(*sys.exc_info())
            os._exit(1)
    return pid
"""
BIG = dataclasses.replace(MANIFEST, valid_points=2000, test_points=1000, classes=10)


def run(script, *arguments):
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SETUP + textwrap.dedent(script), *arguments],
        check=True,
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
    ).stdout


def test_killed_writers_lose_at_most_what_they_were_writing(tmp_path):
    """Each writer reports what it has put; whatever was reported must be there, and whole."""
    script = """
    reader, writer = os.pipe()
    def work(round):
        store = Store.open(directory, BIG)
        for i in range(100_000):
            one = entry(f"{round}-{i}", manifest=BIG)
            store.put(one)
            os.write(writer, f"{one.arch}\\n".encode())
    random.seed(0)
    for round in range(20):
        pid = fork(work, round)
        time.sleep(random.uniform(0.0, 0.1))
        os.kill(pid, signal.SIGKILL)
        assert os.waitpid(pid, 0)[1] == signal.SIGKILL
    os.close(writer)
    print(os.fdopen(reader).read())
    """
    reported = set(run(script, str(tmp_path)).split())
    opened = Store.open(tmp_path, BIG)
    assert opened.find_damaged() == {}
    held = {key.arch for key in opened.keys()}  # noqa: SIM118
    assert len(reported) > 20 and reported <= held
    assert len(held - reported) <= 20
    loaded = opened.predictions(sorted(held), 0)
    for arch, row in list(zip(sorted(held), loaded.test_log_probs, strict=True))[::10]:
        expected = entry(arch, manifest=BIG).test_log_probs
        np.testing.assert_allclose(row, expected, rtol=2**-11, atol=2**-25)


def test_two_writers_of_the_same_keys(tmp_path):
    """A reader beside them sees whole entries only."""
    script = """
    def work(number):
        store = Store.open(directory, BIG)
        for i in range(60):
            store.put(entry(str(i % 5), manifest=BIG, train_loss=float(number)))
    pids = [fork(work, number) for number in range(2)]
    import warnings
    warnings.simplefilter("error")
    for i in range(60):
        store = Store.open(directory, BIG)
        for summary in store.summaries():
            assert store.get(*summary.key) is not None
    for pid in pids:
        assert os.waitpid(pid, 0)[1] == 0
    print(len(store.keys()))
    """
    run(script, str(tmp_path))
    opened = Store.open(tmp_path)
    assert [key.arch for key in opened.keys()] == ["0", "1", "2", "3", "4"]  # noqa: SIM118
    assert not opened.find_damaged() and not temporary_files(tmp_path)


def test_a_limit_of_the_system_on_writing_loses_nothing(tmp_path):
    """A real write that stops half-way, as on a full disk."""
    script = """
    store = Store.open(directory, BIG)
    store.put(entry("a", manifest=BIG))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
    try:
        store.put([entry("a", manifest=BIG), entry("b", manifest=BIG)])
    except BQNESError as error:
        print(error)
    """
    assert "what was stored before is intact" in run(script, str(tmp_path))
    opened = Store.open(tmp_path)
    assert opened.keys() == [Key("a", 0)] and not opened.find_damaged()
    assert not temporary_files(tmp_path)
