"""Recombination: the same expectations of T functions from at most T + 1 of the N points.

Carathéodory's theorem says that it can be done; the divide-and-conquer tree of Tchernychova and
Lyons says how to do it fast. Points are the leaves of a binary forest with T + 1 roots. Going down,
every node is split into its two children, and `_eliminate` moves the weight of these 2(T + 1)
barycentres onto T + 1 of them; what is under the others is never looked at again. With
N ≤ 2(T + 1) points there is a single level, and this is plain null-space elimination.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int, Int32

from bqnes_jax.errors import (
    BQNESError,
    as_float,
    check_distribution,
    check_finite,
    check_shape,
    concrete,
    is_distribution,
)
from bqnes_jax.types import Status, flag, throw_if_failed

_DEEPEST_FOREST = 6  # levels; a forest of more points than 64(T + 1) costs more than two small ones


class Recombination(NamedTuple):
    """A sparse probability vector, heaviest point first.

    Attributes:
        indices: which points carry it. The slots in use hold distinct indices; a slot that is not
            in use has weight exactly 0 and repeats the first index.
        weights: non-negative, summing to 1.
        status: INFEASIBLE where `error` is above the square root of the machine precision or where
            the input was not finite or not a probability vector; the weights are then those of the
            usable points alone. EMPTY where no point was usable: all weight is on point 0.
        error: |Σ_k w_k φ_t(i_k) − Σ_n μ_n φ_t(n)| / max_n |φ_t(n) − Σ_m μ_m φ_t(m)|, the largest
            over the functions, n running over the points with mass; infinite for invalid input.
            An offset that a function has everywhere is taken off first, so it adds no rounding.
    """

    indices: Int32[Array, " K"]
    weights: Float[Array, " K"]
    status: Int32[Array, ""]
    error: Float[Array, ""]


def recombine(functions: ArrayLike, weights: ArrayLike, *, throw: bool = False) -> Recombination:
    """Find K = min(N, T + 1) points with the expectations that a distribution on N points has.

    For the probability vector μ and the functions φ_t finds indices i_k and w ≥ 0, Σ w_k = 1, with
        Σ_k w_k φ_t(i_k) = Σ_n μ_n φ_t(n)    for t = 1, …, T.
    Points without mass are never chosen, and their function values may be anything, NaN included.
    Mass below the smallest normal number of the type counts as none. Without functions, T = 0, any
    point would do: it is the heaviest.

    Args:
        functions: N×T, the value of each function at each point.
        weights: N, the probability vector μ.
        throw: whether to raise an error that explains a status other than OK.

    Returns:
        A `Recombination`.

    Example:
        >>> line = jnp.array([[0.0], [1.0], [2.0], [3.0]])
        >>> found = recombine(line, jnp.full(4, 0.25))
        >>> found.indices.shape, float(found.weights @ line[found.indices, 0]).__round__(4)
        ((2,), 1.5)
    """
    functions, weights = as_float(functions), as_float(weights)
    check_shape("functions", functions, (None, None))
    check_shape("weights", weights, functions.shape[:1])
    if weights.size == 0:
        raise BQNESError("functions has no rows; recombination needs at least one point.")
    check_distribution("weights", weights)
    mass = concrete(weights)
    if mass is not None:
        check_finite("functions", functions, mass[:, None] > 0)
    dtype = jnp.result_type(functions, weights, jnp.float32)
    found = _recombine(functions.astype(dtype), weights.astype(dtype))
    if throw:
        throw_if_failed(found.status, "recombine")
    return found


@jax.jit
@jax.default_matmul_precision("highest")  # accelerators would otherwise round the factors
def _recombine(functions: Float[Array, "N T"], weights: Float[Array, " N"]) -> Recombination:
    slots = functions.shape[1] + 1
    tiny = jnp.finfo(weights.dtype).tiny
    massless = weights < tiny
    usable = ~massless & jnp.isfinite(weights) & jnp.isfinite(functions).all(1)
    valid = is_distribution(weights) & (usable | massless).all()
    empty = ~usable.any()
    mass = jnp.where(usable, weights, 0).at[0].max(empty.astype(weights.dtype))
    mass = mass / mass.max()  # before the sum, which could overflow
    mass = mass / mass.sum()
    points, bounded = _standardise(jnp.where(usable[:, None], functions, 0), mass)
    chosen, weights = _choose(points, mass, slots)
    weights, order = lax.top_k(weights, min(slots, len(mass)))
    weights = jnp.where(weights < tiny, 0, weights / weights.sum())
    indices = jnp.where(weights > 0, chosen[order], chosen[order[0]])
    error = jnp.abs(weights @ points[indices] - mass @ points).max(initial=0)
    error = jnp.where(valid & bounded, error, jnp.inf)
    infeasible = ~(error <= jnp.sqrt(jnp.finfo(error.dtype).eps))
    status = flag(infeasible, Status.INFEASIBLE) | flag(empty, Status.EMPTY)
    return Recombination(indices, weights, status, error)


def _standardise(
    functions: Float[Array, "N T"], mass: Float[Array, " N"]
) -> tuple[Float[Array, "N T"], Bool[Array, ""]]:
    """Centre each column on its mean and bring it into [−1, 1]; tell whether all could be."""
    centred = functions - mass @ functions
    scale = jnp.abs(jnp.where(mass[:, None] > 0, centred, 0)).max(0)
    varies = (scale >= jnp.finfo(scale.dtype).tiny) & jnp.isfinite(scale)
    inside = varies & (mass[:, None] > 0)
    return jnp.where(inside, centred / jnp.where(varies, scale, 1), 0), jnp.isfinite(scale).all()


def _choose(
    points: Float[Array, "N T"], mass: Float[Array, " N"], slots: int
) -> tuple[Int32[Array, " n"], Float[Array, " n"]]:
    """Choose the points and their weights, all at once or in two rounds.

    Of very many points the first round chooses blocks of neighbours, standing for them by their
    barycentre, and the second from what these blocks hold. It is as exact, and no forest is large.
    """
    if slots == 1:  # no condition but the sum
        return jnp.argmax(mass)[None].astype(jnp.int32), jnp.ones(1, mass.dtype)
    depth = _depth(len(mass), slots)
    if depth <= _DEEPEST_FOREST:
        return _descend(_forest(points, mass, slots))
    block = 2 ** (depth // 2)
    padding = -len(mass) % block
    shares, totals = _shares(jnp.pad(mass, (0, padding)), block)
    blocks = jnp.pad(points, ((0, padding), (0, 0))).reshape(*shares.shape, points.shape[1])
    barycentres = (shares[:, :, None] * blocks).sum(1)
    chosen, totals = _descend(_forest(barycentres, totals, slots))
    members = (block * chosen[:, None] + jnp.arange(block, dtype=chosen.dtype)).ravel()
    weights = (totals[:, None] * shares[chosen]).ravel()
    chosen, weights = _descend(_forest(points[members], weights, slots))
    return members[chosen], weights


def _depth(count: int, roots: int) -> int:
    """Return how often the roots must be doubled to be as many as `count`."""
    return (-(-count // roots) - 1).bit_length()


def _shares(
    mass: Float[Array, " N"], size: int
) -> tuple[Float[Array, "blocks {size}"], Float[Array, " blocks"]]:
    """Cut into blocks: what each member has of its block's mass (0 if there is none), and that."""
    blocks = mass.reshape(-1, size)
    totals = blocks.sum(1)
    return blocks / jnp.where(totals > 0, totals, 1)[:, None], totals


class _Forest(NamedTuple):
    """Binary trees in one array: the roots are n, …, 2n − 1; node i has children 2i and 2i + 1."""

    barycentres: Float[Array, "nodes T"]
    shares: Float[Array, " nodes"]  # of its parent's mass
    roots: Float[Array, " n"]  # their masses


def _forest(points: Float[Array, "N T"], mass: Float[Array, " N"], roots: int) -> _Forest:
    """Pair the points up, level by level, until as many barycentres are left as roots are asked."""
    depth = _depth(len(mass), roots)
    padding = roots * 2**depth - len(mass)
    points, mass = jnp.pad(points, ((0, padding), (0, 0))), jnp.pad(mass, (0, padding))
    levels, shares = [points], []
    for _ in range(depth):
        share, mass = _shares(mass, 2)
        points = share[:, :1] * points[0::2] + share[:, 1:] * points[1::2]
        levels.append(points)
        shares.append(share.ravel())
    # Places 0, …, n − 1 are no nodes, and roots have no parent: anything may stand there.
    levels.append(jnp.zeros_like(points))
    shares.append(jnp.zeros(2 * roots, mass.dtype))
    return _Forest(jnp.concatenate(levels[::-1]), jnp.concatenate(shares[::-1]), mass)


def _descend(forest: _Forest) -> tuple[Int32[Array, " n"], Float[Array, " n"]]:
    """Follow from the roots to the leaves the n nodes that carry all the weight."""
    count, leaves = len(forest.roots), len(forest.shares) // 2

    def split_and_halve(_, state):
        nodes, weights = state
        children = jnp.concatenate([2 * nodes, 2 * nodes + 1])
        weights = jnp.concatenate([weights, weights]) * forest.shares[children]
        weights = _eliminate(forest.barycentres[children], weights)
        weights, kept = lax.top_k(weights, count)
        return children[kept], weights

    start = jnp.arange(count, 2 * count, dtype=jnp.int32), forest.roots
    nodes, weights = lax.fori_loop(0, _depth(leaves, count), split_and_halve, start)
    return nodes - leaves, weights


def _eliminate(points: Float[Array, "m T"], weights: Float[Array, " m"]) -> Float[Array, " m"]:
    """Move weight until at most T + 1 points have any, keeping its sum and barycentre.

    A change of weights v is allowed if Σ v = 0 and Σ v φ_t = 0 for all t. Going along such a v to
    where the first weight becomes 0, and allowing from then on only changes that keep it 0, removes
    one point. The allowed changes are held as an orthonormal basis, which only reflections touch:
    however unlucky the pivots, duplicates and rank deficiency included, no error grows.
    """
    heaviest = jnp.argmax(weights)
    massive = weights > 0
    # A point without mass must not gain any: it becomes a copy of the heaviest, which is paid out.
    points = jnp.where(massive[:, None], points, points[heaviest])
    basis = _null_space(jnp.concatenate([jnp.ones_like(weights)[None], points.T]))
    start = basis, weights, jnp.ones(len(weights), bool)
    _, weights, _ = lax.fori_loop(0, len(basis), _remove_one, start)
    return jnp.where(massive, weights, 0).at[heaviest].add(jnp.where(massive, 0, weights).sum())


def _null_space(conditions: Float[Array, "n m"]) -> Float[Array, "k m"]:
    """Return k = m − n orthonormal rows that are orthogonal to all conditions, dependent or not.

    These are the last columns of Q in the Householder QR of the transpose. A loop here beats LAPACK
    at these sizes: no threads to wait for, and a batch runs in step.
    """
    count, length = conditions.shape

    def factor(row, conditions):
        mirror = _mirror(conditions[row], row)
        products = jnp.where(jnp.arange(count) > row, mirror @ conditions.T, 0)
        return (conditions - products[:, None] * mirror).at[row].set(mirror)

    def rotate(step, basis):
        mirror = mirrors[count - 1 - step]
        return basis - (mirror @ basis.T)[:, None] * mirror

    mirrors = lax.fori_loop(0, count, factor, conditions)
    unit_vectors = jnp.eye(length - count, length, count, dtype=conditions.dtype)
    return lax.fori_loop(0, count, rotate, unit_vectors)


def _remove_one(
    row: Int[Array, ""],
    state: tuple[Float[Array, "k m"], Float[Array, " m"], Bool[Array, " m"]],
) -> tuple[Float[Array, "k m"], Float[Array, " m"], Bool[Array, " m"]]:
    """Empty one point by the change in this row, and keep it empty in all rows that follow."""
    basis, weights, alive = state
    change = jnp.where(alive, basis[row], 0)
    change = change * jnp.sign(change[jnp.argmax(jnp.abs(change))])
    # Below rounding is no pivot: such a weight would lose less than the rounding, and is clipped.
    falls = change > jnp.finfo(change.dtype).eps * change.max()
    reach = jnp.where(falls, weights / jnp.where(falls, change, 1), jnp.inf)
    gone = jnp.argmin(reach)
    alive &= jnp.arange(len(alive)) != gone
    weights = jnp.where(alive, jnp.maximum(weights - reach[gone] * change, 0), 0)
    mirror = _mirror(basis[:, gone], row)
    return basis - mirror[:, None] * (mirror @ basis), weights, alive


def _mirror(vector: Float[Array, " n"], first: Int[Array, ""]) -> Float[Array, " n"]:
    """Return u such that I − uuᵀ is orthogonal and takes the entries after `first` to 0.

    Entries before `first` are left alone; a vector without entries from there on has u = 0.
    """
    place, pivot = jnp.arange(len(vector)), vector[first]
    square = jnp.sum(jnp.where(place < first, 0, vector) ** 2)
    norm = jnp.sqrt(square)
    needed = square > jnp.finfo(square.dtype).tiny
    length = jnp.sqrt(jnp.where(needed, square + norm * jnp.abs(pivot), 1))
    mirror = jnp.where(place == first, pivot + jnp.copysign(norm, pivot), vector) / length
    return jnp.where(needed & (place >= first), mirror, 0)
