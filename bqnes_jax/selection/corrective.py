"""The best weighted ensemble of M members, searched for directly.

Stacking finds the best weights of all candidates, and cutting them off at M is only an
approximation; here the weights are optimal for the members at every moment of the search.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int, Int32

from bqnes_jax.selection.base import (
    FLOOR,
    Candidates,
    Choice,
    log_mixture,
    open_slots,
    score,
)
from bqnes_jax.selection.beam import beam
from bqnes_jax.selection.stacking import fit
from bqnes_jax.types import Status

_SWAP_PASSES = 2
_LINE_SEARCH_STEPS = 6
_ALL, _BEAM, _STACK = -3, -2, -1  # steps that fill no slot: stack all, and try what others choose


class _Ensemble(NamedTuple):
    members: Int32[Array, " M"]
    weights: Float[Array, " M"]  # 0 in a slot that is free
    loss: Float[Array, ""]
    status: Int32[Array, ""]


def corrective(candidates: Candidates, size: int) -> Choice:
    """Fill one slot after the other with the candidate that lowers the validation loss most.

    After each addition the weights of all members are solved for anew. Then each slot is emptied
    and filled again, twice in turn, where that lowers the loss. This swapping starts from the
    members that `beam` or `stack` would choose where they, with their best weights, do better: so
    the loss is never above that of `beam`, `stack` or `restack`.
    """
    log_probs, usable = candidates.log_probs, candidates.usable
    slots = jnp.arange(size)
    swaps = jnp.tile(slots, _SWAP_PASSES)
    plan = jnp.concatenate([jnp.array([_ALL]), slots, jnp.array([_BEAM, _STACK]), swaps])
    beamed, taken = beam(candidates, size), open_slots(candidates, size)

    def attempt(state, slot):
        best, stacked = state  # stacked: the weights of all candidates
        largest, first = lax.top_k(stacked, size)
        rival = jnp.where(slot == _BEAM, beamed.members, first)
        counts = taken & (jnp.where(slot == _BEAM, beamed.weights, largest) > 0)
        members, filled = lax.cond(
            slot < 0, lambda: (rival, counts), lambda: _refill(candidates, best, slot)
        )
        # Weights of members and of all are solved for at one place: compiling that is what costs.
        chosen = jnp.zeros_like(usable).at[members].max(filled)
        stacking, mixture = fit(log_probs, jnp.where(slot == _ALL, usable, chosen))
        # Not the loss of the stacking, which leaves out what none of these few can explain.
        trial = _Ensemble(
            members,
            jnp.where(filled, stacking.weights[members], 0),
            jnp.where(slot == _ALL, jnp.inf, -score(mixture)),
            stacking.status & Status.NOT_CONVERGED,
        )
        better = trial.loss < best.loss
        best = jax.tree.map(lambda new, old: jnp.where(better, new, old), trial, best)
        return (best, jnp.where(slot == _ALL, stacking.weights, stacked)), None

    nothing = jnp.zeros(size, log_probs.dtype)
    nobody = _Ensemble(
        nothing.astype(jnp.int32), nothing, jnp.full_like(nothing[0], jnp.inf), jnp.int32(0)
    )
    (found, _), _ = lax.scan(attempt, (nobody, jnp.zeros_like(log_probs[:, 0])), plan)
    weights, order = lax.top_k(found.weights, size)
    return Choice(found.members[order], weights, found.status)


def _refill(
    candidates: Candidates, ensemble: _Ensemble, slot: Int[Array, ""]
) -> tuple[Int32[Array, " M"], Bool[Array, " M"]]:
    """Empty a slot and fill it with the best candidate that is not a member."""
    members, taken = ensemble.members, open_slots(candidates, len(ensemble.members))
    rest = ensemble.weights.at[slot].set(0)
    total = jnp.sum(rest)
    rest = rest / jnp.where(total > 0, total, 1)
    mixture = log_mixture(candidates.log_probs[members], rest)
    losses = _losses_with_each(candidates.log_probs, jnp.maximum(mixture, FLOOR))
    available = candidates.usable.at[members].min(rest == 0)
    best = jnp.argmin(jnp.where(available, losses, jnp.inf)).astype(jnp.int32)
    return members.at[slot].set(best), (rest > 0).at[slot].set(taken[slot] & available[best])


def _losses_with_each(
    log_probs: Float[Array, "N n"], log_current: Float[Array, " n"]
) -> Float[Array, " N"]:
    """Return min_t −mean log((1 − t) q + t p_n), what a mixture q can gain from each candidate.

    It is convex in t, and its derivatives are −mean r and mean r², r = (p − q)/((1 − t) q + t p).
    Newton's method is kept inside a shrinking bracket.
    """

    def terms(t):
        ratio = log_probs - log_current
        small = jnp.exp(-jnp.abs(ratio))  # of p and q the smaller, relative to the larger
        above = ratio > 0
        t = t[:, None]
        mixed = jnp.where(above, (1 - t) * small + t, (1 - t) + t * small)
        return ratio, jnp.where(above, 1 - small, small - 1), mixed

    def narrow(_, state):
        low, high, t = state
        _, difference, mixed = terms(t)
        slope = jnp.mean(difference / mixed, axis=1)
        curvature = jnp.mean((difference / mixed) ** 2, axis=1)
        low, high = jnp.where(slope > 0, t, low), jnp.where(slope > 0, high, t)
        newton = t + slope / jnp.where(curvature > 0, curvature, 1)
        inside = (newton > low) & (newton < high)
        return low, high, jnp.where(inside, newton, (low + high) / 2)

    zero = jnp.zeros_like(log_probs[:, 0])
    start = zero, zero + 1, zero + 0.25
    _, _, t = lax.fori_loop(0, _LINE_SEARCH_STEPS, narrow, start)
    ratio, _, mixed = terms(t)
    return -score(log_current + jnp.maximum(ratio, 0) + jnp.log(mixed))
