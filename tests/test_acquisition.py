"""Acquisition functions against their definitions, and the choice of candidates."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.tree_util import Partial
from scipy.integrate import quad

from bqnes_jax.errors import BQNESError
from bqnes_jax.kernels import RBF, WL
from bqnes_jax.quadrature import (
    log_expected_improvement,
    propose,
    uncertainty_sampling,
    upper_confidence_bound,
)
from bqnes_jax.spaces import NATS, enumerate_space
from bqnes_jax.surrogates import Hyperparameters, Prediction, gp, wsabi
from bqnes_jax.types import Status
from tests.toy import GRID

HYPERPARAMETERS = Hyperparameters(1.0, 0.01)


def log_h(z):
    """log(φ(z) + zΦ(z)) = log φ(z) + log ∫ u exp(zu − u²/2) du, which does not cancel."""
    unit = 1 / max(1, abs(z))
    integral, _ = quad(
        lambda t: t * np.exp(z * unit * t - (unit * t) ** 2 / 2), 0, 80, epsabs=0, epsrel=1e-12
    )
    return -(z**2) / 2 - np.log(2 * np.pi) / 2 + np.log(integral) + 2 * np.log(unit)


def test_log_expected_improvement_equals_the_integral(tolerance):
    z = np.array([-1e3, -50, -21, -19, -14, -10.1, -9.9, -5, -1.01, -0.99, -0.1, 0, 0.5, 3])
    sd, best = 0.3, 2.0
    ours = log_expected_improvement(
        Prediction(jnp.asarray(best + sd * z), jnp.full(len(z), sd**2)),
        jnp.zeros(len(z)),
        best=best,
    )
    expected = np.log(sd) + np.array([log_h(value) for value in z])
    # A float32 mean near 2 holds z to 1e-6, whose effect grows with |z|.
    np.testing.assert_allclose(
        ours, expected, rtol=tolerance(2e-5, 1e-9), atol=tolerance(1e-3, 1e-9)
    )


def test_log_expected_improvement_orders_what_float32_cannot_see():
    mean = jnp.linspace(-40.0, -20.0, 50)
    scores = log_expected_improvement(Prediction(mean, jnp.ones(50)), jnp.zeros(50), best=0.0)
    assert (jnp.diff(scores) > 0).all()

    def total(means):
        prediction = Prediction(means, jnp.ones(6))
        return log_expected_improvement(prediction, jnp.zeros(6), best=0.0).sum()

    gradient = jax.jit(jax.grad(total))(jnp.array([-1e4, -20.0, -10.0, -1.0, 0.0, 5.0]))
    assert (jnp.isfinite(gradient) & (gradient > 0)).all()


def test_log_expected_improvement_of_what_is_known():
    prediction = Prediction(jnp.array([1.0, 3.0]), jnp.zeros(2))
    scores = log_expected_improvement(prediction, jnp.zeros(2), best=2.0)
    assert scores[0] == -jnp.inf
    np.testing.assert_allclose(scores[1], 0, atol=1e-6)


def test_a_variance_below_zero_is_that_of_what_is_known():
    """Rounding can leave one; nothing is to be learnt there, however likely it is."""
    prediction = Prediction(jnp.array([1.0, 2.0]), jnp.array([-1e-9, 0.0]))
    log_prior = jnp.array([0.0, 3e38])
    assert (uncertainty_sampling(prediction, log_prior) == -jnp.inf).all()
    np.testing.assert_array_equal(upper_confidence_bound(prediction, log_prior), prediction.mean)


def test_uncertainty_sampling_is_the_published_one(tolerance):
    archs = NATS.sample(jax.random.key(0), 120)
    model = wsabi.fit(WL(NATS), archs, -300.0 * jnp.sum(archs != 3, axis=1))
    test = NATS.sample(jax.random.key(1), 50)
    log_prior = jnp.log(jax.random.dirichlet(jax.random.key(2), jnp.ones(50)))
    mu, sigma = model.latent.predict(test)
    expected = np.asarray(sigma) * np.asarray(mu) ** 2 * np.exp(np.asarray(log_prior)) ** 2
    ours = jnp.exp(uncertainty_sampling(model.predict(test), log_prior))
    np.testing.assert_allclose(ours, expected, rtol=tolerance(1e-3, 1e-8))


def test_upper_confidence_bound():
    prediction = Prediction(jnp.array([1.0, 2.0]), jnp.array([4.0, 0.0]))
    assert upper_confidence_bound(prediction, jnp.zeros(2), weight=3.0).tolist() == [7.0, 2.0]


def grid_posterior():
    archs = enumerate_space(GRID)
    targets = jnp.array([0.3, 1.0, -0.5, 0.2])
    return gp.condition(RBF(GRID, 0.3), archs[jnp.array([0, 7, 20, 35])], targets, HYPERPARAMETERS)


ACQUISITIONS = [
    uncertainty_sampling,
    upper_confidence_bound,
    Partial(upper_confidence_bound, weight=0.5),
    Partial(log_expected_improvement, best=1.0),
]


@pytest.mark.parametrize("acquisition", ACQUISITIONS)
def test_the_best_of_the_space_is_proposed(acquisition):
    posterior, archs = grid_posterior(), enumerate_space(GRID)
    scores = np.array(acquisition(posterior.predict(archs), jnp.zeros(36)))
    scores[[0, 7, 20, 35]] = -np.inf
    proposal = propose(posterior, archs, acquisition=acquisition)
    assert proposal.indices.tolist() == [scores.argmax()]
    np.testing.assert_allclose(proposal.scores[0], scores.max(), rtol=1e-4)
    assert (proposal.archs[0] == archs[scores.argmax()]).all()
    assert proposal.status == Status.OK


@pytest.mark.parametrize("acquisition", ACQUISITIONS)
def test_several_at_once_are_chosen_one_after_another_by_fantasies(acquisition):
    posterior, archs = grid_posterior(), enumerate_space(GRID)
    together = propose(posterior, archs, acquisition=acquisition, q=4)
    current, chosen = posterior, []
    for _ in range(4):
        chosen.append(int(propose(current, archs, acquisition=acquisition).indices[0]))
        current = posterior.fantasise(archs[jnp.array(chosen)])
    assert together.indices.tolist() == chosen
    assert len(set(chosen)) == 4


def test_a_model_of_the_likelihood_proposes_several():
    archs = NATS.sample(jax.random.key(0), 30)
    model = wsabi.fit(WL(NATS), archs, -300.0 * jnp.sum(archs != 3, axis=1))
    pool = enumerate_space(NATS)
    proposal = propose(model, pool, q=5, distinct=True)
    both = jnp.concatenate([archs, proposal.archs])
    assert len(np.unique(both, axis=0)) == len(np.unique(archs, axis=0)) + 5
    features = np.asarray(WL(NATS).features(both))
    known, new = features[:30], features[30:]
    assert len(np.unique(new, axis=0)) == 5
    assert not (known[:, None] == new[None]).all(-1).any()


def test_features_that_differ_by_rounding_are_the_same_point():
    """With layer weights, how features are rounded depends on the shape of the batch."""
    kernel = WL(NATS, layer_weights=np.array([0.7312, 1.3371]))
    pool = enumerate_space(NATS)
    archs = pool[::391]  # 40 of them
    model = wsabi.condition(kernel, archs, jnp.zeros(len(archs)), HYPERPARAMETERS)
    taken = WL(NATS).cross(pool, archs).max(axis=1) > 1 - 1e-6
    proposal = propose(model, pool[taken], q=3, distinct=True)
    assert proposal.status == Status.EMPTY
    assert (proposal.scores == -jnp.inf).all()


def test_scores_that_underflow_are_still_scores():
    """Far from everything the mean of a short kernel is 0, and the logarithm of a score −inf."""
    archs = enumerate_space(GRID)
    model = wsabi.condition(RBF(GRID, 0.01), archs[:1], np.zeros(1), HYPERPARAMETERS)
    proposal = propose(model, archs, q=2)
    assert proposal.status == Status.OK
    assert 0 not in proposal.indices
    assert len(set(proposal.indices.tolist())) == 2


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_evaluated_and_ineligible_points_are_never_proposed():
    posterior, archs = grid_posterior(), enumerate_space(GRID)
    eligible = np.arange(36) < 10
    proposal = propose(posterior, archs, q=8, eligible=eligible)
    assert set(proposal.indices.tolist()) == set(range(10)) - {0, 7}


def test_a_pool_that_runs_out_says_so():
    posterior, archs = grid_posterior(), enumerate_space(GRID)
    proposal = propose(posterior, archs, q=3, eligible=np.arange(36) == 5)
    assert proposal.indices[0] == 5
    assert (proposal.scores[1:] == -jnp.inf).all()
    assert proposal.status == Status.EMPTY


def nan_at_first(prediction, log_prior):
    return jnp.arange(len(log_prior), dtype=float).at[0].set(jnp.nan)


def test_nan_never_wins():
    archs = enumerate_space(GRID)
    posterior = gp.condition(RBF(GRID, 0.3), archs[5:6], np.ones(1), HYPERPARAMETERS)
    assert propose(posterior, archs[:5], acquisition=nan_at_first).indices[0] == 4
    assert propose(posterior, archs[:1], acquisition=nan_at_first).status == Status.EMPTY


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_the_prior_draws_uncertainty_sampling_to_it():
    posterior, archs = grid_posterior(), enumerate_space(GRID)
    log_prior = jnp.zeros(36).at[13].set(20.0)
    assert propose(posterior, archs, log_prior=log_prior).indices[0] == 13


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"q": 0}, "q is 0; it must be a whole number, from 1 to 36"),
        ({"q": 37}, "q is 37"),
        ({"log_prior": np.zeros(3)}, r"log_prior has shape \(3,\)"),
        ({"eligible": np.ones(3, bool)}, r"eligible has shape \(3,\)"),
        ({"eligible": np.ones(36)}, "eligible has type float.*; it must be bool"),
        ({"pool": np.zeros((0, 2), int)}, "m at least 1"),
        ({"pool": np.full((3, 2), 9)}, "is 9; it must be from 0 to 5"),
        ({"acquisition": "ei"}, "acquisition is 'ei'; it must be a function"),
    ],
)
def test_bad_input_is_refused(options, says):
    with pytest.raises(BQNESError, match=says):
        propose(grid_posterior(), **({"pool": enumerate_space(GRID)} | options))
