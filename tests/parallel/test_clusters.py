"""What a flag may say about workers, and what it may not."""

import pytest

from bqnes_jax.errors import BQNESError
from bqnes_jax.parallel import open_cluster
from bqnes_jax.parallel.devices import host_memory

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
