"""Archives that are made to do harm are refused in one sentence: soon, and in little memory."""

import contextlib
import io
import signal
import tracemalloc

import pytest

from bqnes_jax import nats_bench
from bqnes_jax.data import archives
from bqnes_jax.errors import BQNESError
from bqnes_jax.files import tars, unpickling
from tests.helpers import hostile, loaders

pytestmark = pytest.mark.parametrize("precision", ["float32"], indirect=True)

SECONDS = 20  # of an alarm; the slowest takes a few


@contextlib.contextmanager
def soon():
    """End a test that hangs, which a signal can only do while Python still hears it."""

    def ring(*_):
        raise TimeoutError(f"nothing after {SECONDS} seconds")

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def as_nats_bench(content, folder):
    return loaders.KINDS["NATS-Bench"].make(folder).load(content)


def as_images(content, folder):
    return loaders.KINDS["pickled images"].make(folder).load(content)


@pytest.fixture(autouse=True)
def few(monkeypatch):
    """Have small budgets, so that little exhausts them."""
    monkeypatch.setattr(unpickling, "_OPCODES", 10_000)
    monkeypatch.setattr(unpickling, "_CONTAINERS", 8_000)
    monkeypatch.setattr(tars, "_MEMBERS", 500)


@pytest.mark.parametrize("read", [as_nats_bench, as_images])
@pytest.mark.parametrize("name", hostile.PICKLES)
def test_pickles_that_do_harm_are_refused(name, read, tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with soon(), pytest.raises(BQNESError) as error:
        read(hostile.PICKLES[name](), tmp_path)
    assert len(str(error.value)) < 600
    assert not isinstance(error.value.__cause__, MemoryError | TimeoutError)
    assert not list((tmp_path / "here").iterdir()), "something was run"


OF_TENSORS = "axes are not 8|larger than its|nested more than|than 200 op|8,000 cont|unknown type"


@pytest.mark.parametrize("name", hostile.TENSORS)
def test_tensors_that_do_harm_are_refused(name, tmp_path):
    opcodes = b"\x80\x04}X\x03\x00\x00\x00200" + hostile.TENSORS[name]() + b"s."
    with soon(), pytest.raises(BQNESError):
        as_nats_bench(opcodes, tmp_path)
    with soon(), pytest.raises(Exception, match=OF_TENSORS):
        nats_bench.unpickle(io.BytesIO(opcodes))["200"].array()


def test_a_few_bytes_of_lists_take_little_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(unpickling, "_CONTAINERS", 1000)
    loader = loaders.KINDS["NATS-Bench"].make(tmp_path)
    loader.path.write_bytes(hostile.as_bz2(b"]" * (50 * hostile.MIB)))
    assert loader.path.stat().st_size < 2000
    tracemalloc.start()
    try:
        with pytest.raises(BQNESError, match="more than 1,000 containers"):
            loader.read()
        assert tracemalloc.get_traced_memory()[1] < 10e6
    finally:
        tracemalloc.stop()


def test_what_is_published_needs_a_small_part_of_the_budgets(monkeypatch):
    """Read what the tests have of the published forms with budgets that are far smaller."""
    monkeypatch.setattr(unpickling, "_OPCODES", 1 << 10)
    monkeypatch.setattr(unpickling, "_CONTAINERS", 1 << 8)
    nats_bench.unpickle(io.BytesIO(loaders.nats_file()))


@pytest.mark.parametrize("name", hostile.TARS)
def test_tars_that_do_harm_are_refused(name, tmp_path):
    """A compressed one of images, and a plain one of NATS-Bench."""
    tar = hostile.TARS[name]()
    images, results = tmp_path / "cifar-10-python.tar.gz", tmp_path / "NATS.tar"
    images.write_bytes(hostile.as_gzip(tar))
    results.write_bytes(tar + bytes(5 * hostile.MIB))
    tracemalloc.start()
    try:
        with soon(), pytest.raises(BQNESError) as error:
            archives.read_published("cifar10", images, verify=False)
        assert not isinstance(error.value.__cause__, MemoryError | TimeoutError)
        with soon(), pytest.raises(BQNESError) as error, nats_bench.open_archive(results):
            pass
        assert not isinstance(error.value.__cause__, MemoryError | TimeoutError)
        assert tracemalloc.get_traced_memory()[1] < 20e6
    finally:
        tracemalloc.stop()


def test_an_archive_that_never_ends_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(archives, "_TAR_LIMIT", 10 * hostile.MIB)
    path = tmp_path / "cifar-10-python.tar.gz"
    path.write_bytes(hostile.as_gzip(hostile.header("readme", 500 * hostile.MIB)))
    with pytest.raises(BQNESError, match="has more than 10,485,760 bytes"):
        archives.read_published("cifar10", path, verify=False)
