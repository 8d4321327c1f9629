"""What it all adds up to: the evidence Z = Σ_α π(α) ℓ(α) under a surrogate of the likelihood.

    WSABI-L:   E[Z] = β + ½ Σ π μ²          Var[Z] = ΣΣ π π' μ Σ μ'
    WSABI-M:   E[Z] = β + ½ Σ π (μ² + Σ)    Var[Z] = ΣΣ π π' (μ Σ μ' + ½ Σ²)
    plain GP:  E[Z] = Σ π μ                 Var[Z] = ΣΣ π π' Σ
    logarithm: E[Z] = Σ π m, m = exp(μ − d) Var[Z] = ΣΣ π π' m Σ m'

The sums run over the whole space, or over draws from the prior (Monte Carlo kernel means).
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int32, Num

from bqnes_jax.errors import (
    BQNESError,
    check_distribution,
    check_mask,
    check_positive,
    check_shape,
    check_whole,
)
from bqnes_jax.kernels.base import is_finite, matmul
from bqnes_jax.spaces.base import EnumerableSpace, Space, enumerate_space
from bqnes_jax.surrogates import TEMPERATURE, LikelihoodModel, Posterior, gp, wsabi
from bqnes_jax.surrogates.base import as_rows
from bqnes_jax.surrogates.solve import masked_features
from bqnes_jax.types import PRNGKey, Status, flag

_ROWS = 512  # of the covariance held in memory at a time


class Evidence(NamedTuple):
    """log Ẑ of the tempered likelihood, and how sure of it we are.

    `posterior_sd` is the surrogate's standard deviation of Z, `sampling_sd` the Monte Carlo error
    of its mean (zero where the sum is exact); both relative to Ẑ, so to first order those of log Ẑ.
    A mean that is not positive has `log_evidence` −inf, infinite errors and Status.NEGATIVE.
    """

    log_evidence: Float[Array, ""]
    posterior_sd: Float[Array, ""]
    sampling_sd: Float[Array, ""]
    status: Int32[Array, ""]


def evidence_over(model: LikelihoodModel, archs: ArrayLike, weights: ArrayLike) -> Evidence:
    """Sum over m architectures [m, length] with prior probabilities `weights` [m]."""
    archs, weights = _weighted(model, archs, weights)
    return weighted_evidence(model, archs, weights, sampled=False)


def exact_evidence(
    model: LikelihoodModel, space: EnumerableSpace, log_prior: ArrayLike | None = None
) -> Evidence:
    """Sum over every architecture of a space; `log_prior` [size] is uniform unless given.

    Example:
        >>> from bqnes_jax.kernels import WL
        >>> from bqnes_jax.spaces import NATS
        >>> archs = NATS.sample(jax.random.key(0), 120)
        >>> model = wsabi.fit(WL(NATS), archs, -500.0 * jnp.sum(archs != 3, axis=1))
        >>> exact_evidence(model, NATS).sampling_sd.item()
        0.0
    """
    archs = enumerate_space(space)
    log_prior = jnp.zeros(len(archs)) if log_prior is None else jnp.asarray(log_prior, float)
    check_shape("log_prior", log_prior, (len(archs),))
    return evidence_over(model, archs, jax.nn.softmax(log_prior))


def sampled_evidence(
    key: PRNGKey, model: LikelihoodModel, space: Space, samples: int = 2048
) -> Evidence:
    """Average over draws from the prior; the error shrinks as samples^-½."""
    check_whole("samples", samples, 2)
    archs = space.sample(key, samples)
    return weighted_evidence(model, archs, jnp.full(samples, 1 / samples), sampled=True)


def drawn_evidence(
    log_likelihoods: ArrayLike,
    log_draw_probabilities: ArrayLike,
    size: int,
    mask: ArrayLike | None = None,
    temperature: ArrayLike = TEMPERATURE,
) -> Evidence:
    """Estimate the evidence without a surrogate, from n architectures drawn one after another.

    Each is drawn from those not drawn before, of a space of `size` equally likely ones, with a
    probability q_n that may depend on all that came before. Then

        t_n = Σ_{i<n} π ℓ_i + π ℓ_n / q_n

    is an unbiased estimate of Z for every n (Des Raj 1956), and so is their average, here with
    weights proportional to n: later draws are better informed. The t_n are uncorrelated, and so
    their scatter gives the error. With uniform draws this is Monte Carlo without replacement.

    Args:
        log_likelihoods: n, in the order of drawing, summed over the validation points; NaN marks
            a failure, which has likelihood 0.
        log_draw_probabilities: n, log q_n.
        size: of the space.
        mask: n, false for padding at the end.
        temperature: divides the log-likelihoods.

    Returns:
        An `Evidence` without posterior error.

    Example:
        >>> likelihoods = jnp.array([0.1, 0.2, 0.6])  # drawn in proportion: each t_n is exact
        >>> left = jnp.array([0.9, 0.8, 0.6])
        >>> z = drawn_evidence(jnp.log(likelihoods), jnp.log(likelihoods / left), 3, temperature=1)
        >>> round(float(jnp.exp(z.log_evidence)), 3), bool(z.sampling_sd < 1e-3)
        (0.3, True)
    """
    tempered = jnp.asarray(log_likelihoods, float) / temperature
    log_q = jnp.asarray(log_draw_probabilities, float)
    check_shape("log_likelihoods", tempered, (None,))
    check_shape("log_draw_probabilities", log_q, tempered.shape)
    check_whole("size", size, 1)
    check_positive("temperature", temperature)
    mask = jnp.ones(len(tempered), bool) if mask is None else jnp.asarray(mask)
    check_mask("mask", mask, len(tempered))
    return _drawn_evidence(tempered, log_q, mask, size)


@functools.partial(jax.jit, static_argnums=3)
def _drawn_evidence(
    tempered: Float[Array, " n"], log_q: Float[Array, " n"], mask: Bool[Array, " n"], size: int
) -> Evidence:
    usable = mask & jnp.isfinite(tempered)
    log_scale = jnp.max(tempered, where=usable, initial=-jnp.inf)
    log_scale = jnp.where(jnp.isfinite(log_scale), log_scale, 0)
    mass = jnp.where(usable, jnp.exp(tempered - log_scale), 0) / size
    estimates = jnp.cumsum(mass) - mass + mass * jnp.exp(-jnp.where(mask, log_q, 0))
    weights = jnp.where(mask, jnp.arange(1, len(mass) + 1), 0).astype(mass.dtype)
    weights /= jnp.maximum(jnp.sum(weights), 1)
    mean = jnp.sum(weights * estimates)
    scatter = jnp.sum(weights**2 * (estimates - mean) ** 2)
    return _in_logarithms(
        mean,
        log_scale,
        posterior_variance=jnp.zeros_like(mean),
        sampling_variance=jnp.where(jnp.sum(mask) > 1, scatter, jnp.inf),
        status=flag(~(mean > 0), Status.EMPTY)
        | flag(jnp.any(mask & ~usable), Status.MASKED_TARGETS),
    )


def _in_logarithms(
    mean: Float[Array, ""],
    log_scale: Float[Array, ""],
    posterior_variance: Float[Array, ""],
    sampling_variance: Float[Array, ""],
    status: Int32[Array, ""],
) -> Evidence:
    """Report an estimate of Z, in units of exp(`log_scale`), whose mean may not be positive."""
    positive = mean > 0
    safe = jnp.where(positive, mean, 1)

    def relative(variance: Float[Array, ""]) -> Float[Array, ""]:
        return jnp.where(positive, jnp.sqrt(jnp.maximum(variance, 0)) / safe, jnp.inf)

    return Evidence(
        log_evidence=jnp.where(positive, log_scale + jnp.log(safe), -jnp.inf),
        posterior_sd=relative(posterior_variance),
        sampling_sd=relative(sampling_variance),
        status=status,
    )


def log_posterior(
    log_likelihoods: ArrayLike,
    log_prior: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    temperature: ArrayLike = TEMPERATURE,
) -> Float[Array, " n"]:
    """Return the log posterior probability of n candidates: log p(D|α)/T + log p(α), normalised.

    Candidates with a false mask, or whose likelihood is no number, have −inf; if
    none is left, all have.

    Example:
        >>> jnp.exp(log_posterior(jnp.array([-5e4, -5e4, -9e4]))).round(3).tolist()
        [0.5, 0.5, 0.0]
    """
    log_likelihoods = jnp.asarray(log_likelihoods, float)
    check_shape("log_likelihoods", log_likelihoods, (None,))
    check_positive("temperature", temperature)
    scores = log_likelihoods / temperature
    if log_prior is not None:
        log_prior = jnp.asarray(log_prior, float)
        check_shape("log_prior", log_prior, scores.shape)
        scores = scores + log_prior
    usable = scores < jnp.inf  # neither is NaN
    if mask is not None:
        check_shape("mask", jnp.asarray(mask), scores.shape)
        usable &= jnp.asarray(mask)
    scores = jnp.where(usable, scores, -jnp.inf)
    total = jax.nn.logsumexp(scores)
    return scores - jnp.where(jnp.isfinite(total), total, 0)


def quadrature_weights(
    model: LikelihoodModel, archs: ArrayLike, weights: ArrayLike
) -> Float[Array, " n"]:
    """Return w with E[Z] = Σ w_n ℓ_n under the plain GP, ℓ_n its n (padded) targets.

    w = (K + ρI)⁻¹ Σ_α π(α) k(A, α); the sum runs over `archs` [m, length] with `weights` [m].
    """
    if model.warp != "none":
        raise BQNESError(
            f"warp is {model.warp!r}; only the plain GP (warp='none') is linear in the likelihoods."
        )
    archs, weights = _weighted(model, archs, weights)
    return _quadrature_weights(model.latent, archs, weights)


def _weighted(
    model: LikelihoodModel, archs: ArrayLike, weights: ArrayLike
) -> tuple[Num[Array, "m length"], Float[Array, " m"]]:
    archs, weights = as_rows(model.latent.kernel, archs), jnp.asarray(weights, float)
    check_shape("weights", weights, archs.shape[:1])
    check_distribution("weights", weights)
    return jnp.asarray(archs), weights


@functools.partial(jax.jit, static_argnames="sampled")
def weighted_evidence(
    model: LikelihoodModel,
    archs: Num[Array, "m length"],
    weights: Float[Array, " m"],
    sampled: bool,
) -> Evidence:
    """Sum over architectures that have been checked; `sampled` where they are prior draws."""
    latent = gp.predict(model.latent, archs)
    values = wsabi.unwarp(model, latent).mean
    mean = jnp.sum(weights * values)
    spread = jnp.sum(weights * (values - mean) ** 2)
    sampling_variance = spread / (len(weights) - 1) if sampled else jnp.zeros_like(mean)

    tilted = weights * wsabi.slope(model, latent.mean)
    variance = _double_sum(model.latent, archs, tilted)
    if model.warp == "moment":
        variance += _double_sum(model.latent, archs, weights, squared=True) / 2

    status = model.status | flag(~(mean > 0), Status.NEGATIVE)
    return _in_logarithms(mean, model.log_scale, variance, sampling_variance, status)


def _double_sum(
    posterior: Posterior,
    archs: Num[Array, "m length"],
    weights: Float[Array, " m"],
    squared: bool = False,
) -> Float[Array, ""]:
    """Return Σ_i Σ_j w_i w_j Σ_ij, or with Σ_ij², Σ the posterior covariance."""
    basis = gp.posterior_basis(posterior, archs)
    # wᵀB first: a vector, where B·factor would be a matrix of all architectures.
    explained = jnp.sum(matmul(posterior.factor.T, matmul(basis.T, weights)) ** 2)
    if posterior.weight_space and not squared:
        return explained
    if is_finite(posterior.kernel) and not squared:
        prior = jnp.sum(matmul(posterior.kernel.features(archs).T, weights) ** 2)
        return posterior.hyperparameters.amplitude * prior - explained
    half = matmul(basis, posterior.factor)
    if posterior.weight_space:
        return jnp.sum(matmul(half.T * weights, half) ** 2)

    rows = min(_ROWS, len(weights))
    blocks = -(-len(weights) // rows)
    padding = blocks * rows - len(weights)

    def blocked(array: Array) -> Array:
        widths = [(0, padding)] + [(0, 0)] * (array.ndim - 1)
        return jnp.pad(array, widths).reshape(blocks, rows, *array.shape[1:])

    def block(part: tuple[Array, Array, Array]) -> Float[Array, ""]:
        some_archs, some_half, some_weights = part
        prior = posterior.hyperparameters.amplitude * posterior.kernel.cross(some_archs, archs)
        covariance = prior - matmul(some_half, half.T)
        return some_weights @ matmul(covariance**2 if squared else covariance, weights)

    return jnp.sum(lax.map(block, (blocked(archs), blocked(half), blocked(weights))))


@jax.jit
def _quadrature_weights(
    posterior: Posterior, archs: Num[Array, "m length"], weights: Float[Array, " m"]
) -> Float[Array, " n"]:
    kernel_mean = matmul(gp.posterior_basis(posterior, archs).T, weights)
    solved = matmul(posterior.factor, matmul(posterior.factor.T, kernel_mean))
    if not posterior.weight_space:  # factor·factorᵀ = a (K + ρI)⁻¹
        return solved / posterior.hyperparameters.amplitude
    # Push-through: (K + ρI)⁻¹Ψ = Ψ(ΨᵀΨ + ρI)⁻¹, and factor·factorᵀ = σ² (ΨᵀΨ + ρI)⁻¹.
    features = masked_features(posterior.kernel, posterior.design)
    return matmul(features, solved) / posterior.hyperparameters.noise
