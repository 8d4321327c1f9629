"""Selection by the quadrature of the predictive distribution, and by which likelihood."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bqnes_jax import algorithms
from bqnes_jax.candidates import Outcome, SearchConfig, make
from bqnes_jax.errors import BQNESError
from bqnes_jax.selection import measure_candidates, select
from bqnes_jax.spaces import enumerate_space
from bqnes_jax.tables import Table, evaluator
from tests.helpers.toy import GRID, Overlap, Polynomial

ARCHS = enumerate_space(GRID)
CONFIG = SearchConfig(initial=6, budget=10, temperature=2.0)


def predictions(count=36, points=12):
    rng = np.random.default_rng(0)
    return jnp.asarray(-np.exp(rng.normal(size=(count, points)) - 1))


@pytest.mark.slow
@pytest.mark.parametrize("kernel", [Polynomial(), Overlap()], ids=["finite", "other"])
def test_the_rule_is_the_kernel_mean_solved(kernel, tolerance):
    strategy = make("us", GRID, kernel=kernel, config=CONFIG)
    state, info = strategy.init(jax.random.key(0))
    values = jnp.sum(predictions(), axis=1)[GRID.index(info.archs)]
    state, info = strategy.step(jax.random.key(1), state, Outcome(info.archs, values))
    ours = np.asarray(strategy.rule(info, state.history), float)
    amplitude, noise, _ = map(float, info.hyperparameters)
    archs = state.history.archs[:6]
    fitted = info.kernel if kernel.finite is False else Polynomial()
    gram = np.asarray(fitted.gram(archs), float)
    z = np.asarray(fitted.cross(archs, ARCHS), float).mean(axis=1)
    expected = np.linalg.solve(gram + noise / amplitude * np.eye(6), z)
    np.testing.assert_allclose(ours[:6], expected, rtol=tolerance(5e-2, 1e-6), atol=1e-3)
    np.testing.assert_array_equal(ours[6:], 0)


@pytest.mark.slow("float64")
def test_the_weights_are_those_of_the_predictive_distribution(tolerance):
    """With an exact rule for the whole space, weights are the posterior's; M largest are kept."""
    log_probs, rng = predictions(), np.random.default_rng(1)
    rule = jnp.asarray(rng.normal(size=36))
    gram = jnp.eye(36)  # nothing is alike: what is left out is shared in proportion
    found = select("quadrature", log_probs, 5, kernel=gram, rule=rule, temperature=2.0)
    likelihood = np.exp(np.asarray(log_probs, float).sum(axis=1) / 2)
    weights = np.maximum(np.asarray(rule, float), 0) * likelihood
    best = np.argsort(-weights)[:5]
    assert found.members.tolist() == best.tolist()
    expected = weights[best] / weights[best].sum()
    np.testing.assert_allclose(found.weights, expected, rtol=tolerance(1e-4, 1e-10))
    exact = select(
        "quadrature", log_probs, 36, kernel=gram, rule=jnp.full(36, 1 / 36), temperature=2.0
    )
    mixture = np.exp(np.asarray(log_probs, float))[exact.members].T @ np.asarray(exact.weights)
    posterior = likelihood / likelihood.sum()
    np.testing.assert_allclose(
        mixture, np.exp(np.asarray(log_probs, float)).T @ posterior, rtol=tolerance(1e-4, 1e-10)
    )


def test_what_is_left_out_is_shared_by_likeness(tolerance):
    log_probs = jnp.log(jnp.array([[0.9], [0.5], [0.3]]))
    gram = jnp.array([[1.0, 0.0, 0.9], [0.0, 1.0, 0.1], [0.9, 0.1, 1.0]])
    rule = jnp.array([1.0, 1.0, 0.5])
    found = select("quadrature", log_probs, 2, kernel=gram, rule=rule, temperature=1.0)
    expected = np.array([0.9 + 0.15 * 0.9, 0.5 + 0.15 * 0.1]) / 1.55
    np.testing.assert_allclose(found.weights, expected, rtol=tolerance(1e-5, 1e-10))


@pytest.mark.slow("float64")
def test_degenerate_rules_leave_an_ensemble():
    log_probs, gram = predictions(4), jnp.eye(4)
    negative = select("quadrature", log_probs, 2, kernel=gram, rule=-jnp.ones(4))
    np.testing.assert_allclose(negative.weights.sum(), 1, rtol=1e-5)
    failed = log_probs.at[1].set(jnp.nan)
    found = select("quadrature", failed, 4, kernel=gram, rule=jnp.ones(4))
    assert int(found.info.used) == 3
    assert 1 not in np.asarray(found.members)[np.asarray(found.weights) > 0]
    far = jnp.array([[-500.0], [-1.0]])
    one = select("quadrature", far, 2, kernel=jnp.eye(2), rule=jnp.ones(2), temperature=1.0)
    assert one.members[0] == 1 and one.weights[0] == 1
    compiled = jax.jit(jax.vmap(lambda r: select("quadrature", log_probs, 2, kernel=gram, rule=r)))
    mapped = compiled(jnp.stack([jnp.ones(4), -jnp.ones(4)]))
    np.testing.assert_allclose(mapped.weights[1], negative.weights, rtol=1e-4)
    with pytest.raises(BQNESError, match="rule is None; 'quadrature' needs"):
        select("quadrature", log_probs, 2, kernel=gram)
    with pytest.raises(BQNESError, match=r"rule has shape \(3,\)"):
        select("quadrature", log_probs, 2, kernel=gram, rule=jnp.ones(3))


def test_measures_have_the_size_of_validation_points(tolerance):
    valid, train = jnp.array([-30.0, -20.0]), jnp.array([-3.0, -9.0])
    np.testing.assert_array_equal(measure_candidates("valid", valid, 10, None, None), valid)
    by_train = measure_candidates("train", valid, 10, train, 40)
    np.testing.assert_allclose(by_train, [-0.75, -2.25], rtol=1e-6)
    both = measure_candidates("both", valid, 10, train, 40)
    np.testing.assert_allclose(both, [-33 / 5, -29 / 5], rtol=1e-6)
    with pytest.raises(BQNESError, match="measure is 'both', but the store or table was made bef"):
        measure_candidates("both", valid, 10, None, None)


@pytest.mark.slow
@pytest.mark.parametrize("measure", ["valid", "train", "both"])
def test_recombination_follows_the_measure(measure, precision):
    log_probs = predictions()
    train = -10.0 * jnp.asarray(np.random.default_rng(5).random(36))
    table = Table(jnp.sum(log_probs, 1), jnp.zeros(36), log_probs)
    table = table._replace(train_log_likelihoods=train, train_points=30)
    config = SearchConfig(initial=6, budget=10, measure=measure, temperature=1.0)
    run = algorithms.make("BQ-R", GRID, 1, kernel=Polynomial(), config=config)
    evaluate = evaluator(table, GRID, measure=measure)
    results = jax.jit(jax.vmap(run, (0, None)))(jax.random.split(jax.random.key(0), 2), evaluate)
    values = measure_candidates(measure, table.log_likelihoods, 12, train, 30)
    for archs, member in zip(results.history.archs, results.archs, strict=True):
        index = np.asarray(GRID.index(archs))
        best = index[int(np.argmax(np.asarray(values)[index]))]
        assert int(GRID.index(member[0])) == best
    if measure != "valid":
        with pytest.raises(BQNESError, match="evaluate returned no measures"):
            run(jax.random.key(0), evaluator(table, GRID))
        with pytest.raises(BQNESError, match="was made before training log-likelihoods"):
            evaluator(table._replace(train_log_likelihoods=None), GRID, measure=measure)
