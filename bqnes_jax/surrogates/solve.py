"""Solving with the covariance K + ρI of a padded design set, in whichever form is smaller."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.scipy.linalg import solve_triangular
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Num

from bqnes_jax.kernels.base import Kernel, matmul
from bqnes_jax.surrogates.axes import Axes
from bqnes_jax.surrogates.base import Design


class Solution(NamedTuple):
    """What solving with C = K + ρI gives, for a function of unit amplitude and prior mean c."""

    coefficients: Float[Array, " r"]
    factor: Float[Array, "r r"]
    mean: Float[Array, ""]  # c
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
    kernel: Kernel,
    design: Design,
    ratio: Float[Array, ""],
    mean: ArrayLike | None,
    *,
    axes: Axes | None = None,
) -> Solution:
    """Solve with K + ρI; `ratio` is ρ. Differentiable in ρ and in the kernel's leaves.

    A `mean` of None stands for the likeliest, c = 1ᵀC⁻¹y / 1ᵀC⁻¹1 (generalised least squares).
    Known `axes` of the features save the work in weight space; the factor has them as columns.
    """
    both = _columns(design, mean)
    if in_weight_space(kernel, design.archs):
        solved = _solve_weights(kernel, design, ratio, both, axes)
    else:
        solved = _solve_covariance(_covariance(kernel, design, ratio), both)
    shift = least_squares(solved.whitened)
    return Solution(
        coefficients=solved.coefficients[:, 0] - shift * solved.coefficients[:, 1],
        factor=solved.factor,
        mean=shift if mean is None else jnp.asarray(mean, shift.dtype),
        quadratic=jnp.sum((solved.whitened[:, 0] - shift * solved.whitened[:, 1]) ** 2),
        log_determinant=solved.log_determinant,
        jittered=solved.jittered,
    )


def profile_loss(
    kernel: Kernel, design: Design, ratio: Float[Array, ""], mean: ArrayLike | None
) -> Float[Array, ""]:
    """Return −log max_a N(y; c, a(K + ρI)) / n, less a constant; `ratio` and `mean` as above.

    It is ½ log((y − c)ᵀC⁻¹(y − c)/n) + ½ log|C|/n. Where C is factorised, its gradient by C is
    ½ C⁻¹/n − ½ ββᵀ/(y − c)ᵀβ with β = C⁻¹(y − c): one inverse, instead of a way back through the
    factorisation. (The likeliest c is at a maximum, so that it counts as fixed.)
    """
    points = jnp.maximum(jnp.sum(design.mask), 1).astype(design.targets.dtype)
    if not in_weight_space(kernel, design.archs):
        covariance = _covariance(kernel, design, ratio)
        return _loss_of_covariance(covariance, _columns(design, mean), points)
    solution = solve(kernel, design, ratio, mean)
    return _loss(solution.quadratic, solution.log_determinant, points)


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
    kernel: Kernel,
    design: Design,
    ratio: Float[Array, ""],
    both: Float[Array, "n 2"],
    axes: Axes | None,
) -> _Solved:
    features = masked_features(kernel, design)
    d = features.shape[1]
    if axes is None:
        # The QR of [Ψ; √ρ I] has RᵀR = ΨᵀΨ + ρI without squaring Ψ: in float32 that would drown ρ.
        stacked = jnp.concatenate([features, jnp.sqrt(ratio) * jnp.eye(d, dtype=features.dtype)])
        upper = jnp.linalg.qr(stacked, mode="r")
        inverse = solve_triangular(upper, jnp.eye(d, dtype=features.dtype))
        log_determinant = 2 * jnp.sum(jnp.log(jnp.abs(jnp.diagonal(upper))))
    else:
        eigenvalues = axes.lengths**2 + ratio
        inverse = axes.vectors / jnp.sqrt(eigenvalues)
        log_determinant = jnp.sum(jnp.log(eigenvalues))
    coefficients = matmul(inverse, matmul(inverse.T, matmul(features.T, both)))
    residual = both - matmul(features, coefficients)
    n = jnp.sum(design.mask)
    return _Solved(
        coefficients=coefficients,
        whitened=jnp.concatenate([residual / jnp.sqrt(ratio), coefficients]),
        factor=jnp.sqrt(ratio) * inverse,
        log_determinant=log_determinant + (n - d) * jnp.log(ratio),
        jittered=jnp.zeros((), bool),
    )


def _covariance(kernel: Kernel, design: Design, ratio: Float[Array, ""]) -> Float[Array, "n n"]:
    return masked_gram(kernel, design) + jnp.diag(jnp.where(design.mask, ratio, 1))


def _solve_covariance(covariance: Float[Array, "n n"], both: Float[Array, "n 2"]) -> _Solved:
    lower, jitter = _cholesky(covariance)
    identity = jnp.eye(len(covariance), dtype=covariance.dtype)
    inverse = solve_triangular(lower, identity, lower=True)
    whitened = matmul(inverse, both)
    return _Solved(
        coefficients=matmul(inverse.T, whitened),
        whitened=whitened,
        factor=inverse.T,
        log_determinant=2 * jnp.sum(jnp.log(jnp.diagonal(lower))),
        jittered=jitter > 0,
    )


def _columns(design: Design, mean: ArrayLike | None) -> Float[Array, "n 2"]:
    """Return y − c, and beside it ones where c is yet to be found, zeros otherwise."""
    ones = design.mask.astype(design.targets.dtype)
    targets = design.targets if mean is None else design.targets - mean * ones
    return jnp.stack([targets, ones if mean is None else jnp.zeros_like(ones)], axis=1)


def _loss(quadratic: Array, log_determinant: Array, points: Array) -> Float[Array, ""]:
    quadratic = jnp.maximum(quadratic, jnp.finfo(quadratic.dtype).tiny)
    return 0.5 * (jnp.log(quadratic / points) + log_determinant / points)


@jax.custom_vjp
def _loss_of_covariance(
    covariance: Float[Array, "n n"], both: Float[Array, "n 2"], points: Float[Array, ""]
) -> Float[Array, ""]:
    return _loss_and_inverse(covariance, both, points)[0]


def _loss_and_inverse(covariance: Array, both: Array, points: Array) -> tuple[Array, tuple]:
    solved = _solve_covariance(covariance, both)
    shift = least_squares(solved.whitened)
    residual = solved.whitened @ jnp.stack([jnp.ones_like(shift), -shift])
    quadratic = jnp.sum(residual**2)
    return _loss(quadratic, solved.log_determinant, points), (
        solved.factor,
        matmul(solved.factor, residual),
        quadratic,
        points,
    )


def _loss_gradient(kept: tuple, gradient: Float[Array, ""]) -> tuple[Array, None, None]:
    factor, solved, quadratic, points = kept
    found = quadratic > jnp.finfo(quadratic.dtype).tiny
    unit = jnp.where(found, solved / jnp.sqrt(jnp.where(found, quadratic, 1)), 0)
    inverse = matmul(factor, factor.T)
    return 0.5 * gradient * (inverse / points - unit[:, None] * unit), None, None


_loss_of_covariance.defvjp(_loss_and_inverse, _loss_gradient)


@jax.custom_jvp
def _cholesky(matrix: Float[Array, "n n"]) -> tuple[Float[Array, "n n"], Float[Array, ""]]:
    """Factorise, with the smallest jitter of 0, δ, 10δ, … that leaves every pivot above δ.

    JAX returns NaN where there is no factor; and where a pivot is lost in rounding, worse: numbers.
    Returns the factor, and the jitter.
    """
    identity = jnp.eye(len(matrix), dtype=matrix.dtype)
    least = 1e-6 if matrix.dtype == jnp.float32 else 1e-10
    least = least * jnp.max(jnp.diagonal(matrix), initial=1)

    def fails(tried: tuple[Array, Array]) -> Bool[Array, ""]:
        lower, jitter = tried
        return ~jnp.all(jnp.diagonal(lower) ** 2 > 0.9 * least) & (jitter < 1)

    def try_more(tried: tuple[Array, Array]) -> tuple[Array, Array]:
        jitter = jnp.maximum(10 * tried[1], least)
        return jnp.linalg.cholesky(matrix + jitter * identity), jitter

    start = jnp.linalg.cholesky(matrix), jnp.zeros_like(least)
    return lax.while_loop(fails, try_more, start)


@_cholesky.defjvp
def _cholesky_jvp(primals: tuple[Array], tangents: tuple[Array]):
    """Differentiate as if the jitter were given: dL = L Φ(L⁻¹ dC L⁻ᵀ), Φ halving the diagonal."""
    lower, jitter = _cholesky(*primals)
    (change,) = tangents
    half = solve_triangular(lower, (change + change.T) / 2, lower=True)
    inner = jnp.tril(solve_triangular(lower, half.T, lower=True))
    inner = inner - jnp.diag(jnp.diagonal(inner)) / 2
    return (lower, jitter), (matmul(lower, inner), jnp.zeros_like(jitter))
