"""An object store that fails at any request: one sentence, and the run goes on from there."""

import threading
import uuid
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from bqnes_jax.errors import BQNESError
from bqnes_jax.files import remote
from tests.helpers import farm
from tests.parallel.test_workers import search

pytest.importorskip("fsspec", reason="fsspec is not installed (extra s3)")
pytestmark = [
    pytest.mark.parametrize("precision", ["float32"], indirect=True),
    pytest.mark.slow,
]

KINDS = {
    "one is refused": (1, False),
    "all are, from one on": (10**6, False),
    "what it answers is lost": (1, True),
}
MOMENTS = 6  # of each kind


class Failing:
    """A file system some of whose requests fail; those of other threads renew a lock."""

    def __init__(self, system):
        self._system = system
        self.count, self.failing, self.done = 0, range(0), False

    def __getattr__(self, name):
        method = getattr(self._system, name)
        if name.startswith("_"):
            return method

        def request(*arguments, **options):
            if threading.current_thread() is not threading.main_thread():
                return method(*arguments, **options)
            fails = self.count in self.failing
            self.count += 1
            if fails and not self.done:
                raise ConnectionResetError(name)
            answer = method(*arguments, **options)
            if fails:
                raise TimeoutError(name)
            return answer

        return request


@pytest.fixture
def failing(monkeypatch):
    system = Failing(remote._system_of("memory"))
    monkeypatch.setattr(remote, "_system_of", lambda scheme: system)
    monkeypatch.setattr(remote, "_LEASE", 0.5)
    return system


@pytest.mark.parametrize("kind", KINDS)
def test_a_store_that_fails_at_any_request(kind, failing, tmp_path):
    family, place = farm.watched(tmp_path), f"memory://runs/{uuid.uuid4().hex}"
    length, failing.done = KINDS[kind]
    with ThreadPoolExecutor(1) as executor:
        options = {"executor": executor, "workers": 1}
        whole = search(family, f"{place}/whole", **options)
        requests, refused = failing.count, 0
        for moment in np.random.default_rng(length).choice(requests, MOMENTS, replace=False):
            failing.count, failing.failing = 0, range(moment, moment + length)
            try:
                search(family, f"{place}/{moment}", **options)
            except BQNESError as error:
                assert "cannot be reached" in str(error)
                refused += 1
            failing.failing = range(0)
            threading.Event().wait(1)  # a lock that could not be let go ends by itself
            again = search(family, f"{place}/{moment}", **options)
            for name, value in whole.record._asdict().items():
                np.testing.assert_array_equal(getattr(again.record, name), value, err_msg=name)
    assert refused > 0
