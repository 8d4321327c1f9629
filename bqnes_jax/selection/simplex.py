"""The best mixture: maximise mean_i log Σ_n ω_n p_n(i) over the simplex, by Newton's method.

Over all ω ≥ 0, mean_i log Σ_n ω_n p_n(i) − Σ_n ω_n has the same maximiser, its sum being 1 by
itself, so that only the signs are constrained. With s_n(i) = p_n(i)/Σ_m ω_m p_m(i) the gradient is
g − 1, g_n = mean_i s_n(i), and minus the Hessian is mean_i s_n(i) s_m(i). Each iteration maximises
this quadratic model exactly with an active set, which is what makes weights exactly zero, and
searches along the line to its maximiser. At the optimum g_n = 1 where ω_n > 0 and g_n ≤ 1
elsewhere; max g − Σ ω_n g_n (the Frank–Wolfe gap) bounds how far below the optimum any ω is.

Few of many members end up in use. So an iteration looks at some of them alone: those in use, and
those with the largest g. The others keep their shares, and take part as one member, their mixture.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int, Int32

from bqnes_jax.kernels.base import matmul

_WORKING_SET = 32
_ITERATIONS = 200
_STEPS = 12  # step lengths 1, ½, ¼, … tried along the line


class Optimum(NamedTuple):
    """Weights ω, the mixture Σ_n ω_n p_n at each point, the gradient g and the gap they leave."""

    weights: Float[Array, " N"]
    mixture: Float[Array, " n"]
    gradient: Float[Array, " N"]
    gap: Float[Array, ""]
    iterations: Int32[Array, ""]


def best_mixture(probs: Float[Array, "N n"], usable: Bool[Array, " N"]) -> Optimum:
    """Maximise mean_i log Σ_n ω_n p_n(i) over the probability vectors ω on the usable members.

    Args:
        probs: non-negative, relative to the largest usable one of each point, which is thus 1.
        usable: at least one is true; the others have 0 wherever the usable ones differ.
    """
    few = len(probs) <= _WORKING_SET + 1
    choose, patience = (_take_all, 1) if few else (_take_some, 2)

    def goes_on(state):
        found, _, stalled = state
        better = (found.gap > _aim(probs.dtype)) & (stalled < patience)
        return better & (found.iterations < _ITERATIONS)

    def iterate(state):
        before, weights, stalled = state
        found = _evaluate(probs, weights, before.iterations + 1)
        rows, shares, expand = choose(probs, found)
        among, gain = _newton_step(rows, shares, found.mixture)
        weights = jnp.where(gain > 0, expand(among), weights)
        return found, weights / jnp.sum(weights), jnp.where(gain > 0, 0, stalled + 1)

    equal = usable.astype(probs.dtype) / jnp.sum(usable)
    unknown = jnp.full_like(equal, jnp.inf)
    nothing = Optimum(equal, jnp.ones_like(probs[0]), unknown, unknown[0], jnp.int32(-1))
    return lax.while_loop(goes_on, iterate, (nothing, equal, jnp.int32(0)))[0]


def tolerance(dtype: jnp.dtype) -> float:
    """Return the gap at which an optimum is found: well above what rounding leaves."""
    return 1e-9 if dtype == jnp.float64 else 1e-5


def _aim(dtype: jnp.dtype) -> float:
    """Return the gap at which to stop: near what rounding leaves."""
    return 1e-9 if dtype == jnp.float64 else 5e-7


def _evaluate(
    probs: Float[Array, "N n"], weights: Float[Array, " N"], iterations: Int32[Array, ""]
) -> Optimum:
    mixture = matmul(probs.T, weights)
    gradient = matmul(probs, 1 / mixture) / probs.shape[1]
    gap = jnp.max(gradient) - jnp.sum(weights * gradient)
    return Optimum(weights, mixture, gradient, gap, iterations)


Some = tuple[Float[Array, "k n"], Float[Array, " k"], Callable[[Array], Array]]


def _take_all(probs: Float[Array, "N n"], found: Optimum) -> Some:
    return probs, found.weights, lambda weights: weights


def _take_some(probs: Float[Array, "N n"], found: Optimum) -> Some:
    """Return the rows and weights of a working set, and the way back from these to all N weights.

    Members in use come first, then those that pull most. Where it cannot hold all that are in use,
    it is every other time those that are farthest from their optimum, g = 1 or g ≤ 1.
    """
    weights, gradient = found.weights, found.gradient
    in_use = weights > 0
    rank = jnp.where(in_use, gradient + jnp.max(gradient), gradient)
    distance = jnp.where(in_use, jnp.abs(gradient - 1), gradient - 1)
    crowded = jnp.sum(in_use) >= _WORKING_SET
    rank = jnp.where(crowded & (found.iterations % 2 == 1), distance, rank)
    _, working = lax.top_k(rank, _WORKING_SET)
    # What has weight outside the working set takes part as one member, their mixture.
    outside = weights.at[working].set(0)
    mass = jnp.sum(outside)
    outside = outside / jnp.where(mass > 0, mass, 1)
    rows = jnp.concatenate([probs[working], matmul(probs.T, outside)[None]])

    def expand(shares):
        return (shares[-1] * outside).at[working].set(shares[:-1])

    return rows, jnp.append(weights[working], mass), expand


def _newton_step(
    probs: Float[Array, "k n"], weights: Float[Array, " k"], mixture: Float[Array, " n"]
) -> tuple[Float[Array, " k"], Float[Array, ""]]:
    """Return better weights of members with this mixture, and how much better they are."""
    rows = probs / mixture
    curvature = matmul(rows, rows.T) / probs.shape[1]
    target = maximise_model(curvature, jnp.mean(rows, axis=1) - 1, weights)
    return _line_search(rows, weights, target)


def _line_search(
    rows: Float[Array, "k n"], start: Float[Array, " k"], target: Float[Array, " k"]
) -> tuple[Float[Array, " k"], Float[Array, ""]]:
    """Find the best of a few points between start and target, and its gain over start."""
    direction = target - start
    steps = 0.5 ** jnp.arange(_STEPS, dtype=rows.dtype)
    change = steps[:, None] * matmul(rows.T, direction)
    # Of the ratio of mixtures, not of each mixture: near the optimum all digits are in the change.
    gains = jnp.mean(jnp.log1p(change), axis=1) - steps * jnp.sum(direction)
    gains = jnp.where(jnp.isnan(gains), -jnp.inf, gains)
    best = jnp.argmax(gains)
    return start + steps[best] * direction, gains[best]


def maximise_model(
    curvature: Float[Array, "k k"], gradient: Float[Array, " k"], start: Float[Array, " k"]
) -> Float[Array, " k"]:
    """Maximise gradient·(v − start) − ½ (v − start)ᵀ curvature (v − start) over v ≥ 0.

    A primal active-set method: go to the maximiser over the free variables, or as far as the first
    of them that becomes 0, which is then fixed; at a maximiser, free the fixed variable with the
    largest gradient, until none is positive. As one variable changes sides at a time, the inverse
    of the free block is kept up to date by sweeps, without a factorisation.
    """
    size = len(start)
    eps = jnp.finfo(start.dtype).eps
    # Identical members make it singular. The optimum stays: what is added vanishes at the start.
    curvature = curvature + 8 * eps * jnp.trace(curvature) * jnp.eye(size, dtype=start.dtype)

    def goes_on(state):
        *_, finished, count = state
        return ~finished & (count < 5 * size)

    def iterate(state):
        values, slope, free, swept, _, count = state
        waiting = ~free & (values > 0)  # at the start: these are freed first, one at a time
        ready = ~jnp.any(waiting)
        direction = jnp.where(free & ready, -matmul(swept, jnp.where(free, slope, 0)), 0)
        falling = free & (values + direction <= 0)
        reach = jnp.where(falling, values / jnp.where(falling, -direction, 1), jnp.inf)
        first = jnp.argmin(reach)
        blocked = ready & (reach[first] <= 1)
        step = jnp.where(blocked, reach[first], 1)
        values = jnp.maximum(values + step * direction, 0)
        values = jnp.where(blocked & (jnp.arange(size) == first), 0, values)
        slope = gradient - matmul(curvature, values - start)
        pull = jnp.where(free, -jnp.inf, jnp.where(ready, slope, waiting))
        strongest = jnp.argmax(pull)
        finished = ready & ~blocked & (pull[strongest] <= 8 * eps)
        free, swept = _change_sides(free, swept, jnp.where(blocked, first, strongest))
        return values, slope, free, swept, finished, count + 1

    state = start, gradient, jnp.zeros(size, bool), curvature, jnp.array(False), jnp.int32(0)
    return lax.while_loop(goes_on, iterate, state)[0]


def _change_sides(
    free: Bool[Array, " k"], swept: Float[Array, "k k"], index: Int[Array, ""]
) -> tuple[Bool[Array, " k"], Float[Array, "k k"]]:
    """Free a variable, or fix it, with a symmetric sweep of the matrix.

    Swept over the free variables F, a matrix A has −A_FF⁻¹ for its block F, and for the others that
    block's Schur complement.
    """
    here = jnp.arange(len(free)) == index
    row = swept[index]
    pivot = row[index]
    scaled = row / pivot
    edge = jnp.where(here, -1 / pivot, jnp.where(free[index], -scaled, scaled))
    inner = swept - row[:, None] * scaled
    return free ^ here, jnp.where(here, edge[:, None], jnp.where(here[:, None], edge, inner))
