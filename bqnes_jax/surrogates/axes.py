"""The principal axes of points that arrive one after another: a singular value decomposition.

Of n points with features Ψ = UΣVᵀ [n, d] the axes are V and their lengths Σ. A point ψ more makes
ΨᵀΨ + ψψᵀ = V(Σ² + zzᵀ)Vᵀ of it, with z = Vᵀψ. The squares x of the new lengths are the roots of

    f(x) = 1 + Σ_i z_i² / (σ_i² − x),

one above each σ_i² and below the next, and the new axes are the columns of VW with W_ij in
proportion to ẑ_i / (σ_i² − x_j). With the ẑ for which the computed roots are exact, W is orthogonal
to rounding however close to each other they are (Gu and Eisenstat 1994). Differences of squares are
products of differences and sums, and a root is known by its distance from the nearer of its
neighbours; so the lengths, and not only their squares, are as accurate as rounding allows.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int, Int32

from bqnes_jax.kernels.base import matmul

_STEPS = 40  # towards the roots, at most; 7 are usual


class Axes(NamedTuple):
    """Principal axes, the shortest first."""

    vectors: Float[Array, "d d"]  # V, an axis in each column
    lengths: Float[Array, " d"]  # Σ
    points: Int32[Array, ""]  # of how many points they are


def no_axes(features: int, dtype: DTypeLike = float) -> Axes:
    """Return the axes of no points."""
    return Axes(jnp.eye(features, dtype=dtype), jnp.zeros(features, dtype), jnp.int32(0))


def find_axes(features: Float[Array, "n d"], points: Int[Array, ""]) -> Axes:
    """Return the axes of points that are all known, n ≥ d; padding has features of zero."""
    _, lengths, rows = jnp.linalg.svd(features, full_matrices=False)
    return Axes(rows[::-1].T, lengths[::-1], points.astype(jnp.int32))


def grow_axes(axes: Axes, features: Float[Array, "n d"], points: Int[Array, ""]) -> Axes:
    """Return the axes of so many points, the first of which had the axes given.

    Example:
        >>> points = jnp.array([[3.0, 0.0], [0.0, 1.0], [0.0, 2.0]])
        >>> lengths = grow_axes(no_axes(2), points, jnp.int32(3)).lengths
        >>> [round(length, 3) for length in lengths.tolist()]
        [2.236, 3.0]
    """
    none = no_axes(len(axes.lengths), axes.lengths.dtype)
    fewer = axes.points > points  # others than those that the axes are of
    vectors, lengths, start = (
        jnp.where(fewer, empty, own) for empty, own in zip(none, axes, strict=True)
    )

    def add(i: Int[Array, ""], known: tuple[Array, Array]) -> tuple[Array, Array]:
        return _add(*known, features[i])

    points = points.astype(jnp.int32)
    vectors, lengths = lax.fori_loop(start, points, add, (vectors, lengths))
    return Axes(vectors, lengths, points)


def _add(
    vectors: Float[Array, "d d"], lengths: Float[Array, " d"], point: Float[Array, " d"]
) -> tuple[Float[Array, "d d"], Float[Array, " d"]]:
    """Add a point, whose features are given."""
    number = jnp.arange(len(lengths))
    z = matmul(point, vectors)
    largest = jnp.maximum(lengths[-1], jnp.linalg.norm(z))
    largest = jnp.where(largest > 0, largest, 1)
    lengths, z = lengths / largest, z / largest
    unit = 2 * jnp.finfo(z.dtype).eps
    unseen = lengths <= 8 * unit
    last_unseen = number == jnp.sum(unseen) - 1
    z, mirror = _align(z, unseen, last_unseen)
    moves = ~unseen | last_unseen  # other axes stay
    # No length twice, and no z of zero, by changes as small as rounding.
    apart = lax.cummax(lengths - number * unit) + number * unit
    poles = jnp.where(unseen, 0, apart)
    z = jnp.where(moves & (jnp.abs(z) < unit), unit, z)
    lengths, away = _find_roots(poles, z**2, moves)
    turned = _turn(poles, z, away, moves)
    turned = turned - mirror[0][:, None] * matmul(mirror[1], turned)
    return matmul(vectors, turned), jnp.where(lengths <= 8 * unit, 0, lengths) * largest


def _align(
    z: Float[Array, " d"], unseen: Bool[Array, " d"], last: Bool[Array, " d"]
) -> tuple[Float[Array, " d"], tuple[Float[Array, " d"], Float[Array, " d"]]]:
    """Mirror axes that no point has a part in, so that a new point has one in the last alone.

    Returns z in the mirrored axes, and vectors a and b of the mirror I − abᵀ.
    """
    part = jnp.where(unseen, z, 0)
    own = jnp.sum(jnp.where(last, part, 0))
    image = -jnp.linalg.norm(part) * jnp.where(own < 0, -1, 1)
    normal = jnp.where(last, part - image, part)
    square = jnp.sum(normal**2)
    seen = jnp.where(unseen, 0, z)
    return jnp.where(last, image, seen), (2 * normal / jnp.where(square > 0, square, 1), normal)


def _find_roots(
    poles: Float[Array, " d"], weights: Float[Array, " d"], moves: Bool[Array, " d"]
) -> tuple[Float[Array, " d"], Float[Array, "d d"]]:
    """Find the roots x_j of 1 + Σ w_i / (p_i² − x); returns √x, and p_i² − x_j at [i, j].

    In each gap the poles on either side of the root act, with what they add to f and to its slope,
    like one pole each at the ends of the gap: the root of that is the next guess (Bunch, Nielsen
    and Sorensen 1978). It approaches from one side, and doubles its digits at each step.
    """
    dtype = poles.dtype
    after = jnp.append(poles[1:], poles[-1])
    last = jnp.arange(len(poles)) == len(poles) - 1  # has no pole above it
    gap = jnp.where(last, jnp.sum(weights), (after - poles) * (after + poles))
    gap = jnp.where(moves, gap, 1)

    def squares_less(origin: Float[Array, " d"]) -> Float[Array, "d d"]:
        return (poles[:, None] - origin) * (poles[:, None] + origin)

    def next_guess(constant, near, far):
        """Solve constant − near/t + far/(gap − t) = 0 for 0 < t < gap."""
        half = constant * gap + near + far
        root = jnp.sqrt(jnp.maximum(half**2 - 4 * constant * near * gap, 0))
        inside = jnp.where(
            half >= 0, 2 * near * gap / (half + root), (half - root) / (2 * constant)
        )
        beyond = jnp.where(constant > 0, near / constant, gap)
        limit = jnp.where(last, gap, gap / 2)
        return jnp.clip(jnp.where(last, beyond, inside), jnp.finfo(dtype).tiny, limit)

    in_the_middle = 1 + jnp.sum(weights[:, None] / (squares_less(poles) - gap / 2), axis=0)
    below = (in_the_middle > 0) | last  # the nearer neighbour is
    sign = jnp.where(below, 1, -1).astype(dtype)
    origin = jnp.where(below, poles, after)
    squares = squares_less(origin)
    above = jnp.where(last, 0, jnp.roll(weights, -1))
    near, far = jnp.where(below, weights, above), jnp.where(below, above, weights)
    far = jnp.where(last, 0, far)
    first = next_guess(sign * in_the_middle + 2 * (near - far) / gap, near, far)
    enough = jnp.finfo(dtype).eps ** 0.75

    def approach(state):
        t, _, steps = state
        inverse = 1 / (squares - sign * t)
        values = sign * weights[:, None] * inverse
        slopes = sign * values * inverse
        behind = values < 0

        def add_up(terms: Float[Array, "d d"], which: Bool[Array, "d d"]) -> Float[Array, " d"]:
            return jnp.sum(jnp.where(which, terms, 0), axis=0)

        near_value, far_value = add_up(values, behind), add_up(values, ~behind)
        near = add_up(slopes, behind) * t**2
        far = jnp.where(last, 0, add_up(slopes, ~behind) * (gap - t) ** 2)
        value = sign + near_value + far_value
        constant = value + near / t - jnp.where(last, 0, far / (gap - t))
        error = jnp.abs(value) / (1 - near_value + far_value)
        left = jnp.max(jnp.where(moves, error, 0))
        return next_guess(constant, near, far), left, steps + 1

    def is_far(state):
        return (state[1] > enough) & (state[2] < _STEPS)

    t = lax.while_loop(is_far, approach, (first, jnp.asarray(jnp.inf, dtype), 0))[0]
    roots = jnp.sqrt(jnp.maximum(origin**2 + sign * t, 0))
    return jnp.where(moves, roots, 0), squares - sign * t


def _turn(
    poles: Float[Array, " d"],
    z: Float[Array, " d"],
    away: Float[Array, "d d"],
    moves: Bool[Array, " d"],
) -> Float[Array, "d d"]:
    """Return W, from the roots: ẑ_i² = Π_j (x_j − p_i²) / Π_j≠i (p_j² − p_i²)."""
    number = jnp.arange(len(poles))
    # Each root is paired with the pole below it, or from the own one on with the pole above it.
    after = jnp.append(poles[1:], poles[-1])
    other = jnp.where(number[:, None] > number, poles, after)
    squares = (poles[:, None] - other) * (poles[:, None] + other)
    squares = jnp.where(number == len(poles) - 1, -1, squares)
    ratios = jnp.where(moves & moves[:, None], away / squares, 1)
    exact = jnp.sqrt(jnp.maximum(jnp.prod(ratios, axis=1), 0)) * jnp.where(z < 0, -1, 1)
    columns = jnp.where(moves[:, None], exact[:, None] / away, 0)
    columns = columns / jnp.linalg.norm(columns, axis=0)
    return jnp.where(moves, columns, jnp.eye(len(poles), dtype=poles.dtype))
