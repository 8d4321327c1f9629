"""Stacking: the weights that the validation data would choose, and ensembles cut from them."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int32

from bqnes_jax.kernels.base import matmul
from bqnes_jax.selection.base import (
    FLOOR,
    Candidates,
    Choice,
    floored,
    mean_loss,
    prepared,
)
from bqnes_jax.selection.simplex import best_mixture, tolerance
from bqnes_jax.types import Status, flag


class Stacking(NamedTuple):
    """Stacking weights with a certificate.

    Attributes:
        weights: ω ≥ 0 with sum 1, exactly 0 where the optimum is 0; all 0 if nothing was usable.
        gap: max_n g_n − Σ_n ω_n g_n, g the negative gradient of `loss`: no weights have a loss
            below `loss − gap`.
        loss: mean of −log Σ_n ω_n p_n over the points.
        status: EMPTY where no candidate was usable; MASKED_TARGETS where points to which every
            candidate gives probability 0 were left out of loss and gap; NOT_CONVERGED where the
            gap, as an average over all points, is above 1e-9 (float64) or 1e-5 (float32).
        iterations: of Newton's method.
    """

    weights: Float[Array, " N"]
    gap: Float[Array, ""]
    loss: Float[Array, ""]
    status: Int32[Array, ""]
    iterations: Int32[Array, ""]


def stacking_weights(log_probs: ArrayLike, mask: ArrayLike | None = None) -> Stacking:
    """Find the weights of the N candidates whose mixture has the smallest validation loss.

        ω = argmin −(1/n) Σ_i log Σ_n ω_n p_n(y_i | x_i)    over ω ≥ 0, Σ_n ω_n = 1

    It is convex. A log-probability of −inf (or below −5,000) is a probability of 0.

    Args:
        log_probs: N×n, of the true class of each validation point under each candidate.
        mask: N, false for padding; a candidate with NaN anywhere is left out too.

    Returns:
        A `Stacking`.

    Example:
        >>> log_probs = jnp.log(jnp.array([[0.9, 0.1], [0.1, 0.9], [0.4, 0.4]]))
        >>> stacking_weights(log_probs).weights.round(4).tolist()
        [0.5, 0.5, 0.0]
    """
    return fit(*prepared(log_probs, mask))[0]


@jax.jit
def fit(
    log_probs: Float[Array, "N n"], usable: Bool[Array, " N"]
) -> tuple[Stacking, Float[Array, " n"]]:
    """Return the stacking of the usable candidates and the logarithm of their mixture, ≥ FLOOR."""
    empty = ~jnp.any(usable)
    log_probs, top = floored(log_probs, usable), _highest(log_probs, usable)
    # Relative to the best at each point nothing that matters underflows, whatever the range. At a
    # point that all give probability 0 the ratios are constant: it does not move the optimum.
    found = best_mixture(jnp.exp(log_probs - top), usable | empty)
    log_mixture = jnp.maximum(top + jnp.log(found.mixture), FLOOR)
    countable = top > FLOOR
    gap = found.gap * len(top) / jnp.maximum(jnp.sum(countable), 1)
    status = (
        flag(empty, Status.EMPTY)
        | flag(~jnp.all(countable), Status.MASKED_TARGETS)
        | flag(~(found.gap <= tolerance(gap.dtype)), Status.NOT_CONVERGED)
    )
    weights = jnp.where(empty, 0, found.weights)
    loss = mean_loss(log_mixture, countable)
    return Stacking(weights, gap, loss, status, found.iterations), log_mixture


def _highest(log_probs: Float[Array, "N n"], usable: Bool[Array, " N"]) -> Float[Array, " n"]:
    """Return the largest log-probability of each point, in one pass: no copy of all is made."""

    def step(top, candidate):
        row, counts = candidate
        return jnp.maximum(top, floored(row[None], counts[None])[0]), None

    start = jnp.full(log_probs.shape[1], FLOOR, log_probs.dtype)
    return lax.scan(step, start, (log_probs, usable))[0]


def stack(candidates: Candidates, size: int) -> Choice:
    """Keep the largest stacking weights, renormalised."""
    stacking, _ = fit(candidates.log_probs, candidates.usable)
    weights, members = lax.top_k(stacking.weights, size)
    return Choice(members, weights, stacking.status)


def restack(candidates: Candidates, size: int) -> Choice:
    """Keep the largest stacking weights, and share out the others by likeness.

    With m running over the members and l over the rest,
        w_m = ω_m + Σ_l ω_l k(α_m, α_l) / Σ_m' k(α_m', α_l).
    An ω_l whose candidate is like none of the members is shared in proportion to their ω_m, and a
    negative kernel value counts as no likeness.
    """
    stacking, _ = fit(candidates.log_probs, candidates.usable)
    kept, members = lax.top_k(stacking.weights, size)
    excluded = stacking.weights.at[members].set(0)
    likeness = jnp.maximum(candidates.kernel[members], 0)
    total = jnp.sum(likeness, axis=0)
    related = total > 0
    shared = matmul(likeness, jnp.where(related, excluded / jnp.where(related, total, 1), 0))
    # Scaling up what all members have got is the proportional share of what has no relation.
    unrelated = jnp.sum(jnp.where(related, 0, excluded))
    weights = kept * (1 + unrelated / jnp.maximum(jnp.sum(kept), jnp.finfo(kept.dtype).tiny))
    return Choice(members, weights + shared, stacking.status)
