"""Schedulers of Dask that exist already: they die, workers join late, and tasks are sent around."""

import json
import logging
import os
import subprocess
import sys
import threading
import time

import dask
import distributed
import pytest

from bqnes_jax.errors import BQNESError
from bqnes_jax.parallel import Calls, OnDask, open_cluster
from bqnes_jax.storage import Store
from tests.helpers import farm
from tests.parallel.test_workers import ended, pids_of, search

pytestmark = [
    pytest.mark.parametrize("precision", ["float32"], indirect=True),
    pytest.mark.slow,
]


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "tries"
    path.mkdir()
    return path


def launch(*arguments):
    return subprocess.Popen(
        [sys.executable, "-m", "distributed.cli." + arguments[0], *arguments[1:]],
        env={**os.environ, "PYTHONPATH": os.getcwd()},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


@pytest.fixture
def scheduler(tmp_path):
    """Yield the file of a scheduler of its own, and a function that starts a worker."""
    file, processes = tmp_path / "scheduler.json", []
    common = ["--scheduler-file", str(file), "--no-dashboard"]
    processes.append(launch("dask_scheduler", "--host", "127.0.0.1", "--port", "0", *common))
    for _ in range(600):
        if file.exists():
            break
        time.sleep(0.1)

    def join():
        local = ["--local-directory", str(tmp_path)]
        processes.append(launch("dask_worker", "--nthreads", "1", *local, *common))

    yield file, join, processes[0]
    for process in processes:
        process.terminate()
    for process in processes:
        process.wait(20)


@pytest.fixture
def records():
    """Return what Dask's client writes into its log meanwhile."""
    found, logger = [], logging.getLogger("distributed.client")
    handler = logging.Handler()
    handler.emit = found.append
    level = logger.level
    logger.setLevel(logging.WARNING)  # as Dask sets it
    logger.addHandler(handler)
    yield found
    logger.removeHandler(handler)
    logger.setLevel(level)


def address_of(file):
    return json.loads(file.read_text())["address"]


@pytest.mark.filterwarnings("ignore:.*has no workers yet")
def test_a_worker_that_joins_late_takes_part(scheduler, folder, tmp_path):
    file, join, _ = scheduler
    join()
    family = farm.watched(folder, seconds=0.5)

    def later():
        while len(farm.tries_in(folder)) < 2:
            time.sleep(0.05)
        join()

    thread = threading.Thread(target=later, daemon=True)
    thread.start()
    with open_cluster(address_of(file)) as (executor, workers):
        run = search(family, tmp_path / "run", budget=24, executor=executor, workers=workers)
        assert workers() == 2
    tries = farm.tries_in(folder)
    assert len(pids_of(tries)) == 2 and len(tries) == 24 == len(run.record.archs)


@pytest.mark.filterwarnings("ignore:.*has no workers yet")
def test_a_scheduler_that_dies_ends_the_search_in_a_sentence(scheduler, folder, tmp_path, records):
    file, join, process = scheduler
    join()
    family = farm.watched(folder, seconds=0.3)

    def kill():
        while len(farm.tries_in(folder)) < 4:
            time.sleep(0.05)
        process.kill()

    threading.Thread(target=kill, daemon=True).start()
    with (
        open_cluster(address_of(file)) as (executor, workers),
        pytest.raises(BQNESError, match=r"the workers are gone.*give the same command"),
    ):
        search(family, tmp_path / "run", executor=executor, workers=workers)
    assert not records, "nothing but the sentence"
    store = Store.open(tmp_path / "run" / "store")
    assert not store.find_damaged() and 2 <= len(store.keys()) <= 4
    before = len(store.keys())
    run = search(family, tmp_path / "run")
    assert len(run.record.archs) == 8
    assert len(farm.tries_in(folder)) == 8 and before < 8


def test_nobody_answers():
    with (
        pytest.raises(BQNESError, match="no scheduler answers"),
        open_cluster("tcp://127.0.0.1:9"),
    ):
        pass
    with pytest.raises(BQNESError, match="it must be a number of processes"), open_cluster("four"):
        pass


def test_a_scheduler_that_tries_more_often_is_not_let(folder):
    """By default Dask itself sends a task to four workers."""
    options = {"dashboard": False, "dashboard_address": "127.0.0.1:0"}
    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 3}),
        distributed.LocalCluster(
            1, threads_per_worker=1, scheduler_kwargs=options, silence_logs=logging.CRITICAL
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        calls = Calls(OnDask(client), farm.note_and_die, 1)
        calls.start(0, str(folder))
        ((number, result),) = ended(calls)
    assert number == 0 and "3 workers that had begun it were lost" in result.reason
    assert len(list(folder.iterdir())) == 3
