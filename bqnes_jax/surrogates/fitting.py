"""Hyper-parameters of a Gaussian process by maximum marginal likelihood.

With K = UΛUᵀ and z = Uᵀy, the marginal likelihood of y ~ N(0, a(K + ρI)) needs one decomposition
for all ρ, and its maximum over a is closed: a = n⁻¹ Σ z²/(λ + ρ). What remains is a function of the
one number ρ, searched globally. A kernel with hyper-parameters of its own is adapted first, by
L-BFGS on the same profile.
"""

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float

from bqnes_jax.errors import check_bounds, check_whole
from bqnes_jax.kernels.base import Kernel, matmul
from bqnes_jax.surrogates.base import Design, Hyperparameters
from bqnes_jax.surrogates.solve import in_weight_space, masked_features, masked_gram, solve


@dataclasses.dataclass(frozen=True)
class FitConfig:
    """How hyper-parameters are fitted.

    Attributes:
        noise_bounds: of the noise variance relative to the amplitude, ρ = σ²/a, so that scaling the
            targets scales the fit.
        kernel_bounds: of each leaf of the kernel.
        kernel_steps: of L-BFGS, spent on those leaves; a kernel without leaves needs none.
    """

    noise_bounds: tuple[float, float] = (1e-5, 1e-1)
    kernel_bounds: tuple[float, float] = (1e-2, 1e2)
    kernel_steps: int = 30

    def __post_init__(self) -> None:
        check_bounds("noise_bounds", self.noise_bounds)
        check_bounds("kernel_bounds", self.kernel_bounds)
        check_whole("kernel_steps", self.kernel_steps, 0)


class Fitted(NamedTuple):
    """The kernel with adapted leaves, amplitude and noise, and whether ρ sits at a bound."""

    kernel: Kernel
    hyperparameters: Hyperparameters
    at_bound: Bool[Array, ""]


def fit_hyperparameters(kernel: Kernel, design: Design, config: FitConfig) -> Fitted:
    """Maximise log N(y; 0, a(K + ρI)); the targets of padding are zero."""
    adapted = bool(jax.tree.leaves(kernel)) and config.kernel_steps > 0
    if adapted:
        kernel = _adapt_kernel(kernel, design, config)
    spectrum = decompose(kernel, design)
    low, high = config.noise_bounds
    ratio = _maximise(functools.partial(profile_log_likelihood, spectrum), low, high)
    amplitude = jnp.where(spectrum.count > 0, _best_amplitude(spectrum, ratio), 1)
    at_bound = _touches(ratio, config.noise_bounds) | (_quadratic(spectrum, ratio) == 0)
    for leaf in jax.tree.leaves(kernel) if adapted else ():
        at_bound |= _touches(leaf, config.kernel_bounds)
    return Fitted(kernel, Hyperparameters(amplitude, amplitude * ratio), at_bound)


class Spectrum(NamedTuple):
    """What the marginal likelihood needs to know of the kernel matrix and the targets."""

    eigenvalues: Float[Array, " r"]  # of K; the rest are zero
    energies: Float[Array, " r"]  # squared projections of the targets on the eigenvectors
    remainder: Float[Array, ""]  # energy outside of them
    count: Float[Array, ""]  # number of targets, n


def decompose(kernel: Kernel, design: Design) -> Spectrum:
    """Decompose the kernel matrix, by way of the features where they are fewer than the points."""
    targets = design.targets
    count = jnp.sum(design.mask).astype(targets.dtype)
    if not in_weight_space(kernel, design.archs):
        values, vectors = jnp.linalg.eigh(masked_gram(kernel, design))
        energies = matmul(vectors.T, targets) ** 2
        return Spectrum(jnp.maximum(values, 0), energies, jnp.zeros_like(count), count)
    features = masked_features(kernel, design)
    _, vectors = jnp.linalg.eigh(matmul(features.T, features))
    # ‖Ψv‖² is far more accurate than the small eigenvalues of ΨᵀΨ themselves.
    images = matmul(features, vectors)
    values = jnp.sum(images**2, axis=0)
    kept = values > jnp.finfo(values.dtype).eps * jnp.max(values)
    basis = jnp.where(kept, images / jnp.sqrt(jnp.where(kept, values, 1)), 0)
    projections = matmul(basis.T, targets)
    remainder = jnp.sum((targets - matmul(basis, projections)) ** 2)
    return Spectrum(jnp.where(kept, values, 0), projections**2, remainder, count)


def profile_log_likelihood(spectrum: Spectrum, ratio: Float[Array, ""]) -> Float[Array, ""]:
    """Return max over a of log N(y; 0, a(K + ρI)), `ratio` being ρ."""
    n = spectrum.count
    log_determinant = jnp.sum(jnp.log(spectrum.eigenvalues + ratio)) + (
        n - len(spectrum.eigenvalues)
    ) * jnp.log(ratio)
    amplitude = _best_amplitude(spectrum, ratio)
    quadratic = _quadratic(spectrum, ratio) / amplitude
    return -0.5 * (quadratic + log_determinant + n * jnp.log(2 * jnp.pi * amplitude))


def _quadratic(spectrum: Spectrum, ratio: Float[Array, ""]) -> Float[Array, ""]:
    inside = jnp.sum(spectrum.energies / (spectrum.eigenvalues + ratio))
    return inside + spectrum.remainder / ratio


def _best_amplitude(spectrum: Spectrum, ratio: Float[Array, ""]) -> Float[Array, ""]:
    floor = jnp.sqrt(jnp.finfo(ratio.dtype).tiny)  # all targets zero: any tiny amplitude will do
    return jnp.maximum(_quadratic(spectrum, ratio) / jnp.maximum(spectrum.count, 1), floor)


def _maximise(function, low: float, high: float, points: int = 16, zooms: int = 8):
    """Maximise a function of one positive number: a grid in its logarithm, then finer ones."""
    low, high = jnp.log(jnp.asarray(low, float)), jnp.log(jnp.asarray(high, float))
    values = jax.vmap(lambda log_x: function(jnp.exp(log_x)))

    def zoom(_, bracket):
        grid = jnp.linspace(*bracket, points)
        best = jnp.argmax(values(grid))
        return grid[jnp.maximum(best - 1, 0)], grid[jnp.minimum(best + 1, points - 1)]

    bracket = lax.fori_loop(0, zooms, zoom, (low, high))
    return jnp.exp(jnp.clip(jnp.mean(jnp.stack(bracket)), low, high))


def _adapt_kernel(kernel: Kernel, design: Design, config: FitConfig) -> Kernel:
    """Maximise the profile over the kernel's leaves and ρ, each kept within its bounds."""
    leaves, structure = jax.tree.flatten(kernel)
    bounds = [config.kernel_bounds] * len(leaves) + [config.noise_bounds]
    count = jnp.maximum(jnp.sum(design.mask), 1)

    def unpack(free: list[Array]) -> tuple[Kernel, Float[Array, ""]]:
        *leaves, ratio = [_from_free(x, *pair) for x, pair in zip(free, bounds, strict=True)]
        return jax.tree.unflatten(structure, leaves), ratio

    def loss(free: list[Array]) -> Float[Array, ""]:
        solution = solve(unpack(free)[0], design, unpack(free)[1])
        quadratic = jnp.maximum(solution.quadratic, jnp.finfo(solution.quadratic.dtype).tiny)
        return 0.5 * (jnp.log(quadratic / count) + solution.log_determinant / count)

    optimiser = optax.lbfgs()
    value_and_grad = optax.value_and_grad_from_state(loss)

    def step(_, carry):
        free, state, best, least = carry
        value, grad = value_and_grad(free, state=state)
        better = value < least  # false for NaN, which so never wins
        best = jax.tree.map(lambda new, old: jnp.where(better, new, old), free, best)
        updates, state = optimiser.update(grad, state, free, value=value, grad=grad, value_fn=loss)
        return optax.apply_updates(free, updates), state, best, jnp.where(better, value, least)

    middle = jnp.sqrt(jnp.asarray(config.noise_bounds[0] * config.noise_bounds[1], float))
    free = [_to_free(x, *pair) for x, pair in zip([*leaves, middle], bounds, strict=True)]
    start = (free, optimiser.init(free), free, jnp.asarray(jnp.inf, middle.dtype))
    best = lax.fori_loop(0, config.kernel_steps + 1, step, start)[2]
    return unpack(best)[0]


def _touches(value: Array, bounds: tuple[float, float]) -> Bool[Array, ""]:
    return jnp.any((value < 1.01 * bounds[0]) | (value > bounds[1] / 1.01))


def _from_free(free: Array, low: float, high: float) -> Array:
    """Map the real line to (low, high), evenly in the logarithm."""
    return low * (high / low) ** jax.nn.sigmoid(free)


def _to_free(value: ArrayLike, low: float, high: float) -> Array:
    share = jnp.log(jnp.asarray(value, float) / low) / jnp.log(high / low)
    return jax.scipy.special.logit(jnp.clip(share, 0.01, 0.99))  # flat ends would not move
