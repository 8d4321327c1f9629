"""Records of arrivals with right digests, in which anything may stand."""

import hashlib
import json
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from bqnes_jax.elastic import Asked
from bqnes_jax.errors import BQNESError
from bqnes_jax.runs.journal import Journal
from tests.helpers import farm
from tests.parallel.test_workers import search

pytestmark = pytest.mark.parametrize("precision", ["float32"], indirect=True)


@pytest.fixture
def family(tmp_path):
    (tmp_path / "tries").mkdir()
    return farm.watched(tmp_path / "tries")


def write_journal(path, contents):
    """Write events as a journal has them, with digests that are right."""
    digest, log = "", b""
    for content in contents:
        text = json.dumps(content, separators=(",", ":"))
        digest = hashlib.sha256(f"{digest} {text}".encode()).hexdigest()[:16]
        log += f"\n{digest} {text}".encode()
    path.write_bytes(log)


def read_contents(path):
    return [json.loads(line.partition(" ")[2]) for line in path.read_text().splitlines()[1:]]


def rooms_in(path):
    events = Journal(path, farm.SPACE).events
    return [event.room for event in events if isinstance(event, Asked)]


@pytest.mark.slow
def test_room_for_many_takes_no_memory(family, tmp_path):
    log = tmp_path / "run" / "arrivals.log"
    with ThreadPoolExecutor(2) as threads:
        run = search(family, tmp_path / "run", executor=threads, workers=2)
    contents = read_contents(log)
    for content in contents[1:]:
        content.update({"room": 10**12} if "asked" in content else {})
    write_journal(log, contents)
    assert max(rooms_in(log)) == 10**12
    again = search(family, tmp_path / "again", replay=tmp_path / "run")
    np.testing.assert_array_equal(again.record.archs, run.record.archs)


@pytest.mark.slow
def test_more_workers_than_candidates_take_no_room(family, tmp_path):
    with ThreadPoolExecutor(2) as threads:
        search(family, tmp_path / "run", executor=threads, workers=10**9)
    assert set(rooms_in(tmp_path / "run" / "arrivals.log")) == {7}


def test_room_for_fewer_than_are_waited_for(tmp_path):
    three = {"asked": [[0, 1], [2, 3], [4, 5]], "scores": ["0x0p+0"] * 3, "room": 0}
    one = {"asked": [[1, 1]], "scores": ["0x0p+0"], "room": 2}
    write_journal(tmp_path / "log", [three, one])
    with pytest.raises(BQNESError, match="more candidates are waited for than there is room"):
        Journal(tmp_path / "log", farm.SPACE)
