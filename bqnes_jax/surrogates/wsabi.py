"""Surrogates of the likelihood: WSABI-L, WSABI-M, the plain Gaussian process, and its logarithm.

Log-likelihoods summed over a data set differ by hundreds of nats, so the likelihood itself is a
point mass and underflows. It is therefore tempered and measured relative to the largest one seen,

    ℓ = exp(L/T − max L/T),    T = `temperature`,

and, so that the surrogate knows it to be positive, warped by a square root: with β = 0.8·min ℓ,
√(2(ℓ − β)) ~ GP(μ, Σ). The induced distribution of ℓ is approximated by one with the moments

    WSABI-L ("linear"):  mean β + μ²/2,          covariance μ Σ μ'
    WSABI-M ("moment"):  mean β + (μ² + Σ)/2,    covariance μ Σ μ' + Σ²/2
    plain GP ("none"):   mean μ,                 covariance Σ          of a GP on ℓ itself
    logarithm ("log"):   mean exp(μ − d),        covariance m Σ m'     of a GP on d + log ℓ.

The last is linearised like WSABI-L, around the mean of the logarithm: what lies more than d nats
below the best counts as d nats below, and is what the prior mean 0 stands for. Nothing is added for
the variance: E[exp f] is dominated by what is not known at all, and overestimates by many nats.
"""

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float

from bqnes_jax.errors import BQNESError, check_choice, check_positive
from bqnes_jax.kernels.base import Kernel
from bqnes_jax.surrogates import base, gp
from bqnes_jax.surrogates.base import Design, Hyperparameters, Prediction, as_design
from bqnes_jax.surrogates.fitting import FitConfig
from bqnes_jax.surrogates.gp import Posterior, condition_design, fit_design

WARPS = ("linear", "moment", "none", "log")

# The published experiments use −(mean validation loss)·(twice the number of validation points)/256
# as log-likelihood: the summed one, divided by this.
TEMPERATURE = 128.0


@dataclasses.dataclass(frozen=True)
class WarpConfig:
    """How log-likelihoods become targets of a Gaussian process.

    Attributes:
        warp: "linear" (WSABI-L), "moment" (WSABI-M), "none" (plain GP) or "log".
        temperature: divides the summed log-likelihoods.
        floor: β is this times the smallest likelihood, for the two WSABI.
        depth: d, for "log".
    """

    warp: str = "linear"
    temperature: float = TEMPERATURE
    floor: float = 0.8
    depth: float = 50.0

    def __post_init__(self) -> None:
        check_choice("warp", self.warp, WARPS)
        check_positive("temperature", self.temperature)
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

    latent: Posterior  # of √(2(ℓ − β)); of ℓ where warp is "none", of d + log ℓ where it is "log"
    offset: Array  # β; −d where warp is "log"
    log_scale: Array  # the largest tempered log-likelihood: what ℓ = 1 stands for
    warp: str

    @property
    def status(self) -> Array:
        """The status of the Gaussian process beneath."""
        return self.latent.status


def condition(
    kernel: Kernel,
    archs: ArrayLike,
    log_likelihoods: ArrayLike,
    hyperparameters: Hyperparameters,
    mask: ArrayLike | None = None,
    config: WarpConfig = WarpConfig(),  # noqa: B008 (immutable)
) -> LikelihoodModel:
    """Condition on n architectures [n, length] and their summed log-likelihoods [n]."""
    check_positive("amplitude", hyperparameters.amplitude)
    check_positive("noise", hyperparameters.noise)
    design = as_design(kernel, archs, log_likelihoods, mask, "log_likelihoods")
    return _condition(kernel, design, hyperparameters, config)


def fit(
    kernel: Kernel,
    archs: ArrayLike,
    log_likelihoods: ArrayLike,
    mask: ArrayLike | None = None,
    config: WarpConfig = WarpConfig(),  # noqa: B008 (immutable)
    fit_config: FitConfig = FitConfig(),  # noqa: B008 (immutable)
) -> LikelihoodModel:
    """Fit the hyper-parameters to n summed log-likelihoods, and condition on them.

    Example:
        >>> from bqnes_jax.kernels import WL
        >>> from bqnes_jax.spaces import NATS
        >>> archs = NATS.sample(jax.random.key(0), 50)
        >>> model = fit(WL(NATS), archs, -500.0 * jnp.sum(archs != 3, axis=1))
        >>> predict(model, archs).mean.shape
        (50,)
    """
    design = as_design(kernel, archs, log_likelihoods, mask, "log_likelihoods")
    return _fit(kernel, design, config, fit_config)


@base.predict.register
def predict(model: LikelihoodModel, archs: ArrayLike, full_covariance: bool = False) -> Prediction:
    """Return mean and variance (or covariance) of ℓ at m architectures, in units of `log_scale`."""
    latent = gp.predict(model.latent, archs, full_covariance)
    return unwarp(model, latent)


@base.fantasise.register
def fantasise(
    model: LikelihoodModel, archs: ArrayLike, mask: ArrayLike | None = None
) -> LikelihoodModel:
    """Return the model as if the latent function had been observed where the mean predicts it."""
    return dataclasses.replace(model, latent=gp.fantasise(model.latent, archs, mask))


def unwarp(model: LikelihoodModel, latent: Prediction) -> Prediction:
    """Turn moments of the latent function into moments of ℓ."""
    if model.warp == "none":
        return latent
    mean, covariance = latent
    full = covariance.ndim == 2
    steep = slope(model, mean)
    linear = (steep[:, None] * steep[None, :] if full else steep**2) * covariance
    if model.warp == "log":
        return Prediction(steep, linear)
    if model.warp == "linear":
        return Prediction(model.offset + mean**2 / 2, linear)
    variance = jnp.diagonal(covariance) if full else covariance
    return Prediction(model.offset + (mean**2 + variance) / 2, linear + covariance**2 / 2)


def slope(model: LikelihoodModel, mean: Float[Array, " m"]) -> Float[Array, " m"]:
    """Return how fast ℓ grows with the latent function, at its mean."""
    if model.warp == "none":
        return jnp.ones_like(mean)
    return jnp.exp(mean + model.offset) if model.warp == "log" else mean


class Warped(NamedTuple):
    """Targets of the latent Gaussian process, and what undoes the warp."""

    targets: Float[Array, " n"]
    offset: Float[Array, ""]
    log_scale: Float[Array, ""]


def warp_likelihoods(
    log_likelihoods: Float[Array, " n"], mask: Bool[Array, " n"], config: WarpConfig
) -> Warped:
    """Temper, normalise by the maximum and warp; all in log space until the last step.

    √(2(ℓ − β)) = √2 · exp(½ log ℓ) · √(1 − 0.8 ℓ_min/ℓ), whose gradient is finite even at ℓ = 0.
    """
    tempered = log_likelihoods / config.temperature
    log_scale = jnp.max(tempered, where=mask, initial=-jnp.inf)
    log_scale = jnp.where(jnp.isfinite(log_scale), log_scale, 0)
    relative = jnp.where(mask, tempered - log_scale, 0)
    if config.warp == "none":
        return Warped(jnp.where(mask, jnp.exp(relative), 0), jnp.zeros_like(log_scale), log_scale)
    if config.warp == "log":
        depth = jnp.asarray(config.depth, relative.dtype)
        targets = jnp.maximum(relative, -depth) + depth
        return Warped(jnp.where(mask, targets, 0), -depth, log_scale)
    least = jnp.min(relative, where=mask, initial=0)
    share = config.floor * jnp.exp(least - relative)  # β/ℓ, at most `floor`
    targets = jnp.sqrt(2 * (1 - share)) * jnp.exp(relative / 2)
    return Warped(jnp.where(mask, targets, 0), config.floor * jnp.exp(least), log_scale)


@functools.partial(jax.jit, static_argnums=3)
def _condition(
    kernel: Kernel, design: Design, hyperparameters: Hyperparameters, config: WarpConfig
) -> LikelihoodModel:
    warped, latent_design = _latent_design(design, config)
    return _model(condition_design(kernel, latent_design, hyperparameters), warped, config)


@functools.partial(jax.jit, static_argnums=(2, 3))
def _fit(
    kernel: Kernel, design: Design, config: WarpConfig, fit_config: FitConfig
) -> LikelihoodModel:
    warped, latent_design = _latent_design(design, config)
    return _model(fit_design(kernel, latent_design, fit_config), warped, config)


def _latent_design(design: Design, config: WarpConfig) -> tuple[Warped, Design]:
    # What is not finite stays so, and is left out (and reported) by the Gaussian process.
    usable = design.mask & jnp.isfinite(design.targets)
    warped = warp_likelihoods(design.targets, usable, config)
    targets = jnp.where(design.mask & ~usable, jnp.nan, warped.targets)
    return warped, design._replace(targets=targets)


def _model(latent: Posterior, warped: Warped, config: WarpConfig) -> LikelihoodModel:
    return LikelihoodModel(latent, warped.offset, warped.log_scale, config.warp)
