"""A run or a training that lost its digests goes on with a warning; what is noted still binds."""

import errno
import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from bqnes_jax.errors import BQNESError
from bqnes_jax.files import check_bound, digests, write_bound
from bqnes_jax.files.digests import DIGESTS, digest_folder
from bqnes_jax.runs import Run
from bqnes_jax.studies import robustness
from bqnes_jax.training.checkpoints import Checkpoints
from tests.helpers.loaders import a_run
from tests.storage.test_leftovers import state_at

pytestmark = pytest.mark.parametrize("precision", ["float32"], indirect=True)


def read_all(folder):
    run = Run.load(folder)
    return run.record, run.saved_ensemble(), run._shared(), robustness.read_study(run)


def test_a_run_that_lost_its_digests_can_be_written_and_read(tmp_path):
    """A warning says so at each reading; what was written since is bound."""
    ensemble = a_run(tmp_path).saved_ensemble()
    (tmp_path / DIGESTS).unlink()
    says = f"{tmp_path} has no {DIGESTS}, by which damage is found"
    with pytest.warns(UserWarning, match=says):
        assert read_all(tmp_path)[-1] is not None
    ensemble.save()
    with pytest.warns(UserWarning, match=says):
        assert read_all(tmp_path)[-1] is not None
    assert [line.split()[1] for line in (tmp_path / DIGESTS).read_text().splitlines()] == [
        "ensemble.json"
    ]
    (tmp_path / "ensemble.json").write_bytes(b"{}")
    with (
        pytest.warns(UserWarning, match=says),
        pytest.raises(BQNESError, match=r"ensemble.json has been altered"),
    ):
        read_all(tmp_path)


def test_a_training_that_lost_its_digests_goes_on_from_its_checkpoints(tmp_path):
    folder = tmp_path / "checkpoints"
    with Checkpoints(folder) as checkpoints:
        checkpoints.save(state_at(1))
        (folder / DIGESTS).unlink()
        checkpoints.save(state_at(2))
    shutil.rmtree(folder / "2")
    with (
        Checkpoints(folder) as checkpoints,
        pytest.warns(UserWarning, match="lacks some of its files"),
    ):
        state = checkpoints.latest(state_at(0))
    np.testing.assert_array_equal(state.params, state_at(1).params)


def test_a_file_that_is_longer_than_it_says_is_read_to_the_limit_only(tmp_path, monkeypatch):
    monkeypatch.setattr(digests, "_LIMIT", 100)
    write_bound(tmp_path / "file", b"a" * 100)
    check_bound(tmp_path / "file", "never")
    (tmp_path / "file").write_bytes(b"a" * 101)
    with pytest.raises(BQNESError, match=r"cannot be read \(File too large\)"):
        check_bound(tmp_path / "file", "never")
    with pytest.raises(OSError, match="File too large"):
        digest_folder(tmp_path)
    endless = Path("/proc/self/maps")  # it says that it has no bytes
    if endless.is_file():
        with pytest.raises(BQNESError, match=r"cannot be read \(File too large\)"):
            check_bound(endless, "never")


@pytest.mark.parametrize("number", [errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS, errno.ENOSPC])
def test_room_is_asked_for_where_the_file_system_can_tell(number, tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    with Checkpoints(tmp_path / "checkpoints") as checkpoints:
        if number == errno.ENOSPC:
            with pytest.raises(BQNESError, match="No space left on device"):
                checkpoints.save(state_at(1))
        else:
            checkpoints.save(state_at(1))
            assert int(checkpoints.latest(state_at(0)).step) == 1


def test_a_size_in_a_config_is_no_more_trusted_than_a_flag(tmp_path):
    a_run(tmp_path)
    (tmp_path / DIGESTS).unlink()
    config = (tmp_path / "config.json").read_text()
    larger = re.sub(r'"ensemble_size": \d+', '"ensemble_size": 1000000000', config)
    assert larger != config
    (tmp_path / "config.json").write_text(larger)
    with (
        pytest.warns(UserWarning, match="has no"),
        pytest.raises(BQNESError, match="size is 1000000000"),
    ):
        Run.load(tmp_path).ensemble()


def test_a_search_that_is_no_file_is_not_called_unfinished(tmp_path):
    a_run(tmp_path)
    (tmp_path / "search.npz").unlink()
    (tmp_path / "search.npz").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(BQNESError, match=r"search\.npz cannot be read"):
        Run.load(tmp_path)
