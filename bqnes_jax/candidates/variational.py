"""NES-BS: a variational distribution over architectures, and diverse draws from it.

The distribution is q(α) = Π_i q_i(α_i), one categorical for each entry of an architecture. Draws
are made together, as particles of Stein variational gradient descent with regularised diversity
(Shu et al. 2022), which lowers

    KL(ρ ‖ p) + n δ E_{x, x' ~ ρ}[k(x, x')]

for the distribution ρ of n particles x, p being a continuous relaxation of q.
"""

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int32

from bqnes_jax.errors import check_positive, check_shape, check_whole
from bqnes_jax.spaces.base import Architectures, Space, as_architectures, enumerate_space
from bqnes_jax.surrogates import TEMPERATURE
from bqnes_jax.types import PRNGKey

_SWEEPS = 50
_WIDTH = 1 / 3  # of the relaxation; one-hot vectors are √2 apart
_RATE = 0.05


class MeanField(NamedTuple):
    """A distribution over architectures whose entries are independent.

    Attributes:
        log_probs: length×options, −inf beyond the options of an entry.
        elbo: E_q[log p(D|α) / T] − KL(q ‖ uniform), log p(D|α) taken relative to `elsewhere`.
    """

    log_probs: Float[Array, "length options"]
    elbo: Float[Array, ""]


def fit_mean_field(
    space: Space,
    archs: ArrayLike,
    log_likelihoods: ArrayLike,
    elsewhere: ArrayLike,
    *,
    temperature: ArrayLike = TEMPERATURE,
) -> MeanField:
    """Maximise the ELBO by coordinate ascent, whose steps are closed: q_i(o) ∝ exp E[L | α_i = o].

    The expected log-likelihood is known at n architectures, different from each other, only; all
    others count as `elsewhere`, for instance their average. Ascent starts from the marginals of the
    posterior over the n, and from near its mode; the better end is returned.

    Args:
        space: whose architectures are vectors of categorical choices.
        archs: n×length.
        log_likelihoods: n, summed over the validation points; NaN counts as `elsewhere`.
        elsewhere: the log-likelihood of all other architectures.
        temperature: divides the log-likelihoods.

    Returns:
        A `MeanField`.

    Example:
        >>> from bqnes_jax.spaces import NATS
        >>> best = NATS.from_index(jnp.array([9504, 9503]))
        >>> q = fit_mean_field(NATS, best, jnp.array([0.0, 0.0]), elsewhere=-1e4)
        >>> jnp.exp(q.log_probs[-1]).round(2).tolist()  # they differ in the last operation only
        [0.0, 0.0, 0.0, 0.5, 0.5]
    """
    archs = as_architectures(space, archs)
    check_shape("archs", archs, (None, len(space.options)))
    log_likelihoods = jnp.asarray(log_likelihoods, float)
    check_shape("log_likelihoods", log_likelihoods, archs.shape[:1])
    check_positive("temperature", temperature)
    gains = (log_likelihoods - jnp.asarray(elsewhere, float)) / temperature
    return _fit(archs, jnp.where(jnp.isfinite(gains), gains, 0), tuple(space.options))


def draw_diverse(
    key: PRNGKey,
    space: Space,
    distribution: MeanField,
    size: int,
    *,
    diversity: ArrayLike = -0.5,
    steps: int = 1000,
) -> Architectures:
    """Draw `size` architectures together by SVGD with regularised diversity.

    Each entry of an architecture is relaxed to a vector of its options, whose density is that of
    Gaussians around the one-hot vectors, with the probabilities q_i. Particles start at
    independent draws and end at the nearest architectures of the space, which may be the same for
    some.

    Args:
        key: of the first positions.
        space: of the architectures.
        distribution: from `fit_mean_field`.
        size: how many.
        diversity: δ. A positive one pushes particles apart, a negative one (the paper's −0.5) lets
            them gather more than SVGD alone would.
        steps: of Adam along the direction of steepest descent.

    Returns:
        size×length architectures.
    """
    check_whole("size", size, 1)
    check_whole("steps", steps, 0)
    log_probs = jnp.asarray(distribution.log_probs)
    check_shape("distribution.log_probs", log_probs, (len(space.options), max(space.options)))
    # Particles that end between architectures of a part of a space go to the nearest of them.
    partial = space.size is not None and space.size < math.prod(space.options)
    listed = enumerate_space(space) if partial else None
    return _draw(key, log_probs, size, diversity, steps, listed)


@functools.partial(jax.jit, static_argnums=2)
def _fit(
    archs: Int32[Array, "n length"], gains: Float[Array, " n"], options: tuple[int, ...]
) -> MeanField:
    width = max(options)
    allowed = jnp.asarray(np.arange(width) < np.array(options)[:, None])
    chosen = jax.nn.one_hot(archs, width, dtype=gains.dtype)  # n×length×options

    def update(i, log_q):
        each = _entries(log_q, archs)
        others = jnp.exp(jnp.sum(each, axis=1) - each[:, i])
        scores = (others * gains) @ chosen[:, i]
        return log_q.at[i].set(jax.nn.log_softmax(jnp.where(allowed[i], scores, -jnp.inf)))

    def sweep(_, log_q):
        return lax.fori_loop(0, len(options), update, log_q)

    def elbo(log_q):
        expected = jnp.sum(jnp.exp(jnp.sum(_entries(log_q, archs), axis=1)) * gains)
        entropy = -jnp.sum(jnp.exp(log_q) * jnp.where(allowed, log_q, 0))
        return expected + entropy - np.sum(np.log(options))

    def ascend(marginals):
        uniform = allowed / np.array(options)[:, None]
        start = jnp.where(allowed, jnp.log(0.9 * marginals + 0.1 * uniform), -jnp.inf)
        log_q = lax.fori_loop(0, _SWEEPS, sweep, start)
        return MeanField(log_q, elbo(log_q))

    starts = [jnp.tensordot(jax.nn.softmax(gains), chosen, 1), chosen[jnp.argmax(gains)]]
    ends = jax.vmap(ascend)(jnp.stack(starts))
    return jax.tree.map(lambda leaf: leaf[jnp.argmax(ends.elbo)], ends)


def _entries(
    log_q: Float[Array, "length options"], archs: Int32[Array, "n length"]
) -> Float[Array, "n length"]:
    """Return log q_i(α_i) for each architecture and entry."""
    return log_q[jnp.arange(archs.shape[1]), archs]


@functools.partial(jax.jit, static_argnums=2)
def _draw(
    key: PRNGKey,
    log_q: Float[Array, "length options"],
    size: int,
    diversity: ArrayLike,
    steps: ArrayLike,
    listed: Int32[Array, "N length"] | None,
) -> Architectures:
    corners = jnp.eye(log_q.shape[1], dtype=log_q.dtype)

    def log_density(x):
        distance = jnp.sum((x[:, None, :] - corners) ** 2, axis=-1)  # length×options
        return jnp.sum(jax.nn.logsumexp(log_q - distance / (2 * _WIDTH**2), axis=1))

    optimiser = optax.adam(_RATE)

    def step(_, carry):
        particles, state = carry
        attraction = jax.vmap(jax.grad(log_density))(particles)
        direction = stein_direction(
            particles.reshape(size, -1), attraction.reshape(size, -1), diversity
        )
        updates, state = optimiser.update(-direction.reshape(particles.shape), state)
        return optax.apply_updates(particles, updates), state

    draw_key, noise_key = jax.random.split(key)
    draws = jax.random.categorical(draw_key, log_q, shape=(size, len(log_q)))
    particles = jax.nn.one_hot(draws, log_q.shape[1], dtype=log_q.dtype)
    particles += _WIDTH * jax.random.normal(noise_key, particles.shape, log_q.dtype)
    particles = lax.fori_loop(0, steps, step, (particles, optimiser.init(particles)))[0]
    particles = jnp.where(log_q > -jnp.inf, particles, -jnp.inf)
    if listed is None:
        return jnp.argmax(particles, axis=-1).astype(jnp.int32)
    closeness = jnp.sum(particles[:, jnp.arange(len(log_q)), listed], axis=-1)
    return listed[jnp.argmax(closeness, axis=1)]


def stein_direction(
    particles: Float[Array, "n d"], scores: Float[Array, "n d"], diversity: ArrayLike
) -> Float[Array, "n d"]:
    """Return the direction in which n particles descend; `scores` [n, d] are ∇ log p at them.

        φ(x) = 1/n Σ_j k(x_j, x) (∇ log p(x_j) − 2δ Σ_l ∇k(x_j, x_l)) + ∇k(x_j, x),

    ∇ by the first argument; k is squared-exponential, its width by the median distance.
    """
    n = len(particles)
    differences = particles[:, None, :] - particles[None, :, :]
    squares = jnp.sum(differences**2, axis=-1)
    bandwidth = jnp.median(squares) / (2 * np.log(n + 1))
    bandwidth = lax.stop_gradient(jnp.where(bandwidth > 0, bandwidth, 1))
    kernel = jnp.exp(-squares / (2 * bandwidth))
    gradients = -differences * kernel[..., None] / bandwidth  # [j, l]: ∇ of k(x_j, x_l) by x_j
    drift = scores - 2 * diversity * jnp.sum(gradients, axis=1)
    return (kernel.T @ drift + jnp.sum(gradients, axis=0)) / n
