"""Candidates drawn from the prior."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int32

from bqnes_jax.candidates.base import History, Prior, Situation, find_fresh, first_fresh
from bqnes_jax.spaces.base import Space, can_be_listed, enumerate_space
from bqnes_jax.types import PRNGKey

# Uniform draws for each architecture asked for, where the space cannot be listed; more of them
# where the prior chooses among them.
_TRIES, _TRIES_BY_PRIOR = 8, 64


def random(
    key: PRNGKey, situation: Situation, q: int
) -> tuple[Int32[Array, "q length"], Float[Array, " q"]]:
    """Ask for architectures drawn from the prior, of those not asked for yet.

    The scores are the log-probabilities of the draws.
    """
    space, history, prior = situation.space, situation.history, situation.landscape.prior
    drawn = draw_fresh(key, space, history, q, prior=prior)
    return drawn, log_probability(space, history, drawn, prior=prior)


def log_probability(
    space: Space, history: History, drawn: Int32[Array, "q length"], *, prior: Prior | None = None
) -> Float[Array, " q"]:
    """Return with what log-probability each of q draws is taken from those left; 0 if unknown."""
    q = len(drawn)
    if not can_be_listed(space):
        return jnp.zeros(q)
    if prior is None:
        return -jnp.log(jnp.maximum(space.size - history.asked - jnp.arange(q), 1).astype(float))
    masses = jnp.where(find_fresh(space, history), jnp.exp(prior(enumerate_space(space))), 0)
    own = masses[space.index(drawn)]
    left = jnp.sum(masses) - (jnp.cumsum(own) - own)
    tiny = jnp.finfo(own.dtype).tiny
    share = jnp.log(own) - jnp.log(jnp.maximum(left, jnp.maximum(own, tiny)))
    return jnp.where(own > 0, share, -jnp.inf)


def draw_fresh(
    key: PRNGKey, space: Space, history: History, q: int, *, prior: Prior | None = None
) -> Int32[Array, "q length"]:
    """Draw q different architectures that were not asked for, one after another by the prior.

    The largest of log π + G, G from the Gumbel distribution, are such draws. Where the space cannot
    be listed they are from a uniform sample, so that they follow the prior approximately.
    """
    if not can_be_listed(space):
        if prior is None:
            return first_fresh(space.sample(key, _TRIES * q), history, q)
        draw_key, order_key = jax.random.split(key)
        draws = space.sample(draw_key, _TRIES_BY_PRIOR * q)
        order = prior(draws) + jax.random.gumbel(order_key, (len(draws),))
        return first_fresh(draws[jnp.argsort(-order)], history, q, prior=prior)
    fresh = find_fresh(space, history)
    if prior is None:
        order = jnp.where(fresh, jax.random.uniform(key, (space.size,)), -1)
    else:
        order = prior(enumerate_space(space)) + jax.random.gumbel(key, (space.size,))
        order = jnp.where(fresh, order, -jnp.inf)
    return space.from_index(jax.lax.top_k(order, q)[1])
