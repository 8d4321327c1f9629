"""Search with real training: what is stored, and that stopping and going on changes nothing."""

import dataclasses
import functools

import jax
import numpy as np
import pytest

from bqnes_jax import algorithms
from bqnes_jax.candidates import SearchConfig
from bqnes_jax.data import NO_AUGMENTATION
from bqnes_jax.drivers import loop
from bqnes_jax.errors import BQNESError
from bqnes_jax.families import CellFamily
from bqnes_jax.models import NATSNetworkConfig
from bqnes_jax.runs import open_workbench
from bqnes_jax.spaces import NATS
from bqnes_jax.storage import Store
from bqnes_jax.storage.entries import manifest_of
from bqnes_jax.surrogates import FitConfig
from bqnes_jax.training import TrainConfig, population
from tests.training.test_population import make_data

pytestmark = pytest.mark.parametrize("precision", ["float32"], indirect=True)

TRAIN = TrainConfig(
    NATSNetworkConfig(channels=1, cells=1, classes=3),
    steps=3,
    batch=8,
    augment=NO_AUGMENTATION,
    chunk=2,
)
FIT = FitConfig(kernel_steps=0)  # half of a step's program
SEARCH = SearchConfig(initial=3, budget=8, batch=2, population=4, fit=FIT)
DATA = make_data()
FAMILY = CellFamily(TRAIN)


def open_bench(folder, **options):
    return open_workbench(FAMILY, DATA, folder, **options)


def run(bench, interrupt_after=None, report=None, count=None):
    evaluate = bench.evaluator(count)
    calls = []

    def until_interrupted(archs):
        if len(calls) == interrupt_after:
            raise KeyboardInterrupt
        calls.append(len(archs))
        return evaluate(archs)

    driver = functools.partial(loop, report=report)
    search = algorithms.make("NES-RE", NATS, 2, config=SEARCH, driver=driver)
    return search(jax.random.key(0), until_interrupted)


@pytest.mark.slow
def test_a_search_that_was_stopped_goes_on_to_the_same_result(tmp_path, monkeypatch):
    steps, counted = [], []
    bench = open_bench(tmp_path / "a")
    undisturbed = run(bench, report=lambda info, _: steps.append(info.count), count=counted.append)
    assert [int(count) for count in steps] == [3, 5, 7, 8]
    assert counted == [2, 1, 2, 2, 1], "as chunks of two are stored"
    assert undisturbed.history.count == 8
    np.testing.assert_array_equal(
        undisturbed.history.scores[3:], undisturbed.trace.scores[:-1].ravel()[:5]
    )
    np.testing.assert_allclose(undisturbed.weights.sum(), 1, rtol=1e-6)
    assert len(bench.store.keys()) == 8

    with pytest.raises(KeyboardInterrupt):
        run(open_bench(tmp_path / "b"), interrupt_after=2)
    assert len(open_bench(tmp_path / "b").store.keys()) == 5
    trained = []
    in_chunks = population.in_chunks

    def counting(program, mesh, chunk, members, *shared):
        trained.append(len(members[0]))
        return in_chunks(program, mesh, chunk, members, *shared)

    monkeypatch.setattr(population, "in_chunks", counting)
    counted.clear()
    again = open_bench(tmp_path / "b")
    resumed = run(again, count=counted.append)
    assert sum(trained) == 3, "only what was missing"
    assert counted == [3, 2, 2, 1], "what is there already is counted at once"
    jax.tree.map(np.testing.assert_array_equal, resumed, undisturbed)

    texts = [NATS.to_string(arch) for arch in resumed.history.archs]
    stored = again.store.predictions(texts, 0)
    labels = DATA.valid.labels
    of_labels = stored.valid_log_probs[:, np.arange(len(labels)), labels]
    np.testing.assert_array_equal(resumed.history.log_probs, of_labels)
    np.testing.assert_allclose(stored.valid_losses, -of_labels.mean(axis=1), rtol=2e-3)

    said = np.exp(again.test_log_probs(resumed.history.archs))
    np.testing.assert_allclose(said.sum(axis=2), 1, rtol=1e-5)
    np.testing.assert_allclose(said, np.exp(stored.test_log_probs), atol=1e-3)
    variables = [again.store.variables(text, 0) for text in texts]
    archs = np.asarray(resumed.history.archs)
    predicted = FAMILY.predict(again.trainer.shared, variables, archs, DATA.test.inputs)
    np.testing.assert_allclose(np.exp(predicted), said, atol=2e-3)  # float16 stored


def test_algorithms_that_need_a_table_are_refused(tmp_path):
    with pytest.raises(BQNESError, match="'NES-BS', which needs results of the whole space"):
        algorithms.make("NES-BS", NATS, 3, driver=loop)


def test_a_store_of_another_recipe_is_refused(tmp_path):
    open_bench(tmp_path)
    other = CellFamily(dataclasses.replace(TRAIN, steps=4))
    with pytest.raises(BQNESError, match=r"config\.steps = 3, not 4"):
        open_workbench(other, DATA, tmp_path)
    with pytest.raises(BQNESError, match=r"config\.inputs = "):
        open_workbench(FAMILY, make_data(1), tmp_path)
    with pytest.raises(BQNESError, match="dtype = 'float16', not 'float32'"):
        open_bench(tmp_path, dtype="float32")


def test_another_chunk_or_number_of_seeds_is_the_same_store(tmp_path):
    """And so is what is kept: how the networks are trained is the same."""
    bench = open_bench(tmp_path)
    assert bench.store.manifest == manifest_of(FAMILY, DATA)
    for same in (
        CellFamily(dataclasses.replace(TRAIN, chunk=None, memory=1e9, seeds=2)),
        CellFamily(TRAIN, keep=False),
    ):
        assert Store.open(tmp_path / "store", manifest_of(same, DATA)) == bench.store
