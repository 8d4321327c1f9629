"""NES-BS: the distribution against brute force, the particles against their equation."""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bqnes_jax.candidates.variational import (
    MeanField,
    draw_diverse,
    fit_mean_field,
    stein_direction,
)
from bqnes_jax.errors import BQNESError
from bqnes_jax.spaces import NATS, Subset, enumerate_space
from tests.helpers.toy import GRID, Grid

ARCHS = enumerate_space(GRID)


@dataclasses.dataclass(frozen=True)
class Ragged(Grid):
    """Three rows of six: entries with different numbers of options."""

    options = (3, 6)


def elbo(log_q, gains):
    """By its definition, as a sum over all 36 architectures."""
    log_joint = log_q[0][ARCHS[:, 0]] + log_q[1][ARCHS[:, 1]]
    return jnp.sum(jnp.exp(log_joint) * (gains - log_joint - np.log(36)))


@pytest.mark.slow("float64")
def test_a_posterior_with_independent_entries_is_found_exactly(tolerance):
    rows, columns = np.random.default_rng(0).normal(size=(2, 6))
    log_likelihoods = 7 * (rows[ARCHS[:, 0]] + columns[ARCHS[:, 1]])
    q = fit_mean_field(GRID, ARCHS, log_likelihoods, 0.0, temperature=7.0)
    atol = tolerance(1e-5, 1e-10)
    np.testing.assert_allclose(q.log_probs[0], jax.nn.log_softmax(jnp.asarray(rows)), atol=atol)
    np.testing.assert_allclose(q.log_probs[1], jax.nn.log_softmax(jnp.asarray(columns)), atol=atol)
    evidence = jax.nn.logsumexp(jnp.asarray(log_likelihoods) / 7) - np.log(36)
    np.testing.assert_allclose(q.elbo, evidence, rtol=tolerance(1e-5, 1e-10))


def test_the_bound_is_stationary_and_what_it_says_it_is(tolerance):
    gains = jnp.asarray(2 * np.random.default_rng(1).normal(size=36))
    q = fit_mean_field(GRID, ARCHS, gains, 0.0, temperature=1.0)
    np.testing.assert_allclose(q.elbo, elbo(q.log_probs, gains), rtol=tolerance(1e-4, 1e-10))
    slope = jax.jit(jax.grad(lambda logits: elbo(jax.nn.log_softmax(logits), gains)))(q.log_probs)
    np.testing.assert_allclose(slope, 0, atol=tolerance(1e-4, 1e-8))
    assert q.elbo <= jax.nn.logsumexp(gains) - np.log(36)


@pytest.mark.slow("float64")
def test_what_is_not_listed_counts_as_elsewhere(tolerance):
    gains = jnp.where(jnp.arange(36) < 5, 4.0, 0.0)
    listed = fit_mean_field(GRID, ARCHS[:5], jnp.full(5, 3.0), -1.0, temperature=1.0)
    everything = fit_mean_field(GRID, ARCHS, gains, 0.0, temperature=1.0)
    np.testing.assert_allclose(listed.elbo, everything.elbo, rtol=tolerance(1e-4, 1e-9))
    with_failure = fit_mean_field(
        GRID, ARCHS[:6], jnp.append(jnp.full(5, 3.0), jnp.nan), -1.0, temperature=1.0
    )
    np.testing.assert_allclose(with_failure.elbo, listed.elbo, rtol=tolerance(1e-4, 1e-9))


@pytest.mark.slow("float64")
@pytest.mark.parametrize("diversity", [0.0, -0.5, 2.0])
def test_the_direction_is_its_equation(diversity, tolerance):
    rng = np.random.default_rng(0)
    particles, scores = rng.normal(size=(2, 4, 3))
    distances = ((particles[:, None] - particles) ** 2).sum(-1)
    width = np.median(distances) / (2 * np.log(5))

    def k(x, y):
        return np.exp(-((x - y) ** 2).sum() / (2 * width))

    def grad_k(x, y):
        return -(x - y) / width * k(x, y)

    expected = np.zeros((4, 3))
    for i, j in itertools.product(range(4), range(4)):
        pull = sum(grad_k(particles[j], other) for other in particles)
        drift = scores[j] - 2 * diversity * pull
        expected[i] += k(particles[j], particles[i]) * drift + grad_k(particles[j], particles[i])
    ours = stein_direction(jnp.asarray(particles), jnp.asarray(scores), diversity)
    np.testing.assert_allclose(ours, expected / 4, rtol=tolerance(1e-4, 1e-9), atol=1e-6)


@pytest.mark.slow("float64")
def test_one_particle_climbs():
    score = jnp.array([[1.0, -2.0]])
    np.testing.assert_allclose(stein_direction(jnp.zeros((1, 2)), score, -0.5), score)


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_draws_follow_the_distribution_and_its_options(key):
    space = Ragged()
    log_q = jnp.log(jnp.array([[0.5, 0.5, 0, 0, 0, 0], [0, 0, 0, 0, 0.5, 0.5]]))
    log_q = log_q.at[0, 3:].set(-jnp.inf)
    distribution = MeanField(log_q, jnp.asarray(0.0))

    @jax.jit
    def draw(keys, diversity):
        draw = functools.partial(draw_diverse, diversity=diversity, steps=200)
        return jax.vmap(lambda key: draw(key, space, distribution, 4))(keys)

    apart = draw(jax.random.split(key, 10), 2.0)
    assert (apart[..., 0] < 2).all()
    assert (apart[..., 1] >= 4).all()
    together = draw(jax.random.split(key, 10), -2.0)

    def different(draws):
        return np.mean([len({tuple(a) for a in one}) for one in draws.tolist()])

    assert different(apart) > different(together)


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_draws_from_a_part_of_a_space_are_in_it(key):
    part = Subset(NATS, tuple(range(5, 15_625, 7)))
    distribution = MeanField(jnp.log(jnp.full((6, 5), 0.2)), jnp.asarray(0.0))
    whole = draw_diverse(key, NATS, distribution, 60, steps=20)
    drawn = draw_diverse(key, part, distribution, 60, steps=20)
    assert set(NATS.index(drawn).tolist()) <= set(part.numbers)
    there = np.isin(NATS.index(whole), part.numbers)
    assert 0 < there.sum() < 60
    np.testing.assert_array_equal(drawn[there], whole[there])


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_bad_input_is_refused(key):
    with pytest.raises(BQNESError, match="log_likelihoods has shape"):
        fit_mean_field(GRID, ARCHS[:4], jnp.zeros(3), 0.0)
    q = MeanField(jnp.zeros((2, 6)), jnp.asarray(0.0))
    with pytest.raises(BQNESError, match="size is 0"):
        draw_diverse(key, GRID, q, 0)
    with pytest.raises(BQNESError, match="log_probs has shape"):
        draw_diverse(key, GRID, q._replace(log_probs=jnp.zeros((2, 5))), 2)
