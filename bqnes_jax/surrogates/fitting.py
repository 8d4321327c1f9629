"""Hyper-parameters of a Gaussian process by maximum marginal likelihood.

With K = UΛUᵀ, z = Uᵀy and e = Uᵀ1, the marginal likelihood of y ~ N(c, a(K + ρI)) needs one
decomposition for all ρ, and its maximum over c and a is closed: c = Σ ez/(λ + ρ) / Σ e²/(λ + ρ) and
a = n⁻¹ Σ (z − ce)²/(λ + ρ). What remains is a function of the one number ρ, searched globally. A
kernel with hyper-parameters of its own is adapted first, by L-BFGS on the same profile.
"""

import dataclasses
import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int, Int32, Num

from bqnes_jax.errors import BQNESError, check_bounds, check_choice, check_whole
from bqnes_jax.kernels.base import Kernel, matmul
from bqnes_jax.surrogates.axes import Axes, find_axes, no_axes
from bqnes_jax.surrogates.base import Design
from bqnes_jax.surrogates.solve import (
    in_weight_space,
    masked_features,
    masked_gram,
    profile_loss,
)

MEANS = ("zero", "constant")
_STALLED = 2  # steps in a row without a gain end a fit: each would try twenty lengths in vain


@dataclasses.dataclass(frozen=True)
class FitConfig:
    """How hyper-parameters are fitted.

    Attributes:
        noise_bounds: of the noise variance relative to the amplitude, ρ = σ²/a, so that scaling the
            targets scales the fit. The published code has (1e-5, 1e-1).
        kernel_bounds: of each leaf of the kernel.
        kernel_steps: of L-BFGS, spent on those leaves; a kernel without leaves needs none.
        mean: the prior mean: "zero", or "constant" for a fitted one.
        growth: of a search: by what share the candidates grow before the leaves of a kernel, and ρ
            beside them, are fitted again; amplitude and mean are at every step. 0 fits everything
            from scratch at every step; where no leaves are fitted, others do so but for rounding.
        points: how many of the targets leaves and ρ are fitted to, if there are more and the kernel
            has no fewer features; these are taken evenly.
        limit: of a search: how many candidates its surrogate is conditioned on, if there are more
            and the kernel has no fewer features: the best, and others evenly.
    """

    noise_bounds: tuple[float, float] = (1e-5, 1e-1)
    kernel_bounds: tuple[float, float] = (1e-2, 1e2)
    _: dataclasses.KW_ONLY
    kernel_steps: int = 30
    mean: str = "zero"
    growth: float = 0.1
    points: int = 1024
    limit: int = 2048

    def __post_init__(self) -> None:
        check_choice("mean", self.mean, MEANS)
        check_bounds("noise_bounds", self.noise_bounds)
        check_bounds("kernel_bounds", self.kernel_bounds)
        check_whole("kernel_steps", self.kernel_steps, 0)
        check_whole("points", self.points, 2)
        check_whole("limit", self.limit, 2)
        if not 0 <= self.growth < math.inf:
            raise BQNESError(f"growth is {self.growth!r}; it must be a finite number, 0 or more.")

    def adapts(self, kernel: Kernel) -> bool:
        """Tell whether leaves of a kernel are fitted."""
        return bool(jax.tree.leaves(kernel)) and self.kernel_steps > 0


class Shape(NamedTuple):
    """What is left to fit once amplitude and mean are closed: the kernel's leaves, and ρ."""

    kernel: Kernel
    ratio: Float[Array, ""]  # ρ
    at_bound: Bool[Array, ""]
    points: Int32[Array, ""]  # how many there were when it was fitted
    axes: Axes | None = None  # of their features, in weight space and where no leaves are fitted


def no_shape(kernel: Kernel, features: int | None = None) -> Shape:
    """Return what stands for a shape before there is one: fitted to no points.

    Given how many features the kernel has, it has axes that can grow with the points.
    """
    kernel = jax.tree.map(lambda leaf: jnp.asarray(leaf, float), kernel)
    axes = None if features is None else no_axes(features)
    return Shape(kernel, jnp.asarray(jnp.nan), jnp.zeros((), bool), jnp.int32(0), axes)


def is_due(shape: Shape, count: Int[Array, ""], config: FitConfig) -> Bool[Array, ""]:
    """Tell whether points have grown enough, or become fewer, for a shape to be fitted again."""
    new = count - shape.points
    enough = config.growth * shape.points - 1e-3  # a product may round up
    return (shape.points == 0) | (new < 0) | (new >= enough)


def fit_shape(
    kernel: Kernel, design: Design, config: FitConfig, *, axes: Axes | None = None
) -> Shape:
    """Maximise max over c and a of log N(y; c, a(K + ρI)); the targets of padding are zero.

    In weight space the `axes` of the features are found, unless they are given.
    """
    count = jnp.sum(design.mask).astype(jnp.int32)
    if not in_weight_space(kernel, design.archs):
        design = _thin(design, config.points)
    if config.mean == "constant":
        design = centre(design)[0]
    if config.adapts(kernel):
        kernel = _adapt_kernel(kernel, design, config)
    if in_weight_space(kernel, design.archs) and axes is None:
        axes = find_axes(masked_features(kernel, design), count)
    spectrum = decompose(kernel, design, config.mean, axes)
    ratio = _maximise(functools.partial(profile_log_likelihood, spectrum), *config.noise_bounds)
    at_bound = _touches(ratio, config.noise_bounds)
    if config.adapts(kernel):
        axes = None  # the shape may be kept for more points
        for leaf in jax.tree.leaves(kernel):
            at_bound |= _touches(leaf, config.kernel_bounds)
    return Shape(kernel, ratio, at_bound, count, axes)


def centre(design: Design) -> tuple[Design, Float[Array, ""]]:
    """Take the average off the targets: what is left to fit is small, and rounds little."""
    average = jnp.sum(design.targets) / jnp.maximum(jnp.sum(design.mask), 1)
    return design._replace(targets=jnp.where(design.mask, design.targets - average, 0)), average


def _thin(design: Design, points: int) -> Design:
    """Take at most so many of the targets, evenly in their order."""
    if len(design.mask) <= points:
        return design
    chosen = take_evenly(design.mask, points)
    return Design(design.archs[chosen], design.targets[chosen], design.mask[chosen])


def take_evenly(mask: Bool[Array, " n"], points: int) -> Int32[Array, " points"]:
    """Return where a mask is true, at so many places; and where not, if these are too few."""
    order = jnp.argsort(~mask, stable=True)
    count = jnp.maximum(jnp.sum(mask), points)
    return order[jnp.arange(points) * count // points].astype(jnp.int32)


class Spectrum(NamedTuple):
    """What the marginal likelihood needs to know of the kernel matrix and two vectors.

    The first of them is the targets; the second is ones, or zeros for a prior mean of zero.
    """

    eigenvalues: Float[Array, " r"]  # of K; the rest are zero
    projections: Float[Array, "r 2"]  # of the vectors, on the eigenvectors
    remainders: Float[Array, "s 2"]  # what is left of the vectors: as long, as far apart
    points: Float[Array, ""]  # how many targets, n


def decompose(kernel: Kernel, design: Design, mean: str, axes: Axes | None) -> Spectrum:
    """Decompose the kernel matrix; in weight space, by the axes of the features."""
    ones = design.mask if mean == "constant" else jnp.zeros_like(design.mask)
    both = jnp.stack([design.targets, ones.astype(design.targets.dtype)], axis=1)
    count = jnp.sum(design.mask).astype(both.dtype)
    if axes is None:
        values, vectors = jnp.linalg.eigh(masked_gram(kernel, design))
        return Spectrum(jnp.maximum(values, 0), matmul(vectors.T, both), both[:0], count)
    features = masked_features(kernel, design)
    # What is shorter is rounding, or so short that it explains nothing.
    kept = axes.lengths > jnp.finfo(both.dtype).eps ** (2 / 3) * axes.lengths[-1]
    values = jnp.where(kept, axes.lengths**2, 0)
    basis = matmul(features, jnp.where(kept, axes.vectors / jnp.where(kept, axes.lengths, 1), 0))
    projections = matmul(basis.T, both)
    remainders = jnp.linalg.qr(both - matmul(basis, projections), mode="r")
    return Spectrum(values, projections, remainders, count)


def profile_log_likelihood(spectrum: Spectrum, ratio: Float[Array, ""]) -> Float[Array, ""]:
    """Return max over c and a of log N(y; c, a(K + ρI)), `ratio` being ρ."""
    n = spectrum.points
    eigenvalues = spectrum.eigenvalues + ratio
    log_determinant = jnp.sum(jnp.log(eigenvalues)) + (n - len(eigenvalues)) * jnp.log(ratio)
    # yᵀC⁻¹y, yᵀC⁻¹1 and 1ᵀC⁻¹1
    squares = matmul(1 / eigenvalues, _products(spectrum.projections))
    squares += jnp.sum(_products(spectrum.remainders), axis=0) / ratio
    of_ones = jnp.where(squares[2] > 0, squares[2], 1)
    quadratic = jnp.maximum(squares[0] - squares[1] ** 2 / of_ones, 0)
    amplitude = best_amplitude(quadratic, n)
    log_amplitude = jnp.log(2 * jnp.pi * amplitude)
    return -0.5 * (quadratic / amplitude + log_determinant + n * log_amplitude)


def _products(both: Float[Array, "r 2"]) -> Float[Array, "r 3"]:
    return both[:, (0, 0, 1)] * both[:, (0, 1, 1)]


def best_amplitude(quadratic: Float[Array, ""], points: Num[Array, ""]) -> Float[Array, ""]:
    """Return the likeliest amplitude, (y − c)ᵀ(K + ρI)⁻¹(y − c) / n."""
    floor = jnp.sqrt(jnp.finfo(quadratic.dtype).tiny)  # all zero: any tiny amplitude will do
    return jnp.maximum(quadratic / jnp.maximum(points, 1), floor)


def _maximise(function, low: float, high: float, points: int = 16, zooms: int = 5):
    """Maximise a function of one positive number: a grid in its logarithm, then finer ones.

    In the end the maximum is that of the parabola through the best point and its neighbours.
    """
    ends = jnp.log(jnp.asarray(low, float)), jnp.log(jnp.asarray(high, float))
    values = jax.vmap(lambda log_x: function(jnp.exp(log_x)))

    def zoom(_, found):
        first, last, _ = found
        grid = jnp.linspace(first, last, points)
        heights = values(grid)
        best = jnp.argmax(heights)
        sides = jnp.clip(jnp.stack([best - 1, best, best + 1]), 0, points - 1)
        left, middle, right = heights[sides]
        bend = 2 * middle - left - right
        inside = (sides[0] < best) & (best < sides[2]) & (bend > 0)
        shift = jnp.where(inside, (right - left) / jnp.where(inside, 2 * bend, 1), 0)
        return grid[sides[0]], grid[sides[2]], grid[best] + shift * (grid[1] - grid[0])

    _, _, top = lax.fori_loop(0, zooms, zoom, (*ends, ends[0]))
    return jnp.exp(jnp.clip(top, *ends))


def _adapt_kernel(kernel: Kernel, design: Design, config: FitConfig) -> Kernel:
    """Maximise the profile over the kernel's leaves and ρ, each kept within its bounds."""
    leaves, structure = jax.tree.flatten(kernel)
    bounds = [config.kernel_bounds] * len(leaves) + [config.noise_bounds]
    mean = None if config.mean == "constant" else 0.0
    digits = jnp.finfo(jnp.result_type(float))

    def unpack(free: list[Array]) -> tuple[Kernel, Float[Array, ""]]:
        *leaves, ratio = [_from_free(x, *pair) for x, pair in zip(free, bounds, strict=True)]
        return jax.tree.unflatten(structure, leaves), ratio

    def loss(free: list[Array]) -> Float[Array, ""]:
        kernel, ratio = unpack(free)
        return profile_loss(kernel, design, ratio, mean)

    optimiser = optax.lbfgs()
    value_and_grad = optax.value_and_grad_from_state(loss)

    def step(carry):
        free, state, best, least, taken, stalled = carry
        value, grad = value_and_grad(free, state=state)
        better = value < least  # false for NaN, which so never wins
        best = jax.tree.map(lambda new, old: jnp.where(better, new, old), free, best)
        gains = value < least - 4 * digits.eps * jnp.abs(least)
        updates, state = optimiser.update(grad, state, free, value=value, grad=grad, value_fn=loss)
        free, least = optax.apply_updates(free, updates), jnp.where(better, value, least)
        return free, state, best, least, taken + 1, jnp.where(gains, 0, stalled + 1)

    def goes_on(carry):
        *_, taken, stalled = carry
        return (taken <= config.kernel_steps) & (stalled < _STALLED)

    middle = jnp.sqrt(jnp.asarray(config.noise_bounds[0] * config.noise_bounds[1], float))
    free = [_to_free(x, *pair) for x, pair in zip([*leaves, middle], bounds, strict=True)]
    highest = jnp.full_like(middle, digits.max)
    start = (free, optimiser.init(free), free, highest, jnp.int32(0), jnp.int32(0))
    best = lax.while_loop(goes_on, step, start)[2]
    return unpack(best)[0]


def _touches(value: Array, bounds: tuple[float, float]) -> Bool[Array, ""]:
    """Tell whether a value sits at a bound, unless they leave it no room: then it was given."""
    if bounds[1] < 1.02 * bounds[0]:
        return jnp.zeros((), bool)
    return jnp.any((value < 1.01 * bounds[0]) | (value > bounds[1] / 1.01))


def _from_free(free: Array, low: float, high: float) -> Array:
    """Map the real line to (low, high), evenly in the logarithm."""
    return low * (high / low) ** jax.nn.sigmoid(free)


def _to_free(value: ArrayLike, low: float, high: float) -> Array:
    share = jnp.log(jnp.asarray(value, float) / low) / jnp.log(high / low)
    return jax.scipy.special.logit(jnp.clip(share, 0.01, 0.99))  # flat ends would not move
