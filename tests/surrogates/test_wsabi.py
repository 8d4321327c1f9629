"""Surrogates of the likelihood against their definitions."""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bqnes_jax.errors import BQNESError
from bqnes_jax.kernels import RBF, WL
from bqnes_jax.spaces import NATS
from bqnes_jax.surrogates import Hyperparameters, Prediction, WarpConfig, wsabi
from bqnes_jax.surrogates.wsabi import WARPS, unwarp, warp_likelihoods
from bqnes_jax.types import Status
from tests.helpers.toy import GRID, POINTS

HYPERPARAMETERS = Hyperparameters(0.8, 0.02, mean=0.1)
# 150 of all cells, as many as are observed where more than the 100 features are.
ELSEWHERE = np.stack(np.unravel_index(np.arange(0, 15_600, 104), NATS.options), axis=-1)


def surface(n=150, span=800.0):
    """Summed log-likelihoods that spread over `span` nats."""
    archs = np.asarray(NATS.sample(jax.random.key(0), n))
    return archs, -4000 - span * np.random.default_rng(0).random(n)


@pytest.mark.parametrize("temperature", [1.0, 128.0])
def test_targets_are_the_square_root_of_the_tempered_likelihood(temperature, tolerance):
    _, log_likelihoods = surface(20, span=200.0 if temperature > 1 else 5.0)
    warp = jax.jit(functools.partial(warp_likelihoods, config=WarpConfig()))
    warped = warp(log_likelihoods, np.ones(20, bool), temperature=temperature)
    tempered = log_likelihoods / temperature
    likelihoods = np.exp(tempered - tempered.max())
    beta = 0.8 * likelihoods.min()
    np.testing.assert_allclose(warped.offset, beta, rtol=tolerance(1e-3, 1e-12))
    np.testing.assert_allclose(
        warped.targets, np.sqrt(2 * (likelihoods - beta)), rtol=tolerance(1e-3, 1e-12)
    )
    np.testing.assert_allclose(warped.log_scale, tempered.max(), rtol=tolerance(1e-6, 1e-14))


def test_logarithms_count_from_a_depth_below_the_best(tolerance):
    config = WarpConfig("log", depth=20.0)
    log_likelihoods = np.array([-100.0, -150.0, -1e4, 7.0])
    mask = np.array([True, True, True, False])
    warp = jax.jit(functools.partial(warp_likelihoods, config=config))
    warped = warp(log_likelihoods, mask, temperature=10.0)
    np.testing.assert_allclose(warped.targets, [20, 15, 0, 0], rtol=1e-6)
    assert (warped.offset, warped.log_scale) == (-20, -10)


@pytest.mark.slow("float64")
@pytest.mark.parametrize("warp", WARPS)
@pytest.mark.parametrize("kernel", [WL(NATS), RBF(NATS, 1.5)])
def test_moments_equal_their_definition(warp, kernel, tolerance):
    archs, log_likelihoods = surface()
    config = WarpConfig(warp=warp)
    model = wsabi.condition(kernel, archs, log_likelihoods, HYPERPARAMETERS, config=config)
    test = ELSEWHERE[::5]
    latent = model.latent.predict(test, full_covariance=True)
    mu, sigma = np.asarray(latent.mean), np.asarray(latent.variance)
    beta = float(model.offset)
    if warp == "linear":
        mean, covariance = beta + mu**2 / 2, np.outer(mu, mu) * sigma
    elif warp == "moment":
        mean = beta + (mu**2 + np.diag(sigma)) / 2
        covariance = np.outer(mu, mu) * sigma + sigma**2 / 2
    elif warp in ("log", "lognormal"):
        mean = np.exp(mu - 50 + (np.diag(sigma) / 2 if warp == "lognormal" else 0))
        covariance = np.outer(mean, mean) * sigma
    else:
        mean, covariance = mu, sigma
    full = jax.jit(lambda model: model.predict(test, full_covariance=True))(model)
    np.testing.assert_allclose(full.mean, mean, rtol=1e-5)
    np.testing.assert_allclose(full.variance, covariance, rtol=1e-5, atol=1e-7)
    variance = jax.jit(lambda model: model.predict(test).variance)(model)
    np.testing.assert_allclose(variance, np.diag(covariance), rtol=tolerance(1e-3, 1e-8), atol=1e-6)


def test_moment_matching_is_that_of_the_warped_gaussian():
    """Mean and covariance of β + g²/2 for a Gaussian g, by sampling it."""
    mean, covariance = np.array([0.7, -0.4]), np.array([[0.5, 0.2], [0.2, 0.3]])
    archs, log_likelihoods = surface()
    config = WarpConfig(warp="moment")
    model = wsabi.condition(WL(NATS), archs, log_likelihoods, HYPERPARAMETERS, config=config)
    exact = jax.jit(unwarp)(model, Prediction(mean, covariance))
    rng = np.random.default_rng(0)
    draws = float(model.offset) + rng.multivariate_normal(mean, covariance, 400_000) ** 2 / 2
    np.testing.assert_allclose(exact.mean, draws.mean(0), atol=0.005)
    np.testing.assert_allclose(exact.variance, np.cov(draws.T), atol=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("warp", ["linear", "moment", "none", "log"])
def test_a_common_factor_of_the_likelihood_is_only_a_scale(warp, tolerance):
    archs, log_likelihoods = surface()
    config = WarpConfig(warp=warp)
    here, there = (
        wsabi.fit(WL(NATS), archs, log_likelihoods + shift, config=config) for shift in (0, 12_800)
    )
    np.testing.assert_allclose(float(there.log_scale) - float(here.log_scale), 100, rtol=1e-5)
    for ours, theirs in zip(here.predict(ELSEWHERE), there.predict(ELSEWHERE), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=tolerance(0.05, 1e-8), atol=1e-4)


@pytest.mark.slow("float64")
def test_what_is_not_known_at_all_stays_finite():
    """A lognormal of a wide Gaussian has a mean beyond what float32 can square."""
    archs, log_likelihoods = surface(8)
    model = wsabi.condition(
        WL(NATS),
        archs[:1],
        log_likelihoods[:1],
        Hyperparameters(800.0, 0.1),
        config=WarpConfig("lognormal"),
    )
    mean, variance = map(np.asarray, model.predict(ELSEWHERE))
    assert np.isfinite(mean).all() and np.isfinite(variance).all()
    assert mean.max() > 1e15


SAME_TARGETS = [("linear", "moment"), ("none",), ("log", "lognormal")]


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_every_warp_has_targets_that_are_fitted_below():
    assert set(itertools.chain(*SAME_TARGETS)) == set(WARPS)
    values = np.array([-100.0, -150.0, -300.0, -np.inf])
    for first, *others in SAME_TARGETS:
        for other in others:
            ours, theirs = (
                jax.jit(functools.partial(warp_likelihoods, config=WarpConfig(warp)))(
                    values, np.ones(4, bool)
                )
                for warp in (first, other)
            )
            jax.tree.map(np.testing.assert_array_equal, ours, theirs)


@pytest.mark.slow
@pytest.mark.parametrize("warps", SAME_TARGETS)
@pytest.mark.parametrize("kernel", [WL(NATS), RBF(NATS, 1.0)])
def test_duplicates_500_nats_apart_stay_finite(warps, kernel):
    """500 nats after tempering: all but the best underflow in float32."""
    archs, _ = surface()
    archs = np.tile(archs[:30], (5, 1))
    log_likelihoods = -128 * 500 * np.random.default_rng(0).random(150)
    fitted = wsabi.fit(kernel, archs, log_likelihoods, config=WarpConfig(warp=warps[0]))
    for warp in warps:
        model = dataclasses.replace(fitted, warp=warp)
        prediction = model.predict(ELSEWHERE)
        for value in jax.tree.leaves((model.latent.hyperparameters, model.offset, prediction)):
            assert np.isfinite(value).all()
        assert (np.asarray(prediction.variance) >= 0).all()


def test_gradient_is_finite_where_the_likelihood_vanishes():
    log_likelihoods = np.array([0.0, -50.0, -500.0]) * 128

    def total(values):
        return jnp.sum(warp_likelihoods(values, jnp.ones(3, bool), WarpConfig()).targets)

    assert np.isfinite(jax.jit(jax.grad(total))(log_likelihoods)).all()


@pytest.mark.slow
def test_padding_and_failed_trainings(tolerance):
    archs, log_likelihoods = surface(40)
    mask = np.arange(40) < 30
    padded = wsabi.condition(
        WL(NATS), archs, np.where(mask, log_likelihoods, np.nan), HYPERPARAMETERS, mask=mask
    )
    plain = wsabi.condition(WL(NATS), archs[:30], log_likelihoods[:30], HYPERPARAMETERS)
    traced = jax.jit(lambda y: wsabi.condition(WL(NATS), archs, y, HYPERPARAMETERS))(
        np.where(mask, log_likelihoods, np.nan)
    )
    assert Status(int(traced.status)) == Status.MASKED_TARGETS
    for model in (padded, traced):
        np.testing.assert_allclose(model.offset, plain.offset, rtol=1e-5)
        for ours, theirs in zip(model.predict(archs), plain.predict(archs), strict=True):
            np.testing.assert_allclose(ours, theirs, atol=tolerance(1e-4, 1e-10))


def test_nothing_observed_is_the_prior():
    archs, log_likelihoods = surface()
    model = wsabi.fit(WL(NATS), archs, log_likelihoods, mask=np.zeros(150, bool))
    assert Status(int(model.status)) & Status.EMPTY
    assert np.isfinite(model.predict(ELSEWHERE).mean).all()
    assert model.log_scale == 0


@pytest.mark.slow("float64")
def test_prediction_follows_the_likelihood():
    """On a grid with a smooth likelihood the surrogate finds it again between the points."""
    log_likelihoods = -128 * 3 * np.sum((POINTS / 5 - 0.4) ** 2, axis=1)
    model = wsabi.fit(RBF(GRID, np.array([0.5, 0.5])), POINTS[::2], log_likelihoods[::2])
    truth = np.exp(log_likelihoods / 128 - float(model.log_scale))
    np.testing.assert_allclose(model.predict(POINTS).mean, truth, atol=0.06)


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: WarpConfig(warp="cube"), "warp is 'cube'; allowed are 'linear', 'moment', 'none'"),
        (lambda: WarpConfig(floor=1.0), "floor is 1.0; it must be at least 0 and below 1"),
        (
            lambda: wsabi.fit(WL(NATS), np.zeros((2, 6), int), np.array([0.0, np.nan])),
            "log_likelihoods holds nan at index 1",
        ),
    ],
)
def test_bad_input_is_refused(make, says):
    with pytest.raises(BQNESError, match=says):
        make()
