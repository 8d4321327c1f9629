"""Algorithms by name: one protocol for all, and an ensemble whose answer is known."""

import dataclasses
import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bqnes_jax.algorithms import (
    Pair,
    algorithms,
    make,
    register,
    variational_ensemble,
)
from bqnes_jax.algorithms.registry import _ALGORITHMS
from bqnes_jax.candidates import Outcome, SearchConfig
from bqnes_jax.errors import BQNESError
from bqnes_jax.pooling import ensemble_log_probabilities, ensemble_probabilities
from bqnes_jax.quadrature import log_posterior
from bqnes_jax.tables import Table, evaluator
from bqnes_jax.types import Status
from tests.conftest import all_but_slow
from tests.helpers.toy import GRID, POINTS, Polynomial

NAMES = (
    *("BQ-S", "BQ-R", "BQ-L", "NES-RE", "NES-BS", "Random", "Best single"),
    *("us+corrective", "ei+stack"),
)
CONFIG = SearchConfig(initial=4, budget=12, batch=2, population=5, temperature=1.0)
OF_SEEDS = ("BQ-W", "Deep ensemble")  # in test_seeded
FAILED = np.arange(36) % 3 == 0
NOTHING = np.zeros(36, bool)


def table(seed=0, failed=FAILED):
    """Networks that predict 20 points of 2 classes, better towards one corner of the grid."""
    rng = np.random.default_rng(seed)
    skill = POINTS.sum(axis=1) / 5
    log_probs = -np.exp(rng.normal(size=(36, 20)) * 0.7 - skill[:, None] / 2)
    log_probs[failed] = np.nan
    classes = np.stack([log_probs, np.log1p(-np.exp(log_probs))], axis=2)  # the first is true
    return table_of(log_probs)._replace(classes=jnp.asarray(classes))


def table_of(log_probs):
    return Table(*map(jnp.asarray, (log_probs.sum(axis=1), np.zeros(36), log_probs)))


def index_of(archs):
    return np.asarray(archs) @ [6, 1]


@functools.cache
def repeats_of(name, precision):
    del precision  # only to compile once for each
    return jax.jit(jax.vmap(make(name, GRID, 3, kernel=Polynomial(), config=CONFIG), (0, None)))


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
@pytest.mark.parametrize("name", all_but_slow(NAMES, "BQ-S", "BQ-L", "NES-RE"))
def test_an_ensemble_of_evaluated_members_comes_out(name, precision):
    run, keys = repeats_of(name, precision), jax.random.split(jax.random.key(0), 3)
    known = table()
    results, again = (jax.tree.map(np.asarray, run(keys, evaluator(known, GRID))) for _ in range(2))
    chex.assert_trees_all_equal(results, again)
    found = results.info.status & Status.EMPTY == 0  # all random draws may have failed
    assert found.all() or name == "Random"
    if results.pool == "mixture":
        np.testing.assert_allclose(results.weights.sum(axis=1), found, rtol=1e-5)
    assert (results.pool == "log") == (name == "BQ-L")
    assert (results.weights >= 0).all()
    index, classes = index_of(results.archs), np.asarray(known.classes)
    assert not (FAILED[index] & found[:, None]).any()
    for members, weights, loss in zip(
        index[found], results.weights[found], results.info.loss[found], strict=True
    ):
        said = ensemble_log_probabilities(weights, classes[members], pool=results.pool)
        np.testing.assert_allclose(-np.mean(np.asarray(said)[:, 0]), loss, rtol=1e-4)
    if results.trace is not None:
        evaluated = index_of(results.history.archs).tolist()
        assert all(set(i) <= set(e) for i, e in zip(index.tolist(), evaluated, strict=True))

    run(keys, evaluator(table(1), GRID))
    assert run._cache_size() == 1, "other data of the same shapes need no other program"


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_every_built_in_algorithm_is_tested():
    assert set(_ALGORITHMS.built_in) <= {*NAMES, *OF_SEEDS}
    assert set(_ALGORITHMS.built_in) <= set(algorithms())


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_the_distribution_of_nes_bs_does_not_like_failures(key):
    """Also where all that worked is listed, so that everything else has failed."""
    config = dataclasses.replace(CONFIG, budget=30)
    run = jax.jit(make("NES-BS", GRID, 3, kernel=Polynomial(), config=config))
    result = run(key, evaluator(table(), GRID))
    assert np.isfinite(result.info.loss)
    assert not FAILED[index_of(result.archs)].any()


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_nes_bs_learns_from_a_supernet_and_is_judged_by_what_is_trained(key):
    """The shared network likes the corner that the networks alone do not."""
    alone = table(failed=NOTHING)
    away = np.abs(POINTS - 1).sum(axis=1)
    shared = table_of(np.repeat(-3.0 * away[:, None], 20, axis=1))
    run = variational_ensemble(GRID, 3, None, CONFIG, supernet=(GRID, evaluator(shared, GRID)))
    result = jax.jit(run)(key, evaluator(alone, GRID))
    members = np.asarray(index_of(result.archs))
    assert (away[members] <= 2).all()
    said = np.asarray(alone.log_probs)[members]
    mixture = np.log(np.asarray(result.weights) @ np.exp(said))
    np.testing.assert_allclose(result.info.loss, -mixture.mean(), rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_members_of_nes_bs_are_as_diverse_as_the_config_asks(key):
    known = table(failed=NOTHING)

    def different(diversity):
        config = dataclasses.replace(CONFIG, diversity=diversity)
        run = jax.jit(make("NES-BS", GRID, 4, kernel=Polynomial(), config=config))
        archs = [run(one, evaluator(known, GRID)).archs for one in jax.random.split(key, 6)]
        return np.mean([len(np.unique(index_of(members))) for members in archs])

    assert different(4.0) > different(-0.5)
    with pytest.raises(BQNESError, match="diversity is nan; it must be a finite number"):
        SearchConfig(diversity=float("nan"))


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_an_impossible_point_is_no_failure(key):
    """A point that everyone gives probability 0 is left out, as selection does it."""
    log_probs = np.array(table(failed=NOTHING).log_probs)
    log_probs[:, 3] = -np.inf
    result = jax.jit(make("Best single", GRID, 1))(key, evaluator(table_of(log_probs), GRID))
    assert result.weights.tolist() == [1]
    assert np.isfinite(result.info.loss)


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_the_best_single_is_the_best_of_all(precision):
    known = table()
    results = repeats_of("Best single", precision)(
        jax.random.split(jax.random.key(0), 3), evaluator(known, GRID)
    )
    best = np.nanargmax(known.log_likelihoods)
    assert (index_of(results.archs) == best).all()
    np.testing.assert_array_equal(results.weights, [[1, 0, 0]] * 3)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_a_log_pool_needs_all_classes(key):
    unknown = evaluator(table()._replace(classes=None), GRID)
    with pytest.raises(BQNESError, match="'logpool' needs the log-probabilities of all classes"):
        make("us+logpool", GRID, 2, kernel=Polynomial(), config=CONFIG)(key, unknown)


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_random_draws_as_many_as_there_are_members(precision):
    nothing_failed = evaluator(table(failed=NOTHING), GRID)
    keys = jax.random.split(jax.random.key(0), 3)
    results = repeats_of("Random", precision)(keys, nothing_failed)
    assert results.history.count.tolist() == [3, 3, 3]
    np.testing.assert_allclose(results.weights, 1 / 3, rtol=1e-5)
    assert all(len(set(row)) == 3 for row in index_of(results.archs).tolist())


@pytest.mark.slow
def test_recombination_of_everything_is_the_posterior_predictive(tolerance):
    """Predictions that are linear in the kernel's features are averaged exactly by few members."""
    kernel = Polynomial(degree=1)
    x, y = POINTS.T / 5
    features = np.stack([np.ones(36), y, x, x * y], axis=1)
    slopes = np.random.default_rng(0).uniform(0, 0.12, size=(4, 10, 2))
    two = np.einsum("af,fmc->amc", features, slopes)
    probabilities = np.concatenate([two, 1 - two.sum(axis=2, keepdims=True)], axis=2)
    known = table(failed=NOTHING)
    config = SearchConfig(initial=4, budget=36, batch=8, temperature=4.0)
    run = jax.jit(make("BQ-R", GRID, 5, kernel=kernel, config=config))
    result = run(jax.random.key(0), evaluator(known, GRID))

    weights = np.asarray(result.weights)
    ours = ensemble_probabilities(weights, probabilities[index_of(result.archs)])
    posterior = np.exp(np.asarray(log_posterior(known.log_likelihoods, temperature=4.0)))
    exact = np.einsum("a,amc->mc", posterior, probabilities)
    np.testing.assert_allclose(ours, exact, atol=tolerance(1e-4, 1e-9))
    assert posterior.max() < 0.5  # no single architecture would do
    assert np.sum(weights > 0) <= 5


@pytest.mark.usefixtures("own_names")
@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_an_algorithm_of_ones_own(key):
    def first_one(space, size, kernel, config):
        small = SearchConfig(initial=1, budget=1)
        return Pair("random", "top")(space, size, kernel, small)

    register("first one", first_one)
    assert "first one" in algorithms()
    result = make("first one", GRID, 2, kernel=Polynomial())(
        key, evaluator(table(failed=NOTHING), GRID)
    )
    assert result.history.count == 1
    with pytest.raises(BQNESError, match="algorithm 'BQ-S' is built in"):
        register("BQ-S", first_one)


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
@pytest.mark.parametrize(
    ("name", "size", "says"),
    [
        ("BQ-T", 3, "algorithm is 'BQ-T'; allowed are 'BQ-S', 'BQ-R', .* or 'strategy.method'"),
        ("us+best", 3, "selection method is 'best'; allowed are 'beam'"),
        ("guess+beam", 3, "strategy is 'guess'; allowed are 'random'"),
        ("BQ-S", 0, "size is 0"),
    ],
)
def test_unknown_names_are_refused(name, size, says):
    with pytest.raises(BQNESError, match=says):
        make(name, GRID, size, kernel=Polynomial(), config=CONFIG)


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_without_predictions_there_is_no_ensemble(key):
    only_sums = table()._replace(log_probs=None)
    with pytest.raises(BQNESError, match="needs the log-probability of the true class"):
        make("Best single", GRID, 1)(key, evaluator(only_sums, GRID))


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_a_table_of_another_space_is_refused():
    with pytest.raises(BQNESError, match=r"log_likelihoods has shape \(5,\)"):
        evaluator(Table(jnp.zeros(5), jnp.zeros(5)), GRID)
    outcome = evaluator(table(), GRID)(jnp.asarray(POINTS[[4, 7]]))
    assert isinstance(outcome, Outcome)
    np.testing.assert_array_equal(outcome.log_probs, np.asarray(table().log_probs)[[4, 7]])
