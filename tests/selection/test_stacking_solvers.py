"""Stacking by optimisers of optax, for losses of one's own, and its derivatives."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy.optimize import minimize

from bqnes_jax.errors import BQNESError
from bqnes_jax.selection import stacking_weights
from bqnes_jax.types import Status

COUNT, POINTS, CLASSES = 5, 30, 3
ADAM, GRADIENT = optax.adam(optax.cosine_decay_schedule(0.05, 3000)), optax.sgd(0.2)


def draw(seed=0):
    """Probabilities of all classes, and labels."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, CLASSES, POINTS)
    logits = 1.5 * np.eye(CLASSES)[labels] + 1.5 * rng.normal(size=(COUNT, POINTS, CLASSES))
    probabilities = np.asarray(jax.nn.softmax(jnp.asarray(logits)))
    return probabilities.astype(jnp.result_type(float)), labels


def true_ones(probabilities, labels):
    return np.log(probabilities[:, np.arange(POINTS), labels])


def brier(labels):
    truth = jnp.eye(CLASSES)[labels]

    def loss(weights, probabilities):
        mixture = jnp.einsum("m,mnc->nc", weights, probabilities)
        return jnp.mean(jnp.sum((mixture - truth) ** 2, axis=1))

    return loss


def by_scipy(loss, predictions):
    at = jax.jit(jax.value_and_grad(loss))

    def value_and_slope(weights):
        value, slope = at(jnp.asarray(weights), predictions)
        return float(value), np.asarray(slope, float)

    found = minimize(
        value_and_slope,
        np.full(COUNT, 1 / COUNT),
        jac=True,
        method="SLSQP",
        bounds=[(0, 1)] * COUNT,
        constraints={"type": "eq", "fun": lambda w: w.sum() - 1},
        options={"ftol": 1e-12, "maxiter": 500},
    )
    return found.fun


@pytest.mark.slow("float64")
@pytest.mark.parametrize("solver", [ADAM, GRADIENT])
def test_solvers_find_what_newton_finds(solver):
    log_probs = true_ones(*draw())
    newton = stacking_weights(log_probs)
    found = stacking_weights(log_probs, solver=solver)
    assert found.status == Status.OK and found.gap <= 1e-3
    assert -1e-6 <= found.loss - newton.loss <= found.gap + 1e-6
    np.testing.assert_allclose(found.weights.sum(), 1, rtol=1e-5)
    assert np.all(found.weights >= 0)


@pytest.mark.slow("float64")
def test_a_loss_of_ones_own(tolerance):
    probabilities, labels = draw(1)
    loss = brier(labels)
    found = stacking_weights(probabilities, loss=loss)
    best = by_scipy(loss, jnp.asarray(probabilities))
    assert found.loss - best <= found.gap + tolerance(1e-5, 1e-9)
    np.testing.assert_allclose(found.loss, best, atol=2e-4)
    assert found.gap < 2e-3 and found.loss < loss(jnp.ones(COUNT) / COUNT, probabilities)


def test_failures_get_no_weight():
    probabilities, labels = draw(2)
    probabilities = probabilities.copy()
    probabilities[1, 3] = np.nan
    mask = np.arange(COUNT) != 2
    found = stacking_weights(probabilities, mask, loss=brier(labels))
    assert found.weights[1] == found.weights[2] == 0
    np.testing.assert_allclose(found.weights.sum(), 1, rtol=1e-5)
    by_likelihood = stacking_weights(true_ones(probabilities, labels), mask, solver=ADAM)
    assert by_likelihood.weights[2] == 0


def test_too_few_steps_are_said():
    log_probs = true_ones(*draw())
    found = stacking_weights(log_probs, solver=optax.sgd(1e-4), steps=2)
    assert found.status & Status.NOT_CONVERGED and found.iterations == 2
    with pytest.raises(BQNESError, match="stopped before its tolerance"):
        stacking_weights(log_probs, solver=optax.sgd(1e-4), steps=2, throw=True)


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_bad_input_is_refused():
    probabilities, labels = draw()
    with pytest.raises(BQNESError, match="steps is 0"):
        stacking_weights(probabilities, loss=brier(labels), steps=0)
    with pytest.raises(BQNESError, match="must have a row for each candidate"):
        stacking_weights(probabilities[:0], loss=brier(labels))
    with pytest.raises(BQNESError, match="mask has shape"):
        stacking_weights(probabilities, np.ones(2, bool), loss=brier(labels))


# Derivatives.


@pytest.mark.parametrize("precision", ["float64"], indirect=True)
@pytest.mark.parametrize("seed", range(3))
def test_derivatives_are_differences(seed):
    log_probs = true_ones(*draw(seed))
    direction = np.random.default_rng(9).normal(size=log_probs.shape)
    shares = np.random.default_rng(8).normal(size=COUNT)

    def both(log_probs):
        found = stacking_weights(log_probs)
        return jnp.stack([found.loss, jnp.sum(shares * found.weights)])

    step = 1e-5
    numeric = (both(log_probs + step * direction) - both(log_probs - step * direction)) / 2 / step
    exact = jnp.sum(jax.jacrev(both)(log_probs) * direction, axis=(1, 2))
    np.testing.assert_allclose(exact, numeric, rtol=1e-4, atol=1e-7)


@pytest.mark.slow("float64")
def test_derivatives_under_jit_and_vmap(tolerance):
    log_probs = np.stack([true_ones(*draw(seed)) for seed in range(3)])
    slope = jax.grad(lambda each: stacking_weights(each).loss)
    together = jax.jit(jax.vmap(slope))(log_probs)
    for ours, each in zip(together, log_probs, strict=True):
        np.testing.assert_allclose(ours, slope(each), atol=tolerance(1e-5, 1e-9))
        np.testing.assert_allclose(ours.sum(), -1, rtol=1e-4)  # all shifted by 1: the loss by −1


@pytest.mark.slow("float64")
def test_derivatives_by_what_has_no_influence_are_zero():
    log_probs = np.concatenate([true_ones(*draw()), np.full((1, POINTS), np.nan)])
    log_probs[0, 0] = -np.inf
    slope = jax.grad(lambda each: stacking_weights(each).loss + stacking_weights(each).weights[0])
    found = slope(log_probs)
    assert np.all(np.isfinite(found)) and np.all(found[-1] == 0) and found[0, 0] == 0
