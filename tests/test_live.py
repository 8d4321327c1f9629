"""Search with real training: what is stored, and that stopping and going on changes nothing."""

import jax
import numpy as np
import pytest

from bqnes_jax import live
from bqnes_jax.candidates import SearchConfig
from bqnes_jax.data import NO_AUGMENTATION
from bqnes_jax.errors import BQNESError
from bqnes_jax.models import NATSNetworkConfig
from bqnes_jax.spaces import NATS
from bqnes_jax.store import Store
from bqnes_jax.trainers import cell_trainer
from bqnes_jax.training import TrainConfig, population
from tests.test_population import make_data

pytestmark = pytest.mark.parametrize("precision", ["float32"], indirect=True)

TRAIN = TrainConfig(
    NATSNetworkConfig(channels=1, cells=1, classes=3),
    steps=3,
    batch=8,
    augment=NO_AUGMENTATION,
    chunk=2,
)
SEARCH = SearchConfig(initial=3, budget=8, batch=2, population=4)
DATA = make_data()


def open_store(folder):
    return Store.open(folder, cell_trainer("toy", DATA, TRAIN).manifest)


def run(store, interrupt_after=None, report=None):
    evaluate = live.stored_evaluator(store, cell_trainer("toy", DATA, TRAIN))
    calls = []

    def until_interrupted(archs):
        if len(calls) == interrupt_after:
            raise KeyboardInterrupt
        calls.append(len(archs))
        return evaluate(archs)

    key = jax.random.key(0)
    return live.run("NES-RE", NATS, 2, key, until_interrupted, config=SEARCH, report=report)


def test_a_search_that_was_stopped_goes_on_to_the_same_result(tmp_path, monkeypatch):
    steps = []
    undisturbed = run(open_store(tmp_path / "a"), report=lambda info, _: steps.append(info.count))
    assert [int(count) for count in steps] == [3, 5, 7, 8]
    assert undisturbed.history.count == 8
    np.testing.assert_array_equal(
        undisturbed.history.scores[3:], undisturbed.trace.scores[:-1].ravel()[:5]
    )
    np.testing.assert_allclose(undisturbed.weights.sum(), 1, rtol=1e-6)
    assert len(open_store(tmp_path / "a").keys()) == 8

    with pytest.raises(KeyboardInterrupt):
        run(open_store(tmp_path / "b"), interrupt_after=2)
    assert len(open_store(tmp_path / "b").keys()) == 5
    trained = []
    in_chunks = population.in_chunks

    def counted(program, mesh, chunk, members, *shared):
        trained.append(len(members[0]))
        return in_chunks(program, mesh, chunk, members, *shared)

    monkeypatch.setattr(population, "in_chunks", counted)
    resumed = run(open_store(tmp_path / "b"))
    assert sum(trained) == 3, "only what was missing"
    jax.tree.map(np.testing.assert_array_equal, resumed, undisturbed)

    store = open_store(tmp_path / "b")
    texts = [NATS.to_string(arch) for arch in resumed.history.archs]
    stored = store.load(texts, 0)
    labels = DATA.valid.labels
    of_labels = stored.valid_log_probs[:, np.arange(len(labels)), labels]
    np.testing.assert_array_equal(resumed.history.log_probs, of_labels)
    np.testing.assert_allclose(stored.valid_losses, -of_labels.mean(axis=1), rtol=2e-3)


def test_algorithms_that_need_a_table_are_refused(tmp_path):
    with pytest.raises(BQNESError, match="'NES-BS', which needs results of the whole space"):
        live.run("NES-BS", NATS, 3, jax.random.key(0), lambda archs: None)


def test_a_store_of_another_recipe_is_refused(tmp_path):
    open_store(tmp_path)
    other = TrainConfig(TRAIN.network, steps=4, batch=8, augment=NO_AUGMENTATION)
    with pytest.raises(BQNESError, match=r"config\.steps = 3, not 4"):
        Store.open(tmp_path, cell_trainer("toy", DATA, other).manifest)
