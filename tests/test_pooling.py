"""Ensemble predictions against NumPy and SciPy, their properties, and members that failed."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import log_softmax, logsumexp, softmax

from bqnes_jax import metrics
from bqnes_jax.errors import BQNESError
from bqnes_jax.pooling import LOG_FLOOR, ensemble_log_probabilities, ensemble_probabilities

POOLS = ["mixture", "log"]
MEMBERS, POINTS, CLASSES = 4, 6, 3


def draw(seed, spread=2.0):
    """Weights, and members' log-probabilities, in JAX's current precision."""
    rng = np.random.default_rng(seed)
    weights = rng.dirichlet(np.ones(MEMBERS))
    logs = log_softmax(spread * rng.normal(size=(MEMBERS, POINTS, CLASSES)), axis=-1)
    return single_or_double(weights), single_or_double(logs)


def single_or_double(values):
    return np.asarray(values).astype(jnp.result_type(float))


def pooled(weights, logs, pool):
    """The definition, in float64 with SciPy; weights must be positive and logs finite."""
    weights, logs = weights.astype(float)[:, None, None], logs.astype(float)
    if pool == "log":
        logs = np.maximum(logs, LOG_FLOOR)
    if pool == "mixture":
        return logsumexp(logs, b=weights, axis=0)
    return log_softmax((weights * logs).sum(axis=0), axis=-1)


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("spread", [1.0, 20.0, 500.0])
def test_against_scipy(pool, spread, tolerance, precision):
    weights, logs = draw(0, spread)
    result = ensemble_log_probabilities(weights, logs, pool=pool)
    assert result.shape == (POINTS, CLASSES) and result.dtype == precision
    close = functools.partial(
        np.testing.assert_allclose, rtol=tolerance(2e-5, 1e-13), atol=tolerance(2e-6, 1e-14)
    )
    close(result, pooled(weights, logs, pool))
    probabilities = np.exp(logs)
    mixture = np.einsum("m,mnc->nc", weights.astype(float), probabilities.astype(float))
    if pool == "mixture":
        close(ensemble_probabilities(weights, probabilities), mixture)
    else:
        floored = np.maximum(probabilities.astype(float), np.exp(LOG_FLOOR))
        geometric = np.prod(floored ** weights[:, None, None].astype(float), axis=0)
        geometric /= geometric.sum(axis=-1, keepdims=True)
        close(ensemble_probabilities(weights, probabilities, pool="log"), geometric)


@pytest.mark.parametrize("pool", POOLS)
def test_a_temperature_after_pooling_against_scipy(pool, tolerance):
    weights, logs = draw(0, 20.0)
    result = ensemble_log_probabilities(weights, logs, pool=pool, temperature=0.7)
    floored = np.maximum(pooled(weights, logs, pool), LOG_FLOOR)
    expected = log_softmax(floored / 0.7, axis=-1)
    np.testing.assert_allclose(
        result, expected, rtol=tolerance(2e-5, 1e-13), atol=tolerance(2e-6, 1e-14)
    )


def test_log_mixture_does_not_underflow(precision):
    # exp(-500) is 0 in float32; the mixture's logarithm is not.
    logs = single_or_double([[[0.0, -500.0]], [[0.0, -520.0]]])
    result = ensemble_log_probabilities(single_or_double([0.5, 0.5]), logs)
    np.testing.assert_allclose(result[0, 1], -500 + np.log(0.5), rtol=1e-6)


@pytest.mark.parametrize("pool", POOLS)
def test_one_member_is_itself(pool, tolerance):
    _, logs = draw(1)
    weights = single_or_double([0, 0, 1, 0])
    rtol = tolerance(1e-5, 1e-13)
    alone = ensemble_probabilities(weights, np.exp(logs), pool=pool)
    np.testing.assert_allclose(alone, np.exp(logs[2]), rtol=rtol)
    alone = ensemble_log_probabilities(weights[2:3], logs[2:3], pool=pool)
    np.testing.assert_allclose(alone, logs[2], rtol=rtol, atol=rtol)


@given(seed=st.integers(0, 2**31), spread=st.floats(0, 100), pool=st.sampled_from(POOLS))
def test_properties(seed, spread, pool):
    weights, logs = draw(seed, spread)
    result = np.asarray(ensemble_log_probabilities(weights, logs, pool=pool), dtype=float)
    probabilities = np.asarray(ensemble_probabilities(weights, np.exp(logs), pool=pool))
    assert (probabilities >= 0).all()
    np.testing.assert_allclose(probabilities.sum(axis=-1), 1, rtol=1e-5)
    np.testing.assert_allclose(np.exp(result).sum(axis=-1), 1, rtol=1e-5)
    np.testing.assert_allclose(probabilities, np.exp(result), atol=1e-5)
    # The order of the members does not matter.
    order = np.random.default_rng(seed).permutation(MEMBERS)
    shuffled = ensemble_log_probabilities(weights[order], logs[order], pool=pool)
    np.testing.assert_allclose(shuffled, result, rtol=1e-4, atol=1e-5)
    # Jensen: log of the mean is at least the mean of logs, and normalising a geometric mean raises
    # it, but for what the floor adds; so on any labels an ensemble is at least as likely as its
    # members are on average.
    assert (result >= (weights[:, None, None] * logs).sum(axis=0) - 1e-4 * (1 + abs(result))).all()


def test_ensemble_is_at_least_as_likely_as_its_members_on_average():
    weights, logs = draw(2)
    labels = np.random.default_rng(2).integers(CLASSES, size=POINTS)
    members = metrics.per_member(metrics.log_likelihood, np.exp(logs), labels)
    for pool in POOLS:
        together = ensemble_probabilities(weights, np.exp(logs), pool=pool)
        assert metrics.log_likelihood(together, labels) > weights @ members


@pytest.mark.slow
@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("garbage", [np.nan, np.inf, -np.inf, 0.0, -3.0, 1e30])
def test_a_member_of_weight_zero_has_no_influence(pool, garbage, tolerance):
    weights, logs = draw(3)
    weights[1] = 0
    weights /= weights.sum()
    keep = [0, 2, 3]
    for function, values in [
        (ensemble_probabilities, np.exp(logs)),
        (ensemble_log_probabilities, logs),
    ]:
        poisoned = values.copy()
        poisoned[1, ::2] = garbage
        expected = function(weights[keep], values[keep], pool=pool)
        for call in (function, jax.jit(function, static_argnames="pool")):
            result = call(weights, poisoned, pool=pool)
            np.testing.assert_allclose(result, expected, rtol=tolerance(1e-6, 1e-14))
        total = jax.grad(lambda w, v, f=function: f(w, v, pool=pool).sum())
        gradient = jax.jit(total)(weights, poisoned)
        assert np.isfinite(gradient).all()


def test_a_better_member_of_weight_zero_does_not_hide_the_others():
    logs = single_or_double([[[-300.0, 0.0]], [[0.0, -300.0]]])
    result = ensemble_log_probabilities(single_or_double([1, 0]), logs)
    np.testing.assert_allclose(result, logs[0])


def test_zero_probabilities():
    weights = single_or_double([0.5, 0.5])
    members = single_or_double([[[0.0, 0.5, 0.5]], [[0.0, 1.0, 0.0]]])
    np.testing.assert_allclose(ensemble_probabilities(weights, members), [[0, 0.75, 0.25]])
    with np.errstate(divide="ignore"):
        logs = np.log(members)
    mixture = ensemble_log_probabilities(weights, logs)
    np.testing.assert_allclose(mixture, [[-np.inf, np.log(0.75), np.log(0.25)]], rtol=1e-6)
    for pooled_ in (
        ensemble_log_probabilities(weights, logs, pool="log"),
        jnp.log(ensemble_probabilities(weights, members, pool="log")),
    ):
        scores = np.maximum(logs, LOG_FLOOR).mean(axis=0)
        np.testing.assert_allclose(pooled_, log_softmax(scores, axis=-1), rtol=1e-4, atol=1e-6)


def test_members_that_rule_out_every_class_are_heard():
    weights = single_or_double([0.25, 0.75])
    members = single_or_double([[[1, 0], [0.5, 0.5]], [[0, 1], [0.5, 0.5]]])
    result = ensemble_probabilities(weights, members, pool="log")
    odds = np.exp(LOG_FLOOR * 0.5)
    np.testing.assert_allclose(result, [[odds / (1 + odds), 1 / (1 + odds)], [0.5, 0.5]], rtol=1e-4)


def test_the_sum_of_the_weights_is_a_temperature(tolerance):
    weights, logs = draw(8)
    for total in (0.3, 2.5):
        sharper = ensemble_log_probabilities(total * weights, logs, pool="log")
        plain = ensemble_log_probabilities(weights, logs, pool="log")
        expected = log_softmax(total * np.asarray(plain, float), axis=-1)
        np.testing.assert_allclose(sharper, expected, rtol=tolerance(1e-4, 1e-10), atol=1e-6)


def test_bad_weights_in_log_space_are_refused_or_nan():
    members = np.full((3, 2, 2), 0.5)
    for weights in ([0.5, np.nan, 0.5], [0.7, 0.7, -0.4], [1.0, np.inf, 0.0], [0.0, 0.0, 0.0]):
        with pytest.raises(BQNESError, match="those of a pool in log space must be finite"):
            ensemble_probabilities(np.array(weights), members, pool="log")
        compiled = jax.jit(functools.partial(ensemble_probabilities, pool="log"))
        assert np.isnan(compiled(np.array(weights), members)).all()


@pytest.mark.slow("float64")
@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("zero_weight", [False, True])
def test_gradient_by_the_weights(pool, zero_weight, tolerance):
    weights, logs = draw(4)
    if zero_weight:
        weights[2] = 0
        weights /= weights.sum()
    logs, weights = logs.astype(float), weights.astype(float)
    directions = np.random.default_rng(4).normal(size=(POINTS, CLASSES))
    probabilities = np.exp(logs)
    result = np.exp(pooled(weights, logs, pool))
    if pool == "mixture":
        exact, exact_log = probabilities, probabilities / result
    else:
        exact_log = logs - (result * logs).sum(axis=-1, keepdims=True)
        exact = result * exact_log
    for function, values, derivative in [
        (ensemble_probabilities, probabilities, exact),
        (ensemble_log_probabilities, logs, exact_log),
    ]:
        weighted = jax.grad(lambda w, v, f=function: (directions * f(w, v, pool=pool)).sum())
        gradient = jax.jit(weighted)(single_or_double(weights), single_or_double(values))
        expected = (directions * derivative).sum(axis=(1, 2))
        np.testing.assert_allclose(gradient, expected, rtol=tolerance(1e-4, 1e-11))


@pytest.mark.slow("float64")
@pytest.mark.parametrize("pool", POOLS)
def test_gradients_are_finite_with_zero_probabilities(pool):
    members = single_or_double([[[1, 0, 0]], [[0.5, 0.5, 0]], [[0, 1, 0]]])
    weights = single_or_double([0.5, 0.5, 0])
    with np.errstate(divide="ignore"):
        logs = np.log(members)
    for function, values in [(ensemble_probabilities, members), (ensemble_log_probabilities, logs)]:
        pull = jax.vjp(lambda w, v, f=function: f(w, v, pool=pool), weights, values)[1]
        for gradient in pull(jnp.ones((1, 3))):
            assert np.isfinite(gradient).all()


@pytest.mark.parametrize("pool", POOLS)
def test_mapped_over_ensembles_and_compiled_once(pool, compilations):
    both = [draw(seed) for seed in (5, 6)]
    weights, logs = (np.stack(x) for x in zip(*both, strict=True))
    for function in (ensemble_probabilities, ensemble_log_probabilities):
        values = np.exp(logs) if function is ensemble_probabilities else logs
        mapped = jax.jit(jax.vmap(functools.partial(function, pool=pool)))(weights, values)
        alone = [function(w, v, pool=pool) for w, v in zip(weights, values, strict=True)]
        np.testing.assert_allclose(mapped, alone, rtol=1e-5, atol=1e-6)
        assert compilations() > 0
        function(weights[1], values[0], pool=pool)
        assert compilations() == 0


def test_type_is_the_wider_one(precision):
    logs = draw(7)[1]
    for narrow, wide in [(np.float16, np.float32), (np.float32, precision)]:
        members = softmax(logs, axis=-1)
        # A power of two: exact in half precision, too.
        result = ensemble_probabilities(np.full(4, 0.25, narrow), members.astype(wide))
        assert result.dtype == wide
    half = np.full((4, 2, 2), 0.5, np.float16)
    assert ensemble_probabilities(np.full(4, 0.25, np.float16), half).dtype == "float32"


@pytest.mark.parametrize("function", [ensemble_probabilities, ensemble_log_probabilities])
def test_bad_weights_are_refused_or_nan(function):
    members = np.full((3, 2, 2), 0.5)
    members = members if function is ensemble_probabilities else np.log(members)
    for weights, message in [
        ([0.5, np.nan, 0.5], r"weights\[1\] holds nan"),
        ([0.7, 0.7, -0.4], r"weights\[2\] holds -0.4"),
        ([0.5, 0.5, np.inf], r"weights\[2\] holds inf"),
        ([1.0, 1.0, 1.0], "weights sums to 3"),
        ([0.0, 0.0, 0.0], "weights sums to 0"),
        ([0.3, 0.3, 0.399], r"weights sums to 0\.999; .* divide it by its sum"),
    ]:
        with pytest.raises(BQNESError, match=message):
            function(np.array(weights), members)
        assert np.isnan(jax.jit(function)(np.array(weights), members)).all()


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_bad_members_are_refused():
    weights, good = np.array([0.5, 0.5, 0.0]), np.full((3, 2, 2), 0.5)
    for value, message in [
        (np.nan, r"member_probabilities\[1, 0, 1\] holds nan"),
        (-0.5, r"member_probabilities\[1, 0, 1\] holds -0.5"),
        (0.6, r"member_probabilities\[1, 0\] sums to 1.1"),
    ]:
        members = good.copy()
        members[1, 0, 1] = value
        with pytest.raises(BQNESError, match=message):
            ensemble_probabilities(weights, members)
    with pytest.raises(BQNESError, match=r"exp\(member_log_probabilities\)\[0, 0\] sums to 2"):
        ensemble_log_probabilities(weights, np.zeros((3, 2, 2)))
    with pytest.raises(BQNESError, match=r"exp\(member_log_probabilities\)\[0, 0, 0\] holds inf"):
        ensemble_log_probabilities(weights, np.full((3, 2, 2), 1e5))
    compiled = jax.jit(ensemble_probabilities)(weights, np.where(np.eye(2) == 1, good, np.nan))
    np.testing.assert_array_equal(np.isnan(compiled), [[False, True], [True, False]])


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
@pytest.mark.parametrize("function", [ensemble_probabilities, ensemble_log_probabilities])
def test_wrong_shapes_and_pools_are_refused(function):
    weights, members = np.array([0.5, 0.5]), np.full((2, 3, 2), 0.5)
    for bad_weights, bad_members, message in [
        (weights[:, None], members, r"weights has shape \(2, 1\)"),
        (weights, members[0], r"has shape \(3, 2\); it must have shape \(2, any, any\)"),
        (np.array([0.5, 0.25, 0.25]), members, r"it must have shape \(3, any, any\)"),
        (weights[:0], members[:0], "weights sums to 0"),
    ]:
        with pytest.raises(BQNESError, match=message):
            function(bad_weights, bad_members)
    with pytest.raises(BQNESError, match="pool is 'logit'; allowed are 'mixture', 'log'"):
        function(weights, members, pool="logit")


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
@pytest.mark.parametrize("pool", POOLS)
def test_no_points_give_no_predictions(pool):
    weights, members = np.array([0.5, 0.5]), np.full((2, 0, 3), 0.5)
    assert ensemble_probabilities(weights, members, pool=pool).shape == (0, 3)
