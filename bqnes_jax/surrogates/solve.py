"""Solving with the covariance K + ρI of a padded design set, in whichever form is smaller."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.scipy.linalg import solve_triangular
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Num

from bqnes_jax.kernels.base import Kernel, matmul
from bqnes_jax.surrogates.base import Design


class Solution(NamedTuple):
    """What solving with C = K + ρI gives, for a function of unit amplitude and prior mean c."""

    coefficients: Float[Array, " r"]
    factor: Float[Array, "r r"]
    quadratic: Float[Array, ""]  # (y − c)ᵀ C⁻¹ (y − c)
    log_determinant: Float[Array, ""]  # log |C|
    jittered: Bool[Array, ""]


def in_weight_space(kernel: Kernel, archs: Num[Array, "n length"]) -> bool:
    """Tell whether the features are fewer than the points (a matter of shapes alone)."""
    if not kernel.finite:
        return False
    return jax.eval_shape(kernel.features, archs).shape[1] < archs.shape[0]


def masked_features(kernel: Kernel, design: Design) -> Float[Array, "n d"]:
    """Return the features of the design set, zero where it is padding."""
    return kernel.features(design.archs) * design.mask[:, None]


def masked_gram(kernel: Kernel, design: Design) -> Float[Array, "n n"]:
    """Return the kernel matrix of the design set, zero where it is padding."""
    both = design.mask[:, None] & design.mask[None, :]
    return jnp.where(both, kernel.gram(design.archs), 0)


def solve(
    kernel: Kernel, design: Design, ratio: Float[Array, ""], mean: ArrayLike | None
) -> Solution:
    """Solve with K + ρI; `ratio` is ρ. Differentiable in ρ and in the kernel's leaves.

    A `mean` of None stands for the likeliest, c = 1ᵀC⁻¹y / 1ᵀC⁻¹1 (generalised least squares).
    """
    ones = design.mask.astype(design.targets.dtype)
    targets = design.targets if mean is None else design.targets - mean * ones
    both = jnp.stack([targets, ones if mean is None else jnp.zeros_like(ones)], axis=1)
    solve_form = _solve_weights if in_weight_space(kernel, design.archs) else _solve_points
    solved = solve_form(kernel, design, ratio, both)
    shift = least_squares(solved.whitened)
    return Solution(
        coefficients=solved.coefficients[:, 0] - shift * solved.coefficients[:, 1],
        factor=solved.factor,
        quadratic=jnp.sum((solved.whitened[:, 0] - shift * solved.whitened[:, 1]) ** 2),
        log_determinant=solved.log_determinant,
        jittered=solved.jittered,
    )


def least_squares(both: Float[Array, "r 2"]) -> Float[Array, ""]:
    """Return the c that makes ‖y − c·v‖ least, of the columns y and v; 0 where v is zero."""
    square = jnp.sum(both[:, 1] ** 2)
    return jnp.sum(both[:, 0] * both[:, 1]) / jnp.where(square > 0, square, 1)


class _Solved(NamedTuple):
    """C⁻¹ applied to two columns B, in either form, and W with WᵀW = Bᵀ C⁻¹ B."""

    coefficients: Float[Array, "r 2"]
    whitened: Float[Array, "s 2"]
    factor: Float[Array, "r r"]
    log_determinant: Float[Array, ""]
    jittered: Bool[Array, ""]


def _solve_weights(
    kernel: Kernel, design: Design, ratio: Float[Array, ""], both: Float[Array, "n 2"]
) -> _Solved:
    features = masked_features(kernel, design)
    d = features.shape[1]
    # The QR of [Ψ; √ρ I] has RᵀR = ΨᵀΨ + ρI without squaring Ψ, which in float32 would drown ρ.
    stacked = jnp.concatenate([features, jnp.sqrt(ratio) * jnp.eye(d, dtype=features.dtype)])
    upper = jnp.linalg.qr(stacked, mode="r")
    inverse = solve_triangular(upper, jnp.eye(d, dtype=features.dtype))
    coefficients = matmul(inverse, matmul(inverse.T, matmul(features.T, both)))
    residual = both - matmul(features, coefficients)
    n = jnp.sum(design.mask)
    return _Solved(
        coefficients=coefficients,
        whitened=jnp.concatenate([residual / jnp.sqrt(ratio), coefficients]),
        factor=jnp.sqrt(ratio) * inverse,
        log_determinant=2 * jnp.sum(jnp.log(jnp.abs(jnp.diagonal(upper))))
        + (n - d) * jnp.log(ratio),
        jittered=jnp.zeros((), bool),
    )


def _solve_points(
    kernel: Kernel, design: Design, ratio: Float[Array, ""], both: Float[Array, "n 2"]
) -> _Solved:
    gram = masked_gram(kernel, design)
    covariance = gram + jnp.diag(jnp.where(design.mask, ratio, 1))
    lower, jittered = _cholesky(covariance)
    inverse = solve_triangular(lower, jnp.eye(len(gram), dtype=gram.dtype), lower=True)
    whitened = matmul(inverse, both)
    return _Solved(
        coefficients=matmul(inverse.T, whitened),
        whitened=whitened,
        factor=inverse.T,
        log_determinant=2 * jnp.sum(jnp.log(jnp.diagonal(lower))),
        jittered=jittered,
    )


def _cholesky(
    matrix: Float[Array, "n n"],
) -> tuple[Float[Array, "n n"], Bool[Array, ""]]:
    """Factorise, with the smallest jitter of 0, δ, 10δ, … that leaves every pivot above δ.

    JAX returns NaN where there is no factor; and where a pivot is lost in rounding, worse: numbers.
    """
    fixed = lax.stop_gradient(matrix)
    identity = jnp.eye(len(matrix), dtype=matrix.dtype)
    least = 1e-6 if matrix.dtype == jnp.float32 else 1e-10
    least = least * jnp.max(jnp.diagonal(fixed), initial=1)

    def fails(jitter: Float[Array, ""]) -> Bool[Array, ""]:
        pivots = jnp.diagonal(jnp.linalg.cholesky(fixed + jitter * identity)) ** 2
        return ~jnp.all(pivots > 0.9 * least) & (jitter < 1)

    jitter = lax.while_loop(fails, lambda j: jnp.maximum(10 * j, least), jnp.zeros_like(least))
    return jnp.linalg.cholesky(matrix + jitter * identity), jitter > 0
