"""The evidence against brute-force sums on a small space."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bqnes_jax.errors import BQNESError
from bqnes_jax.kernels import RBF, WL
from bqnes_jax.quadrature import (
    drawn_evidence,
    evidence_over,
    exact_evidence,
    log_posterior,
    quadrature_weights,
    sampled_evidence,
)
from bqnes_jax.spaces import NATS
from bqnes_jax.surrogates import Hyperparameters, WarpConfig, wsabi
from bqnes_jax.surrogates.gp import double_sum
from bqnes_jax.surrogates.wsabi import WARPS
from bqnes_jax.types import Status
from tests.helpers.toy import GRID, POINTS, Polynomial

KERNELS = [RBF(GRID, 0.3), Polynomial()]  # by points, and in weight space


def log_likelihood(archs):
    return -128 * 4 * np.sum((archs / 5 - 0.4) ** 2, axis=1)


def model_of(kernel, warp, n=15, **options):
    archs = POINTS[np.random.default_rng(0).permutation(36)[:n]]
    config = WarpConfig(warp=warp, **options)
    hyperparameters = Hyperparameters(0.8, 0.01, mean=0.1)
    return wsabi.condition(kernel, archs, log_likelihood(archs), hyperparameters, config=config)


@pytest.mark.slow("float64")
@pytest.mark.parametrize("warp", WARPS)
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("uniform", [True, False])
def test_exact_evidence_equals_brute_force(kernel, warp, uniform, tolerance):
    """Σ π m and ΣΣ π π' k, term by term, from the moments of the latent process."""
    model = model_of(kernel, warp)
    assert model.latent.weight_space == isinstance(kernel, Polynomial)
    prior = np.ones(36) / 36 if uniform else np.random.default_rng(1).dirichlet(np.ones(36))
    latent = model.latent.predict(POINTS, full_covariance=True)
    mu, sigma = (np.asarray(moment, np.float64) for moment in latent)
    mean = variance = 0.0
    for i in range(36):
        term = {
            "linear": float(model.offset) + mu[i] ** 2 / 2,
            "moment": float(model.offset) + (mu[i] ** 2 + sigma[i, i]) / 2,
            "none": mu[i],
            "log": np.exp(mu[i] - 50),
            "lognormal": np.exp(mu[i] - 50 + sigma[i, i] / 2),
        }
        mean += prior[i] * term[warp]
        for j in range(36):
            term = {
                "linear": mu[i] * sigma[i, j] * mu[j],
                "moment": mu[i] * sigma[i, j] * mu[j] + sigma[i, j] ** 2 / 2,
                "none": sigma[i, j],
                "log": np.exp(mu[i] + mu[j] - 100) * sigma[i, j],
                "lognormal": np.exp(mu[i] + mu[j] - 100 + (sigma[i, i] + sigma[j, j]) / 2)
                * sigma[i, j],
            }
            variance += prior[i] * prior[j] * term[warp]
    ours = exact_evidence(model, GRID, log_prior=None if uniform else np.log(prior))
    scale = float(model.log_scale)
    np.testing.assert_allclose(ours.log_evidence, scale + np.log(mean), atol=tolerance(1e-5, 1e-10))
    np.testing.assert_allclose(
        ours.posterior_sd, np.sqrt(variance) / mean, rtol=tolerance(2e-3, 1e-6)
    )
    assert ours.sampling_sd == 0
    assert ours.status == Status.OK


@pytest.mark.slow("float64")
@pytest.mark.parametrize("warp", ["linear", "none"])
def test_evidence_is_the_sum_when_everything_is_known(warp, precision):
    kernel, known, config = RBF(GRID, 0.25), log_likelihood(POINTS), WarpConfig(warp=warp)
    model = wsabi.condition(kernel, POINTS, known, Hyperparameters(1.0, 1e-5), config=config)
    expected = np.log(np.mean(np.exp(known / 128)))
    np.testing.assert_allclose(exact_evidence(model, GRID).log_evidence, expected, atol=2e-3)


@pytest.mark.slow
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("squared", [False, True])
def test_double_sums_do_not_depend_on_blocks(kernel, squared, monkeypatch, tolerance):
    posterior = model_of(kernel, "linear").latent
    weights = np.random.default_rng(0).normal(size=36)
    sigma = np.asarray(posterior.predict(POINTS, full_covariance=True).variance)
    expected = weights @ (sigma**2 if squared else sigma) @ weights
    for rows in (1, 5, 36, 512):
        monkeypatch.setattr("bqnes_jax.surrogates.gp._ROWS", rows)
        ours = jax.jit(lambda archs, w: double_sum(posterior, archs, w, squared=squared))(
            POINTS, weights
        )
        np.testing.assert_allclose(ours, expected, rtol=tolerance(1e-3, 1e-9), atol=1e-6)


@pytest.mark.slow("float64")
@pytest.mark.parametrize("squared", [False, True])
@pytest.mark.parametrize("largest", [1e15, 1e30, 3e38])
def test_double_sums_of_huge_weights_are_no_nan(largest, squared, precision):
    posterior = model_of(KERNELS[0], "linear").latent
    weights = np.random.default_rng(0).uniform(0.5, 1, 36)
    plain, scaled = (
        double_sum(posterior, jnp.asarray(POINTS), jnp.asarray(factor * weights), squared=squared)
        for factor in (1, largest)
    )
    expected = np.asarray(plain, float) * largest * largest
    with np.errstate(over="ignore"):
        np.testing.assert_allclose(scaled, expected.astype(scaled.dtype), rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32"], indirect=True)
@pytest.mark.parametrize(
    ("kernel", "warp"), list(zip(2 * KERNELS, ["linear", "moment", "none", "log"], strict=True))
)
def test_monte_carlo_converges_as_one_over_the_root(kernel, warp):
    model = model_of(kernel, warp)
    exact = exact_evidence(model, GRID)
    errors = []
    for samples in (64, 512):
        keys = jax.random.split(jax.random.key(0), 200)
        estimate = functools.partial(sampled_evidence, model=model, space=GRID, samples=samples)
        draws = jax.jit(jax.vmap(estimate))(keys)
        relative = np.expm1(np.asarray(draws.log_evidence) - float(exact.log_evidence))
        errors.append(np.sqrt(np.mean(relative**2)))
        # the reported error is the real one, and what the mean does not show is not there
        np.testing.assert_allclose(np.mean(draws.sampling_sd), errors[-1], rtol=0.2)
        assert abs(relative.mean()) < 4 * errors[-1] / np.sqrt(200)
    slope = np.log(errors[1] / errors[0]) / np.log(512 / 64)
    assert -0.6 < slope < -0.4
    np.testing.assert_allclose(np.mean(draws.posterior_sd), exact.posterior_sd, rtol=0.05)


@pytest.mark.slow("float64")
@pytest.mark.parametrize("kernel", KERNELS)
def test_quadrature_weights_give_the_mean(kernel, tolerance):
    model = model_of(kernel, "none")
    weights = np.asarray(quadrature_weights(model, POINTS, np.full(36, 1 / 36)))
    amplitude, noise, mean = map(float, model.latent.hyperparameters)
    estimate = mean + np.sum(weights * (np.asarray(model.latent.design.targets) - mean))
    expected = np.exp(float(exact_evidence(model, GRID).log_evidence) - float(model.log_scale))
    np.testing.assert_allclose(estimate, expected, rtol=tolerance(1e-3, 1e-9))
    gram = np.asarray(kernel.gram(model.latent.design.archs), float)
    kernel_mean = np.asarray(kernel.cross(model.latent.design.archs, POINTS), float).mean(1)
    expected = np.linalg.solve(gram + noise / amplitude * np.eye(15), kernel_mean)
    np.testing.assert_allclose(weights, expected, atol=tolerance(5e-4, 1e-10))


@pytest.mark.parametrize("kernel", KERNELS)
def test_quadrature_weights_without_noise(kernel):
    """Noise below rounding is raised, and the weights know it."""
    archs = POINTS[np.random.default_rng(0).permutation(36)[:15]]
    model = wsabi.condition(
        kernel, archs, log_likelihood(archs), Hyperparameters(1.0, 1e-30), config=WarpConfig("none")
    )
    weights = np.asarray(quadrature_weights(model, POINTS, np.full(36, 1 / 36)))
    estimate = np.sum(weights * np.asarray(model.latent.design.targets))
    expected = np.exp(float(exact_evidence(model, GRID).log_evidence) - float(model.log_scale))
    np.testing.assert_allclose(estimate, expected, rtol=0.02)


def test_a_negative_estimate_of_the_plain_gp_is_flagged():
    model = model_of(Polynomial(), "none", n=15)
    mean = np.asarray(model.predict(POINTS).mean)
    assert mean.min() < 0
    log_prior = np.where(np.arange(36) == mean.argmin(), 0.0, -50.0)
    evidence = exact_evidence(model, GRID, log_prior=log_prior)
    assert Status(int(evidence.status)) == Status.NEGATIVE
    assert evidence.log_evidence == -np.inf
    assert not any(np.isnan(value) for value in evidence)


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_an_error_beyond_the_largest_numbers_is_infinite():
    """A variance of 3e38 times the square of a mean of 2e9 is no number of float32."""
    found = Hyperparameters(3e38, 3e38, mean=2e9)
    archs = GRID.sample(jax.random.key(0), 8)
    model = wsabi.condition(KERNELS[0], archs, np.zeros(8), found)
    evidence = evidence_over(model, archs, np.ones(8) / 8)
    assert np.isfinite(evidence.log_evidence) and evidence.posterior_sd == np.inf


@pytest.mark.slow
@pytest.mark.parametrize("kernel", [WL(NATS), RBF(NATS, 1.0)])
def test_likelihoods_500_nats_apart_give_no_nan(kernel):
    archs = np.tile(NATS.sample(jax.random.key(0), 30), (5, 1))
    log_likelihoods = -128 * 500 * np.random.default_rng(0).random(150)
    model = wsabi.fit(kernel, archs, log_likelihoods)
    evidence = sampled_evidence(jax.random.key(1), model, NATS, samples=512)
    assert all(np.isfinite(value) for value in evidence)


@pytest.mark.slow
def test_the_whole_nats_space_by_points_and_in_weight_space(tolerance):
    """Fewer points than features, then more: the sum over 15,625 architectures either way."""
    archs = np.asarray(NATS.sample(jax.random.key(0), 110))
    log_likelihoods = -200.0 * np.sum(archs != 3, axis=1)
    results = []
    for n in (110, 90):
        mask = np.arange(n) < 90
        model = wsabi.condition(
            WL(NATS), archs[:n], log_likelihoods[:n], Hyperparameters(0.5, 0.05), mask=mask
        )
        assert model.latent.weight_space == (n == 110)
        results.append(exact_evidence(model, NATS))
    for ours, theirs in zip(*results, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=tolerance(1e-2, 1e-6))


def test_draws_without_replacement_are_unbiased_for_any_rule(tolerance):
    """The expectation over every order of drawing, the rule depending on what was drawn before."""
    likelihoods = np.array([0.1, 0.7, 0.05, 1.3])

    def probabilities(drawn):
        left = np.array([i not in drawn for i in range(4)]) * (1.0 + np.arange(4) * len(drawn))
        return left / left.sum()

    total = probability = 0.0
    for order in itertools.permutations(range(4), 3):
        q = [probabilities(order[:n])[order[n]] for n in range(3)]
        evidence = drawn_evidence(
            np.log(likelihoods[list(order)]), np.log(q), size=4, temperature=1.0
        )
        total += np.prod(q) * np.exp(float(evidence.log_evidence))
        probability += np.prod(q)
    np.testing.assert_allclose(probability, 1, rtol=1e-12)
    np.testing.assert_allclose(total, likelihoods.mean(), rtol=tolerance(1e-5, 1e-12))


def test_draws_that_failed_or_are_padding():
    evidence = drawn_evidence(
        np.array([-3.0, np.nan, -1.0, 50.0]),
        np.full(4, -1.0),
        5,
        mask=np.arange(4) < 3,
        temperature=1.0,
    )
    zero = drawn_evidence(np.array([-3.0, -1e30, -1.0]), np.full(3, -1.0), 5, temperature=1.0)
    np.testing.assert_allclose(evidence.log_evidence, zero.log_evidence, rtol=1e-6)
    assert Status(int(evidence.status)) == Status.MASKED_TARGETS
    nothing = drawn_evidence(np.full(3, np.nan), np.full(3, -1.0), 5)
    assert nothing.log_evidence == -np.inf
    assert Status(int(nothing.status)) & Status.EMPTY


def test_what_was_drawn_may_have_been_very_unlikely(tolerance):
    """1/q = e¹⁰⁰⁰ is no number of any type, but its logarithm is."""
    given = np.array([-2.0, -1.0, -3.0]), np.array([-1.0, -1000.0, -2.0])
    found = drawn_evidence(*given, 5, temperature=1.0)
    # The second estimate is all there is: its weight is 2/6.
    expected = -1 + 1000 - np.log(5) + np.log(2 / 6)
    np.testing.assert_allclose(found.log_evidence, expected, rtol=tolerance(1e-6, 1e-12))
    spread = np.sqrt((1 / 6 * 2 / 6) ** 2 + (2 / 6 * 4 / 6) ** 2 + (3 / 6 * 2 / 6) ** 2) / (2 / 6)
    np.testing.assert_allclose(found.sampling_sd, spread, rtol=tolerance(1e-5, 1e-12))
    assert found.status == Status.OK


@pytest.mark.parametrize("value", [0.1, 1e19, np.nan, -np.inf])
def test_what_is_no_log_probability_is_refused_or_reported(value):
    given = np.zeros(3), np.array([-1.0, value, -2.0])
    with pytest.raises(BQNESError, match=r"log_draw_probabilities\[1\] is .* at most 0"):
        drawn_evidence(*given, 5)
    found = jax.jit(lambda y, q: drawn_evidence(y, q, 5))(*given)
    assert Status(int(found.status)) & Status.INFEASIBLE
    assert found.log_evidence == -np.inf and found.sampling_sd == np.inf
    padded = drawn_evidence(*given, 5, mask=np.array([True, False, True]))
    assert padded.status == Status.OK and np.isfinite(padded.log_evidence)


def test_log_posterior(tolerance):
    log_likelihoods = np.array([-4000.0, -4100.0, -4128.0])
    expected = np.exp(log_likelihoods / 128 + 4000 / 128)
    np.testing.assert_allclose(
        np.exp(log_posterior(log_likelihoods)),
        expected / expected.sum(),
        rtol=tolerance(1e-4, 1e-12),
    )
    cold = log_posterior(log_likelihoods, temperature=0.01)  # −12,800 nats: no underflow in log
    np.testing.assert_allclose(cold, [0, -10_000, -12_800], rtol=1e-3, atol=1e-6)
    prior = np.log([0.2, 0.3, 0.5])
    weighted = expected * np.exp(prior)
    np.testing.assert_allclose(
        np.exp(log_posterior(log_likelihoods, prior)), weighted / weighted.sum(), rtol=1e-3
    )


def test_log_posterior_leaves_out_what_failed():
    ours = log_posterior(np.array([-1.0, np.nan, -1.0, -1.0]), mask=np.array([1, 1, 1, 0], bool))
    np.testing.assert_allclose(np.exp(ours), [0.5, 0, 0.5, 0], atol=1e-6)
    assert log_posterior(np.full(3, np.nan)).tolist() == [-np.inf] * 3
    assert log_posterior(np.full(3, -np.inf)).tolist() == [-np.inf] * 3
    assert log_posterior(np.array([np.inf, 0.0])).tolist() == [-np.inf, 0.0]


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda m: exact_evidence(m, GRID, log_prior=np.zeros(3)), r"log_prior has shape \(3,\)"),
        (lambda m: sampled_evidence(jax.random.key(0), m, GRID, samples=1), "samples is 1"),
        (
            lambda m: quadrature_weights(m, POINTS, np.ones(36)),
            "warp is 'linear'; only the plain GP",
        ),
        (lambda m: evidence_over(m, POINTS, np.ones(36)), "weights sums to 36"),
        (lambda m: evidence_over(m, POINTS, np.ones(3) / 3), r"weights has shape \(3,\)"),
        (lambda m: log_posterior(np.zeros((2, 2))), "log_likelihoods has shape"),
        (lambda m: log_posterior(np.zeros(2), temperature=-1.0), "temperature is -1"),
    ],
)
def test_bad_input_is_refused(call, says):
    with pytest.raises(BQNESError, match=says):
        call(model_of(KERNELS[1], "linear"))
