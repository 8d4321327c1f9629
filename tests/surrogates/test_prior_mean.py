"""A fitted constant as prior mean, against scipy, scikit-learn and generalised least squares."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process import kernels as sk

from bqnes_jax.errors import BQNESError
from bqnes_jax.kernels import RBF, WL
from bqnes_jax.spaces import NATS, enumerate_space
from bqnes_jax.surrogates import FitConfig, Hyperparameters, WarpConfig, gp, wsabi
from bqnes_jax.types import Status

FIT = FitConfig((1e-4, 10.0), kernel_steps=0, mean="constant")
KERNELS = [WL(NATS), RBF(NATS, 2.0)]  # in weight space, and by points


def problem(kernel, n, level, seed=0):
    """Draw architectures, and targets from a process around a level."""
    archs = NATS.sample(jax.random.key(seed), n)
    gram = np.asarray(kernel.gram(archs), float)
    rng = np.random.default_rng(seed)
    return archs, gram, rng.multivariate_normal(np.full(n, level), gram + 0.1 * np.eye(n))


@pytest.mark.slow
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("n", [60, 150])
def test_fit_finds_scipys_maximum(kernel, n, tolerance):
    archs, gram, targets = problem(kernel, n, level=7.0)
    posterior = gp.fit(kernel, archs, targets, config=FIT)

    def negative(parameters):
        amplitude, noise = np.exp(parameters[:2])
        covariance = amplitude * gram + noise * np.eye(n)
        residual = targets - parameters[2]
        quadratic = residual @ np.linalg.solve(covariance, residual)
        return 0.5 * (quadratic + np.linalg.slogdet(covariance)[1] + n * np.log(2 * np.pi))

    best = minimize(negative, [0.0, -2.0, targets.mean()], tol=1e-9)
    amplitude, noise, mean = map(float, posterior.hyperparameters)
    np.testing.assert_allclose(mean, best.x[2], atol=tolerance(0.02, 1e-3))
    np.testing.assert_allclose([amplitude, noise], np.exp(best.x[:2]), rtol=tolerance(0.1, 2e-3))
    np.testing.assert_allclose(
        posterior.log_marginal_likelihood, -best.fun, rtol=tolerance(1e-4, 1e-8)
    )
    inverse = np.linalg.inv(gram + noise / amplitude * np.eye(n))
    least_squares = inverse.sum(0) @ targets / inverse.sum()
    np.testing.assert_allclose(mean, least_squares, rtol=tolerance(1e-3, 1e-9))
    assert posterior.status == Status.OK


@pytest.mark.slow("float64")
@pytest.mark.parametrize("kernel", KERNELS)
def test_prediction_equals_sklearns_around_the_same_level(kernel, tolerance):
    archs, _, targets = problem(kernel, 150, level=-3.0)
    hyperparameters = Hyperparameters(1.3, 0.2, mean=-2.5)
    ours = gp.condition(kernel, archs, targets, hyperparameters)
    if isinstance(kernel, RBF):
        base, inputs = sk.RBF(2.0), NATS.coordinates
    else:
        base, inputs = sk.DotProduct(sigma_0=0, sigma_0_bounds="fixed"), kernel.features
    covariance = sk.ConstantKernel(1.3) * base
    theirs = GaussianProcessRegressor(covariance, alpha=0.2, optimizer=None)
    theirs.fit(np.asarray(inputs(archs), float), targets + 2.5)
    test = NATS.sample(jax.random.key(9), 40)
    mean, variance = theirs.predict(np.asarray(inputs(test), float), return_cov=True)
    predicted = ours.predict(test, full_covariance=True)
    np.testing.assert_allclose(predicted.mean, mean - 2.5, atol=tolerance(2e-3, 1e-8))
    np.testing.assert_allclose(predicted.variance, variance, atol=tolerance(2e-3, 1e-8))
    np.testing.assert_allclose(
        ours.log_marginal_likelihood, theirs.log_marginal_likelihood_value_, rtol=1e-4
    )


@pytest.mark.slow
@pytest.mark.parametrize("kernel", [RBF(NATS, 0.7), WL(NATS, layer_weights=np.ones(2))])
@pytest.mark.parametrize("n", [40, 150])
def test_a_level_shifts_the_fit_and_nothing_else(kernel, n, tolerance):
    """Kernels with leaves: the profile that L-BFGS climbs knows of the mean."""
    archs, _, targets = problem(WL(NATS), n, level=0.0)
    config = FitConfig((1e-4, 10.0), kernel_steps=5, mean="constant")
    here, there = (gp.fit(kernel, archs, targets + level, config=config) for level in (0.0, 50.0))
    test = NATS.sample(jax.random.key(9), 30)
    atol = tolerance(0.02, 1e-6)
    np.testing.assert_allclose(here.predict(test).mean + 50, there.predict(test).mean, atol=atol)
    np.testing.assert_allclose(here.predict(test).variance, there.predict(test).variance, atol=atol)


@pytest.mark.slow
@pytest.mark.parametrize("kernel", KERNELS)
def test_padding_changes_nothing(kernel, tolerance):
    archs, _, targets = problem(kernel, 120, level=5.0)
    mask = np.arange(150) < 120
    padded = jnp.concatenate([archs, NATS.sample(jax.random.key(1), 30)])
    junk = np.concatenate([targets, np.full(30, np.nan)])
    plain = gp.fit(kernel, archs, targets, config=FIT)
    ours = gp.fit(kernel, padded, junk, mask=mask, config=FIT)
    rtol = tolerance(1e-2, 1e-6)
    np.testing.assert_allclose(ours.hyperparameters, plain.hyperparameters, rtol=rtol)
    test = NATS.sample(jax.random.key(9), 30)
    for one, other in zip(ours.predict(test), plain.predict(test), strict=True):
        np.testing.assert_allclose(one, other, rtol=rtol, atol=rtol)


@pytest.mark.slow
def test_fantasies_keep_the_mean(tolerance):
    archs, _, targets = problem(WL(NATS), 40, level=5.0)
    posterior = gp.fit(WL(NATS), archs, targets, config=FIT)
    test = NATS.sample(jax.random.key(9), 30)
    after = posterior.fantasise(test[:3])
    np.testing.assert_allclose(
        after.predict(test).mean, posterior.predict(test).mean, atol=tolerance(5e-3, 1e-9)
    )
    assert (after.predict(test).variance[:3] < posterior.predict(test).variance[:3]).all()


@pytest.mark.slow("float64")
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("case", ["equal", "one point", "no points", "contradiction", "huge"])
def test_degenerate_designs_stay_finite(kernel, case):
    archs, _, targets = problem(kernel, 150, level=5.0)
    mask = np.ones(150, bool)
    if case == "equal":
        targets = np.full(150, 5.0)
    elif case == "one point":
        mask = np.arange(150) < 1
    elif case == "no points":
        mask = np.zeros(150, bool)
    elif case == "contradiction":
        archs = jnp.tile(archs[:1], (150, 1))
    else:
        targets = 1e12 * targets
    posterior = gp.fit(kernel, archs, targets, mask=mask, config=FIT)
    test = enumerate_space(NATS)[::500]
    prediction = posterior.predict(test)
    assert all(jnp.isfinite(x).all() for x in (*prediction, *posterior.hyperparameters))
    assert (prediction.variance >= 0).all()
    expected = {"equal": 5.0, "one point": targets[0], "no points": 0.0}
    if case in expected:
        np.testing.assert_allclose(prediction.mean, expected[case], rtol=1e-4, atol=1e-6)
        status = Status.EMPTY if case == "no points" else Status.AT_BOUND
        assert status in Status(int(posterior.status))


@pytest.mark.slow
@pytest.mark.parametrize("warp", ["linear", "moment", "none", "log"])
def test_every_warp_falls_back_to_the_level(warp, tolerance):
    """An architecture that is like none of the others: the latent mean is the fitted one."""
    archs = NATS.sample(jax.random.key(0), 60)
    archs = jnp.where(archs == 4, 3, archs)
    values = -128 * np.random.default_rng(0).random(60)
    config = WarpConfig(warp)
    model = wsabi.fit(RBF(NATS, 0.05), archs, values, config=config, fit_config=FIT)
    far = jnp.full((1, 6), 4)
    np.testing.assert_allclose(
        model.latent.predict(far).mean, model.latent.hyperparameters.mean, rtol=1e-5
    )
    assert jnp.isfinite(model.predict(far).mean).all()
    np.testing.assert_allclose(
        wsabi.unwarp(model, model.latent.predict(far)).mean, model.predict(far).mean, rtol=1e-6
    )


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_an_unknown_mean_is_refused():
    with pytest.raises(BQNESError, match="mean is 'linear'"):
        FitConfig(mean="linear")
