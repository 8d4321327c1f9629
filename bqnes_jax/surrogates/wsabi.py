"""Surrogates of the likelihood: WSABI-L, WSABI-M, the plain Gaussian process, and its logarithm.

Log-likelihoods summed over a data set differ by hundreds of nats, so the likelihood itself is a
point mass and underflows. It is therefore tempered and measured relative to the largest one seen,

    ℓ = exp(L/T − max L/T),    T = `temperature`,

and, so that the surrogate knows it to be positive, warped by a square root: with β = 0.8·min ℓ,
√(2(ℓ − β)) ~ GP(μ, Σ). The induced distribution of ℓ is approximated by one with the moments

    WSABI-L ("linear"):  mean β + μ²/2,          covariance μ Σ μ'
    WSABI-M ("moment"):  mean β + (μ² + Σ)/2,    covariance μ Σ μ' + Σ²/2
    plain GP ("none"):   mean μ,                 covariance Σ          of a GP on ℓ itself
    logarithm ("log"):   mean exp(μ − d),        covariance m Σ m'     of a GP on d + log ℓ
    ("lognormal"):       mean exp(μ + Σ/2 − d),  covariance m Σ m'     of the same GP.

"log" is linearised like WSABI-L, around the mean of the logarithm: what lies more than d nats
below the best counts as d nats below, and is what the prior mean 0 stands for. Nothing is added for
the variance: E[exp f], the mean of "lognormal", is dominated by what is not known at all, and
overestimates the evidence by many nats; but draws by it explore more (strategy `posterior`).

A log-likelihood of −∞ is a likelihood of 0, such as that of a network whose training failed: an
observation like any other. No lower bound above it holds, so that β is then 0, and its target is 0
under every warp.
"""

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float

from bqnes_jax.errors import BQNESError, check_choice, check_positive
from bqnes_jax.kernels.base import Kernel
from bqnes_jax.surrogates.axes import Axes, grow_axes
from bqnes_jax.surrogates.base import (
    Design,
    Hyperparameters,
    Prediction,
    WeightedSum,
    as_design,
    as_rows,
)
from bqnes_jax.surrogates.fitting import FitConfig, Shape, is_due
from bqnes_jax.surrogates.gp import (
    Posterior,
    complete_design,
    condition_design,
    double_sum,
    shape_of_design,
)
from bqnes_jax.surrogates.solve import in_weight_space, masked_features
from bqnes_jax.types import Status, flag, throw_if_failed

WARPS = ("linear", "moment", "none", "log", "lognormal")
_LOGARITHMIC = ("log", "lognormal")
_HIGHEST = 40.0  # nats above the best seen that a mean may be, so that squares of it stay finite

# The published experiments use −(mean validation loss)·(twice the number of validation points)/256
# as log-likelihood: the summed one, divided by this.
TEMPERATURE = 128.0


@dataclasses.dataclass(frozen=True)
class WarpConfig:
    """How log-likelihoods become targets of a Gaussian process.

    Attributes:
        warp: "linear" (WSABI-L), "moment" (WSABI-M), "none" (plain GP), "log" or "lognormal".
        floor: β is this times the smallest likelihood, for the two WSABI.
        depth: d, for "log" and "lognormal".
    """

    warp: str = "linear"
    _: dataclasses.KW_ONLY
    floor: float = 0.8
    depth: float = 50.0

    def __post_init__(self) -> None:
        check_choice("warp", self.warp, WARPS)
        check_positive("depth", self.depth)
        if not 0 <= self.floor < 1:
            raise BQNESError(f"floor is {self.floor!r}; it must be at least 0 and below 1.")


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["latent", "offset", "log_scale"],
    meta_fields=["warp"],
)
@dataclasses.dataclass(frozen=True)
class LikelihoodModel:
    """A surrogate of the tempered likelihood, in units of exp(`log_scale`)."""

    latent: Posterior  # of √(2(ℓ − β)); of ℓ where warp is "none", of d + log ℓ in logarithms
    offset: Array  # β; −d in logarithms
    log_scale: Array  # the largest tempered log-likelihood: what ℓ = 1 stands for
    warp: str

    @property
    def status(self) -> Array:
        """The status of the Gaussian process beneath."""
        return self.latent.status

    @property
    def kernel(self) -> Kernel:
        """The kernel of the Gaussian process beneath."""
        return self.latent.kernel

    @property
    def design(self) -> Design:
        """The design set of the Gaussian process beneath, with warped targets."""
        return self.latent.design

    def predict(self, archs: ArrayLike, *, full_covariance: bool = False) -> Prediction:
        """Return mean and variance (or covariance) of ℓ at m architectures."""
        return unwarp(self, self.latent.predict(archs, full_covariance=full_covariance))

    def outlook(self, archs: ArrayLike) -> Prediction | None:
        """Return what mean and variance of ℓ do not exceed, which grow with those beneath."""
        latent = self.latent.outlook(archs)
        return None if latent is None else unwarp(self, latent)

    def fantasise(self, archs: ArrayLike, mask: ArrayLike | None = None) -> "LikelihoodModel":
        """Return the model as if the latent function had been observed at its predicted means."""
        return dataclasses.replace(self, latent=self.latent.fantasise(archs, mask))

    def leave_one_out(self) -> Prediction:
        """Return the moments of ℓ at each observed architecture, from the others alone."""
        return unwarp(self, self.latent.leave_one_out())

    def weighted_sum(self, archs: ArrayLike, weights: Float[Array, " m"]) -> WeightedSum:
        """Return the mean of ℓ at m architectures, and the variance of Σ w ℓ."""
        archs = jnp.asarray(as_rows(self.kernel, archs))
        latent = self.latent.predict(archs)
        variance = double_sum(self.latent, archs, weights * slope(self, latent))
        if self.warp == "moment":
            variance += double_sum(self.latent, archs, weights, squared=True) / 2
        return WeightedSum(unwarp(self, latent).mean, variance)


def condition(
    kernel: Kernel,
    archs: ArrayLike,
    log_likelihoods: ArrayLike,
    hyperparameters: Hyperparameters,
    *,
    mask: ArrayLike | None = None,
    temperature: ArrayLike = TEMPERATURE,
    config: WarpConfig = WarpConfig(),
) -> LikelihoodModel:
    """Condition on n architectures [n, length] and their summed log-likelihoods [n]."""
    check_positive("amplitude", hyperparameters.amplitude)
    check_positive("noise", hyperparameters.noise)
    design = _design(kernel, archs, log_likelihoods, mask, temperature)
    return _condition(kernel, design, hyperparameters, temperature, config)


def fit(
    kernel: Kernel,
    archs: ArrayLike,
    log_likelihoods: ArrayLike,
    *,
    mask: ArrayLike | None = None,
    temperature: ArrayLike = TEMPERATURE,
    config: WarpConfig = WarpConfig(),
    fit_config: FitConfig = FitConfig(),
    throw: bool = False,
) -> LikelihoodModel:
    """Fit the hyper-parameters to summed log-likelihoods, and condition on them.

    Args:
        kernel: the kernel, whose leaves are where the fit begins.
        archs: n×length, the architectures.
        log_likelihoods: n, summed over the validation points; −∞ is a likelihood of 0.
        mask: n, false for padding.
        temperature: divides the log-likelihoods.
        config: the warp.
        fit_config: bounds and steps.
        throw: whether to raise an error that explains a status other than OK.

    Returns:
        A `LikelihoodModel`.

    Example:
        >>> from bqnes_jax.kernels import WL
        >>> from bqnes_jax.spaces import NATS
        >>> archs = NATS.sample(jax.random.key(0), 50)
        >>> model = fit(WL(NATS), archs, -500.0 * jnp.sum(archs != 3, axis=1))
        >>> model.predict(archs).mean.shape
        (50,)
    """
    design = _design(kernel, archs, log_likelihoods, mask, temperature)
    shape = _shape(kernel, design, temperature, config, fit_config)
    found = _complete(shape, design, temperature, config, fit_config)
    if throw:
        throw_if_failed(found.status, "wsabi.fit")
    return found


def refit(
    shape: Shape,
    kernel: Kernel,
    archs: ArrayLike,
    log_likelihoods: ArrayLike,
    *,
    mask: ArrayLike | None = None,
    count: ArrayLike | None = None,
    temperature: ArrayLike = TEMPERATURE,
    config: WarpConfig = WarpConfig(),
    fit_config: FitConfig = FitConfig(),
) -> tuple[LikelihoodModel, Shape]:
    """Fit as `fit` does, but keep what costs most until the points have grown enough.

    That is the kernel's leaves, and ρ beside them. Where none are fitted it is the axes of the
    features in weight space, which grow by the points that are new: those before them, which the
    shape was fitted to, must be the same.

    Args:
        shape: what this returned for fewer points, or `fitting.no_shape`.
        kernel: as of `fit`; every fit of leaves begins there, so that it depends on the points
            alone and not on what was fitted before.
        archs: as of `fit`, like all that follows.
        log_likelihoods: summed over the validation points.
        mask: false for padding.
        count: how many there are, by which growth is measured, if those given are some of them.
        temperature: divides the log-likelihoods.
        config: the warp.
        fit_config: bounds, steps, and the growth that is enough.

    Returns:
        A `LikelihoodModel`, and the shape of it, for the next time.
    """
    design = _design(kernel, archs, log_likelihoods, mask, temperature)
    count = jnp.asarray(jnp.sum(design.mask) if count is None else count, jnp.int32)
    if shape.axes is not None and in_weight_space(kernel, design.archs):
        axes = grow_axes(shape.axes, masked_features(kernel, design), count)
        shape = _shape(kernel, design, temperature, config, fit_config, axes)
    else:
        shape = lax.cond(
            is_due(shape, count, fit_config),
            lambda: _shape(kernel, design, temperature, config, fit_config)._replace(points=count),
            lambda: shape,
        )
    return _complete(shape, design, temperature, config, fit_config), shape


def unwarp(model: LikelihoodModel, latent: Prediction) -> Prediction:
    """Turn moments of the latent function into moments of ℓ."""
    if model.warp == "none":
        return latent
    mean, covariance = latent
    full = covariance.ndim == 2
    steep = slope(model, latent)
    linear = (steep[:, None] * steep[None, :] if full else steep**2) * covariance
    if model.warp in _LOGARITHMIC:
        return Prediction(steep, linear)
    if model.warp == "linear":
        return Prediction(model.offset + mean**2 / 2, linear)
    return Prediction(model.offset + (mean**2 + _variances(latent)) / 2, linear + covariance**2 / 2)


def slope(model: LikelihoodModel, latent: Prediction) -> Float[Array, " m"]:
    """Return how fast ℓ grows with the latent function, at its mean."""
    if model.warp == "none":
        return jnp.ones_like(latent.mean)
    if model.warp not in _LOGARITHMIC:
        return latent.mean
    added = _variances(latent) / 2 if model.warp == "lognormal" else 0
    return jnp.exp(jnp.minimum(latent.mean + model.offset + added, _HIGHEST))


def _variances(latent: Prediction) -> Float[Array, " m"]:
    return jnp.diagonal(latent.variance) if latent.variance.ndim == 2 else latent.variance


class Warped(NamedTuple):
    """Targets of the latent Gaussian process, and what undoes the warp."""

    targets: Float[Array, " n"]
    offset: Float[Array, ""]
    log_scale: Float[Array, ""]


def warp_likelihoods(
    log_likelihoods: Float[Array, " n"],
    mask: Bool[Array, " n"],
    config: WarpConfig,
    *,
    temperature: ArrayLike = TEMPERATURE,
) -> Warped:
    """Temper, normalise by the maximum and warp; all in log space until the last step.

    √(2(ℓ − β)) = √2 · exp(½ log ℓ) · √(1 − 0.8 ℓ_min/ℓ), whose gradient is finite even at ℓ = 0.
    """
    tempered = log_likelihoods / temperature
    zero = mask & (tempered == -jnp.inf)
    seen = mask & ~zero
    log_scale = jnp.max(tempered, where=seen, initial=-jnp.inf)
    log_scale = jnp.where(jnp.isfinite(log_scale), log_scale, 0)
    relative = jnp.where(seen, tempered - log_scale, 0)
    if config.warp == "none":
        return Warped(jnp.where(seen, jnp.exp(relative), 0), jnp.zeros_like(log_scale), log_scale)
    if config.warp in _LOGARITHMIC:
        depth = jnp.asarray(config.depth, relative.dtype)
        targets = jnp.maximum(relative, -depth) + depth
        return Warped(jnp.where(seen, targets, 0), -depth, log_scale)
    least = jnp.min(relative, where=seen, initial=0)
    floor = jnp.where(jnp.any(zero), 0, config.floor)
    share = floor * jnp.exp(least - relative)  # β/ℓ, at most `floor`
    targets = jnp.sqrt(2 * (1 - share)) * jnp.exp(relative / 2)
    return Warped(jnp.where(seen, targets, 0), floor * jnp.exp(least), log_scale)


@functools.partial(jax.jit, static_argnums=4)
def _condition(
    kernel: Kernel,
    design: Design,
    hyperparameters: Hyperparameters,
    temperature: ArrayLike,
    config: WarpConfig,
) -> LikelihoodModel:
    warped, latent_design = _latent_design(design, temperature, config)
    return _model(condition_design(kernel, latent_design, hyperparameters), design, warped, config)


@functools.partial(jax.jit, static_argnums=(3, 4))
def _shape(
    kernel: Kernel,
    design: Design,
    temperature: ArrayLike,
    config: WarpConfig,
    fit_config: FitConfig,
    axes: Axes | None = None,
) -> Shape:
    latent_design = _latent_design(design, temperature, config)[1]
    return shape_of_design(kernel, latent_design, fit_config, axes=axes)


@functools.partial(jax.jit, static_argnums=(3, 4))
def _complete(
    shape: Shape,
    design: Design,
    temperature: ArrayLike,
    config: WarpConfig,
    fit_config: FitConfig,
) -> LikelihoodModel:
    warped, latent_design = _latent_design(design, temperature, config)
    return _model(complete_design(shape, latent_design, fit_config), design, warped, config)


def _design(
    kernel: Kernel,
    archs: ArrayLike,
    log_likelihoods: ArrayLike,
    mask: ArrayLike | None,
    temperature: ArrayLike,
) -> Design:
    check_positive("temperature", temperature)
    name = "log_likelihoods"
    return as_design(kernel, archs, log_likelihoods, mask, name, logarithms=True)


def _latent_design(
    design: Design, temperature: ArrayLike, config: WarpConfig
) -> tuple[Warped, Design]:
    # What is no likelihood stays so, and is left out (and reported) by the Gaussian process.
    usable = design.mask & (design.targets < jnp.inf)
    warped = warp_likelihoods(design.targets, usable, config, temperature=temperature)
    targets = jnp.where(design.mask & ~usable, jnp.nan, warped.targets)
    return warped, design._replace(targets=targets)


def _model(
    latent: Posterior, design: Design, warped: Warped, config: WarpConfig
) -> LikelihoodModel:
    # To have seen likelihoods of 0 alone is to have seen nothing: their unit is not known.
    seen = jnp.any(design.mask & jnp.isfinite(design.targets))
    latent = dataclasses.replace(latent, status=latent.status | flag(~seen, Status.EMPTY))
    return LikelihoodModel(latent, warped.offset, warped.log_scale, config.warp)
