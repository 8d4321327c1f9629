"""FIFOs, devices and links where files are expected; modes, locks, and what is left over."""

import errno
import fcntl
import os
import signal
import stat
import sys
import time
import types
import warnings
from pathlib import Path

import numpy as np
import pytest

from bqnes_jax.data.splits import SplitIndices, write_split
from bqnes_jax.errors import BQNESError
from bqnes_jax.files import hold_lock, open_file, read_small, sweep, write_whole
from bqnes_jax.files.arrays import read_npy
from bqnes_jax.storage import DamagedEntryWarning, Key, Store
from tests.helpers.loaders import ARCH, KINDS, MANIFEST, a_store

pytestmark = pytest.mark.parametrize("precision", ["float32"], indirect=True)

ODD = {
    "FIFO": lambda path, copy: os.mkfifo(path),
    "folder": lambda path, copy: path.mkdir(),
    "link to a device": lambda path, copy: path.symlink_to("/dev/zero"),
    "link to a terminal": lambda path, copy: path.symlink_to("/dev/tty"),
    "link to itself": lambda path, copy: path.symlink_to(path.name),
    "link to nothing": lambda path, copy: path.symlink_to("nothing"),
    "link to a file": lambda path, copy: path.symlink_to(copy),
}
# What a run or a store keeps; links to files that people name are followed.
OWN = ("run", "store/")


@pytest.fixture(autouse=True)
def alarm():
    """End a test that waits for what never comes."""

    def ring(*_):
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(30)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("name", KINDS)
def test_what_is_no_file_is_refused_at_once(name, odd, tmp_path):
    (tmp_path / "files").mkdir()
    loader = KINDS[name].make(tmp_path / "files")
    copy = tmp_path / "copy"
    copy.write_bytes(loader.pack(loader.content))
    loader.path.unlink(missing_ok=True)
    ODD[odd](loader.path, copy)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DamagedEntryWarning)
        if odd == "link to a file" and not name.startswith(OWN):
            loader.read()
        elif name == "run/robustness.json":  # what cannot be read was not measured
            assert loader.read() is None
        else:
            with pytest.raises(BQNESError) as error:
                loader.read()
            assert not isinstance(error.value.__cause__, TimeoutError | MemoryError)


def test_reading_ends_at_the_limit_whatever_the_size_is_said_to_be(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"a" * 100)
    assert read_small(path, limit=100) == b"a" * 100
    path.write_bytes(b"a" * 101)
    with pytest.raises(ValueError, match="it has 101 bytes, more than 100"):
        read_small(path, limit=100)
    if os.path.isfile("/proc/self/maps"):  # of no size, and long
        with pytest.raises(ValueError, match="more than 100 bytes"):
            read_small(Path("/proc/self/maps"), limit=100)


def test_a_store_behind_a_link_is_a_store(tmp_path):
    a_store(tmp_path / "store")
    (tmp_path / "link").symlink_to("store")
    store = Store.open(tmp_path / "link", MANIFEST)
    assert store.get(ARCH, 0) is not None and not store.find_damaged()
    (tmp_path / "entries").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "entries").symlink_to(tmp_path / "entries")
    store = Store.open(tmp_path / "other", MANIFEST)
    store.put(a_store(tmp_path / "store")._whole(Key("failed", 0)) or pytest.fail())
    assert len(list((tmp_path / "entries").iterdir())) == 1


def test_an_entry_that_is_a_link_is_missing_and_what_it_points_to_stays(tmp_path):
    store = a_store(tmp_path / "store")
    entry = store._whole(Key(ARCH, 0))
    path, elsewhere = store._path(entry.key), tmp_path / "elsewhere"
    path.rename(elsewhere)
    path.symlink_to(elsewhere)
    before = elsewhere.read_bytes()
    with pytest.warns(DamagedEntryWarning):
        assert store.get(ARCH, 0) is None
    store.put(entry._replace(train_loss=1.0))
    assert store.get(ARCH, 0).train_loss == 1.0 and not path.is_symlink()
    assert elsewhere.read_bytes() == before


@pytest.mark.parametrize("odd", ["FIFO", "folder", "link to a device", "link to a file"])
def test_a_lock_never_touches_what_it_points_to(odd, tmp_path):
    precious = tmp_path / "precious"
    precious.write_bytes(b"years of work")
    ODD[odd](tmp_path / "lock", precious)
    with pytest.raises(BQNESError, match="cannot be written"), hold_lock(tmp_path / "lock", "run"):
        pass
    assert precious.read_bytes() == b"years of work"


def test_a_lock_truncates_nothing(tmp_path):
    precious = tmp_path / "precious"
    precious.write_bytes(b"years of work")
    os.link(precious, tmp_path / "lock")
    refused = pytest.raises(BQNESError, match="at work in another")
    with hold_lock(tmp_path / "lock", "run"), refused, hold_lock(tmp_path / "lock", "run"):
        pass
    with hold_lock(tmp_path / "lock", "run"):
        pass
    assert precious.read_bytes() == b"years of work"


def windows(monkeypatch, refuses=None):
    """Stand in for Windows' locks: one byte, refused with EACCES while another holds it."""

    def locking(handle, mode, count):
        assert (mode, count) == (msvcrt.LK_NBLCK, 1)
        try:
            if refuses:
                raise OSError(refuses, os.strerror(refuses))
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise PermissionError(errno.EACCES, "Permission denied") from None

    msvcrt = types.SimpleNamespace(LK_NBLCK=2, locking=locking)
    monkeypatch.setitem(sys.modules, "msvcrt", msvcrt)
    monkeypatch.setattr(sys, "platform", "win32")


def test_a_lock_on_windows(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        windows(patch)
        refused = pytest.raises(BQNESError, match="at work in another")
        with hold_lock(tmp_path / "lock", "run"), refused, hold_lock(tmp_path / "lock", "run"):
            pass
        with hold_lock(tmp_path / "lock", "run"):
            pass
    with monkeypatch.context() as patch:
        windows(patch, refuses=errno.EINVAL)
        with (
            pytest.warns(UserWarning, match="cannot be locked"),
            hold_lock(tmp_path / "lock", "run"),
        ):
            pass


@pytest.mark.parametrize("mode", [0o600, 0o644, 0o664, 0o400])
def test_a_file_keeps_its_mode(mode, tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    path.chmod(mode)
    write_whole(path, b"new")
    assert stat.S_IMODE(path.stat().st_mode) == mode and path.read_bytes() == b"new"


def test_a_link_is_replaced_and_not_what_it_points_to(tmp_path):
    (tmp_path / "precious").write_bytes(b"years of work")
    (tmp_path / "link").symlink_to("precious")
    write_whole(tmp_path / "link", b"new")
    assert (tmp_path / "precious").read_bytes() == b"years of work"
    assert (tmp_path / "link").read_bytes() == b"new"


def test_a_split_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "split.json"
    places = SplitIndices(np.arange(2), np.arange(2, 4), np.arange(4, 5), "train")
    write_split(path, places)
    before = path.read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(BQNESError, match="No space left on device"):
        write_split(path, places._replace(train=np.arange(1)))
    assert path.read_bytes() == before and os.listdir(tmp_path) == ["split.json"]


def test_who_holds_the_lock_sweeps_what_killed_writers_left(tmp_path):
    """Even when the clock was set back since; a file of a user's own and a young one stay."""
    now = time.time()
    ages = {"old": now - 120, "young": now, "future": now + 10**6}
    for name, when in ages.items():
        path = tmp_path / f"{name}-{16 * 'a'}.tmp"
        path.write_bytes(b"half")
        os.utime(path, (when, when))
    (tmp_path / "notes.tmp").write_bytes(b"my own")
    os.utime(tmp_path / "notes.tmp", (0, 0))
    with hold_lock(tmp_path / "lock", "run"):
        there = sorted(os.listdir(tmp_path))
    assert there == ["lock", "notes.tmp", f"young-{16 * 'a'}.tmp"]
    sweep(tmp_path, age=-1.0)
    assert sorted(os.listdir(tmp_path)) == ["lock", "notes.tmp"]


def test_what_is_opened_is_a_file(tmp_path):
    with pytest.raises(OSError, match="not a regular file"):
        open_file(tmp_path)


def test_a_file_that_is_a_hole_is_refused(tmp_path):
    """Its header would have memory taken for what the disk does not hold."""
    with (tmp_path / "hole.npy").open("wb") as file:
        np.lib.format.write_array_header_1_0(
            file, {"descr": "<f4", "fortran_order": False, "shape": (1 << 30,)}
        )
        file.truncate(file.tell() + 4 * (1 << 30))
    if (tmp_path / "hole.npy").stat().st_blocks > 1 << 16:
        pytest.skip("this file system keeps no holes")
    with pytest.raises(OSError, match="nearly all of it is a hole"):
        read_npy(tmp_path / "hole.npy")
    with (tmp_path / "small.bin").open("wb") as file:
        file.truncate(1 << 20)
    open_file(tmp_path / "small.bin").close()
