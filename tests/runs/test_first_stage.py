"""Searches with shared weights, after which only a shortlist is trained alone."""

import dataclasses

import numpy as np
import pytest

import bqnes_jax
from bqnes_jax.errors import BQNESError
from bqnes_jax.families import CellFamily, SharingFamily, SliceFamily
from bqnes_jax.report import write_report
from bqnes_jax.runs import Run, preset_config
from bqnes_jax.runs.config import first_stage, make_family
from bqnes_jax.runs.fields import replace_fields
from bqnes_jax.runs.launch import _shortlist
from tests.cli.test_cli import SEARCH

pytestmark = pytest.mark.parametrize("precision", ["float32"], indirect=True)

CONFIG = replace_fields(
    preset_config("tiny"),
    {
        "algorithm": "random+beam",
        "evaluate": "shared",
        "ensemble_size": 2,
        "shortlist": 3,
        "calibrate": "off",
        "search": SEARCH | {"initial": 6, "samples": 8},
        "image_size": 4,
        "split": [40, 20, 30],
        "train": {"steps": 2, "batch": 20, "network": {"channels": 1}},
    },
)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Return a finished run."""
    return bqnes_jax.search(CONFIG, out=tmp_path_factory.mktemp("shared") / "run")


def texts(run):
    return [run.space.to_string(arch) for arch in run.record.archs]


@pytest.mark.slow
def test_only_the_shortlist_is_trained_alone(finished):
    first = finished.first_stage
    assert first.family.name == "shared" and finished.family.name == "nats"
    assert len(texts(first)) == 8 and first.first_stage is None
    assert len(texts(finished)) == 3 and set(texts(finished)) <= set(texts(first))
    for run in (first, finished):
        stored = {entry.key.arch for entry in run.store.summaries()}
        assert stored == set(texts(run))
    alone = dict(zip(texts(finished), finished.record.log_likelihoods, strict=True))
    shared = dict(zip(texts(first), first.record.log_likelihoods, strict=True))
    assert all(alone[text] != shared[text] for text in alone)
    assert set(finished.ensemble().texts) <= set(texts(finished))


@pytest.mark.slow
def test_the_shortlist_is_an_ensemble_and_then_the_likeliest(finished, monkeypatch):
    first = finished.first_stage
    members = first.ensemble(3, calibrate="off").members
    assert texts(finished) == [texts(first)[i] for i in members]

    values = np.array([-3.0, np.nan, -1.0, -2.0, -4.0, np.nan, np.nan, np.nan], np.float32)
    few = dataclasses.replace(first, record=first.record._replace(log_likelihoods=values))
    one = dataclasses.replace(first.ensemble(), members=np.array([3]), weights=np.ones(1))
    monkeypatch.setattr(Run, "ensemble", lambda *_, **__: one)
    for count, expected in ((3, [3, 2, 0]), (8, [3, 2, 0, 4])):  # what failed is not trained
        found = np.asarray(_shortlist(few, count).archs)
        np.testing.assert_array_equal(found, first.record.archs[expected])


@pytest.mark.slow
def test_it_is_read_again_and_goes_on_without_training(finished, monkeypatch):
    again = Run.load(finished.directory)
    assert again.saved_ensemble().texts == finished.ensemble().texts
    assert texts(again.first_stage) == texts(finished.first_stage)

    def nothing(*_):
        pytest.fail("trained")

    monkeypatch.setattr("bqnes_jax.runs.workbench.Workbench._train", nothing)
    resumed = bqnes_jax.search(CONFIG, out=finished.directory)
    assert texts(resumed) == texts(finished)


@pytest.mark.slow
def test_a_longer_shortlist_trains_what_is_missing(finished):
    longer = dataclasses.replace(CONFIG, shortlist=4)
    run = bqnes_jax.search(longer, out=finished.directory)
    assert len(texts(run)) == 4 and texts(run.first_stage) == texts(finished.first_stage)
    assert run.config.shortlist == Run.load(finished.directory).config.shortlist == 4


@pytest.mark.slow
def test_a_run_never_becomes_shorter(finished):
    before = texts(Run.load(finished.directory))
    for fields in ({"shortlist": 2}, {"algorithm": "random+caruana", "ensemble_size": 3}):
        changed = dataclasses.replace(CONFIG, **fields)
        found = texts(bqnes_jax.search(changed, out=finished.directory))
        assert found[: len(before)] == before
        before = found


@pytest.mark.slow
def test_a_report_says_what_was_trained(finished):
    page = write_report(Run.load(finished.directory)).read_text()
    assert "of 8 searched with shared weights" in page
    plots = {path.stem for path in finished.directory.glob("plots/*.png")}
    assert "candidates" in plots and "evidence" not in plots


@pytest.mark.slow
def test_progress_tells_the_stages_apart(tmp_path):
    said = []
    config = dataclasses.replace(CONFIG, shortlist=2)
    bqnes_jax.search(config, out=tmp_path / "run", progress=lambda *told: said.append(told[2]))
    stages = list(dict.fromkeys(said))
    assert stages == ["training the supernet", "evaluating with shared weights", "training"]


def test_shared_cells_are_trained_by_the_recipe_of_single_ones_for_longer():
    family = CellFamily(CONFIG.train)
    assert isinstance(family, SharingFamily) and not isinstance(SliceFamily(), SharingFamily)
    name, options = family.shared_family()
    assert name == "shared" and options.network == CONFIG.train.network
    assert options.steps == 12 * CONFIG.train.steps and options.batch == CONFIG.train.batch
    by_epochs = dataclasses.replace(CONFIG.train, steps=None, epochs=5)
    assert CellFamily(by_epochs).shared_family()[1].epochs == 60
    config, shared = first_stage(CONFIG, family)
    assert shared.space == family.space and config.evaluate == "alone"


def test_what_cannot_be_shared_is_refused_before_training(tmp_path):
    for fields, says in (
        ({"family": "slimmable"}, "family 'slimmable' knows no network that its candidates could"),
        ({"algorithm": "Random"}, "'Random' searches nothing to choose from"),
        ({"seeds": 2}, "seeds is 2, but cells that share weights are trained once"),
        ({"shortlist": 1}, "shortlist is 1; it must be"),
        ({"evaluate": "moon"}, "evaluate is 'moon'; allowed are 'alone', 'shared'"),
    ):
        with pytest.raises(BQNESError, match=says):
            bqnes_jax.search(out=tmp_path / "run", **{"evaluate": "shared", **fields})
        assert not (tmp_path / "run").exists()
    assert make_family(CONFIG).name == "nats"
