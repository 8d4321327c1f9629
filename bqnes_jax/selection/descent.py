"""Weights on the simplex for any loss, by any optimiser of optax, with a certificate."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax
from jaxtyping import Array, Bool, Float, Int32

_ENOUGH = 1e-6  # the gap at which to stop
_OUTSIDE = -1e9  # what the projection sends to 0, whatever the others are

Loss = Callable[[Float[Array, " N"], Any], Float[Array, ""]]


class Descended(NamedTuple):
    """The weights with the smallest loss on the way, that loss, and the gap that they leave."""

    weights: Float[Array, " N"]
    loss: Float[Array, ""]
    gap: Float[Array, ""]
    iterations: Int32[Array, ""]


@functools.partial(jax.jit, static_argnames=("loss", "solver", "steps"))
def descend(
    loss: Loss,
    predictions: Any,
    usable: Bool[Array, " N"],
    solver: optax.GradientTransformation,
    steps: int,
) -> Descended:
    """Minimise loss(ω, predictions) over the probability vectors on the usable members.

    After each step of the solver, ω is projected onto the simplex. With the derivatives d of the
    loss at ω, no weights have a loss below loss(ω) − (Σ_n ω_n d_n − min_n d_n), the bound of Frank
    and Wolfe, where the loss is convex. The gap is that of the best ω to the best of the bounds.
    """
    slope_of = jax.value_and_grad(loss)

    def project(weights):
        projected = optax.projections.projection_simplex(jnp.where(usable, weights, _OUTSIDE))
        return jnp.where(usable, projected, 0).astype(weights.dtype)

    def judge(weights, iterations):
        value, slope = slope_of(weights, predictions)
        lowest = jnp.min(jnp.where(usable, slope, jnp.inf))
        gap = jnp.sum(jnp.where(usable, weights * slope, 0)) - lowest
        return Descended(weights, value, jnp.maximum(gap, 0), iterations), slope

    def goes_on(carry):
        now, _, _, best, bound = carry
        return (best.loss - bound > _ENOUGH) & (now.iterations < steps)

    def iterate(carry):
        now, slope, state, best, bound = carry
        # Along the simplex only: what all slopes share would drown out the rest in Adam's scaling.
        shared = jnp.sum(jnp.where(usable, slope, 0)) / jnp.maximum(jnp.sum(usable), 1)
        along = jnp.where(usable, slope - shared, 0)
        updates, state = solver.update(along, state, now.weights)
        moved = project(optax.apply_updates(now.weights, updates))
        now, slope = judge(moved, now.iterations + 1)
        best = jax.tree.map(lambda a, b: jnp.where(now.loss < best.loss, a, b), now, best)
        return now, slope, state, best, jnp.maximum(bound, now.loss - now.gap)

    dtype = jnp.result_type(float)
    start = usable.astype(dtype) / jnp.maximum(jnp.sum(usable), 1)
    first, slope = judge(start, jnp.int32(0))
    carry = first, slope, solver.init(start), first, first.loss - first.gap
    now, _, _, best, bound = lax.while_loop(goes_on, iterate, carry)
    return best._replace(gap=jnp.maximum(best.loss - bound, 0), iterations=now.iterations)
