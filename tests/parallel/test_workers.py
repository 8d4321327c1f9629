"""Search on executors of several kinds; workers, schedulers and drivers die."""

import concurrent.futures
import itertools
import multiprocessing
import os
import signal
import threading
import time

import numpy as np
import pytest

import bqnes_jax
from bqnes_jax.elastic import Arrived, Asked
from bqnes_jax.errors import BQNESError
from bqnes_jax.parallel import Calls, Lost, OnDask, OnRay, OnSubmitit, open_cluster
from bqnes_jax.runs.journal import Journal
from bqnes_jax.runs.tasks import open_team
from bqnes_jax.runs.workbench import open_workbench
from bqnes_jax.surrogates import FitConfig
from tests.helpers import farm

pytestmark = pytest.mark.parametrize("precision", ["float32"], indirect=True)

FIELDS = {
    "initial": 3,
    "budget": 8,
    "ensemble_size": 2,
    "batch": 1,
    "fit": FitConfig(kernel_steps=0),
}


def search(family, out, **options):
    return bqnes_jax.search(family=family, data=farm.data(), out=out, **{**FIELDS, **options})


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "tries"
    path.mkdir()
    return path


@pytest.fixture
def threads():
    with concurrent.futures.ThreadPoolExecutor(4) as executor:
        yield executor


@pytest.fixture(scope="module")
def cluster():
    """Return two processes of Dask's; those that are killed start again."""
    with open_cluster("2") as opened:
        yield opened


def is_same(one, other):
    for name, value in one.record._asdict().items():
        np.testing.assert_array_equal(value, getattr(other.record, name), err_msg=name)


def pids_of(tries):
    return set(itertools.chain.from_iterable(tries.values()))


def order_of(out):
    events = Journal(out / "arrivals.log", farm.SPACE).events
    return [event.number for event in events if isinstance(event, Arrived)]


def test_one_worker_is_the_sequential_search(folder, threads, tmp_path):
    family = farm.watched(folder)
    alone = search(family, tmp_path / "alone")
    worker = search(family, tmp_path / "worker", executor=threads, workers=1)
    is_same(alone, worker)
    assert order_of(tmp_path / "worker") == list(range(8))
    assert not (tmp_path / "alone" / "arrivals.log").exists()
    assert not (tmp_path / "worker" / "task.pickle").exists()
    assert all(len(tries) == 2 for tries in farm.tries_in(folder).values())


@pytest.mark.slow
def test_processes_and_the_same_order_again(folder, tmp_path):
    family, context = farm.watched(folder, seconds=0.05), multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(2, context) as executor:
        run = search(family, tmp_path / "run", executor=executor, workers=2)
    tries = farm.tries_in(folder)
    assert os.getpid() not in pids_of(tries) and len(pids_of(tries)) == 2
    assert len(tries) == 8 and all(len(own) == 1 for own in tries.values())
    again = search(family, tmp_path / "again", replay=tmp_path / "run")
    is_same(run, again)
    assert order_of(tmp_path / "again") == order_of(tmp_path / "run")
    assert all(len(own) == 2 for own in farm.tries_in(folder).values()), "it was trained again"
    np.testing.assert_array_equal(
        run.ensemble().predict(farm.examples()[0]), again.ensemble().predict(farm.examples()[0])
    )
    with pytest.raises(BQNESError, match=r"which has search\.initial = 3, not 4"):
        search(family, tmp_path / "other", replay=tmp_path / "run", initial=4)
    with pytest.raises(BQNESError, match=r"which has no arrivals\.log"):
        search(family, tmp_path / "other", replay=tmp_path)
    log = tmp_path / "run" / "arrivals.log"
    log.write_bytes(log.read_bytes()[:-1])
    with pytest.raises(BQNESError, match=r"lost its end: 7 of 8 candidates arrive in it; give the"):
        search(family, tmp_path / "other", replay=tmp_path / "run")


def test_a_search_grows_and_changes_its_workers(folder, threads, tmp_path):
    """Begun in turn, then on workers, then in turn again: nothing is trained twice."""
    family, out = farm.watched(folder), tmp_path / "run"
    first = search(family, out, budget=5)
    second = search(family, out, budget=8, executor=threads, workers=3)
    third = search(family, out, budget=9)
    np.testing.assert_array_equal(second.record.archs[:5], first.record.archs)
    np.testing.assert_array_equal(third.record.archs[:8], second.record.archs)
    assert len(third.record.archs) == 9
    assert all(len(tries) == 1 for tries in farm.tries_in(folder).values())


def test_errors_of_the_work_end_the_search(folder, threads, tmp_path):
    everything = {(a, b) for a in range(6) for b in range(6)}
    family = farm.watched(folder, wrong=everything)
    with pytest.raises(BQNESError, match=r"training a=.* raised ValueError: no such network"):
        search(family, tmp_path / "wrong", executor=threads, workers=2)
    assert not (tmp_path / "wrong" / "task.pickle").exists()
    for options, message in {
        ("executor",): "workers is None, but executor is given",
        ("workers",): "workers is 2, but executor is None",
    }.items():
        given = {"executor": threads, "workers": 2}
        with pytest.raises(BQNESError, match=message):
            search(family, tmp_path / "bad", **{name: given[name] for name in options})
    lock = threading.Lock()
    locked = farm.from_functions(farm.SPACE, lambda *_: lock, farm.predict, jit=False)
    with pytest.raises(BQNESError, match="cannot be sent to workers"):
        search(locked, tmp_path / "lock", executor=threads, workers=2)


def test_memory_that_does_not_suffice_is_tried_three_times(folder, threads, tmp_path):
    greedy = {(a, b) for a in range(6) for b in range(3)}
    run = search(farm.watched(folder, greedy=greedy), tmp_path / "run", executor=threads, workers=3)
    tries = farm.tries_in(folder)
    assert {len(own) for arch, own in tries.items() if arch in greedy} == {3}
    assert {len(own) for arch, own in tries.items() if arch not in greedy} == {1}
    failed = np.isnan(run.record.log_likelihoods)
    assert failed.tolist() == [tuple(arch) in greedy for arch in run.record.archs.tolist()]


@pytest.mark.parametrize("instead", [None, os.mkfifo, os.mkdir])
def test_workers_without_the_file_system(instead, folder, threads, tmp_path):
    """What they do not find is sent to them; what is no file they do not wait for."""
    family = farm.watched(folder)
    given = {"family": family, "data": farm.data(), "seed": 0, "directory": tmp_path}
    with open_team(threads, 2, **given) as team:
        (tmp_path / "task.pickle").unlink()
        if instead is not None:
            instead(tmp_path / "task.pickle")
        archs = np.array([[0, 1], [2, 3], [4, 5]], np.int32)
        ended = dict(itertools.chain.from_iterable(team.train(archs)))
    assert sorted(ended) == [0, 1, 2]
    assert all(one.valid_log_probs.shape == (20, 2) for one in ended.values())


def test_what_two_searches_ask_for_is_trained_once(folder, threads, tmp_path):
    family, arch = farm.watched(folder, seconds=0.1), np.array([2, 3], np.int32)
    given = {"family": family, "data": farm.data(), "seed": 0, "directory": tmp_path}
    with open_team(threads, 2, **given) as team:
        crew = open_workbench(family, farm.data(), tmp_path, team=team).crew()
        for number in range(3):
            crew.start(number, arch)
        found = {}
        while len(found) < 3:
            found |= dict(crew.collect(wait=True))
    assert {len(tries) for tries in farm.tries_in(folder).values()} == {1}
    assert len({float(one.log_likelihoods[0]) for one in found.values()}) == 1


def test_a_journal_is_read_without_trust(folder, threads, tmp_path):
    family, out = farm.watched(folder), tmp_path / "run"
    search(family, out, executor=threads, workers=2)
    path = out / "arrivals.log"
    whole = path.read_bytes()
    events = Journal(path, farm.SPACE).events
    path.write_bytes(whole[:-3])
    cut = Journal(path, farm.SPACE)
    assert len(cut.events) == len(events) - 1, "the last line was not finished"
    cut.note(events[-1])
    assert len(Journal(path, farm.SPACE).events) == len(events)
    for place in range(1, len(whole), 37):
        altered = bytearray(whole)
        altered[place] ^= 4
        path.write_bytes(altered)
        try:
            found = Journal(path, farm.SPACE).events
        except BQNESError as error:
            assert "has been altered" in str(error) and "give the command" in str(error)
        else:
            assert [str(event) for event in found] == [str(event) for event in events[: len(found)]]
    path.write_bytes(whole)
    with pytest.raises(BQNESError, match="its numbers are out of range"):
        Journal(path, bqnes_jax.spaces.Product(a=(0, 1), b=(0, 1)))


def test_arrivals_are_on_the_disk_with_what_follows(tmp_path, monkeypatch):
    """One wait for the disk for each candidate, and one at the end."""
    sizes, path = [], tmp_path / "arrivals.log"
    monkeypatch.setattr("os.fsync", lambda handle: sizes.append(os.fstat(handle).st_size))
    journal = Journal(path, farm.SPACE)
    ends = []
    for event in [asked(0, 1), Arrived(1), asked(2), Arrived(0), Arrived(2)]:
        journal.note(event)
        ends.append(path.stat().st_size)
    assert sizes == [ends[0], ends[2], ends[4]]
    Journal(path, farm.SPACE).note(asked(3))
    assert sizes[3:] == [path.stat().st_size]


def asked(*numbers):
    return Asked(np.array([[0, n] for n in numbers], np.int32), np.zeros(len(numbers)), 1)


@pytest.mark.slow
def test_a_killed_worker_costs_its_own_evaluation(cluster, folder, tmp_path):
    family, killed = farm.watched(folder, seconds=0.5), []

    def kill():
        while not killed:
            tries = farm.tries_in(folder)
            if len(tries) >= 4:
                killed.append(list(tries.items())[-1])
                os.kill(killed[0][1][-1], signal.SIGKILL)
            time.sleep(0.02)

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    run = search(family, tmp_path / "run", executor=cluster.executor, workers=cluster.workers)
    killer.join(5)
    ((arch, (dead,)),) = killed
    tries = farm.tries_in(folder)
    assert len(tries[arch]) == 2 and tries[arch][1] != dead
    assert sum(map(len, tries.values())) == 9, "nothing else was trained again"
    assert not np.isnan(run.record.log_likelihoods).any()


@pytest.mark.slow
def test_what_kills_every_worker_has_failed(cluster, folder, tmp_path):
    deadly = {(a, b) for a in range(2) for b in range(6)}
    family = farm.watched(folder, deadly=deadly)
    executor = cluster.executor._client.get_executor()  # as a user would: of calls it remembers
    run = search(family, tmp_path / "run", executor=executor, workers=cluster.workers)
    failed = np.isnan(run.record.log_likelihoods)
    of_deadly = [tuple(arch) in deadly for arch in run.record.archs.tolist()]
    assert failed.tolist() == of_deadly and 0 < failed.sum() < 8
    tries = farm.tries_in(folder)
    assert {len(own) for arch, own in tries.items() if arch in deadly} == {3}
    again = search(family, tmp_path / "run")
    is_same(run, again)
    assert farm.tries_in(folder) == tries, "what failed is not tried again"


def ended(calls):
    """Return what calls come to, if they come to an end."""
    found, until = [], time.monotonic() + 100
    while not found and time.monotonic() < until:
        found = calls.collect(wait=True)
    return found


def wait_for(condition):
    until = time.monotonic() + 100
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)


@pytest.mark.slow
def test_a_result_that_is_lost_on_its_way_is_made_again(cluster, folder):
    """Dask makes it again itself; its own executor never ends if a worker dies of that."""
    calls = Calls(cluster.executor._client.get_executor(), farm.lose, 1)
    calls.start(0, str(folder))
    ((number, result),) = ended(calls)
    assert number == 0 and isinstance(result, Lost)
    assert len(list(folder.iterdir())) == 3


@pytest.mark.slow
def test_who_waits_for_a_worker_that_dies_is_not_blamed(cluster, folder):
    client = cluster.executor._client
    client.wait_for_workers(1, timeout=100)  # another test may have killed them
    executor = OnDask(client, workers=[next(iter(client.nthreads()))])
    first = executor.submit(farm.die_when_told, str(folder))
    wait_for((folder / "begun").exists)
    second = executor.submit(time.sleep, 0.0)
    wait_for(lambda: sum(map(len, client.processing().values())) == 2)
    (folder / "die").touch()
    begun = [future.exception(timeout=60).begun for future in (first, second)]
    assert begun == [1, 0]


class Deaths(concurrent.futures.Executor):
    """An executor of workers that die, after a call has begun a number of times."""

    def __init__(self, begun):
        self._begun, self.submitted = begun, 0

    def submit(self, fn, /, *args, **kwargs):
        error, future = OSError("gone"), concurrent.futures.Future()
        error.begun = self._begun
        future.set_exception(error)
        self.submitted += 1
        return future


@pytest.mark.parametrize(("begun", "submitted"), [(0, 10), (1, 3), (2, 2), (4, 1)])
def test_only_what_has_begun_counts(begun, submitted, monkeypatch):
    monkeypatch.setattr("bqnes_jax.parallel.executors._PATIENCE", 0.0)
    executor = Deaths(begun)
    calls = Calls(executor, print, 1)
    calls.start(7)
    assert ended(calls) == [(7, Lost("gone"))]
    assert executor.submitted == submitted


@pytest.mark.slow
def test_a_broken_pool_ends_the_search_in_a_sentence(folder, tmp_path):
    """Python's own pool does not survive the death of a process."""
    family = farm.watched(folder, deadly={(a, b) for a in range(6) for b in range(6)})
    context = multiprocessing.get_context("spawn")
    with (
        concurrent.futures.ProcessPoolExecutor(2, context) as executor,
        pytest.raises(BQNESError, match=r"the workers are gone.*BrokenProcessPool"),
    ):
        search(family, tmp_path / "run", executor=executor, workers=2)


@pytest.mark.slow
def test_jobs_of_submitit(folder, tmp_path):
    submitit = pytest.importorskip("submitit")
    local = submitit.LocalExecutor(tmp_path / "jobs")
    local.update_parameters(timeout_min=5)
    family = farm.watched(folder)
    executor = OnSubmitit(local, poll=0.1)
    run = search(family, tmp_path / "run", budget=5, executor=executor, workers=2)
    executor.shutdown()
    tries = farm.tries_in(folder)
    assert len(tries) == 5 == len(pids_of(tries)), "a process for each"
    assert not np.isnan(run.record.log_likelihoods).any()
    deadly = {tuple(run.record.archs[order_of(tmp_path / "run").index(0)].tolist())}
    other = search(
        farm.watched(folder, deadly=deadly),
        tmp_path / "deadly",
        budget=4,
        executor=executor,
        workers=2,
    )
    failed = {tuple(a) for a in other.record.archs[np.isnan(other.record.log_likelihoods)].tolist()}
    assert failed == deadly and len(farm.tries_in(folder)[next(iter(deadly))]) == 4


@pytest.mark.slow
def test_tasks_of_ray(folder, tmp_path):
    ray = pytest.importorskip("ray", reason="Ray is not installed (extra ray)")
    ray.init(num_cpus=2, include_dashboard=False)
    workers = {"executor": OnRay(num_cpus=1), "workers": 2}
    try:
        run = search(farm.watched(folder), tmp_path / "run", **workers)
        deadly = {tuple(run.record.archs[order_of(tmp_path / "run").index(0)].tolist())}
        family = farm.watched(folder, deadly=deadly)
        other = search(family, tmp_path / "deadly", budget=4, **workers)
    finally:
        ray.shutdown()
    assert not np.isnan(run.record.log_likelihoods).any()
    failed = {tuple(a) for a in other.record.archs[np.isnan(other.record.log_likelihoods)].tolist()}
    assert failed == deadly and len(farm.tries_in(folder)[next(iter(deadly))]) == 4
