"""Runs, stores, tables and comparisons of candidates that are (architecture, weight seed)."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

import bqnes_jax
from bqnes_jax import tables
from bqnes_jax.candidates import SearchConfig
from bqnes_jax.data import Examples, Split, from_arrays
from bqnes_jax.errors import BQNESError
from bqnes_jax.families import SeededFamily, from_functions, with_seeds
from bqnes_jax.report import summary, write_report
from bqnes_jax.runs import Run, RunConfig, open_workbench
from bqnes_jax.spaces import NATS, Product, Seeded, Subset
from bqnes_jax.storage import Predictions, Store
from bqnes_jax.studies.comparison import compare_live, compare_on_table
from bqnes_jax.surrogates import FitConfig

pytestmark = pytest.mark.parametrize("precision", ["float32"], indirect=True)

SEEDS = 3
CHOICES = Product(width=(4, 8, 16), scale=(0.5, 1.0, 2.0))
FAST = FitConfig(kernel_steps=0)  # half of a step's program; the first run below fits its kernel
SETTING = {"initial": 3, "batch": 2, "ensemble_size": 3, "seeds": SEEDS, "fit": FAST}


def train(key, choices, data):
    """Fit a readout of random features, which are different with every key."""
    rng = np.random.default_rng(np.asarray(key._base_array if hasattr(key, "_base_array") else key))
    inputs, labels = np.asarray(data.train.inputs), np.asarray(data.train.labels)
    first = rng.normal(size=(inputs.shape[1], choices["width"])) * choices["scale"]
    features = np.tanh(inputs @ first)
    gram = features.T @ features + np.eye(choices["width"])
    return {"first": first, "second": np.linalg.solve(gram, features.T @ (2.0 * labels - 1))}


def predict(variables, choices, inputs):
    logits = 3 * np.tanh(np.asarray(inputs) @ variables["first"]) @ variables["second"]
    return -np.logaddexp(0, np.stack([logits, -logits], axis=1))


FAMILY = from_functions(CHOICES, train, predict, jit=False, name="features")


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(200, 3))
    labels = (np.sin(2 * inputs[:, 0]) + inputs[:, 1] > 0).astype(int)
    return from_arrays(inputs, labels, split=(80, 60, 60), seed=0, name="sine")


def run(data, out, **changes):
    setting = {**SETTING, "budget": 11, "algorithm": "BQ-W", **changes}
    return bqnes_jax.search(family=FAMILY, data=data, out=out, **setting)


@pytest.mark.slow
def test_a_run_trains_each_candidate_with_its_own_seed(data, tmp_path):
    found = run(data, tmp_path / "run", seed=5, fit=FitConfig())
    archs = found.record.archs
    assert archs.shape == (11, 3) and set(archs[:, -1]) <= {0, 1, 2} and len(set(archs[:, -1])) > 1
    keys = {(CHOICES.to_string(arch[:-1]), 5 + int(arch[-1])) for arch in archs}
    assert set(map(tuple, found.store.keys())) == keys, "one store for all seeds"

    # what is stored for (architecture, seed) is what a run with that seed alone trains
    arch = archs[int(np.argmax(archs[:, -1]))]
    alone = open_workbench(FAMILY, data, tmp_path / "alone", seed=5 + int(arch[-1]))
    alone.train(jnp.asarray(arch[None, :-1]))
    text = CHOICES.to_string(arch[:-1])
    ours, theirs = (store.get(text, 5 + int(arch[-1])) for store in (found.store, alone.store))
    np.testing.assert_array_equal(ours.valid_log_probs, theirs.valid_log_probs)

    ensemble = found.ensemble()
    said = ensemble.predict(data.test.inputs)
    np.testing.assert_allclose(said, np.exp(ensemble.test_log_probs), atol=5e-3)
    assert all(" (seed " in text for text in ensemble.texts)
    assert not any(one.startswith(("training", "prediction")) for one in ensemble.warnings())
    again = Run.load(tmp_path / "run", family=FAMILY)
    np.testing.assert_array_equal(again.saved_ensemble().predict(data.test.inputs), said)
    assert again.ensemble(2, "beam").size == 2
    page = write_report(again).read_text()
    assert "BQ-W" in page and "(seed " in page


@pytest.mark.slow
def test_a_stopped_run_goes_on_and_grows(data, tmp_path, monkeypatch):
    whole = run(data, tmp_path / "whole")
    stop, put = 6, Store.put

    def put_some(self, entries):
        if len(self.keys()) >= stop:
            raise KeyboardInterrupt
        put(self, entries)

    monkeypatch.setattr(Store, "put", put_some)
    with pytest.raises(KeyboardInterrupt):
        run(data, tmp_path / "stopped")
    monkeypatch.undo()
    assert len(Store.open(tmp_path / "stopped" / "store").keys()) == stop
    resumed = run(data, tmp_path / "stopped")
    for ours, theirs in zip(resumed.record, whole.record, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    grown = run(data, tmp_path / "stopped", budget=15)
    np.testing.assert_array_equal(grown.record.archs[:11], whole.record.archs)
    assert len(grown.store.keys()) == 15
    with pytest.raises(BQNESError, match="has seeds = 3, not 2"):
        run(data, tmp_path / "stopped", seeds=2)


@pytest.mark.slow
def test_a_deep_ensemble_is_trained(data, tmp_path):
    found = run(data, tmp_path, algorithm="Deep ensemble")
    ensemble = found.saved_ensemble()
    assert len({tuple(arch) for arch in ensemble.archs[:, :-1].tolist()}) == 1
    assert sorted(ensemble.archs[:, -1]) == [0, 1, 2] and len(found.record.archs) == 11
    rows = [(row.name, row.size) for row in summary(found)]
    assert ("Deep ensemble", 3) in rows
    with pytest.raises(BQNESError, match="with 4 members"):
        found.ensemble(4)
    with pytest.raises(BQNESError, match="'BQ-W', which tries architectures with several"):
        run(data, tmp_path / "one", seeds=1)


@pytest.mark.slow
def test_with_one_seed_nothing_changes(data, tmp_path):
    assert with_seeds(FAMILY, 1) is FAMILY and isinstance(with_seeds(FAMILY, 2), SeededFamily)
    found = run(data, tmp_path, seeds=1, algorithm="BQ-S", budget=7)
    assert found.record.archs.shape == (7, 2)
    assert {entry.seed for entry in found.store.summaries()} == {0}
    before = {k: v for k, v in dataclasses.asdict(RunConfig()).items() if k != "seeds"}
    assert RunConfig(**{**before, "train": RunConfig().train, "search": SearchConfig()}).seeds == 1


def seeded_table(cells=12, seeds=SEEDS):
    """A table of cells whose seeds differ."""
    rng = np.random.default_rng(0)
    rows = cells * seeds
    skill = np.repeat(rng.random(cells), seeds)
    logits = rng.normal(size=(rows, 50, 3))
    logits[:, :, 0] += 2 * skill[:, None]
    log_probs = logits - np.log(np.exp(logits).sum(axis=2, keepdims=True))
    valid, test = np.split(log_probs.astype(np.float32), [30], axis=1)
    zeros = np.zeros(rows)
    stored = Predictions(np.ones(rows, bool), valid, test, *[zeros] * 5)
    part = Examples(np.zeros((30, 2, 2, 1), np.uint8), np.zeros(30, np.int32))
    data = Split(part, part, Examples(part.inputs[:20], part.labels[:20]), classes=3)
    return stored, data


@pytest.mark.slow
def test_a_table_with_seeds_is_packed_read_and_compared(tmp_path):
    stored, data = seeded_table()
    numbers = np.arange(12)[::-1] * 1000 + 600
    tables.pack(tmp_path / "t.npz", numbers, stored, data)
    made = tables.read(tmp_path / "t.npz")
    assert made.space == Seeded(Subset(NATS, tuple(sorted(numbers.tolist()))), SEEDS)
    row = int(made.space.index(jnp.append(NATS.from_index(int(numbers[2])), 1)))
    expected = stored.valid_log_probs[2 * SEEDS + 1, :, 0]
    np.testing.assert_allclose(made.table.log_probs[row], expected, rtol=1e-3, atol=1e-4)
    with pytest.raises(BQNESError, match="36 networks are not equally many of each of 7 cells"):
        tables.pack(tmp_path / "u.npz", numbers[:7], stored, data)

    config = SearchConfig(initial=4, budget=9, batch=2, population=5, fit=FAST)
    names, sizes = ("Random", "NES-RE", "BQ-S", "BQ-W", "Deep ensemble"), (2, 5)
    rows = compare_on_table(made, names, sizes, 2, config=config)
    expected = [(name, size) for name in names[:4] for size in sizes] + [("Deep ensemble", 2)]
    assert [(row.algorithm, row.size) for row in rows] == expected
    evaluate = tables.evaluator(made.table, made.space)
    asked = []

    def remember(archs):
        asked.append(np.asarray(archs))
        return evaluate(archs)

    def probabilities(archs):
        return made.table.test_log_probs[made.space.index(archs)]

    labels = made.test_labels
    live = compare_live(made.space, remember, probabilities, labels, names, sizes, 2, config=config)
    for ours, theirs in zip(live, rows, strict=True):
        np.testing.assert_allclose(ours.log_likelihood, theirs.log_likelihood, rtol=1e-3)
    asked.clear()
    compare_live(made.space, remember, probabilities, labels, ["BQ-S"], (2,), 1, config=config)
    assert not np.concatenate(asked)[:, -1].any(), "architectures alone, with the first seed"
    with pytest.raises(BQNESError, match="'Deep ensemble' with 5 members"):
        compare_on_table(made, ["Deep ensemble"], (5,), 1, config=config)
    with pytest.raises(BQNESError, match="'BQ-W', which tries"):
        compare_on_table(tables.load("digits"), ["BQ-W"], (2,), 1, config=config)


@pytest.mark.slow
def test_the_table_in_the_package_has_three_seeds():
    digits, once = tables.load("digits", seeds=3), tables.load("digits")
    space = digits.space
    assert isinstance(space, Seeded) and (space.size, space.seeds) == (768, 3)
    rows = once.space.index(space.from_index(np.arange(256) * 3)[:, :-1])
    assert set(space.base.numbers) <= set(once.space.numbers)
    np.testing.assert_array_equal(digits.table.log_probs[::3], once.table.log_probs[rows])
    np.testing.assert_array_equal(digits.table.test_log_probs[::3], once.table.test_log_probs[rows])
    np.testing.assert_array_equal(digits.test_labels, once.test_labels)
    by_seed = np.asarray(digits.table.log_likelihoods).reshape(256, 3)
    spread, between = by_seed.std(axis=1, ddof=1).mean(), by_seed.mean(axis=1).std()
    assert 0.05 * between < spread < between, "seeds differ, by less than architectures"
    with pytest.raises(BQNESError, match="seeds is 2; allowed are 1, 3"):
        tables.load("digits", seeds=2)
