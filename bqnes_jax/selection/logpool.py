"""The best log-linear pool of M members, searched for directly.

A log-linear pool multiplies what its members say, p(c|x) ∝ Π_m p_m(c|x)^w_m. The weights are not
negative and their sum S is free: 1/S is a temperature, so that the pool calibrates itself. Unlike a
mixture it needs the probabilities of all classes.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int, Int32

from bqnes_jax.kernels.base import matmul
from bqnes_jax.pooling import LOG_FLOOR
from bqnes_jax.selection.base import (
    Candidates,
    Choice,
    open_slots,
    prepare,
    prepare_classes,
    required_classes,
)
from bqnes_jax.selection.loglinear import (
    ITERATIONS,
    Pool,
    Problem,
    best_pool,
    combine,
    covariances,
    empty_pool,
    spread,
)
from bqnes_jax.selection.simplex import tolerance
from bqnes_jax.types import Status, flag, throw_if_failed

# How many points the prior of S may weigh as much as; 0 is next to none (`loglinear.LEAST`).
STRENGTHS = (300.0, 100.0, 30.0, 10.0, 3.0, 0.0)
_FIRST_STRENGTH = 30.0  # until there are members to choose it with
_FOLDS = 5
_SWAP_PASSES = 2
_TRIALS = 3  # candidates for a slot whose weights are solved for
_ROUGH = 4  # Newton steps that rank candidates which are alone
_CROSS_FIT_STEPS = 12
_ENOUGH = 50_000  # points × classes, of each candidate, that members are searched for by


class LogPool(NamedTuple):
    """Weights of a log-linear pool, with a certificate.

    Attributes:
        weights: w ≥ 0, exactly 0 where the optimum is 0; all 0 if nothing was usable.
        gap: how far `loss` with its penalty can be above the smallest possible.
        loss: mean of −log p over the points, without the penalty.
        strength: λ of the penalty (λ/n) (S − 1 − log S).
        cross_fitted: the loss at points that were left out, for each of the strengths.
        status: EMPTY where no candidate was usable; NOT_CONVERGED where the gap is large.
        iterations: of Newton's method.
    """

    weights: Float[Array, " N"]
    gap: Float[Array, ""]
    loss: Float[Array, ""]
    strength: Float[Array, ""]
    cross_fitted: Float[Array, " k"]
    status: Int32[Array, ""]
    iterations: Int32[Array, ""]


def log_pool_weights(
    log_probs: ArrayLike,
    classes: ArrayLike,
    *,
    mask: ArrayLike | None = None,
    strengths: Sequence[float] = STRENGTHS,
    throw: bool = False,
) -> LogPool:
    """Find the weights of N members whose log-linear pool has the smallest validation loss.

        w = argmin (1/n) Σ_i −log p(y_i | x_i) + (λ/n) (S − 1 − log S)    over w ≥ 0, S = Σ_m w_m

    It is convex. λ is the strength with the smallest loss in five-fold cross-fitting: weights are
    fitted to four fifths of the points and judged by the others. A log-probability below −12
    counts as −12.

    Args:
        log_probs: N×n, of the true class of each validation point under each member.
        classes: N×n×C, of all classes; any floating type, and half precision is enough.
        mask: N, false for padding; a member with NaN anywhere is left out too.
        strengths: what λ is chosen from; of several equally good ones the first.
        throw: whether to raise an error that explains a status other than OK.

    Example:
        >>> sure = jax.nn.log_softmax(jnp.array([[[8.0, 0], [8, 0], [8, 0], [0, 8]]]))
        >>> found = log_pool_weights(sure[:, :, 0], sure, strengths=(0.0,))  # 3 of 4 are right
        >>> round(float(jax.nn.softmax(found.weights[0] * sure[0, 0])[0]), 3)
        0.75
    """
    log_probs, usable = prepare(log_probs, mask)
    classes, usable = prepare_classes(classes, log_probs, usable)
    found = _fit_all(log_probs, classes, usable, jnp.asarray(strengths, log_probs.dtype))
    if throw:
        throw_if_failed(found.status, "log_pool_weights")
    return found


@jax.jit
def _fit_all(
    log_probs: Float[Array, "N n"],
    classes: Float[Array, "N n C"],
    usable: Bool[Array, " N"],
    strengths: Float[Array, " k"],
) -> LogPool:
    margins = _margins(log_probs, classes, usable)
    found, strength, losses = _fit(margins, usable, strengths)
    empty = ~jnp.any(usable)
    status = flag(empty, Status.EMPTY) | _certify(found.gap, found.weights)
    weights, loss = jnp.where(empty, 0, found.weights), jnp.where(empty, jnp.inf, found.loss)
    return LogPool(weights, found.gap, loss, strength, losses, status, found.iterations)


class _Ensemble(NamedTuple):
    members: Int32[Array, " M"]
    weights: Float[Array, " M"]  # 0 in a slot that is free
    value: Float[Array, ""]  # loss with its penalty
    strength: Float[Array, ""]  # of the penalty
    gap: Float[Array, ""]


def logpool(candidates: Candidates, size: int, *, strengths: Sequence[float] = STRENGTHS) -> Choice:
    """Fill one slot after the other with the candidate that lowers the validation loss most.

    After each addition the weights of all members are solved for anew. Then each slot is emptied
    and filled again, twice in turn, where that lowers the loss. Candidates are ranked by what a
    quadratic model of the loss says they could gain, all weights moving; the first few are tried.
    The strength of the prior is chosen by cross-fitting the members' weights, before the swapping
    and after it. Where points × classes are very many, all this looks at some of the points; the
    weights that are returned are solved for with all of them.
    """
    everything, candidates = candidates, _thin(candidates)
    dtype = candidates.log_probs.dtype
    grid, first = jnp.asarray(strengths, dtype), jnp.asarray(_FIRST_STRENGTH, dtype)
    alone = _values_alone(candidates, first)
    slots = jnp.arange(size)
    swaps = jnp.tile(slots, _SWAP_PASSES if size > 1 else 0)
    choose = jnp.array([-1])
    plan = jnp.concatenate([slots, choose, swaps, choose])

    def step(found, slot):
        found = lax.cond(
            slot < 0,
            lambda: _reweight(candidates, found, grid),
            lambda: _refill(candidates, found, slot, alone),
        )
        return found, None

    nothing = jnp.zeros(size, dtype)
    infinite = jnp.asarray(jnp.inf, dtype)
    nobody = _Ensemble(nothing.astype(jnp.int32), nothing, infinite, first, infinite)
    found, _ = lax.scan(step, nobody, plan)
    if everything is not candidates:
        found = _reweight(everything, found, found.strength[None])
    weights, order = lax.top_k(found.weights, size)
    status = jnp.where(jnp.any(weights > 0), _certify(found.gap, weights), 0)
    return Choice(found.members[order], weights, status)


def _reweight(candidates: Candidates, found: _Ensemble, strengths: Float[Array, " k"]) -> _Ensemble:
    """Choose the strength, and solve for the weights with it."""
    margins, filled = _margins_of(candidates, found.members, found.weights > 0)
    choice = len(strengths) > 1
    pool, strength, _ = _fit(margins, filled, strengths, found.weights, cross_fit=choice)
    return _Ensemble(found.members, pool.weights, pool.value, strength, pool.gap)


def _thin(candidates: Candidates) -> Candidates:
    """Keep some of the points, where points × classes are more than a search has to see."""
    classes = required_classes(candidates)
    points = classes.shape[1]
    kept = max(_ENOUGH // classes.shape[2], 1)
    if kept >= points:
        return candidates
    some = _shuffle(points)[:kept]
    return candidates._replace(log_probs=candidates.log_probs[:, some], classes=classes[:, some])


def _shuffle(points: int) -> Int[Array, " n"]:
    """Return the points in another order, as labels may come in order or in turn."""
    return jax.random.permutation(jax.random.key(0), points)  # the same way each time


def log_pool_loss(
    weights: Float[Array, " M"], log_probs: Float[Array, "M n"], classes: Float[Array, "M n C"]
) -> Float[Array, ""]:
    """Return the mean of −log p over the points; infinite where no member has a weight."""
    filled = weights > 0
    scores = combine(_margins(log_probs, classes, filled), weights)
    loss = jnp.mean(jax.nn.logsumexp(scores, axis=1))
    return jnp.where(jnp.any(filled), loss, jnp.inf)


def _certify(gap: Float[Array, ""], weights: Float[Array, " M"]) -> Int32[Array, ""]:
    """Say whether the gap is as small as rounding allows, which grows with the weights."""
    allowed = tolerance(gap.dtype) * jnp.maximum(jnp.sum(weights), 1)
    return flag(~(gap <= allowed), Status.NOT_CONVERGED)


def _problem(
    margins: Float[Array, "M n C"],
    filled: Bool[Array, " M"],
    strength: Float[Array, ""],
    counts: Float[Array, " n"] | None = None,
) -> Problem:
    counts = jnp.ones(margins.shape[1], margins.dtype) if counts is None else counts
    return Problem(margins, filled, counts, strength)


def _margins(
    log_probs: Float[Array, "M n"], classes: Float[Array, "M n C"], filled: Bool[Array, " M"]
) -> Float[Array, "M n C"]:
    """Return how much more likely each class is than the true one; 0 where a slot is free."""
    floored = jnp.maximum(classes.astype(log_probs.dtype), LOG_FLOOR)
    margins = floored - jnp.maximum(log_probs, LOG_FLOOR)[:, :, None]
    return jnp.where(filled[:, None, None], margins, 0)


def _margins_of(
    candidates: Candidates, members: Int32[Array, " M"], filled: Bool[Array, " M"]
) -> tuple[Float[Array, "M n C"], Bool[Array, " M"]]:
    classes = required_classes(candidates)[members]
    return _margins(candidates.log_probs[members], classes, filled), filled


def _fit(
    margins: Float[Array, "M n C"],
    filled: Bool[Array, " M"],
    strengths: Float[Array, " k"],
    start: Float[Array, " M"] | None = None,
    *,
    cross_fit: bool = True,
) -> tuple[Pool, Float[Array, ""], Float[Array, " k"]]:
    """Return the pool with the strength that does best on points left out, and what all do there.

    Without each fold, weights are solved for with one strength after the other, and at last with
    all points: in one loop, so that solving is compiled once.
    """
    points, count = margins.shape[1], len(strengths)
    start = jnp.zeros(len(filled), margins.dtype) if start is None else start
    fold_of = _shuffle(points) % _FOLDS
    trials = _FOLDS * count if cross_fit else 0

    def solve(trial, state):
        before, losses = state
        last, first = trial == trials, trial % count == 0
        place = jnp.where(last, jnp.argmin(losses), trial % count)
        left_out = (~last & (fold_of == trial // count)).astype(margins.dtype)
        problem = _problem(margins, filled, strengths[place], 1 - left_out)
        begin = jnp.where(last | first, start, before.weights)
        pool = best_pool(problem, begin, limit=jnp.where(last, ITERATIONS, _CROSS_FIT_STEPS))
        loss = jnp.sum(left_out * jax.nn.logsumexp(combine(margins, pool.weights), axis=1))
        return pool, losses.at[place].add(loss / points)

    nothing = empty_pool(margins), jnp.zeros_like(strengths)
    pool, losses = lax.fori_loop(0, trials + 1, solve, nothing)
    return pool, strengths[jnp.argmin(losses)], losses


def _values_alone(candidates: Candidates, strength: Float[Array, ""]) -> Float[Array, " N"]:
    """Return what each candidate would reach alone, nearly, with the temperature that fits."""

    def value(candidate):
        log_probs, classes, usable = candidate
        margins = _margins(log_probs[None], classes[None], usable[None])
        problem = _problem(margins, usable[None], strength)
        return jnp.where(usable, best_pool(problem, limit=_ROUGH).value, jnp.inf)

    return lax.map(value, (candidates.log_probs, required_classes(candidates), candidates.usable))


def _refill(
    candidates: Candidates,
    found: _Ensemble,
    slot: Int[Array, ""],
    alone: Float[Array, " N"],
) -> _Ensemble:
    """Empty a slot and fill it with the best candidate that is not a member, if that is better."""
    kept = (found.weights > 0).at[slot].set(False)
    available = candidates.usable.at[found.members].min(~kept)
    available = available & open_slots(candidates, len(kept))[slot]
    trials = min(_TRIALS, len(available))

    def rank(problem, pool):
        gains = jnp.where(jnp.any(kept), _gains(candidates, problem, pool), -alone)
        return lax.top_k(jnp.where(available, gains, -jnp.inf), trials)[1].astype(jnp.int32)

    def goes_on(state):
        trial, _, _, first = state
        unchanged = (found.weights[slot] > 0) & (first[0] == found.members[slot])
        return (trial == 0) | ((trial <= trials) & ~unchanged)

    def solve(state):
        trial, best, rest, first = state  # trial 0 is without anybody in the slot
        emptied = trial == 0
        candidate = jnp.where(emptied, found.members[slot], first[trial - 1])
        members = found.members.at[slot].set(candidate)
        filled = kept.at[slot].set(~emptied & available[candidate])
        problem = _problem(*_margins_of(candidates, members, filled), found.strength)
        pool = best_pool(problem, jnp.where(emptied, found.weights, rest))
        reached = jnp.where(filled[slot], pool.value, jnp.inf)
        new = _Ensemble(members, pool.weights, reached, found.strength, pool.gap)
        best = jax.tree.map(lambda a, b: jnp.where(reached < best.value, a, b), new, best)
        rest = jnp.where(emptied, pool.weights, rest)
        first = lax.cond(emptied, lambda: rank(problem, pool), lambda: first)
        return trial + 1, best, rest, first

    start = jnp.int32(0), found, found.weights, jnp.zeros(trials, jnp.int32)
    return lax.while_loop(goes_on, solve, start)[1]


def _gains(candidates: Candidates, problem: Problem, pool: Pool) -> Float[Array, " N"]:
    """Return by how much each candidate would lower a quadratic model of the value.

    At the optimum of the members, only a candidate's own slope is not 0; what its curvature shares
    with theirs, they make up for. One pass over all candidates, which are widened one at a time.
    """
    probabilities, shares = pool.probabilities, problem.shares
    margins, filled, total = problem.margins, problem.filled, jnp.sum(pool.weights)
    bend = problem.rho / jnp.maximum(total, jnp.finfo(total.dtype).tiny) ** 2
    both = filled[:, None] & filled
    inner = covariances(margins, probabilities, shares, margins) + bend
    inner = jnp.where(both, inner, 0) + jnp.diag(jnp.where(filled, 0, 1).astype(inner.dtype))
    ridge = 16 * jnp.finfo(inner.dtype).eps * jnp.trace(inner)
    factor = jax.scipy.linalg.cho_factor(inner + ridge * jnp.eye(len(inner), dtype=inner.dtype))
    flat = margins.reshape(len(margins), -1)

    def gain(candidate):
        log_probs, classes, usable = candidate
        row = _margins(log_probs[None], classes[None], usable[None])[0]
        slope = jnp.sum(shares[:, None] * probabilities * row)
        weighted = spread(row, probabilities, shares)
        own = jnp.sum(weighted * row) + bend
        shared = jnp.where(filled, matmul(flat, weighted.ravel()) + bend, 0)
        left = own - jnp.sum(shared * jax.scipy.linalg.cho_solve(factor, shared))
        left = jnp.maximum(left, 1e-4 * own)  # a candidate that is nearly a combination of members
        pull = jnp.minimum(slope + problem.rho * (1 - 1 / total), 0)
        return pull**2 / (2 * jnp.where(left > 0, left, 1))

    return lax.map(gain, (candidates.log_probs, required_classes(candidates), candidates.usable))
