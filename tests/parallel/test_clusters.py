"""What a flag may say about workers, and what not; processes that are slow or too large."""

import asyncio

import pytest

from bqnes_jax.errors import BQNESError
from bqnes_jax.parallel import Calls, open_cluster
from bqnes_jax.parallel.devices import host_memory
from tests.helpers import farm
from tests.parallel.test_workers import ended

pytest.importorskip("distributed", reason="Dask is not installed (extra cluster)")
pytestmark = pytest.mark.parametrize("precision", ["float32"], indirect=True)

ADDRESSES = [
    *("tcp://127.0.0.1:9", "tcp://", "tcp://[::", "tcp://here:port", "tls://127.0.0.1:9"),
    *("ucx://here:1", "file:///dev/zero", "inproc://", "://", "\x1b[31m://here"),
]


@pytest.mark.parametrize("address", ADDRESSES)
def test_nobody_answers(address, monkeypatch):
    monkeypatch.setattr("bqnes_jax.parallel.clusters._SECONDS", 1)
    with pytest.raises(BQNESError, match="where no scheduler answers"), open_cluster(address):
        pass


@pytest.mark.parametrize("count", ["four", "-1", "", " 2", "1e3", "²", "٣", "9" * 5000])
def test_what_is_no_number_of_processes(count):
    with pytest.raises(BQNESError, match="it must be a number of processes"), open_cluster(count):
        pass


def test_more_processes_than_the_memory_has_room_for():
    count = host_memory() // 2**28 + 1
    message = rf"workers is {count:,}; each would have \d+ MB .* and a process needs 256: use fewer"
    with pytest.raises(BQNESError, match=message), open_cluster(str(count)):
        pass
    with pytest.raises(BQNESError, match="workers is 0; it must be a whole"), open_cluster("0"):
        pass


@pytest.mark.slow
def test_a_process_that_takes_long_to_start_again_is_waited_for(monkeypatch, tmp_path):
    """Dask gives those up that are not there 15 seconds after they died."""
    from distributed import Nanny

    instantiate = Nanny.instantiate

    async def instantiate_late(nanny):
        if nanny.process is not None:
            await asyncio.sleep(17)
        return await instantiate(nanny)

    monkeypatch.setattr(Nanny, "instantiate", instantiate_late)
    with open_cluster("1") as cluster:
        calls = Calls(cluster.executor, farm.die_once, cluster.workers)
        calls.start(0, str(tmp_path))
        assert ended(calls) == [(0, "alive")]


@pytest.mark.slow
def test_a_process_that_has_grown_goes_on(monkeypatch):
    """Dask's begin nothing more from 80 % of their memory on, and are ended at 95 %."""
    monkeypatch.setattr("bqnes_jax.parallel.clusters.host_memory", lambda: 700 * 2**20)
    with open_cluster("1") as cluster:
        calls = Calls(cluster.executor, farm.grow, cluster.workers)
        for number in range(2):
            calls.start(number, 0.87)
            ((_, share),) = ended(calls)
            assert 0.8 < share < 0.95


@pytest.mark.slow
def test_processes_that_cannot_be_started_again_end_the_search_in_a_sentence(monkeypatch):
    from distributed import Nanny

    instantiate = Nanny.instantiate

    async def fail_to_instantiate(nanny):
        if nanny.process is None:
            return await instantiate(nanny)
        await nanny.close()
        raise OSError("no more processes")

    monkeypatch.setattr(Nanny, "instantiate", fail_to_instantiate)
    with open_cluster("1") as cluster:
        calls = Calls(cluster.executor, farm.die, cluster.workers)
        calls.start(0, 0.0)
        with pytest.raises(BQNESError, match=r"the workers are gone.*none .* again.*stored"):
            ended(calls)
