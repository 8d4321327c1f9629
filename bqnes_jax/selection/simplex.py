"""The best mixture: maximise mean_i log Σ_n ω_n p_n(i) over the simplex, by Newton's method.

Over all ω ≥ 0, mean_i log Σ_n ω_n p_n(i) − Σ_n ω_n has the same maximiser, its sum being 1 by
itself, so that only the signs are constrained. With s_n(i) = p_n(i)/Σ_m ω_m p_m(i) the gradient is
g − 1, g_n = mean_i s_n(i), and minus the Hessian is mean_i s_n(i) s_m(i). Each iteration maximises
this quadratic model exactly with an active set, which is what makes weights exactly zero, and
searches along the line to its maximiser. At the optimum g_n = 1 where ω_n > 0 and g_n ≤ 1
elsewhere; max g − Σ ω_n g_n (the Frank–Wolfe gap) bounds how far below the optimum any ω is.

Few of many members end up in use. So this is done first among the members in use and those with the
largest g alone, until no other member could enter; if these were too few, a last round takes all.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax
from jaxtyping import Array, Bool, Float, Int, Int32

from bqnes_jax.kernels.base import matmul

_WORKING_SET = 32
_ITERATIONS = (20, 100)  # in working sets, and in all
_STEPS = 12  # step lengths 1, ½, ¼, … tried along the line
_FIRST_STEP = 0.1
_UNIFORM_SHARE = 0.1


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
    found = _first_guess(probs, usable)
    if len(probs) > _WORKING_SET + 1:
        found = _solve_in_working_sets(probs, found)
    return _newton(probs, found, _ITERATIONS[1])


def tolerance(dtype: jnp.dtype) -> float:
    """The gap at which an optimum is found: well above what rounding leaves."""
    return 1e-9 if dtype == jnp.float64 else 1e-5


def _aim(dtype: jnp.dtype) -> float:
    """The gap at which to stop: near what rounding leaves."""
    return 1e-9 if dtype == jnp.float64 else 5e-7


def _evaluate(
    probs: Float[Array, "N n"], weights: Float[Array, " N"], iterations: Int32[Array, ""]
) -> Optimum:
    mixture = matmul(probs.T, weights)
    gradient = matmul(probs, 1 / mixture) / probs.shape[1]
    gap = jnp.max(gradient) - jnp.sum(weights * gradient)
    return Optimum(weights, mixture, gradient, gap, iterations)


def _first_guess(probs: Float[Array, "N n"], usable: Bool[Array, " N"]) -> Optimum:
    """Take one projected gradient step from equal weights, which saves a Newton step.

    A share of the equal weights stays, so that no point is left with a mixture of 0.
    """
    equal = usable.astype(probs.dtype) / jnp.sum(usable)
    gradient = _evaluate(probs, equal, jnp.int32(0)).gradient
    moved = jnp.where(usable, equal + _FIRST_STEP * gradient, 0)
    moved = optax.projections.projection_simplex(moved)
    moved = moved.astype(probs.dtype)  # the projection widens to JAX's default type
    return _evaluate(probs, moved + _UNIFORM_SHARE * (equal - moved), jnp.int32(0))


def _solve_in_working_sets(probs: Float[Array, "N n"], start: Optimum) -> Optimum:
    def unfinished(state):
        found, improved = state
        return (found.gap > _aim(probs.dtype)) & improved & (found.iterations < _ITERATIONS[0])

    def iterate(state):
        found, _ = state
        rows, shares, expand = _working_set(probs, found)
        among = _newton(rows, _evaluate(rows, shares, found.iterations), _ITERATIONS[0])
        weights = expand(among.weights)
        found = _evaluate(probs, weights / jnp.sum(weights), among.iterations)
        return found, jnp.any(among.weights != shares)

    return lax.while_loop(unfinished, iterate, (start, jnp.array(True)))[0]


def _working_set(
    probs: Float[Array, "N n"], found: Optimum
) -> tuple[Float[Array, "k n"], Float[Array, " k"], Callable[[Array], Array]]:
    """Return the variables' rows and weights, and the way back from these to all N weights."""
    weights, gradient = found.weights, found.gradient
    in_use_first = jnp.where(weights > 0, gradient + jnp.max(gradient), gradient)
    _, working = lax.top_k(in_use_first, _WORKING_SET)
    # What has weight outside the working set takes part as one member, their mixture.
    places = (working[:, None] == jnp.arange(len(weights))).astype(weights.dtype)
    outside = weights * (1 - jnp.sum(places, axis=0))
    mass = jnp.sum(outside)
    outside = outside / jnp.where(mass > 0, mass, 1)
    rows = jnp.concatenate([probs[working], matmul(probs.T, outside)[None]])
    ways = jnp.concatenate([places, outside[None]])
    return rows, jnp.append(weights[working], mass), lambda shares: matmul(ways.T, shares)


def _newton(probs: Float[Array, "N n"], start: Optimum, limit: int) -> Optimum:
    def unfinished(state):
        found, improved = state
        return (found.gap > _aim(probs.dtype)) & improved & (found.iterations < limit)

    def iterate(state):
        found, _ = state
        weights, gain = _newton_step(probs, found)
        improved = gain > 0
        weights = jnp.where(improved, weights, found.weights)
        return _evaluate(probs, weights, found.iterations + 1), improved

    return lax.while_loop(unfinished, iterate, (start, jnp.array(True)))[0]


def _newton_step(
    probs: Float[Array, "N n"], found: Optimum
) -> tuple[Float[Array, " N"], Float[Array, ""]]:
    """Return better weights, and how much better than the last ones they are."""
    rows = probs / found.mixture
    curvature = matmul(rows, rows.T) / probs.shape[1]
    target = maximise_model(curvature, found.gradient - 1, found.weights)
    weights, gain = _line_search(rows, found.weights, target)
    return weights / jnp.sum(weights), gain


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

    def unfinished(state):
        *_, finished, count = state
        return ~finished & (count < 4 * size)

    def iterate(state):
        values, slope, free, swept, _, count = state
        direction = jnp.where(free, -matmul(swept, jnp.where(free, slope, 0)), 0)
        falling = free & (values + direction <= 0)
        reach = jnp.where(falling, values / jnp.where(falling, -direction, 1), jnp.inf)
        first = jnp.argmin(reach)
        blocked = reach[first] <= 1
        step = jnp.where(blocked, reach[first], 1)
        values = optax.projections.projection_non_negative(values + step * direction)
        values = jnp.where(blocked & (jnp.arange(size) == first), 0, values)
        slope = gradient - matmul(curvature, values - start)
        pull = jnp.where(free, -jnp.inf, slope)
        strongest = jnp.argmax(pull)
        finished = ~blocked & (pull[strongest] <= 8 * eps)
        free, swept = _change_sides(free, swept, jnp.where(blocked, first, strongest))
        return values, slope, free, swept, finished, count + 1

    def free_one(index, state):
        free, swept = state
        changed = _change_sides(free, swept, index)
        return jax.tree.map(lambda new, old: jnp.where(start[index] > 0, new, old), changed, state)

    free, swept = lax.fori_loop(0, size, free_one, (jnp.zeros(size, bool), curvature))
    state = start, gradient, free, swept, jnp.array(False), jnp.int32(0)
    return lax.while_loop(unfinished, iterate, state)[0]


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
