"""Runs and stores in object stores: in memory, and on a server that speaks S3."""

import concurrent.futures
import itertools
import threading
import time
import uuid
from pathlib import Path

import numpy as np
import pytest

import bqnes_jax
from bqnes_jax.elastic import Arrived
from bqnes_jax.errors import BQNESError
from bqnes_jax.files import (
    Remote,
    as_path,
    check_bound,
    hold_lock,
    open_file,
    read_log,
    read_small,
    write_bound,
    write_whole,
)
from bqnes_jax.files.digests import DIGESTS
from bqnes_jax.report import write_report
from bqnes_jax.runs.journal import Journal
from bqnes_jax.runs.run import Run
from bqnes_jax.storage import DamagedEntryWarning, Entry, Manifest, Store, merge
from tests.helpers import farm
from tests.helpers.commands import finish, start
from tests.parallel.test_workers import search

pytest.importorskip("fsspec", reason="fsspec is not installed (extra s3)")
pytestmark = pytest.mark.parametrize("precision", ["float32"], indirect=True)

BUCKET = "runs"


@pytest.fixture(scope="module")
def server():
    """Start a server that speaks S3, and let this process and those that it starts know of it."""
    pytest.importorskip("s3fs", reason="s3fs is not installed (extra s3)")
    moto = pytest.importorskip("moto.server", reason="moto is not installed (extra test)")
    running = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    running.start()
    host, port = running.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {
            "AWS_ENDPOINT_URL": f"http://{host}:{port}",
            "AWS_ACCESS_KEY_ID": "nobody",
            "AWS_SECRET_ACCESS_KEY": "nothing",
            "AWS_DEFAULT_REGION": "us-east-1",
            "NO_PROXY": "127.0.0.1",
        }.items():
            patch.setenv(name, value)
        as_path(f"s3://{BUCKET}")._system.mkdir(BUCKET)
        yield
    running.stop()


@pytest.fixture(params=["memory", "s3"])
def place(request):
    """Return a folder of a store that is empty."""
    if request.param == "s3":
        request.getfixturevalue("server")
    return as_path(f"{request.param}://{BUCKET}/{uuid.uuid4().hex}")


def at_once(function, count=8):
    """Call a function of a number from as many threads, which begin together."""
    meeting = threading.Barrier(count)

    def call(number):
        meeting.wait()
        return function(number)

    with concurrent.futures.ThreadPoolExecutor(count) as executor:
        return list(executor.map(call, range(count)))


def test_paths():
    path = as_path("s3://bucket/a//b/") / "c.npz"
    assert isinstance(path, Remote) and str(path) == "s3://bucket/a/b/c.npz"
    assert (path.name, path.stem, path.suffix) == ("c.npz", "c", ".npz")
    assert path.parent == as_path(Path("s3://bucket/a/b")), "pathlib makes one slash of two"
    assert as_path(path) == path and str(path.with_name("d")) == "s3://bucket/a/b/d"
    assert type(as_path("runs/s3")) is type(as_path(Path("runs"))) is type(Path())
    assert as_path("file:///runs/a") == as_path(Path("file:///runs/a")) == Path("/runs/a")
    assert as_path("C:/runs") == Path("C:/runs"), "a drive"
    for url in ("ftp://x/y", Path("ftp://x/y")):  # the second is what a command makes of the first
        with pytest.raises(BQNESError, match=r"^ftp://x/y is of a kind that is not .*s3://, gs://"):
            as_path(url)
    with pytest.raises(BQNESError, match=r"names no place; write s3://bucket/directory"):
        as_path("s3://")


def test_objects(place):
    path = place / "one"
    assert not path.exists() and not place.exists() and not list(place.iterdir())
    with pytest.raises(FileNotFoundError):
        path.read_bytes()
    path.unlink(missing_ok=True)
    write_whole(path, b"first")
    write_whole(path, b"second")
    write_whole(path, b"third", overwrite=False)
    assert path.read_bytes() == b"second" and path.is_file() and not path.is_dir()
    assert place.is_dir() and place.exists() and list(place.iterdir()) == [path]
    assert path.create(b"second"), "as when the answer was lost, and it was sent again"
    path.unlink()
    assert not path.is_file()


def test_one_of_many_creates_and_no_line_is_lost(place):
    if str(place).startswith("s3"):  # in memory there is one process, and no need
        made = at_once(lambda i: (place / "one").create(b"%d" % i))
        assert sum(made) == 1 and (place / "one").read_bytes() == b"%d" % made.index(True)
        at_once(lambda i: (place / "log").append(b"%d\n" % i))
    else:
        for i in range(8):
            (place / "log").append(b"%d\n" % i)
    assert sorted((place / "log").read_log().split()) == [b"%d" % i for i in range(8)]
    with pytest.raises(FileExistsError):
        (place / "log").append(b"other", 7)


def hold(path):
    with hold_lock(path, "this run"):
        return len(list(path.iterdir()))


def test_a_lock_is_a_lease(place):
    path, refused = place / "lock", r"at work in another process.*ends in a minute"
    with hold_lock(path, "this run"), pytest.raises(BQNESError, match=refused):
        hold(path)
    assert hold(path) == 2, "it was let go"
    for seconds in (60, -1):  # until the lease of one that was killed ends
        killed = path / f"{len(list(path.iterdir())):08d}"
        assert killed.create(b"held by 0123 until %d" % (time.time() + seconds))
        if seconds > 0:
            with pytest.raises(BQNESError, match=refused):
                hold(path)
    assert hold(path) == 5


def test_a_lease_is_renewed(place, monkeypatch):
    monkeypatch.setattr("bqnes_jax.files.remote._LEASE", 3.0)
    with (place / "lock").hold() as held:
        assert held
        (own,) = (place / "lock").iterdir()
        before = own.read_bytes()
        for _ in range(100):
            if own.read_bytes() != before:
                break
            threading.Event().wait(0.1)
        assert own.read_bytes() != before
    assert own.read_bytes() == b"free"


def test_a_lease_of_a_clock_that_was_set_back(place, monkeypatch):
    """Who is alive renews it, whatever its clock says; nobody waits for years."""
    monkeypatch.setattr("bqnes_jax.files.remote._LEASE", 0.6)
    path, late = place / "lock", b"held by 0123 until %d" % (time.time() + 3600)
    path.append(late)
    assert hold(path) == 2, "it was not renewed"
    path.append(late)
    with concurrent.futures.ThreadPoolExecutor(1) as executor:
        ended = threading.Event()

        def renew():
            while not ended.wait(0.1):
                (path / "00000002").write(late + b"%d" % (time.monotonic_ns() % 10))

        alive = executor.submit(renew)
        with pytest.raises(BQNESError, match="at work in another process"):
            hold(path)
        ended.set()
        alive.result()


def test_what_others_put_beside_lines(place, server):
    """A folder that a console makes is an object, and so is what people drop into it."""
    log, leased = place / "log", place / "lock"
    for path in (log, leased):
        path.append(b"free")
        (path / "notes.txt").write(b"mine")
        (path / "٣").write(b"a number, but not ours")
        if str(place).startswith("s3"):
            path._system.touch(f"{path}/")
    assert [path.name for path in log.iterdir()] == ["00000000", "notes.txt", "٣"]
    log.append(b", and locked")
    assert log.read_log() == b"free, and locked"
    with (
        hold_lock(leased, "this run"),
        pytest.raises(BQNESError, match="at work in another process"),
    ):
        hold(leased)


def test_no_object_is_read_beyond_the_limit(place, monkeypatch):
    for content in (b"", b"0123", b"01234"):
        (place / "file").write(content)
        assert (place / "file").read_bytes() == read_small(place / "file", limit=5) == content
    with pytest.raises(ValueError, match="more than 4 bytes"):
        read_small(place / "file", limit=4)
    (place / "log").append(b"one")
    (place / "log").append(b"two")
    assert read_log(place / "log", limit=6) == b"onetwo"
    with pytest.raises(ValueError, match="more than 5 bytes"):
        read_log(place / "log", limit=5)
    monkeypatch.setattr("bqnes_jax.files.remote._LIMIT", 4)
    with pytest.raises(OSError, match="too large"):
        open_file(place / "file")


def test_digests(place):
    write_bound(place / "file", b"one")
    write_bound(place / "file", b"two")
    write_bound(place / "file", b"two")
    check_bound(place / "file", "remedy")
    assert len(list((place / DIGESTS).iterdir())) == 2
    (place / "file").write(b"three")
    with pytest.raises(BQNESError, match="has been altered"):
        check_bound(place / "file", "remedy")


def test_a_store(place, tmp_path):
    manifest = Manifest("nats", "toy", {"epochs": 3}, 4, 2, 2)
    half = np.log(np.full((4, 2), 0.5))
    entries = [
        Entry("a", 0, "ok", half, half[:2], variables={"w": np.arange(3.0)}),
        Entry("b", 0, "failed"),
    ]
    stores = [Store.open(where, manifest) for where in (tmp_path / "local", str(place / "store"))]
    for store in stores:
        store.put(entries)
    local, remote = stores
    assert remote.keys() == local.keys()
    assert remote.find_missing("abc", [0]) == local.find_missing("abc", [0])
    np.testing.assert_array_equal(remote.variables("a", 0)["w"], np.arange(3.0))
    for one, other in zip(local.predictions("ab", 0), remote.predictions("ab", 0), strict=True):
        np.testing.assert_array_equal(one, other)
    for path in (local.directory / "entries").iterdir():
        assert (remote.directory / "entries" / path.name).read_bytes() == path.read_bytes()
    with pytest.raises(BQNESError, match=r"was made with config\.epochs = 3, not 4"):
        Store.open(place / "store", Manifest("nats", "toy", {"epochs": 4}, 4, 2, 2))
    copy = Store.open(place / "copy", manifest)
    assert merge(copy, remote) == 2 and copy.keys() == local.keys()
    damaged = copy._path(entries[0].key)
    damaged.write(damaged.read_bytes()[:-1])
    with pytest.warns(DamagedEntryWarning, match="it is treated as missing"):
        assert copy.find_missing("ab", [0]) == [entries[0].key]
    with pytest.raises(BQNESError, match="is not a store"):
        Store.open(place / "nothing")


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "tries").mkdir()
    return tmp_path / "tries"


def is_same(one, other):
    for name, value in one.record._asdict().items():
        np.testing.assert_array_equal(value, getattr(other.record, name), err_msg=name)


@pytest.mark.slow
def test_a_run_is_what_it_is_on_disk(place, folder, tmp_path, no_files):
    family, out = farm.watched(folder), str(place / "run")
    local, remote = (
        [search(family, where, budget=budget) for budget in (5, 8)][-1]
        for where in (tmp_path / "run", out)
    )
    is_same(local, remote)
    assert all(len(tries) == 2 for tries in farm.tries_in(folder).values()), "it went on"
    read = Run.load(out, family=family)
    is_same(local, read)
    points = farm.examples()[0]
    np.testing.assert_array_equal(
        read.saved_ensemble().predict(points), local.saved_ensemble().predict(points)
    )
    page = write_report(read)
    assert str(page) == f"{out}/report.html" and page.is_file()
    files = {path.relative_to(local.directory) for path in local.directory.rglob("*.*")}
    missing = [path for path in files if not (read.directory / path).exists()]
    assert not missing
    (read.directory / "search.npz").write(b"other")
    with pytest.raises(BQNESError, match=r"search\.npz has been altered"):
        Run.load(out, family=family)


@pytest.mark.slow
def test_a_run_on_workers_and_the_same_order_again(place, folder):
    family = farm.watched(folder)
    with concurrent.futures.ThreadPoolExecutor(3) as executor:
        run = search(family, str(place / "run"), executor=executor, workers=3)
        journal = Journal(place / "run" / "arrivals.log", farm.SPACE)
        assert sum(isinstance(event, Arrived) for event in journal.events) == 8
        again = search(family, str(place / "again"), replay=str(place / "run"))
        is_same(run, again)
        longer = search(family, str(place / "run"), budget=9, executor=executor, workers=2)
    assert len(longer.record.archs) == 9
    other = Journal(place / "run" / "arrivals.log", farm.SPACE)
    last = other.events[-1]
    with pytest.raises(BQNESError, match="has been continued by another process"):
        journal.note(last)


def test_a_store_that_cannot_be_reached(server, folder, monkeypatch):
    with pytest.raises(BQNESError, match=r"s3://nobodys/run/.* cannot be reached .*credentials"):
        search(farm.watched(folder), "s3://nobodys/run")
    assert not farm.tries_in(folder), "before anything is trained"


def test_a_supernet_is_local():
    with pytest.raises(BQNESError, match="checkpoints of a supernet cannot be kept in memory://"):
        bqnes_jax.search(
            family="slimmable", data="digits", out="memory://runs/slices", budget=3, initial=2
        )


@pytest.mark.slow
def test_commands(server, folder, tmp_path):
    np.savez(tmp_path / "points.npz", x=farm.examples()[0], y=farm.examples()[1])
    np.save(tmp_path / "x.npy", farm.examples()[0][:3])
    own, out = ["--family", "tests.helpers.farm:family"], f"s3://{BUCKET}/{uuid.uuid4().hex}"
    run = [
        *("run", *own, "--data", "points.npz", "--split", 40, 20, 20, "--initial", 3),
        *("--budget", 5, "--batch", 1, "--fit.kernel-steps", 0, "--ensemble-size", 2),
    ]
    said = {}
    commands = {
        "run": [*run, "--out", out],
        "report": ["report", out, *own],
        "reselect": ["reselect", out, *own, "--method", "beam", "--save"],
        "predict": ["predict", out, *own, "--input", "x.npy"],
        "refused": [*run, "--out", out, "--no-resume"],
    }
    for name, command in commands.items():
        process = start(tmp_path, *command, BQNES_TEST_FARM=str(folder))
        code, text, err = finish(process, timeout=200)
        assert code == (1 if name == "refused" else 0), err
        said[name] = text + err
    assert f"report: {out}/report.html" in said["run"]
    assert said["predict"].splitlines()[0] == "class_0,class_1"
    assert len(said["predict"].splitlines()) == 4
    assert f"{out} is there already" in said["refused"]
    tries = farm.tries_in(folder)
    assert len(list(itertools.chain.from_iterable(tries.values()))) == 5, "trained once"
    assert not (tmp_path / "s3:").exists()
