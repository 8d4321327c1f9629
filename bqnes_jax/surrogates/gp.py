"""Gaussian-process regression on architectures, as pure functions of padded design sets.

f ~ GP(c, a·k),  y = f(α) + ε,  ε ~ N(0, σ²). With A the observed architectures,

    mean(α) = c + k(α, A) (K + ρI)⁻¹ (y − c),
    cov(α, α') = a·[k(α, α') − k(α, A) (K + ρI)⁻¹ k(A, α')],

where ρ = σ²/a. A kernel with d features and fewer of them than points is handled in weight space,
k = ψψᵀ, with d×d matrices: mean(α) = c + ψ(α) w and cov(α, α') = σ² ψ(α) (ΨᵀΨ + ρI)⁻¹ ψ(α')ᵀ.
A fitted c is the likeliest one, and taken for certain, like the other hyper-parameters.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int32, Num

from bqnes_jax.errors import check_mask, check_positive
from bqnes_jax.kernels.base import Kernel, matmul
from bqnes_jax.kernels.linear import FiniteKernel
from bqnes_jax.surrogates.axes import Axes
from bqnes_jax.surrogates.base import (
    Design,
    Hyperparameters,
    Prediction,
    WeightedSum,
    as_design,
    as_rows,
)
from bqnes_jax.surrogates.fitting import FitConfig, Shape, best_amplitude, centre, fit_shape
from bqnes_jax.surrogates.solve import Solution, in_weight_space, solve
from bqnes_jax.types import Status, flag, throw_if_failed

_ROWS = 512  # of a covariance held in memory at a time
_LONGEST = 16  # axes by which a variance is bounded


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=[
        "kernel",
        "design",
        "hyperparameters",
        "coefficients",
        "factor",
        "log_marginal_likelihood",
        "status",
        "axes",
    ],
    meta_fields=["weight_space"],
)
@dataclasses.dataclass(frozen=True)
class Posterior:
    """A Gaussian process conditioned on a design set.

    With B(α) = ψ(α) in weight space and k(α, A) otherwise: the mean is c + B·`coefficients`; the
    covariance is (B·`factor`)(B·`factor`)ᵀ in weight space, the prior's less that otherwise.
    """

    kernel: Kernel
    design: Design
    hyperparameters: Hyperparameters
    coefficients: Array  # [d] or [n]
    factor: Array  # [d, d] or [n, n]
    log_marginal_likelihood: Array
    status: Array
    weight_space: bool
    _: dataclasses.KW_ONLY
    axes: Axes | None = None  # of the features, if they were found: the columns of `factor` in part

    @property
    def log_scale(self) -> Float[Array, ""]:
        """Zero: what is predicted is in the units of the targets."""
        return jnp.zeros_like(self.log_marginal_likelihood)

    def predict(self, archs: ArrayLike, *, full_covariance: bool = False) -> Prediction:
        """Return the mean [m] and the variance [m], or covariance [m, m], of f at m architectures.

        Observation noise is not part of it: add `hyperparameters.noise` for that.
        """
        return _predict(self, jnp.asarray(as_rows(self.kernel, archs)), full_covariance)

    def outlook(self, archs: ArrayLike) -> Prediction | None:
        """Return the mean, and variances from the longest axes alone, which are larger; or None.

        With λ the squared lengths of some axes v it is a·[k(α, α) − Σ λ/(λ + ρ) (ψ(α)v)²]. Axes
        along which points are many explain most of what is known. A bound needs few digits: the sum
        is in float32, and raised by what that may round off.
        """
        if self.axes is None:
            return None
        return _outlook(self, jnp.asarray(as_rows(self.kernel, archs)), self.axes)

    def fantasise(self, archs: ArrayLike, mask: ArrayLike | None = None) -> "Posterior":
        """Return the posterior as if f had been observed at q architectures where it is predicted.

        The mean stays as it is; the variance shrinks around them.
        """
        archs = jnp.asarray(as_rows(self.kernel, archs))
        mask = jnp.ones(len(archs), bool) if mask is None else jnp.asarray(mask)
        check_mask("mask", mask, len(archs))
        return _fantasise(self, archs, mask)

    def leave_one_out(self) -> Prediction:
        """Return what each observed architecture was predicted to be from the others alone.

        The hyper-parameters stay. With C = K + ρI it is y − [C⁻¹(y − c)]_n / [C⁻¹]_nn, of variance
        a / [C⁻¹]_nn − σ². In weight space C⁻¹ = (I − H)/ρ, H being what takes y − c to its fit.
        """
        amplitude, noise, _ = map(jnp.asarray, self.hyperparameters)
        fitted = self.predict(self.design.archs)
        if self.weight_space:
            left = jnp.maximum(1 - fitted.variance / noise, jnp.finfo(noise.dtype).eps)
            residual, variance = (self.design.targets - fitted.mean) / left, noise / left
        else:
            diagonal = jnp.sum(self.factor**2, axis=1) / amplitude
            residual, variance = self.coefficients / diagonal, amplitude / diagonal
        mean = jnp.where(self.design.mask, self.design.targets - residual, fitted.mean)
        alone = jnp.maximum(variance - noise, 0)
        return Prediction(mean, jnp.where(self.design.mask, alone, fitted.variance))

    def weighted_sum(self, archs: ArrayLike, weights: Float[Array, " m"]) -> WeightedSum:
        """Return the mean of f at m architectures, and the variance of Σ w f."""
        archs = jnp.asarray(as_rows(self.kernel, archs))
        return WeightedSum(self.predict(archs).mean, double_sum(self, archs, weights))


def condition(
    kernel: Kernel,
    archs: ArrayLike,
    targets: ArrayLike,
    hyperparameters: Hyperparameters,
    *,
    mask: ArrayLike | None = None,
) -> Posterior:
    """Condition on n architectures [n, length] and targets [n]; rows with a false mask are padding.

    Example:
        >>> from bqnes_jax.kernels import WL
        >>> from bqnes_jax.spaces import NATS
        >>> archs = NATS.from_index(jnp.array([9504, 1234, 777]))
        >>> posterior = condition(WL(NATS), archs, jnp.array([1.0, 2.0, 3.0]), Hyperparameters())
        >>> posterior.predict(archs).mean.round(1).tolist()
        [1.0, 2.0, 3.0]
    """
    check_positive("amplitude", hyperparameters.amplitude)
    check_positive("noise", hyperparameters.noise)
    design = as_design(kernel, archs, targets, mask, "targets")
    return condition_design(kernel, design, hyperparameters)


def fit(
    kernel: Kernel,
    archs: ArrayLike,
    targets: ArrayLike,
    *,
    mask: ArrayLike | None = None,
    config: FitConfig = FitConfig(),
    axes: Axes | None = None,
    throw: bool = False,
) -> Posterior:
    """Fit amplitude, noise, mean and the kernel's leaves to targets, and condition on them.

    Args:
        kernel: the kernel, whose leaves are where the fit begins.
        archs: n×length, the architectures.
        targets: n, the observations.
        mask: n, false for padding.
        config: bounds and steps.
        axes: of the features of these architectures, where another fit has found them.
        throw: whether to raise an error that explains a status other than OK.

    Returns:
        A `Posterior`.

    Example:
        >>> from bqnes_jax.kernels import WL
        >>> from bqnes_jax.spaces import NATS
        >>> archs = NATS.sample(jax.random.key(0), 50)
        >>> posterior = fit(WL(NATS), archs, jnp.sum(archs == 3, axis=1))  # convolutions
        >>> bool(posterior.hyperparameters.amplitude > 0)
        True
    """
    design = as_design(kernel, archs, targets, mask, "targets")
    found = complete_design(shape_of_design(kernel, design, config, axes=axes), design, config)
    if throw:
        throw_if_failed(found.status, "gp.fit")
    return found


@jax.jit
def condition_design(kernel: Kernel, design: Design, hyperparameters: Hyperparameters) -> Posterior:
    """Condition on a design set that has been checked."""
    asked, design = design, only_finite(design)
    dtype = design.targets.dtype
    amplitude, noise, mean = (jnp.asarray(value, dtype) for value in hyperparameters)
    floor = jnp.finfo(dtype).eps  # less noise than that is none to the arithmetic
    ratio = jnp.maximum(noise / amplitude, floor)
    solution = solve(kernel, design, ratio, mean)
    found = Hyperparameters(amplitude, ratio * amplitude, mean)
    posterior = _posterior(kernel, asked, design, found, solution)
    lost = flag(noise / amplitude < floor, Status.JITTERED)
    return dataclasses.replace(posterior, status=posterior.status | lost)


def _posterior(
    kernel: Kernel,
    asked: Design,
    design: Design,
    hyperparameters: Hyperparameters,
    solution: Solution,
) -> Posterior:
    """Put together what solving gave; `design` is what is finite of what was asked for."""
    amplitude, n = jnp.asarray(hyperparameters.amplitude), jnp.sum(design.mask)
    evidence = -0.5 * (
        solution.quadratic / amplitude
        + solution.log_determinant
        + n * (jnp.log(amplitude) + jnp.log(2 * jnp.pi))
    )
    return Posterior(
        kernel=kernel,
        design=design,
        hyperparameters=hyperparameters,
        coefficients=solution.coefficients,
        factor=jnp.sqrt(amplitude) * solution.factor,
        log_marginal_likelihood=evidence.astype(design.targets.dtype),
        status=flag(solution.jittered, Status.JITTERED)
        | flag(~jnp.isfinite(evidence), Status.INFEASIBLE)
        | flag(jnp.any(asked.mask != design.mask), Status.MASKED_TARGETS)
        | flag(n == 0, Status.EMPTY),
        weight_space=in_weight_space(kernel, design.archs),
    )


@functools.partial(jax.jit, static_argnums=2)
def shape_of_design(
    kernel: Kernel, design: Design, config: FitConfig, *, axes: Axes | None = None
) -> Shape:
    """Fit the kernel's leaves and the noise relative to the amplitude: what costs most of a fit.

    The squares of targets need not be numbers of their type: what is fitted is a power of two
    times smaller.
    """
    design = only_finite(design)
    scale = _power_of_two(design.targets)
    return fit_shape(kernel, design._replace(targets=design.targets / scale), config, axes=axes)


@functools.partial(jax.jit, static_argnums=2)
def complete_design(shape: Shape, design: Design, config: FitConfig) -> Posterior:
    """Fit amplitude and mean, which are closed, and condition on a design set.

    Targets are scaled as above, and all is scaled back. An amplitude beyond the type is at a bound;
    coefficients beyond it are infeasible: the mean is no number.
    """
    finite = only_finite(design)
    scale = _power_of_two(finite.targets)
    scaled = finite._replace(targets=finite.targets / scale)
    average = jnp.zeros_like(scale)
    if config.mean == "constant":
        scaled, average = centre(scaled)
    points = jnp.sum(scaled.mask)
    given = None if config.mean == "constant" else average
    solution = solve(shape.kernel, scaled, shape.ratio, given, axes=shape.axes)
    amplitude = best_amplitude(solution.quadratic, points)
    amplitude = jnp.where(points > 0, amplitude, 1)
    mean, noise = average + solution.mean, amplitude * shape.ratio
    found = Hyperparameters(amplitude, noise, mean)
    posterior = _posterior(shape.kernel, design, scaled, found, solution)
    lowest, highest = jnp.sqrt(jnp.finfo(scale.dtype).tiny), 1e-6 * jnp.finfo(scale.dtype).max
    root = jnp.clip(scale, jnp.sqrt(lowest / amplitude), jnp.sqrt(highest / amplitude))
    at_bound = shape.at_bound | (solution.quadratic == 0) | (root < scale)
    coefficients = posterior.coefficients * scale
    lost = ~jnp.all(jnp.isfinite(coefficients))
    return dataclasses.replace(
        posterior,
        design=finite,
        axes=shape.axes,
        hyperparameters=Hyperparameters(amplitude * root**2, noise * root**2, mean * scale),
        coefficients=coefficients,
        factor=posterior.factor * root,
        log_marginal_likelihood=posterior.log_marginal_likelihood - points * jnp.log(scale),
        status=posterior.status | flag(at_bound, Status.AT_BOUND) | flag(lost, Status.INFEASIBLE),
    )


def _power_of_two(values: Float[Array, " n"]) -> Float[Array, ""]:
    """Return the power of two next below the largest of some values; 1 if all of them are 0."""
    largest = jnp.max(jnp.abs(values), initial=0)
    _, exponent = jnp.frexp(largest)
    return jnp.where(largest > 0, jnp.ldexp(jnp.ones_like(largest), exponent - 1), 1)


def only_finite(design: Design) -> Design:
    """Leave out what is not finite, and give padding a target of zero."""
    mask = design.mask & jnp.isfinite(design.targets)
    return Design(design.archs, jnp.where(mask, design.targets, 0), mask)


@functools.partial(jax.jit, static_argnums=2)
def _predict(
    posterior: Posterior, archs: Num[Array, "m length"], full_covariance: bool
) -> Prediction:
    kernel = posterior.kernel
    basis = posterior_basis(posterior, archs)
    mean = jnp.asarray(posterior.hyperparameters.mean) + matmul(basis, posterior.coefficients)
    half = matmul(basis, posterior.factor)
    if full_covariance:
        variance = matmul(half, half.T)
        prior = None if posterior.weight_space else kernel.gram(archs)
    else:
        variance = jnp.sum(half**2, axis=1)
        prior = None if posterior.weight_space else kernel.diag(archs)
    if prior is not None:
        variance = jnp.asarray(posterior.hyperparameters.amplitude) * prior - variance
        # Rounding can leave a variance just below zero where everything is known.
        variance = variance if full_covariance else jnp.maximum(variance, 0)
    return Prediction(mean, variance)


@jax.jit
def _outlook(posterior: Posterior, archs: Num[Array, "m length"], axes: Axes) -> Prediction:
    amplitude, noise, mean = map(jnp.asarray, posterior.hyperparameters)
    basis = posterior.kernel.features(archs)
    squares = axes.lengths[-_LONGEST:] ** 2
    explained = squares / (squares + noise / amplitude)
    longest = axes.vectors[:, -_LONGEST:] * jnp.sqrt(explained)
    half = matmul(basis.astype(jnp.float32), longest.astype(jnp.float32))
    rounding = 1 + 64 * jnp.finfo(half.dtype).eps
    variance = rounding * posterior.kernel.diag(archs) - jnp.sum(half**2, axis=1)
    return Prediction(mean + matmul(basis, posterior.coefficients), amplitude * variance)


@jax.jit
def _fantasise(
    posterior: Posterior, archs: Num[Array, "q length"], mask: Bool[Array, " q"]
) -> Posterior:
    new = Design(archs, _predict(posterior, archs, False).mean, mask)
    longer = Design(*(jnp.concatenate(pair) for pair in zip(posterior.design, new, strict=True)))
    return condition_design(posterior.kernel, longer, posterior.hyperparameters)


def posterior_basis(posterior: Posterior, archs: Num[Array, "m length"]) -> Float[Array, "m r"]:
    """Return B(α): the features, or the kernel with the observed architectures."""
    if posterior.weight_space:
        return posterior.kernel.features(archs)
    return posterior.kernel.cross(archs, posterior.design.archs) * posterior.design.mask


def double_sum(
    posterior: Posterior,
    archs: Num[Array, "m length"],
    weights: Float[Array, " m"],
    *,
    squared: bool = False,
) -> Float[Array, ""]:
    """Return Σ_i Σ_j w_i w_j Σ_ij, or with Σ_ij², Σ the posterior covariance."""
    # Huge weights are divided by a power of two, which rounds nothing: ∞ - ∞ would be NaN.
    # XLA multiplies by its inverse, which must not be subnormal.
    scale = lax.stop_gradient(jnp.clip(_power_of_two(weights), 1, 2.0**100))
    return scale * (scale * _double_sum(posterior, archs, weights / scale, squared))


def _double_sum(
    posterior: Posterior, archs: Num[Array, "m length"], weights: Float[Array, " m"], squared: bool
) -> Float[Array, ""]:
    basis = posterior_basis(posterior, archs)
    amplitude = jnp.asarray(posterior.hyperparameters.amplitude)
    # wᵀB first: a vector, where B·factor would be a matrix of all architectures.
    explained = jnp.sum(matmul(matmul(weights, basis), posterior.factor) ** 2)
    if not squared:
        if posterior.weight_space:
            return explained
        return amplitude * _prior_sum(posterior.kernel, archs, weights) - explained
    half = matmul(basis, posterior.factor)
    if posterior.weight_space:
        return jnp.sum(matmul(half.T * weights, half) ** 2)

    def block(part: tuple[Array, Array, Array]) -> Float[Array, ""]:
        some_archs, some_half, some_weights = part
        prior = amplitude * posterior.kernel.cross(some_archs, archs)
        return some_weights @ matmul((prior - matmul(some_half, half.T)) ** 2, weights)

    return jnp.sum(lax.map(block, _blocks(-(-len(weights) // _ROWS), archs, half, weights)))


def _prior_sum(
    kernel: Kernel, archs: Num[Array, "m length"], weights: Float[Array, " m"]
) -> Float[Array, ""]:
    """Return Σ_i Σ_j w_i w_j k_ij."""
    if isinstance(kernel, FiniteKernel):
        return jnp.sum(kernel.add_features(archs, weights) ** 2)
    if kernel.finite:
        return jnp.sum(matmul(weights, kernel.features(archs)) ** 2)

    # Each pair of blocks once: of an odd number in a circle, every one meets half of the others.
    blocks = -(-len(weights) // _ROWS) | 1
    archs, weights = _blocks(blocks, archs, weights)
    ahead = blocks // 2
    circle = [jnp.concatenate([part, part[:ahead]]) for part in (archs, weights)]
    counted = jnp.where(jnp.arange(1 + ahead) > 0, 2, 1).astype(weights.dtype)

    def block(i: Int32[Array, ""]) -> Float[Array, ""]:
        others, shares = (lax.dynamic_slice_in_dim(part, i, 1 + ahead) for part in circle)
        shares = (shares * counted[:, None]).ravel()
        others = others.reshape(-1, archs.shape[-1])
        return weights[i] @ matmul(kernel.cross(archs[i], others), shares)

    return jnp.sum(lax.map(block, jnp.arange(blocks, dtype=jnp.int32)))


def _blocks(blocks: int, *arrays: Array) -> tuple[Array, ...]:
    """Cut arrays into blocks of rows, padded with zeros."""
    rows = -(-len(arrays[0]) // blocks)

    def cut(array: Array) -> Array:
        widths = [(0, blocks * rows - len(array))] + [(0, 0)] * (array.ndim - 1)
        return jnp.pad(array, widths).reshape(blocks, rows, *array.shape[1:])

    return tuple(map(cut, arrays))
