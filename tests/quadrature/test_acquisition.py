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
from bqnes_jax.spaces import NATS
from bqnes_jax.surrogates import Hyperparameters, Prediction, gp, wsabi
from bqnes_jax.types import Status
from tests.helpers.toy import GRID, POINTS

HYPERPARAMETERS = Hyperparameters(1.0, 0.01)
CELLS = np.stack(np.unravel_index(np.arange(NATS.size), NATS.options), axis=-1)
KNOWN = [0, 7, 20, 35]  # points of the grid that were observed


@jax.jit
def score(acquisition, mean, variance, log_prior):
    """Score by one program, which takes NumPy's arrays."""
    return acquisition(Prediction(mean, variance), log_prior)


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
    improvement = Partial(log_expected_improvement, best=best)
    ours = score(improvement, best + sd * z, np.full(len(z), sd**2), np.zeros(len(z)))
    expected = np.log(sd) + np.array([log_h(value) for value in z])
    # A float32 mean near 2 holds z to 1e-6, whose effect grows with |z|.
    np.testing.assert_allclose(
        ours, expected, rtol=tolerance(2e-5, 1e-9), atol=tolerance(1e-3, 1e-9)
    )


@pytest.mark.slow("float64")
def test_log_expected_improvement_orders_what_float32_cannot_see():
    @jax.jit
    def values_and_slopes(means):
        def improvement(mean):
            prediction = Prediction(mean[None], jnp.ones(1))
            return log_expected_improvement(prediction, jnp.zeros(1), best=0.0)[0]

        return jax.vmap(jax.value_and_grad(improvement))(means)

    means = np.concatenate([np.linspace(-40, -20, 50), [-1e4, -20.0, -10.0, -1.0, 0.0, 5.0]])
    scores, slopes = map(np.asarray, values_and_slopes(means))
    assert (np.diff(scores[:50]) > 0).all()
    assert (np.isfinite(slopes) & (slopes > 0)).all()


def test_log_expected_improvement_of_what_is_known():
    improvement = Partial(log_expected_improvement, best=2.0)
    scores = score(improvement, np.array([1.0, 3.0]), np.zeros(2), np.zeros(2))
    assert scores[0] == -np.inf
    np.testing.assert_allclose(scores[1], 0, atol=1e-6)


def test_a_variance_below_zero_is_that_of_what_is_known():
    """Rounding can leave one; nothing is to be learnt there, however likely it is."""
    mean, variance, log_prior = np.array([[1.0, 2.0], [-1e-9, 0.0], [0.0, 3e38]])
    uncertain = np.asarray(score(Partial(uncertainty_sampling), mean, variance, log_prior))
    assert (uncertain == -np.inf).all()
    bound = score(Partial(upper_confidence_bound), mean, variance, log_prior)
    np.testing.assert_array_equal(bound, mean)


def test_upper_confidence_bound():
    bound = Partial(upper_confidence_bound, weight=3.0)
    scores = score(bound, np.array([1.0, 2.0]), np.array([4.0, 0.0]), np.zeros(2))
    assert scores.tolist() == [7.0, 2.0]


@pytest.fixture
def cells():
    """Return a model of the likelihood, and the 40 cells of 15,625 that it has seen.

    With layer weights, how features are rounded depends on the shape of the batch.
    """
    kernel = WL(NATS, layer_weights=np.array([0.7312, 1.3371]))
    archs = CELLS[::391]
    return wsabi.condition(kernel, archs, -30.0 * (archs != 3).sum(1), HYPERPARAMETERS), archs


@pytest.mark.slow("float64")
def test_uncertainty_sampling_is_the_published_one(cells, tolerance):
    model, _ = cells
    test = CELLS[::312]
    log_prior = np.log(np.random.default_rng(2).dirichlet(np.ones(len(test))))
    mu, sigma = map(np.asarray, model.latent.predict(test))
    expected = sigma * mu**2 * np.exp(log_prior) ** 2
    ours = score(Partial(uncertainty_sampling), *model.predict(test), log_prior)
    np.testing.assert_allclose(np.exp(ours), expected, rtol=tolerance(1e-3, 1e-8))


def grid_posterior():
    targets = np.array([0.3, 1.0, -0.5, 0.2])
    return gp.condition(RBF(GRID, 0.3), POINTS[KNOWN], targets, HYPERPARAMETERS)


def best_by_definition(acquisition, current, taken):
    """Return the place and the score of the best point that is not taken."""
    scores = np.array(score(acquisition, *current.predict(POINTS), np.zeros(36)))
    scores[taken] = -np.inf
    return scores.argmax(), scores.max()


@pytest.mark.slow("float64")
def test_the_best_of_the_space_is_proposed():
    posterior = grid_posterior()
    best, highest = best_by_definition(Partial(uncertainty_sampling), posterior, KNOWN)
    proposal = propose(posterior, POINTS)
    assert proposal.indices.tolist() == [best]
    np.testing.assert_allclose(proposal.scores[0], highest, rtol=1e-4)
    np.testing.assert_array_equal(proposal.archs[0], POINTS[best])
    assert proposal.status == Status.OK


@pytest.mark.slow
@pytest.mark.parametrize(
    "acquisition",
    [
        Partial(uncertainty_sampling),
        Partial(upper_confidence_bound),
        Partial(upper_confidence_bound, weight=0.5),
        Partial(log_expected_improvement, best=1.0),
    ],
)
def test_several_at_once_are_chosen_one_after_another_by_fantasies(acquisition):
    posterior = grid_posterior()
    together = propose(posterior, POINTS, acquisition=acquisition, q=4)
    current, chosen, scores = posterior, [], []
    for _ in range(4):
        best, highest = best_by_definition(acquisition, current, KNOWN + chosen)
        chosen.append(best)
        scores.append(highest)
        current = posterior.fantasise(POINTS[chosen])
    assert together.indices.tolist() == chosen
    np.testing.assert_allclose(together.scores, scores, rtol=1e-4)
    np.testing.assert_array_equal(together.archs, POINTS[chosen])
    assert together.status == Status.OK


@pytest.mark.slow("float64")
def test_a_model_of_the_likelihood_proposes_several(cells):
    model, archs = cells
    proposal = propose(model, CELLS, q=5, distinct=True)
    assert proposal.status == Status.OK
    both = np.concatenate([archs, proposal.archs])
    assert len(np.unique(both, axis=0)) == len(archs) + 5
    features = np.asarray(WL(NATS).features(both))
    known, new = features[:40], features[40:]
    assert len(np.unique(new, axis=0)) == 5
    assert not (known[:, None] == new[None]).all(-1).any()


@pytest.mark.slow("float64")
def test_features_that_differ_by_rounding_are_the_same_point(cells):
    model, archs = cells
    taken = np.asarray(WL(NATS).cross(CELLS, archs)).max(axis=1) > 1 - 1e-6
    assert taken.sum() > len(archs)
    proposal = propose(model, CELLS, q=5, distinct=True, eligible=taken)
    assert proposal.status == Status.EMPTY
    assert (np.asarray(proposal.scores) == -np.inf).all()


@pytest.mark.slow("float64")
def test_scores_that_underflow_are_still_scores():
    """Far from everything the mean of a short kernel is 0, and the logarithm of a score −inf."""
    model = wsabi.condition(RBF(GRID, 0.01), POINTS[:1], np.zeros(1), HYPERPARAMETERS)
    proposal = propose(model, POINTS, q=2)
    assert proposal.status == Status.OK
    indices = proposal.indices.tolist()
    assert 0 not in indices
    assert len(set(indices)) == 2


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_evaluated_and_ineligible_points_are_never_proposed():
    eligible = np.isin(np.arange(36), [0, 1, 2, 7, 8, 9])
    proposal = propose(grid_posterior(), POINTS, q=4, eligible=eligible)
    assert set(proposal.indices.tolist()) == {1, 2, 8, 9}


def test_a_pool_that_runs_out_says_so():
    proposal = propose(grid_posterior(), POINTS, q=4, eligible=np.arange(36) == 5)
    assert proposal.indices[0] == 5
    assert (np.asarray(proposal.scores)[1:] == -np.inf).all()
    assert proposal.status == Status.EMPTY


def nan_at_second(prediction, log_prior):
    return jnp.arange(len(log_prior), dtype=float).at[1].set(jnp.nan)


def test_nan_never_wins():
    def propose_of(eligible):
        mask = np.isin(np.arange(36), eligible)
        return propose(grid_posterior(), POINTS, acquisition=nan_at_second, eligible=mask)

    assert propose_of([1, 2, 3, 4]).indices[0] == 4
    assert propose_of([1]).status == Status.EMPTY


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_the_prior_draws_uncertainty_sampling_to_it():
    log_prior = np.where(np.arange(36) == 13, 20.0, 0.0)
    assert propose(grid_posterior(), POINTS, log_prior=log_prior).indices[0] == 13


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
        propose(grid_posterior(), **({"pool": POINTS} | options))
