"""Ensembles of equal weights: the best candidates, and those that do best together."""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from bqnes_jax.selection.base import FLOOR, Candidates, Choice, open_slots, score
from bqnes_jax.types import Status


def top(candidates: Candidates, size: int) -> Choice:
    """Take the candidates with the smallest validation losses, with equal weights."""
    scores = score(candidates.log_probs)
    scores, members = lax.top_k(jnp.where(candidates.usable, scores, -jnp.inf), size)
    taken = (scores > -jnp.inf) & open_slots(candidates, size)
    return Choice(members, taken.astype(scores.dtype), jnp.int32(Status.OK))


def beam(candidates: Candidates, size: int) -> Choice:
    """Add, one after the other, the candidate with which the equally weighted ensemble does best.

    The first is thus the best single one; none is taken twice.
    """
    log_probs = candidates.log_probs

    def add(state, _):
        log_total, available = state  # log_total: logarithm of the summed probabilities
        scores = score(log_add(log_total, log_probs))
        best = jnp.argmax(jnp.where(available, scores, -jnp.inf)).astype(jnp.int32)
        log_total = log_add(log_total, log_probs[best])
        return (log_total, available.at[best].set(False)), (best, available[best])

    nothing = jnp.full_like(log_probs[0], 2 * FLOOR)
    _, (members, taken) = lax.scan(add, (nothing, candidates.usable), length=size)
    taken = taken & open_slots(candidates, size)
    return Choice(members, taken.astype(log_probs.dtype), jnp.int32(Status.OK))


def log_add(a: Float[Array, " n"], b: Float[Array, "*N n"]) -> Float[Array, "*N n"]:
    """Return log(eᵃ + eᵇ) of finite numbers; `logaddexp` pays for infinities."""
    return jnp.maximum(a, b) + jnp.log1p(jnp.exp(-jnp.abs(a - b)))
