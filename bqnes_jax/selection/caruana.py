"""Caruana's greedy selection with replacement: weights are how often a candidate was drawn."""

import jax.numpy as jnp
from jax import lax

from bqnes_jax.selection.base import FLOOR, Candidates, Choice, open_slots, score
from bqnes_jax.selection.beam import log_add
from bqnes_jax.types import Status

_DRAWS = 50


def caruana(candidates: Candidates, size: int) -> Choice:
    """Draw, again and again, the candidate with which the average of all draws does best.

    A candidate may be drawn repeatedly; when M different ones have been, only these are drawn
    from. Of the averages of the first 1, 2, … 50 draws, the best is taken.
    """
    log_probs, usable = candidates.log_probs, candidates.usable
    room = jnp.sum(open_slots(candidates, size))

    def draw(state, number):
        log_total, counts, best = state  # log_total: logarithm of the summed probabilities
        full = jnp.sum(counts > 0) >= room
        available = usable & ((counts > 0) | ~full)
        scores = score(log_add(log_total, log_probs))
        drawn = jnp.argmax(jnp.where(available, scores, -jnp.inf))
        log_total = log_add(log_total, log_probs[drawn])
        counts = counts.at[drawn].add(available[drawn].astype(counts.dtype))
        reached = score(log_total - jnp.log(number))
        better = reached > best[0]
        best = jnp.where(better, reached, best[0]), jnp.where(better, counts, best[1])
        return (log_total, counts, best), None

    dtype = log_probs.dtype
    nothing = jnp.full_like(log_probs[0], 2 * FLOOR)
    none = jnp.zeros(len(usable), dtype)
    start = nothing, none, (jnp.asarray(-jnp.inf, dtype), none)
    numbers = jnp.arange(1, _DRAWS + 1, dtype=dtype)
    (_, _, (_, counts)), _ = lax.scan(draw, start, numbers)
    weights, members = lax.top_k(counts, size)
    return Choice(members, weights, jnp.int32(Status.OK))
