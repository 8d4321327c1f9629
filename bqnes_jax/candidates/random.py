"""Candidates drawn from the prior."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int32

from bqnes_jax.candidates.base import History, Situation, first_fresh, not_evaluated
from bqnes_jax.spaces.base import Space
from bqnes_jax.types import PRNGKey

_TRIES = 8  # draws for each architecture asked for, where the space cannot be listed


def random(
    key: PRNGKey, situation: Situation, q: int
) -> tuple[Int32[Array, "q length"], Float[Array, " q"]]:
    """Ask for architectures drawn uniformly from those not evaluated yet.

    The scores are the log-probabilities of the draws.
    """
    space, history = situation.space, situation.history
    return draw_fresh(key, space, history, q), log_probability(space, history, q)


def log_probability(space: Space, history: History, q: int) -> Float[Array, " q"]:
    """Return with what log-probability each of q draws is taken from those left; 0 if unknown."""
    if space.size is None:
        return jnp.zeros(q)
    return -jnp.log(jnp.maximum(space.size - history.count - jnp.arange(q), 1).astype(float))


def draw_fresh(key: PRNGKey, space: Space, history: History, q: int) -> Int32[Array, "q length"]:
    """Draw q different architectures that have not been evaluated."""
    if space.size is None:
        return first_fresh(space.sample(key, _TRIES * q), history, q)
    order = jax.random.uniform(key, (space.size,))
    order = jnp.where(not_evaluated(space, history), order, -1)
    return space.from_index(jax.lax.top_k(order, q)[1])
