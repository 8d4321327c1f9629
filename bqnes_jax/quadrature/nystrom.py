"""Test functions for recombination: a few functions that stand for the kernel's whole space."""

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int, Int32

from bqnes_jax.errors import (
    BQNESError,
    as_float,
    check_distribution,
    check_finite,
    check_shape,
    check_whole,
    concrete,
)
from bqnes_jax.kernels.base import matmul


def nystrom_test_functions(gram: ArrayLike, landmarks: ArrayLike) -> Float[Array, "N S"]:
    """Evaluate at all N points the Nyström test functions of S landmarks among them.

    With k(S, S) = U Λ Uᵀ, eigenvalues descending,
        φ_t(·) = u_tᵀ k(S, ·)    for t = 1, …, S.
    They are orthogonal in the kernel's space and φ_t has squared norm λ_t there. They are not
    divided by it: what a quadrature integrates exactly is their span, and `recombine` scales them.
    An eigenvalue that is 0 up to rounding, as with duplicates among the landmarks, gives a function
    that is exactly 0, hence no condition. A NaN in a traced Gram matrix is passed on.

    Args:
        gram: N×N, the kernel between all points.
        landmarks: S, the indices of the landmarks.

    Returns:
        N×S, one function per column.

    Example:
        >>> points = jnp.linspace(0, 1, 5)
        >>> gram = jnp.exp(-((points[:, None] - points) ** 2))
        >>> functions = nystrom_test_functions(gram, jnp.array([0, 4, 4]))
        >>> functions.shape, functions[:, 2].tolist()
        ((5, 3), [0.0, 0.0, 0.0, 0.0, 0.0])
    """
    gram, landmarks = _check_gram(gram), jnp.asarray(landmarks)
    check_shape("landmarks", landmarks, (None,))
    if not jnp.issubdtype(landmarks.dtype, jnp.integer):
        raise BQNESError(f"landmarks has type {landmarks.dtype}; it must hold integer indices.")
    chosen, count = concrete(landmarks), len(gram)
    if chosen is not None and ((chosen < 0) | (chosen >= count)).any():
        raise BQNESError(f"landmarks is {chosen}; every index must be from 0 to {count - 1}.")
    return _test_functions(gram, landmarks)


@jax.jit
def _test_functions(gram: Float[Array, "N N"], landmarks: Int[Array, " S"]) -> Float[Array, "N S"]:
    to_landmarks = gram[:, landmarks]
    eigenvalues, eigenvectors = jnp.linalg.eigh(to_landmarks[landmarks])
    eigenvalues, eigenvectors = eigenvalues[::-1], eigenvectors[:, ::-1]
    rounding = len(landmarks) * jnp.finfo(gram.dtype).eps * eigenvalues.max(initial=0)
    functions = matmul(to_landmarks, eigenvectors)
    return jnp.where(eigenvalues <= rounding, 0, functions)


def choose_landmarks(gram: ArrayLike, weights: ArrayLike, count: int) -> Int32[Array, " count"]:
    """Choose the landmarks that explain most of the kernel under the weights, one after another.

    Each is the point with the largest w_n r_n, where r_n = k(n, n) − k(n, S) k(S, S)⁻¹ k(S, n) is
    what the landmarks S so far leave unexplained there: Cholesky with weighted pivoting. What the
    test functions miss of a function of unit norm is at most √r_n at a point, so Σ_n w_n r_n bounds
    the square of its expectation, and each choice takes the largest term away. It needs no random
    numbers, and spends no landmark on a duplicate or on a point that the posterior has ruled out.

    Once nothing is left to explain, because there are fewer distinct points with weight than
    `count`, the first landmark is repeated: its further test functions are exactly 0. A point whose
    traced kernel values or weight are NaN is passed over, unless all are; `recombine` reports it.

    Args:
        gram: N×N, the kernel between all points.
        weights: N, a probability vector.
        count: how many to choose.

    Returns:
        Their indices, the most important first.

    Example:
        >>> gram = jnp.array([[1.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
        >>> choose_landmarks(gram, jnp.array([0.3, 0.5, 0.2]), 3).tolist()
        [1, 2, 1]
    """
    gram, weights = _check_gram(gram), as_float(weights)
    check_shape("weights", weights, gram.shape[:1])
    check_distribution("weights", weights)
    check_whole("count", count, 0)
    return _landmarks(gram, weights, count) if count else jnp.zeros(0, jnp.int32)


@functools.partial(jax.jit, static_argnums=2)
def _landmarks(
    gram: Float[Array, "N N"], weights: Float[Array, " N"], count: int
) -> Int32[Array, " {count}"]:
    diagonal = jnp.diagonal(gram)
    weights = jnp.nan_to_num(weights)
    rounding = 10 * count * jnp.finfo(gram.dtype).eps * jnp.nanmax(diagonal)

    def choose_one(step, state):
        factor, residual, landmarks = state
        score = jnp.where(residual > rounding, weights * residual, 0)
        best = jnp.argmax(score)
        new = score[best] > 0
        column = gram[:, best] - matmul(factor, factor[best])
        column = jnp.where(new, column / jnp.sqrt(jnp.where(new, residual[best], 1)), 0)
        residual = (residual - column**2).at[best].set(0)
        landmarks = landmarks.at[step].set(jnp.where(new, best, landmarks[0]).astype(jnp.int32))
        return factor.at[:, step].set(column), residual, landmarks

    factor = jnp.zeros((len(gram), count), gram.dtype)
    start = factor, diagonal, jnp.zeros(count, jnp.int32)
    return lax.fori_loop(0, count, choose_one, start)[2]


def _check_gram(gram: ArrayLike) -> Float[Array, "N N"]:
    gram = as_float(gram)
    check_shape("gram", gram, (None, None))
    check_shape("gram", gram, (len(gram), len(gram)))
    if gram.size == 0:
        raise BQNESError("gram has no rows; test functions need at least one point.")
    check_finite("gram", gram)
    return gram.astype(jnp.result_type(gram, jnp.float32))
