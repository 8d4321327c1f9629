"""Stacking: the weights that the validation data would choose, and ensembles cut from them."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int32

from bqnes_jax.errors import BQNESError, as_float, check_mask, check_whole
from bqnes_jax.kernels.base import matmul
from bqnes_jax.selection.base import (
    FLOOR,
    Candidates,
    Choice,
    floor_entries,
    mean_loss,
    open_slots,
    prepare,
    required_kernel,
)
from bqnes_jax.selection.descent import Loss, descend
from bqnes_jax.selection.simplex import best_mixture, tolerance
from bqnes_jax.types import Status, flag, throw_if_failed

_RATE = 0.05  # of Adam, for a loss of one's own
_ROUGHLY = 1e-3  # the gap that gradient steps are to reach


class Stacking(NamedTuple):
    """Stacking weights with a certificate.

    Attributes:
        weights: ω ≥ 0 with sum 1, exactly 0 where the optimum is 0; all 0 if nothing was usable.
        gap: max_n g_n − Σ_n ω_n g_n, g the negative gradient of `loss`: no weights have a loss
            below `loss − gap`.
        loss: mean of −log Σ_n ω_n p_n over the points.
        status: EMPTY where no candidate was usable; MASKED_TARGETS where points to which every
            candidate gives probability 0 were left out of loss and gap; NOT_CONVERGED where the
            gap, as an average over all points, is above 1e-9 (float64), 1e-5 (float32) or, with a
            solver of optax, 1e-3.
        iterations: of Newton's method, or of the solver.
    """

    weights: Float[Array, " N"]
    gap: Float[Array, ""]
    loss: Float[Array, ""]
    status: Int32[Array, ""]
    iterations: Int32[Array, ""]


def stacking_weights(
    log_probs: ArrayLike,
    mask: ArrayLike | None = None,
    *,
    loss: Loss | None = None,
    solver: optax.GradientTransformation | None = None,
    steps: int = 3000,
    throw: bool = False,
) -> Stacking:
    """Find the weights of the N candidates whose mixture has the smallest validation loss.

        ω = argmin −(1/n) Σ_i log Σ_n ω_n p_n(y_i | x_i)    over ω ≥ 0, Σ_n ω_n = 1

    It is convex. A log-probability of −inf (or below −5,000) is a probability of 0. Newton's method
    finds it; `loss` and `weights` of the result can be differentiated by `log_probs` in reverse.

    A loss of one's own, loss(ω, predictions) -> number, is minimised by projected gradient steps.
    `predictions` are then whatever stands in the place of `log_probs`: any array of N rows, such as
    probabilities N×n×C for a Brier score. If the loss is convex, the gap certifies the result.

    Args:
        log_probs: N×n, of the true class of each validation point under each candidate; or the
            predictions that `loss` takes.
        mask: N, false for padding; a candidate with NaN anywhere is left out too.
        loss: to minimise instead; it must not look at candidates of weight 0 alone.
        solver: an optimiser of optax, without a line search, instead of Newton's method; Adam with
            falling steps for a loss of one's own.
        steps: of such a solver, at most.
        throw: whether to raise an error that explains a status other than OK.

    Returns:
        A `Stacking`.

    Example:
        >>> log_probs = jnp.log(jnp.array([[0.9, 0.1], [0.1, 0.9], [0.4, 0.4]]))
        >>> stacking_weights(log_probs).weights.round(4).tolist()
        [0.5, 0.5, 0.0]
    """
    if loss is None and solver is None:
        found = _fit_differentiably(*prepare(log_probs, mask))
    else:
        check_whole("steps", steps, 1)
        if loss is None:
            predictions, usable = prepare(log_probs, mask)
            predictions = floor_entries(predictions, usable)
        else:
            predictions, usable = _prepare_rows(log_probs, mask)
        solver = solver or optax.adam(optax.cosine_decay_schedule(_RATE, steps))
        found = _descend(loss or _mixture_loss, predictions, usable, solver, steps)
    if throw:
        throw_if_failed(found.status, "stacking_weights")
    return found


def _mixture_loss(weights: Float[Array, " N"], log_probs: Float[Array, "N n"]) -> Array:
    """Return −mean log Σ_n ω_n p_n over the points that any candidate gives a probability."""
    top = jnp.max(log_probs, axis=0)
    log_sum = top + jnp.log(matmul(jnp.exp(log_probs - top).T, weights))
    return mean_loss(jnp.maximum(log_sum, FLOOR), top > FLOOR)


def _descend(
    loss: Loss,
    predictions: Array,
    usable: Bool[Array, " N"],
    solver: optax.GradientTransformation,
    steps: int,
) -> Stacking:
    found = descend(loss, predictions, usable, solver, steps)
    empty = ~jnp.any(usable)
    status = flag(empty, Status.EMPTY) | flag(~(found.gap <= _ROUGHLY), Status.NOT_CONVERGED)
    return Stacking(found.weights, found.gap, found.loss, status, found.iterations)


def _prepare_rows(predictions: ArrayLike, mask: ArrayLike | None) -> tuple[Array, Array]:
    """Return predictions with 0 in the rows that are not usable, and which are."""
    predictions = as_float(predictions)
    predictions = predictions.astype(jnp.result_type(float))
    if predictions.ndim == 0 or predictions.size == 0:
        raise BQNESError(
            f"predictions have shape {predictions.shape}; they must have a row for each candidate."
        )
    usable = jnp.ones(len(predictions), bool) if mask is None else jnp.asarray(mask)
    check_mask("mask", usable, len(predictions))
    usable = usable & ~jnp.isnan(predictions.reshape(len(predictions), -1)).any(axis=1)
    rows = usable.reshape(-1, *[1] * (predictions.ndim - 1))
    return jnp.where(rows, predictions, 0), usable


@jax.custom_vjp
def _fit_differentiably(log_probs: Float[Array, "N n"], usable: Bool[Array, " N"]) -> Stacking:
    return fit(log_probs, usable)[0]


def _fit_and_keep(log_probs: Float[Array, "N n"], usable: Bool[Array, " N"]):
    found = fit(log_probs, usable)[0]
    return found, (log_probs, usable, found.weights)


def _pull_back(kept, change: Stacking):
    """Return how log-probabilities change what depends on the loss and on the weights.

    The loss changes as if the weights stayed (the envelope theorem). Weights that are not 0 keep
    the slopes g_n = mean_i s_n(i), s_n = p_n / Σ_m ω_m p_m, at 1: that is solved for their change.
    """
    raw, usable, weights = kept
    log_probs = floor_entries(raw, usable)
    top = jnp.max(log_probs, axis=0)
    countable = top > FLOOR

    def shares(log_probs):
        relative = jnp.exp(log_probs - top)
        return relative / matmul(relative.T, weights)

    ratios = shares(log_probs)
    points = jnp.maximum(jnp.sum(countable), 1)
    by_loss = -weights[:, None] * jnp.where(countable, ratios, 0) / points

    active = weights > 0
    both = active[:, None] & active
    curvature = jnp.where(both, matmul(ratios, ratios.T) / len(top), jnp.eye(len(weights)))
    eps = jnp.finfo(weights.dtype).eps
    curvature = curvature + 8 * eps * jnp.trace(curvature) * jnp.eye(len(weights))
    pull = jnp.linalg.solve(curvature, jnp.where(active, change.weights, 0))
    pull = jnp.where(active, pull, 0)
    # g_n = mean_i s_n(i), and s changes by its own logarithm less that of the mixture.
    by_weights = pull[:, None] * ratios - weights[:, None] * ratios * matmul(ratios.T, pull)
    total = change.loss * by_loss + by_weights / len(top)
    total = jnp.where(usable[:, None] & (log_probs > FLOOR), total, 0)
    return total.astype(raw.dtype), None


_fit_differentiably.defvjp(_fit_and_keep, _pull_back)


@jax.jit
def fit(
    log_probs: Float[Array, "N n"], usable: Bool[Array, " N"]
) -> tuple[Stacking, Float[Array, " n"]]:
    """Return the stacking of the usable candidates and the logarithm of their mixture, ≥ FLOOR."""
    empty = ~jnp.any(usable)
    log_probs, top = floor_entries(log_probs, usable), _highest(log_probs, usable)
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
        return jnp.maximum(top, floor_entries(row[None], counts[None])[0]), None

    start = jnp.full(log_probs.shape[1], FLOOR, log_probs.dtype)
    return lax.scan(step, start, (log_probs, usable))[0]


def stack(candidates: Candidates, size: int) -> Choice:
    """Keep the largest stacking weights, renormalised."""
    stacking, _ = fit(candidates.log_probs, candidates.usable)
    weights, members = lax.top_k(stacking.weights, size)
    weights = jnp.where(open_slots(candidates, size), weights, 0)
    return Choice(members, weights, stacking.status)


def restack(candidates: Candidates, size: int) -> Choice:
    """Keep the largest stacking weights, and share out the others by likeness.

    With m running over the members and l over the rest,
        w_m = ω_m + Σ_l ω_l k(α_m, α_l) / Σ_m' k(α_m', α_l).
    An ω_l whose candidate is like none of the members is shared in proportion to their ω_m, and a
    negative kernel value counts as no likeness.
    """
    stacking, _ = fit(candidates.log_probs, candidates.usable)
    return Choice(*keep_largest(candidates, stacking.weights, size), stacking.status)


def keep_largest(
    candidates: Candidates, weights: Float[Array, " N"], size: int
) -> tuple[Int32[Array, " M"], Float[Array, " M"]]:
    """Keep the M largest weights, and share out the others by the kernel, as in `restack`."""
    kept, members = lax.top_k(weights, size)
    taken = open_slots(candidates, size)
    kept = jnp.where(taken, kept, 0)
    excluded = weights.at[members].add(-kept)
    likeness = jnp.where(taken[:, None], jnp.maximum(required_kernel(candidates)[members], 0), 0)
    total = jnp.sum(likeness, axis=0)
    related = total > 0
    shared = matmul(likeness, jnp.where(related, excluded / jnp.where(related, total, 1), 0))
    # Scaling up what all members have got is the proportional share of what has no relation.
    unrelated = jnp.sum(jnp.where(related, 0, excluded))
    scaled = kept * (1 + unrelated / jnp.maximum(jnp.sum(kept), jnp.finfo(kept.dtype).tiny))
    return members, scaled + shared
