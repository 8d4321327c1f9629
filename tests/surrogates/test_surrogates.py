"""The protocol of surrogates: what acquisition and evidence ask, and nothing else."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bqnes_jax.kernels import RBF
from bqnes_jax.quadrature import evidence_over, exact_evidence, propose
from bqnes_jax.spaces import enumerate_space
from bqnes_jax.surrogates import (
    Hyperparameters,
    Posterior,
    Prediction,
    Surrogate,
    WarpConfig,
    gp,
    wsabi,
)
from bqnes_jax.surrogates.base import WeightedSum
from tests.helpers.toy import GRID

POOL = enumerate_space(GRID)
WEIGHTS = np.full(36, 1 / 36)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Doubled:
    """A surrogate of a user's own: another one, of a function twice as large."""

    inner: Posterior

    kernel = property(lambda self: self.inner.kernel)
    design = property(lambda self: self.inner.design)
    log_scale = property(lambda self: self.inner.log_scale)
    status = property(lambda self: self.inner.status)

    def predict(self, archs, *, full_covariance=False):
        mean, variance = self.inner.predict(archs, full_covariance=full_covariance)
        return Prediction(2 * mean, 4 * variance)

    def fantasise(self, archs, mask=None):
        return Doubled(self.inner.fantasise(archs, mask))

    def weighted_sum(self, archs, weights):
        means, variance = self.inner.weighted_sum(archs, weights)
        return WeightedSum(2 * means, 4 * variance)


def posterior():
    archs = POOL[jax.random.permutation(jax.random.key(0), 36)[:12]]
    targets = jnp.exp(-jnp.sum(archs, axis=1) / 4)
    return gp.condition(RBF(GRID, 0.4), archs, targets, Hyperparameters(1.0, 1e-3))


def model(warp):
    archs = POOL[::3]
    losses = -jnp.sum(archs, axis=1).astype(float)
    setting = {"temperature": 1.0, "config": WarpConfig(warp)}
    return wsabi.condition(RBF(GRID, 0.4), archs, losses, Hyperparameters(), **setting)


def surrogates():
    return [posterior(), Doubled(posterior()), *map(model, ("linear", "moment", "none", "log"))]


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_every_surrogate_has_the_whole_protocol():
    for surrogate in surrogates():
        assert isinstance(surrogate, Surrogate)
    assert not isinstance(Prediction(jnp.zeros(1), jnp.ones(1)), Surrogate)


@pytest.mark.slow("float64")
def test_a_weighted_sum_has_the_moments_of_the_summands(tolerance):
    for surrogate in surrogates():
        full = surrogate.predict(POOL, full_covariance=True)
        means, variance = surrogate.weighted_sum(POOL, jnp.asarray(WEIGHTS))
        np.testing.assert_allclose(means, full.mean, rtol=1e-5, atol=1e-6)
        expected = WEIGHTS @ np.asarray(full.variance, float) @ WEIGHTS
        np.testing.assert_allclose(variance, expected, rtol=tolerance(1e-2, 1e-8))


@pytest.mark.slow("float64")
def test_what_was_fantasised_is_known(tolerance):
    for surrogate in surrogates():
        before = surrogate.predict(POOL)
        after = surrogate.fantasise(POOL).predict(POOL)
        assert (after.variance <= before.variance + tolerance(1e-4, 1e-9)).all()


@pytest.mark.slow("float64")
@pytest.mark.parametrize("q", [1, 3])
def test_a_surrogate_of_ones_own_is_asked_like_any_other(q, tolerance):
    ours, plain = Doubled(posterior()), posterior()
    np.testing.assert_array_equal(propose(ours, POOL, q=q).archs, propose(plain, POOL, q=q).archs)
    there, here = (evidence_over(one, POOL, WEIGHTS) for one in (plain, ours))
    close = tolerance(1e-4, 1e-10)
    np.testing.assert_allclose(here.log_evidence - there.log_evidence, np.log(2), atol=close)
    np.testing.assert_allclose(here.posterior_sd, there.posterior_sd, rtol=close)


@pytest.mark.slow("float64")
def test_a_plain_gaussian_process_integrates_its_targets(tolerance):
    """In their own units, as the likelihood model without a warp does in units of the largest."""
    plain = model("none")
    targets = jnp.exp(-jnp.sum(POOL[::3], axis=1).astype(float))
    alone = gp.condition(RBF(GRID, 0.4), POOL[::3], targets, Hyperparameters())
    for ours, theirs in zip(*(exact_evidence(one, GRID) for one in (alone, plain)), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=tolerance(1e-4, 1e-10))
