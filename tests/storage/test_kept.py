"""What an earlier version has written is read: stores, and runs, of every number of format."""

import shutil

import numpy as np
import pytest

from bqnes_jax.files.trees import describe
from bqnes_jax.runs import Run, load_data
from bqnes_jax.storage import Store
from bqnes_jax.storage.records import FORMAT
from tests.helpers.commands import call
from tests.helpers.keeping import ENTRIES, MANIFEST, RUN, folder

pytestmark = pytest.mark.parametrize("precision", ["float32"], indirect=True)

FIRST = 2  # of 0.2.0; that of 0.1.0, which was given to nobody, is refused
each_format = pytest.mark.parametrize("number", range(FIRST, FORMAT + 1))


@pytest.fixture
def kept(number, tmp_path):
    """Return a copy of what is kept of a format: readers may leave locks."""
    return shutil.copytree(folder(number), tmp_path / "kept")


def contents(directory):
    return {path.name: path.read_bytes() for path in directory.rglob("*.bqe")}


@each_format
def test_a_store_is_read_to_the_last_number(kept):
    store = Store.open(kept / "store", MANIFEST)
    assert store.find_damaged() == {}
    assert sorted(entry.key for entry in ENTRIES) == store.keys()
    for entry in ENTRIES:
        read = store.get(*entry.key)
        assert read.status == entry.status
        for name in ("train_loss", "valid_loss", "test_loss", "seconds", "train_log_likelihood"):
            np.testing.assert_equal(getattr(read, name), getattr(entry, name))
        if entry.status == "failed":
            continue
        for name in ("valid_log_probs", "test_log_probs"):
            expected = getattr(entry, name).astype(np.float16)
            np.testing.assert_array_equal(getattr(read, name), expected)
        assert store.has_variables(*entry.key) == (entry.variables is not None)
    variables, (there, *_) = store.variables("a", 0), ENTRIES
    assert describe(variables) == describe(there.variables)
    np.testing.assert_array_equal(variables["layers"][0], there.variables["layers"][0])
    np.testing.assert_array_equal(variables["counts"][0], there.variables["counts"][0])


@each_format
def test_a_run_is_read(kept):
    run = Run.load(kept / "run")
    assert run.config.search.budget == 8 == len(run.record.archs) == len(run.store.keys())
    assert run.store.find_damaged() == {}
    ensemble = run.saved_ensemble()
    assert ensemble.method == "restack" and len(ensemble.members) == ensemble.size == 3
    assert ensemble.weights.sum() == pytest.approx(1, abs=1e-6)
    # What is stored of the members is what the record has of them, and better than chance.
    archs = [run.family.space.to_string(arch) for arch in run.record.archs]
    stored = run.store.predictions(archs, 0).valid_log_probs
    labels = np.asarray(load_data(run.config).valid.labels)
    picked = np.take_along_axis(stored, labels[None, :, None], axis=2)[..., 0]
    np.testing.assert_allclose(picked, run.record.log_probs, rtol=2e-3, atol=2e-3)
    assert ensemble.metrics.accuracy > 0.4


@pytest.mark.slow
@each_format
def test_a_run_predicts_what_it_predicted(kept):
    run = Run.load(kept / "run")
    ensemble = run.saved_ensemble()
    predicted = ensemble.predict(load_data(run.config).test.inputs)
    np.testing.assert_allclose(predicted, np.exp(ensemble.test_log_probs), atol=4e-3)  # float16


@pytest.mark.slow
@each_format
def test_the_same_command_goes_on_and_trains_nothing_again(kept):
    before = contents(kept)
    code, out, err = call(kept, *RUN, "--out", "run")
    assert code == 0, err
    assert "BQ-S" in out
    # Another training would have taken other seconds; another processor may ask for others.
    assert before.items() <= contents(kept).items()


def test_each_format_has_files_to_read():
    missing = [number for number in range(FIRST, FORMAT + 1) if not folder(number).is_dir()]
    assert not missing, "write them: python -m tests.helpers.keeping"
    size = sum(path.stat().st_size for path in folder().rglob("*"))
    assert size < 400_000
