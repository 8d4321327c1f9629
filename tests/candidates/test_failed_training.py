"""Failures teach: a training that failed is an observation of likelihood 0, or of the worst."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bqnes_jax import candidates
from bqnes_jax.candidates import Outcome, SearchConfig, tell
from bqnes_jax.candidates.base import State
from bqnes_jax.candidates.bayesian import _standardise
from bqnes_jax.candidates.history import empty_history
from bqnes_jax.drivers import loop, scan
from bqnes_jax.errors import BQNESError
from bqnes_jax.kernels import RBF
from bqnes_jax.quadrature import exact_evidence
from bqnes_jax.spaces import NATS, Subset, enumerate_space
from bqnes_jax.surrogates import FitConfig, Hyperparameters, WarpConfig, gp, wsabi
from bqnes_jax.surrogates.wsabi import warp_likelihoods
from bqnes_jax.tables import Table, evaluator
from bqnes_jax.types import Status
from tests.helpers.toy import Grid

WARPS = ("linear", "moment", "none", "log")
LARGE, SMALL = Grid(30), Grid(6)
NO_STEPS = FitConfig(kernel_steps=0)
HYPERPARAMETERS = Hyperparameters(1.0, 1e-4)
ZERO = -np.inf


def surface(space, peak=0.62):
    """Log-likelihoods that fall off around a peak, by 40 nats at the temperature 1."""
    points = np.asarray(space.coordinates(space.from_index(jnp.arange(space.size))), float)
    return -40 * np.sum((points - peak) ** 2, axis=1)


def table(values):
    return Table(jnp.asarray(values), jnp.zeros(len(values)))


# ── the warp at a likelihood of 0 ────────────────────────────────────────────────────────────────


@pytest.mark.slow("float64")
@pytest.mark.parametrize("zero", [ZERO, -1e30])
@pytest.mark.parametrize("warp", ["linear", "moment"])
def test_a_likelihood_of_zero_has_target_zero_and_no_offset(warp, zero, tolerance):
    """β = 0.8·min ℓ is 0, and −∞ is the limit of what is very unlikely."""
    values = jnp.array([-3.0, -4.0, zero, -5.0])
    warped = warp_likelihoods(values, jnp.ones(4, bool), WarpConfig(warp), temperature=2.0)
    expected = np.sqrt(2 * np.exp([0.0, -0.5, -np.inf, -1.0]))
    np.testing.assert_allclose(warped.targets, expected, rtol=tolerance(1e-5, 1e-13))
    assert (warped.offset, warped.log_scale) == (0, -1.5)


@pytest.mark.parametrize(("warp", "best"), [("none", 1.0), ("log", 20.0)])
def test_other_warps_have_target_zero_there(warp, best):
    values, config = jnp.array([-3.0, ZERO]), WarpConfig(warp, depth=20.0)
    warped = warp_likelihoods(values, jnp.ones(2, bool), config)
    np.testing.assert_allclose(warped.targets, [best, 0])


@pytest.mark.slow("float64")
@pytest.mark.parametrize("warp", WARPS)
def test_padding_is_no_failure(warp):
    """Whatever stands in a masked place, zero likelihood included."""
    values, mask = jnp.array([-3.0, -40.0]), jnp.ones(2, bool)
    plain = warp_likelihoods(values, mask, WarpConfig(warp))
    for filler in (ZERO, jnp.nan, 7.0):
        padded = warp_likelihoods(
            jnp.append(values, filler), jnp.append(mask, False), WarpConfig(warp)
        )
        np.testing.assert_array_equal(padded.targets[:2], plain.targets)
        np.testing.assert_array_equal(padded[1:], plain[1:])


@pytest.mark.slow("float64")
@pytest.mark.parametrize("warp", WARPS)
def test_gradients_are_finite_beside_a_failure(warp):
    def total(values):
        return jnp.sum(warp_likelihoods(values, jnp.ones(3, bool), WarpConfig(warp)).targets)

    gradient = jax.jit(jax.grad(total))(jnp.array([-3.0, ZERO, -9.0]))
    assert jnp.isfinite(gradient).all() and gradient[1] == 0 and gradient[2] != 0


@pytest.mark.slow("float64")
@pytest.mark.parametrize("warp", WARPS)
def test_the_surrogate_is_low_where_training_failed(warp):
    archs = LARGE.from_index(jnp.arange(0, 900, 37))
    values = jnp.zeros(len(archs)).at[5].set(ZERO)
    setting = {"temperature": 1.0, "config": WarpConfig(warp)}
    model = wsabi.condition(RBF(LARGE, 0.1), archs, values, HYPERPARAMETERS, **setting)
    assert not int(model.status) & Status.MASKED_TARGETS
    mean = model.predict(archs).mean
    assert mean[5] < 0.05 and jnp.delete(mean, 5).min() > 0.9
    assert model.design.mask.all()


@pytest.mark.parametrize("bad", [jnp.nan, jnp.inf])
def test_what_is_no_likelihood_is_still_refused_or_left_out_and_said(bad):
    archs, values = SMALL.from_index(jnp.arange(4)), jnp.array([-1.0, bad, ZERO, -2.0])
    with pytest.raises(BQNESError, match=r"log_likelihoods holds (nan|inf) at index 1"):
        wsabi.condition(RBF(SMALL), archs, values, HYPERPARAMETERS)

    @jax.jit
    def traced(values):
        return wsabi.condition(RBF(SMALL), archs, values, HYPERPARAMETERS)

    model = traced(values)
    assert int(model.status) & Status.MASKED_TARGETS
    np.testing.assert_array_equal(model.design.mask, [True, False, True, True])


def test_a_plain_gaussian_process_knows_no_likelihood_of_zero():
    with pytest.raises(BQNESError, match="targets holds -inf at index 0"):
        gp.condition(
            RBF(SMALL), SMALL.from_index(jnp.arange(2)), jnp.array([ZERO, 1.0]), HYPERPARAMETERS
        )


@pytest.mark.slow("float64")
def test_nothing_but_failures_leaves_no_evidence():
    archs = SMALL.from_index(jnp.arange(5))
    model = wsabi.fit(RBF(SMALL, 0.3), archs, jnp.full(5, ZERO), fit_config=NO_STEPS)
    assert (model.predict(archs).mean == 0).all()
    found = exact_evidence(model, SMALL)
    assert found.log_evidence == -jnp.inf and int(found.status) & Status.NEGATIVE


# ── what EI is told ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow("float64")
@pytest.mark.parametrize("failed", [np.nan, ZERO, np.inf])
def test_expected_improvement_takes_a_failure_for_the_worst(failed, tolerance):
    state = State(empty_history(6, 2), None)
    outcome = Outcome(SMALL.from_index(jnp.arange(4)), jnp.array([-3.0, failed, -9.0, -6.0]))
    found = _standardise(tell(state, outcome).history)
    values = np.array([-3.0, -9.0, -9.0, -6.0])
    expected = [*(values - values.mean()) / values.std(), 0, 0]
    np.testing.assert_allclose(found, expected, atol=tolerance(1e-6, 1e-12))


def test_nothing_but_failures_are_all_alike():
    state = State(empty_history(6, 2), None)
    outcome = Outcome(SMALL.from_index(jnp.arange(3)), jnp.full(3, jnp.nan))
    np.testing.assert_array_equal(_standardise(tell(state, outcome).history), 0)


# ── whole searches ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32"], indirect=True)
@pytest.mark.parametrize("name", ["us", "ei", "evolution"])
def test_few_evaluations_are_spent_where_the_best_looking_fail(name):
    """Learning from successes alone, US spends 12 to 35 of 60 evaluations there, EI 23 to 41.

    US explains some of what fails by noise, which it may fit, and spends 7 to 11.
    """
    space = Subset(NATS, tuple(range(0, NATS.size, 4)))
    archs = enumerate_space(space)
    values = np.asarray(-300 * (archs != 3).sum(axis=1) - 100 * (archs == 0).sum(axis=1), float)
    values += np.random.default_rng(0).normal(scale=30, size=len(values))
    values = np.where(values >= np.quantile(values, 1 - 0.017), np.nan, values)
    assert np.isnan(values).sum() == 67
    config = SearchConfig(initial=10, budget=60, population=20)
    strategy = candidates.make(name, space, config=config)
    found = jax.jit(
        jax.vmap(lambda key: scan(strategy, config, key, evaluator(table(values), space)))
    )(jax.random.split(jax.random.key(0), 4))
    failures = np.isnan(found.history.log_likelihoods).sum(axis=1)
    most, mean = (12, 10) if name == "us" else (8, 6)
    assert failures.max() <= most and failures.mean() <= mean


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32"], indirect=True)
@pytest.mark.parametrize("name", candidates.strategies())
@pytest.mark.parametrize("driver", [scan, loop])
def test_a_search_whose_first_architectures_all_failed_goes_on(name, driver):
    """Draws are made until something succeeds: here two of three architectures fail."""
    config = SearchConfig(initial=4, budget=16, population=6, temperature=1.0, fit=NO_STEPS)
    strategy = candidates.make(name, SMALL, kernel=RBF(SMALL, 0.3), config=config)
    first = SMALL.index(strategy.init(jax.random.split(jax.random.key(0))[0])[1].archs)
    values = np.where(np.arange(36) % 3 == 0, surface(SMALL), np.nan)
    values[np.asarray(first)] = np.nan
    history, trace = driver(strategy, config, jax.random.key(0), evaluator(table(values), SMALL))
    assert trace.best[0] == -np.inf and trace.effective_size[0] == 0
    assert len(np.unique(SMALL.index(history.archs))) == 16
    assert history.finite.any() and np.isfinite(trace.best[-1])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["us", "ei"])
@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_after_failures_alone_the_next_is_a_draw(name):
    config = SearchConfig(initial=4, budget=6, temperature=1.0, fit=NO_STEPS)
    strategy = candidates.make(name, SMALL, kernel=RBF(SMALL, 0.3), config=config)
    state, info = strategy.init(jax.random.key(0))
    failed = Outcome(info.archs, jnp.full(4, jnp.nan))
    state = tell(state, failed)
    asked = [strategy.ask(jax.random.key(seed), state)[1] for seed in range(8)]
    numbers = [int(SMALL.index(info.archs[0])) for info in asked]
    assert len(set(numbers)) > 3
    assert all(float(info.scores[0]) == 0 for info in asked)


@pytest.mark.slow
@pytest.mark.parametrize("failed", [np.nan, ZERO])
@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_failures_are_recorded_as_they_came(failed):
    """What the surrogate is told is not what the history says: NaN stays NaN."""
    values = surface(SMALL)
    values[::2] = failed
    config = SearchConfig(initial=6, budget=10, temperature=1.0, fit=NO_STEPS)
    strategy = candidates.make("us", SMALL, kernel=RBF(SMALL, 0.3), config=config)
    found = scan(strategy, config, jax.random.key(0), evaluator(table(values), SMALL))
    seen = np.asarray(SMALL.index(found.history.archs))
    np.testing.assert_allclose(found.history.log_likelihoods, values[seen], rtol=1e-5)
    assert not (np.asarray(found.trace.evidence.status) & Status.MASKED_TARGETS).any()
