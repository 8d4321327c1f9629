"""What a run keeps is bound: any bit that changes is found, and no writer loses a digest."""

import concurrent.futures
import hashlib
import json
import os
import warnings

import numpy as np
import pytest

from bqnes_jax.errors import BQNESError
from bqnes_jax.files import check_bound, write_bound
from bqnes_jax.files.digests import DIGESTS, note
from bqnes_jax.runs import Run
from bqnes_jax.storage import DamagedEntryWarning
from bqnes_jax.studies import robustness
from bqnes_jax.training.checkpoints import check_same
from tests.helpers.loaders import a_run

pytestmark = pytest.mark.parametrize("precision", ["float32"], indirect=True)

BOUND = ("config.json", "search.npz", "ensemble.json", "shared.bqt", "robustness.json")


def read_all(folder):
    run = Run.load(folder)
    return run.config, run.record, run.saved_ensemble(), run._shared(), robustness.read_study(run)


@pytest.mark.parametrize("name", BOUND)
def test_no_bit_of_a_run_changes_unnoticed(name, tmp_path):
    a_run(tmp_path)
    *_, study = read_all(tmp_path)
    assert study is not None
    path = tmp_path / name
    content, random = path.read_bytes(), np.random.default_rng(0)
    for place in random.integers(0, 8 * len(content), 25).tolist():
        altered = bytearray(content)
        altered[place // 8] ^= 1 << place % 8
        path.write_bytes(altered)
        if name == "robustness.json":  # which can be measured again, and counts as nothing
            with pytest.warns(DamagedEntryWarning, match="counts as not measured"):
                assert read_all(tmp_path)[-1] is None
        else:
            with pytest.raises(BQNESError, match=rf"{name} has been altered.*(again|reselect)"):
                read_all(tmp_path)
    path.write_bytes(content)
    read_all(tmp_path)


def test_damage_to_the_digests_never_makes_damage_pass(tmp_path):
    a_run(tmp_path)
    path = tmp_path / DIGESTS
    content, random = path.read_bytes(), np.random.default_rng(0)
    for place in random.integers(0, 8 * len(content), 25).tolist():
        altered = bytearray(content)
        altered[place // 8] ^= 1 << place % 8
        path.write_bytes(altered)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            try:
                found = read_all(tmp_path)
                assert found[-1] is not None or said
            except BQNESError as error:
                assert DIGESTS in str(error)
    path.write_bytes(content[:-1])
    read_all(tmp_path)  # only the end of the last line is missing


def test_a_run_without_digests_is_read_with_a_warning(tmp_path):
    a_run(tmp_path)
    (tmp_path / DIGESTS).unlink()
    with pytest.warns(UserWarning, match=f"has no {DIGESTS}, by which damage is found"):
        read_all(tmp_path)


def test_an_ensemble_must_fit_itself(tmp_path):
    """Digests that are right do not make numbers of members right."""
    run = a_run(tmp_path)
    content = json.loads((tmp_path / "ensemble.json").read_bytes())
    for altered in (
        {**content, "members": [0, 2]},
        {**content, "members": content["members"][::-1]},
        {**content, "architectures": content["architectures"][:1]},
        {name: value for name, value in content.items() if name != "architectures"},
    ):
        write_bound(tmp_path / "ensemble.json", json.dumps(altered).encode())
        with pytest.raises(BQNESError, match="names other architectures than"):
            run.saved_ensemble()


def test_a_writer_that_is_killed_leaves_a_file_with_its_digest(tmp_path, monkeypatch):
    """At each call to the system: before it, what was there is still right."""
    path = tmp_path / "file"
    write_bound(path, b"old")
    calls = ("write", "fsync", "replace", "close")

    class Killed(BaseException):
        pass

    for name in calls:

        def kill(*_, **__):
            raise Killed

        with monkeypatch.context() as patch:
            patch.setattr(os, name, kill)
            with pytest.raises(Killed):
                write_bound(path, f"new after {name}".encode())
        check_bound(path, "never")
    write_bound(path, b"new")
    check_bound(path, "never")


def test_half_a_line_does_not_spoil_the_next(tmp_path):
    note(tmp_path, "a", "1" * 64)
    with (tmp_path / DIGESTS).open("ab") as file:
        file.write(b"22222")
    write_bound(tmp_path / "b", b"content")
    check_bound(tmp_path / "b", "never")
    assert hashlib.sha256(b"content").hexdigest() in (tmp_path / DIGESTS).read_text()


def test_many_writers_lose_no_digest(tmp_path):
    def write(i):
        for j in range(5):
            write_bound(tmp_path / f"file-{i}", f"{i} {j}".encode())
            write_bound(tmp_path / "shared", f"{i} {j}".encode())
            check_bound(tmp_path / "shared", "never")

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(8)))
    for path in tmp_path.iterdir():
        if path.name != DIGESTS:
            check_bound(path, "never")
    assert len((tmp_path / DIGESTS).read_text().splitlines()) == 80


def test_the_description_of_a_training_is_bound(tmp_path):
    check_same(tmp_path, {"steps": 20})
    check_same(tmp_path, {"steps": 20})
    with pytest.raises(BQNESError, match=r"another training \(different: steps\)"):
        check_same(tmp_path, {"steps": 30})
    path = tmp_path / "training.json"
    path.write_bytes(path.read_bytes().replace(b"2", b"3"))
    with pytest.raises(BQNESError, match=r"training\.json has been altered"):
        check_same(tmp_path, {"steps": 30})
