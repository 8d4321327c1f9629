"""How likely candidates were to be drawn at all, and the evidence that follows from it."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bqnes_jax.candidates import Outcome, SearchConfig, inclusion_probabilities, make
from bqnes_jax.drivers import scan
from bqnes_jax.errors import BQNESError
from bqnes_jax.kernels import RBF, WL, FeatureRBF, WithCoordinates
from bqnes_jax.quadrature import drawn_evidence, included_evidence
from bqnes_jax.spaces import NATS
from bqnes_jax.surrogates import FitConfig, Hyperparameters, WarpConfig, gp
from bqnes_jax.types import Status
from tests.helpers.toy import GRID, Polynomial


@pytest.mark.slow("float64")
@pytest.mark.parametrize("kernel", [RBF(GRID, 0.4), Polynomial()])  # by points, in weight space
def test_leaving_one_out_equals_conditioning_on_the_others(kernel, tolerance):
    archs = GRID.from_index(jnp.array([0, 3, 8, 14, 20, 21, 35, 20, 5, 9, 11, 30, 31, 28]))
    targets = np.random.default_rng(0).normal(size=14)
    hyperparameters, mask = Hyperparameters(1.3, 0.2, mean=0.4), np.arange(14) < 12
    posterior = gp.condition(kernel, archs, targets, hyperparameters, mask=mask)
    ours = posterior.leave_one_out()
    for i in range(14):
        others = mask & (np.arange(14) != i)
        alone = gp.condition(kernel, archs, targets, hyperparameters, mask=others)
        expected = alone.predict(archs[i : i + 1])
        np.testing.assert_allclose(ours.mean[i], expected.mean[0], atol=tolerance(2e-3, 1e-9))
        np.testing.assert_allclose(
            ours.variance[i], expected.variance[0], atol=tolerance(2e-3, 1e-9)
        )


def test_evidence_by_exact_inclusion_is_unbiased(tolerance):
    """The expectation over every order of drawing."""
    likelihoods, masses = np.array([0.1, 0.7, 0.05, 1.3]), np.array([1.0, 2.0, 3.0, 4.0])
    orders, chances = list(itertools.permutations(range(4), 2)), []
    for first, second in orders:
        chances.append(masses[first] * masses[second] / 10 / (10 - masses[first]))
    np.testing.assert_allclose(sum(chances), 1)
    inclusion = np.array(
        [sum(p for order, p in zip(orders, chances, strict=True) if i in order) for i in range(4)]
    )
    total = 0.0
    for order, chance in zip(orders, chances, strict=True):
        evidence = included_evidence(
            np.log(likelihoods[list(order)]), inclusion[list(order)], 4, temperature=1.0
        )
        total += chance * np.exp(float(evidence.log_evidence))
    np.testing.assert_allclose(total, likelihoods.mean(), rtol=tolerance(1e-5, 1e-12))


def test_what_a_surrogate_gets_wrong_in_its_sum_corrects_the_estimate(tolerance):
    """One that is right up to a factor makes the estimate exact, whatever was drawn."""
    likelihoods = np.random.default_rng(0).random(8)
    drawn, inclusion = np.array([1, 5, 6]), np.array([0.3, 0.6, 0.2])
    given = np.log(likelihoods[drawn]), inclusion, 8
    right = np.log(7 * likelihoods[drawn]), np.log(7 * likelihoods.mean())
    exact = included_evidence(*given, temperature=1.0, predicted=right)
    np.testing.assert_allclose(
        exact.log_evidence, np.log(likelihoods.mean()), atol=tolerance(1e-5, 1e-12)
    )
    np.testing.assert_allclose(exact.sampling_sd, 0, atol=tolerance(1e-3, 1e-7))
    predicted = np.random.default_rng(1).random(8)
    ours = included_evidence(
        *given, temperature=1.0, predicted=(np.log(predicted[drawn]), np.log(predicted.mean()))
    )
    terms, others = (values[drawn] / inclusion / 8 for values in (likelihoods, predicted))
    scale = predicted.mean() / others.sum()
    np.testing.assert_allclose(ours.log_evidence, np.log(terms.sum() * scale), rtol=1e-5)
    rest, out = terms - terms.sum() / others.sum() * others, 1 - inclusion
    spread = 3 / 2 * np.sum(out * (rest - np.sum(out * rest) / out.sum()) ** 2)
    np.testing.assert_allclose(ours.sampling_sd, np.sqrt(spread) / terms.sum(), rtol=1e-4)
    plain = included_evidence(*given, temperature=1.0)
    nothing = included_evidence(*given, temperature=1.0, predicted=(np.full(3, -np.inf), 0.0))
    np.testing.assert_allclose(nothing.log_evidence, plain.log_evidence, rtol=1e-6)
    assert Status(int(nothing.status)) == Status.MASKED_TARGETS
    with pytest.raises(BQNESError, match=r"predicted\[0\] has shape \(2,\)"):
        included_evidence(*given, predicted=(np.zeros(2), 0.0))


@pytest.mark.slow("float64")
def test_what_failed_has_likelihood_zero_and_padding_does_not_count():
    inclusion = jnp.full(4, 0.5)
    evidence = included_evidence(
        jnp.array([-3.0, jnp.nan, -1.0, 50.0]),
        inclusion,
        5,
        mask=jnp.arange(4) < 3,
        temperature=1.0,
    )
    expected = np.log((np.exp(-3.0) + np.exp(-1.0)) / 0.5 / 5)
    np.testing.assert_allclose(evidence.log_evidence, expected, rtol=1e-5)
    assert Status(int(evidence.status)) == Status.MASKED_TARGETS
    one = included_evidence(jnp.array([-3.0]), jnp.array([0.5]), 5)
    assert one.sampling_sd == jnp.inf
    with pytest.raises(BQNESError, match=r"inclusion has shape \(2,\)"):
        included_evidence(jnp.zeros(3), jnp.ones(2), 5)


def test_what_was_drawn_may_have_been_very_unlikely(tolerance):
    """Its square, and that of a surrogate's sum of nearly nothing, are beyond float32."""
    given = jnp.array([-2.0, -1.0]), jnp.array([1e-30, 1.0]), 5
    found = included_evidence(*given, temperature=1.0)
    np.testing.assert_allclose(found.log_evidence, -2 - np.log(5e-30), rtol=tolerance(1e-6, 1e-12))
    np.testing.assert_allclose(found.sampling_sd, 0, atol=1e-6)  # what was sure adds no error
    tiny = included_evidence(*given, temperature=1.0, predicted=(jnp.full(2, -150.0), 0.0))
    assert jnp.isfinite(tiny.log_evidence) and jnp.isfinite(tiny.sampling_sd)
    assert found.status == Status.OK


@pytest.mark.parametrize("value", [-0.5, 0.0, 1.1, jnp.nan])
def test_what_is_no_probability_is_refused_or_reported(value):
    given = jnp.zeros(3), jnp.array([0.5, value, 0.2])
    with pytest.raises(BQNESError, match=r"inclusion\[1\] is .* above 0 and at most 1"):
        included_evidence(*given, 5)
    found = jax.jit(lambda y, p: included_evidence(y, p, 5))(*given)
    assert Status(int(found.status)) & Status.INFEASIBLE
    assert found.log_evidence == -jnp.inf and found.sampling_sd == jnp.inf


def surface(archs):
    return -30 * jnp.sum((GRID.coordinates(archs) - 0.4) ** 2, axis=-1)


@pytest.mark.slow
@pytest.mark.parametrize("batch", [1, 3])
def test_evidence_of_many_searches_is_right_on_average(batch):
    """The space has 36 points, 16 of which are drawn; the peak is on few of them."""
    config = SearchConfig(
        initial=4,
        budget=16,
        batch=batch,
        warp=WarpConfig("log", depth=10.0),
        temperature=1.0,
        fit=FitConfig((1e-4, 10.0), kernel_steps=0, mean="constant"),
    )
    kernel = RBF(GRID, 0.4)
    strategy = make("posterior", GRID, kernel=kernel, config=config)

    def estimate(key):
        found = scan(strategy, config, key, lambda archs: Outcome(archs, surface(archs)))
        history = found.history
        inclusion = inclusion_probabilities(GRID, history, kernel=kernel, config=config)
        values = history.log_likelihoods
        return (
            included_evidence(values, inclusion[-1], 36, temperature=1.0).log_evidence,
            drawn_evidence(values, history.scores, 36, temperature=1.0).log_evidence,
            inclusion,
        )

    both = jax.jit(jax.vmap(estimate))(jax.random.split(jax.random.key(0), 300))
    exact = jnp.mean(jnp.exp(surface(GRID.from_index(jnp.arange(36)))))
    ours, by_step = (np.exp(np.asarray(one, float)) / exact for one in both[:2])
    assert both[2].shape == (300, 13, 16)
    np.testing.assert_allclose(both[2][:, 0], 4 / 36, rtol=1e-5)
    assert ((both[2] > 0) & (both[2] <= 1)).all()
    assert abs(ours.mean() - 1) < 4 * ours.std() / np.sqrt(300) + 0.05
    assert ours.std() < by_step.std()


@pytest.mark.slow("float64")
def test_coordinates_tell_mirrored_cells_apart(tolerance):
    mirrored = jnp.array([[3, 0, 0, 3, 0, 0], [3, 3, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0]])
    kernel = WithCoordinates(WL(NATS))
    one_hot = NATS.coordinates(mirrored)
    expected = (WL(NATS).gram(mirrored) + one_hot @ one_hot.T / 6) / 2
    np.testing.assert_allclose(kernel.gram(mirrored), expected, atol=tolerance(1e-6, 1e-12))
    view, split = FeatureRBF(kernel, 1.4).split()
    np.testing.assert_allclose(
        split.gram(view(mirrored)),
        FeatureRBF(kernel, 1.4).gram(mirrored),
        atol=tolerance(1e-6, 1e-12),
    )
    with pytest.raises(BQNESError, match="inner is RBF; it must be a finite kernel"):
        WithCoordinates(RBF(NATS, 1.0))
