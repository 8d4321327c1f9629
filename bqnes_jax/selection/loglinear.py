"""The best log-linear pool: non-negative weights with a free sum, by Newton's method.

The pool p(c|x) ∝ exp(Σ_m w_m ℓ_m(c|x)) of members with log-probabilities ℓ_m has on the points i,
which count v_i each, the loss

    f(w) = Σ_i v_i [log Σ_c exp(Σ_m w_m ℓ_m(i, c)) − Σ_m w_m ℓ_m(i, y_i)] / Σ_i v_i,

which is convex in w. So is the penalty ρ (S − 1 − log S) on S = Σ_m w_m: it is 0 at S = 1, near it
½ρ (log S)², and the negative logarithm of a gamma density of S. (The square of log S itself is not
convex beyond S = e.) It keeps S positive, and finite where f alone has no minimum.

As f lies above its tangent at any w ≥ 0, with the slopes g = ∇f(w) and a = min_m g_m,

    min_v F(v) ≥ f(w) − g·w + min_S [a S + ρ (S − 1 − log S)] = f(w) − g·w + ρ log(1 + a/ρ),

so that F(w) − min F ≤ g·w + ρ (S − 1 − log S) − ρ log(1 + a/ρ), the gap: 0 at the optimum.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int, Int32

from bqnes_jax.kernels.base import matmul
from bqnes_jax.selection.simplex import maximise_model

LEAST = 1e-5  # ρ is at least this: below it, slopes in float32 certify nothing
ITERATIONS = 50
_HALVINGS = 20
_SUFFICIENT = 0.1  # share of the decrease that the slope promises, for a step to be taken
_FORBIDDEN = 1e3  # a slope that keeps a slot which is not in use at 0


class Pool(NamedTuple):
    """What is known at weights w.

    Attributes:
        weights: w, exactly 0 where the optimum is 0.
        probabilities: of the pool, for all classes of each point.
        loss: f(w), without the penalty.
        value: F(w), with it.
        slopes: the gradient of f.
        gap: no weights have a value below `value − gap`.
        iterations: of Newton's method.
    """

    weights: Float[Array, " M"]
    probabilities: Float[Array, "n C"]
    loss: Float[Array, ""]
    value: Float[Array, ""]
    slopes: Float[Array, " M"]
    gap: Float[Array, ""]
    iterations: Int32[Array, ""]


class Problem(NamedTuple):
    """Which weights to find.

    Attributes:
        margins: ℓ_m(i, c) − ℓ_m(i, y_i) of M members; 0 throughout where a slot is not in use.
        filled: false for slots that are not in use.
        counts: v_i, how often each point counts; 0 leaves it out.
        strength: ρ Σ_i v_i: the prior weighs as much as so many points.
    """

    margins: Float[Array, "M n C"]
    filled: Bool[Array, " M"]
    counts: Float[Array, " n"]
    strength: Float[Array, ""]

    @property
    def shares(self) -> Float[Array, " n"]:
        """The share of each point in the loss."""
        return self.counts / jnp.maximum(jnp.sum(self.counts), 1)

    @property
    def rho(self) -> Float[Array, ""]:
        """The strength of the prior per point, at least LEAST."""
        return jnp.maximum(self.strength / jnp.maximum(jnp.sum(self.counts), 1), LEAST)


def best_pool(
    problem: Problem,
    start: Float[Array, " M"] | None = None,
    *,
    limit: Int[Array, ""] | int = ITERATIONS,
) -> Pool:
    """Minimise F over the non-negative weights of the slots in use.

    Args:
        problem: with at least one slot in use, or else all weights are 0 and the value infinite.
        start: weights to begin with; what is not in use, or not positive, counts for nothing.
        limit: of the iterations.
    """
    filled = problem.filled
    given = jnp.zeros(len(filled), problem.margins.dtype) if start is None else start
    given = jnp.where(filled & (given > 0), given, 0)
    equal = filled / jnp.maximum(jnp.sum(filled), 1).astype(given.dtype)
    given = jnp.where(jnp.sum(given) > 0, given, equal)
    aim = 1e-10 if given.dtype == jnp.float64 else 1e-7

    def goes_on(state):
        found, _, improved = state
        return improved & (found.iterations < limit)

    def iterate(state):
        before, weights, _ = state
        found = evaluate(problem, weights, iterations=before.iterations + 1)
        weights, improved = lax.cond(
            jnp.any(filled) & (found.gap > aim),
            lambda: _newton_step(problem, found),
            lambda: (weights, jnp.array(False)),
        )
        return found, weights, improved

    nothing = empty_pool(problem.margins)
    return lax.while_loop(goes_on, iterate, (nothing, given, jnp.array(True)))[0]


def empty_pool(margins: Float[Array, "M n C"]) -> Pool:
    """Return a pool of which nothing is known, as before the first iteration."""
    none, infinite = jnp.zeros_like(margins[:, 0, 0]), jnp.asarray(jnp.inf, margins.dtype)
    everything = jnp.zeros_like(margins[0])
    return Pool(none, everything, infinite, infinite, none, infinite, jnp.int32(-1))


def evaluate(
    problem: Problem, weights: Float[Array, " M"], *, iterations: Int32[Array, ""] | int = 0
) -> Pool:
    """Return loss, slopes and gap at these weights."""
    scores = combine(problem.margins, weights)
    normaliser = jax.nn.logsumexp(scores, axis=1)
    probabilities = jnp.exp(scores - normaliser[:, None])
    loss = jnp.sum(problem.shares * normaliser)
    slopes = matmul(_flat(problem.margins), (probabilities * problem.shares[:, None]).ravel())
    total, rho = jnp.sum(weights), problem.rho
    penalty = rho * (total - 1 - jnp.log(total))
    lowest = jnp.min(jnp.where(problem.filled, slopes, jnp.inf)) / rho
    bound = jnp.where(lowest > -1, rho * jnp.log1p(lowest), -jnp.inf)
    gap = jnp.sum(slopes * weights) + penalty - bound
    return Pool(
        weights,
        probabilities,
        loss,
        loss + penalty,
        slopes,
        jnp.maximum(gap, 0),
        jnp.asarray(iterations, jnp.int32),
    )


def combine(values: Float[Array, "M n C"], weights: Float[Array, " M"]) -> Float[Array, "n C"]:
    """Return Σ_m w_m values_m."""
    return matmul(_flat(values).T, weights).reshape(values.shape[1:])


def covariances(
    rows: Float[Array, "k n C"],
    probabilities: Float[Array, "n C"],
    shares: Float[Array, " n"],
    others: Float[Array, "M n C"],
) -> Float[Array, "k M"]:
    """Return Σ_i v_i Cov_p(row, other), the class being drawn from p at each point.

    One row after the other: the product of two matrices that are long and thin is far slower.
    """
    flat = _flat(others)
    return lax.map(lambda row: matmul(flat, spread(row, probabilities, shares).ravel()), rows)


def spread(
    row: Float[Array, "n C"], probabilities: Float[Array, "n C"], shares: Float[Array, " n"]
) -> Float[Array, "n C"]:
    """Return v_i p (row − E_p row), whose product with any values is a covariance."""
    weighted = probabilities * row
    expected = jnp.sum(weighted, axis=1, keepdims=True)
    return shares[:, None] * (weighted - probabilities * expected)


def _flat(values: Float[Array, "M n C"]) -> Float[Array, "M nC"]:
    """Make one axis of points and classes."""
    return values.reshape(len(values), -1)


def _newton_step(problem: Problem, found: Pool) -> tuple[Float[Array, " M"], Bool[Array, ""]]:
    """Return better weights, and whether there were any."""
    total, rho = jnp.sum(found.weights), problem.rho
    in_use = problem.filled.astype(total.dtype)
    margins, shares = problem.margins, problem.shares
    curvature = covariances(margins, found.probabilities, shares, margins)
    curvature = (curvature + curvature.T) / 2 + rho / total**2 * in_use[:, None] * in_use
    slope = found.slopes + rho * (1 - 1 / total)
    gradient = jnp.where(problem.filled, -slope, -_FORBIDDEN)
    if len(gradient) == 1:  # nothing to tell apart, and far less to compile
        target = jnp.maximum(found.weights + gradient / curvature[0], 0)
    else:
        target = maximise_model(curvature, gradient, found.weights)
    return _line_search(problem, found, target - found.weights, slope)


def _line_search(
    problem: Problem, found: Pool, direction: Float[Array, " M"], slope: Float[Array, " M"]
) -> tuple[Float[Array, " M"], Bool[Array, ""]]:
    """Halve the step until the value falls by a fair share of what the slope promises."""
    change = combine(problem.margins, direction)
    total, promised = jnp.sum(found.weights), jnp.sum(slope * direction)
    growth = jnp.sum(direction)

    def gain(step):
        # Of the ratio of normalisers, not of each: near the optimum all digits are in the change.
        relative = jnp.sum(found.probabilities * jnp.expm1(step * change), axis=1)
        loss = jnp.sum(problem.shares * jnp.log1p(relative))
        return -loss - problem.rho * (step * growth - jnp.log1p(step * growth / total))

    def too_long(state):
        step, gained, halvings = state
        return ~(gained >= -_SUFFICIENT * step * promised) & (halvings <= _HALVINGS)

    def halve(state):
        step, _, halvings = state
        return step / 2, gain(step / 2), halvings + 1

    twice, unknown = jnp.full_like(total, 2), jnp.full_like(total, -jnp.inf)
    step, gained, _ = lax.while_loop(too_long, halve, (twice, unknown, jnp.int32(0)))
    better = found.weights + step * direction
    better = jnp.where(better > 0, better, 0)
    improved = gained > 0
    return jnp.where(improved, better, found.weights), improved
