"""What it all adds up to: the evidence Z = Σ_α π(α) ℓ(α) under a surrogate of the likelihood.

    WSABI-L:   E[Z] = β + ½ Σ π μ²          Var[Z] = ΣΣ π π' μ Σ μ'
    WSABI-M:   E[Z] = β + ½ Σ π (μ² + Σ)    Var[Z] = ΣΣ π π' (μ Σ μ' + ½ Σ²)
    plain GP:  E[Z] = Σ π μ                 Var[Z] = ΣΣ π π' Σ
    logarithm: E[Z] = Σ π m, m = exp(μ − d) Var[Z] = ΣΣ π π' m Σ m'

The sums run over the whole space, or over draws from the prior (Monte Carlo kernel means).
"""

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int32, Num

from bqnes_jax.errors import (
    BQNESError,
    check_distribution,
    check_mask,
    check_positive,
    check_shape,
    check_whole,
    concrete,
)
from bqnes_jax.kernels.base import matmul
from bqnes_jax.spaces.base import Architectures, Space, enumerate_space
from bqnes_jax.surrogates import TEMPERATURE, LikelihoodModel, Posterior, Surrogate, gp
from bqnes_jax.surrogates.base import as_rows
from bqnes_jax.surrogates.solve import masked_features
from bqnes_jax.types import PRNGKey, Status, flag

_SLACK = 1e-4  # how much rounding may lift a probability, or its logarithm, above what it can be


class Evidence(NamedTuple):
    """log Ẑ of the tempered likelihood, and how sure of it we are.

    `posterior_sd` is the surrogate's standard deviation of Z, `sampling_sd` the Monte Carlo error
    of its mean (zero where the sum is exact); both relative to Ẑ, so to first order those of log Ẑ.
    A mean that is not positive has `log_evidence` −inf, infinite errors and Status.NEGATIVE. An
    error beyond the numbers of its type is infinite, too.
    """

    log_evidence: Float[Array, ""]
    posterior_sd: Float[Array, ""]
    sampling_sd: Float[Array, ""]
    status: Int32[Array, ""]


def evidence_over(model: Surrogate, archs: ArrayLike, weights: ArrayLike) -> Evidence:
    """Sum over m architectures [m, length] with prior probabilities `weights` [m]."""
    archs, weights = _weigh(model, archs, weights)
    return weighted_evidence(model, archs, weights, sampled=False)


def exact_evidence(
    model: Surrogate, space: Space, *, log_prior: ArrayLike | None = None
) -> Evidence:
    """Sum over every architecture of a space; `log_prior` [size] is uniform unless given.

    Example:
        >>> from bqnes_jax.kernels import WL
        >>> from bqnes_jax.spaces import NATS
        >>> from bqnes_jax.surrogates import wsabi
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
    key: PRNGKey,
    model: Surrogate,
    space: Space,
    *,
    samples: int = 2048,
    prior: Callable[[Architectures], Float[Array, " n"]] | None = None,
) -> Evidence:
    """Average over uniform draws; the error shrinks as samples^-½.

    With a `prior`, a function of architectures that returns their log-weights, the draws are
    weighted by it, and the weights normalised.
    """
    check_whole("samples", samples, 2)
    archs = space.sample(key, samples)
    equal = jnp.full(samples, 1 / samples)
    weights = equal if prior is None else jax.nn.softmax(prior(archs))
    return weighted_evidence(model, archs, weights, sampled=True)


def drawn_evidence(
    log_likelihoods: ArrayLike,
    log_draw_probabilities: ArrayLike,
    size: int,
    *,
    log_prior: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    temperature: ArrayLike = TEMPERATURE,
) -> Evidence:
    """Estimate the evidence without a surrogate, from n architectures drawn one after another.

    Each is drawn from those not drawn before, of a space of `size`, with a probability q_n that
    may depend on all that came before. Then

        t_n = Σ_{i<n} π_i ℓ_i + π_n ℓ_n / q_n

    is an unbiased estimate of Z for every n (Des Raj 1956), and so is their average, here with
    weights proportional to n: later draws are better informed. The t_n are uncorrelated, and so
    their scatter gives the error. With uniform draws this is Monte Carlo without replacement.

    Args:
        log_likelihoods: n, in the order of drawing, summed over the validation points; NaN marks
            a failure, which has likelihood 0. Of an asynchronous search that is not the order of
            its history, but `elastic.Found.asking_order`.
        log_draw_probabilities: n, log q_n, finite and at most 0.
        size: of the space.
        log_prior: n, log π_n, normalised over the space; by default all of it is equally likely.
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
    name, range_of = "log_draw_probabilities", (-math.inf, 0.0)
    drawn = _as_drawn(log_likelihoods, name, log_draw_probabilities, range_of, mask, size)
    if log_prior is not None:
        log_prior = jnp.asarray(log_prior, float)
        check_shape("log_prior", log_prior, drawn.log_likelihoods.shape)
        drawn = drawn._replace(log_prior=log_prior)
    check_positive("temperature", temperature)
    return _drawn_evidence(drawn, jnp.asarray(temperature, float), size)


def included_evidence(
    log_likelihoods: ArrayLike,
    inclusion: ArrayLike,
    size: int,
    *,
    mask: ArrayLike | None = None,
    temperature: ArrayLike = TEMPERATURE,
    predicted: tuple[ArrayLike, ArrayLike] | None = None,
) -> Evidence:
    """Estimate the evidence without a surrogate, from n architectures drawn with known chances.

    With P_n the probability that an architecture is among the n at all, Ẑ = Σ π ℓ_n / P_n is
    unbiased (Horvitz and Thompson 1952). Its error, for n that is fixed, is by Deville (1999):

        n/(n−1) Σ (1 − P_n) (π ℓ_n / P_n − B)²,    B = Σ (1 − P) π ℓ / P / Σ (1 − P).

    `candidates.inclusion_probabilities` approximates P_n of draws that depend on what came before.

    Where a surrogate predicts m_n for each from the others, and M = Σ π m over the whole space, the
    estimate is Ẑ M / (Σ π m_n / P_n): what the draws make of the surrogate's sum, which is known,
    corrects what they make of Z. Its error is that of ℓ_n − (Ẑ / Σ π m_n / P_n) m_n.

    Args:
        log_likelihoods: n, summed over the validation points; NaN marks a failure, which has
            likelihood 0.
        inclusion: n, the probabilities P_n, above 0 and at most 1.
        size: of the space, whose architectures are equally likely.
        mask: n, false for padding.
        temperature: divides the log-likelihoods.
        predicted: n, the logarithms of m_n, in any unit; and the logarithm of M in the same.

    Returns:
        An `Evidence` without posterior error.

    Example:
        >>> everything = jnp.log(jnp.array([0.1, 0.2, 0.6]))
        >>> z = included_evidence(everything, jnp.ones(3), 3, temperature=1)
        >>> round(float(jnp.exp(z.log_evidence)), 3), float(z.sampling_sd)
        (0.3, 0.0)
    """
    drawn = _as_drawn(log_likelihoods, "inclusion", inclusion, (0.0, 1.0), mask, size)
    check_positive("temperature", temperature)
    if predicted is not None:
        predicted = jnp.asarray(predicted[0], float), jnp.asarray(predicted[1], float)
        check_shape("predicted[0]", predicted[0], drawn.mask.shape)
    return _included_evidence(drawn, jnp.asarray(temperature, float), size, predicted)


class _Drawn(NamedTuple):
    """Architectures that were drawn, and a probability of each."""

    log_likelihoods: Float[Array, " n"]
    probabilities: Float[Array, " n"]  # or their logarithms; 1 for padding
    mask: Bool[Array, " n"]
    impossible: Bool[Array, ""]  # whether something is no probability
    log_prior: Float[Array, " n"] | None = None  # equal

    def log_masses(self, temperature: Float[Array, ""], size: int):
        """Return log π ℓ of each, −∞ where there is no likelihood, and whether one is missing."""
        tempered = self.log_likelihoods / temperature
        finite = self.mask & jnp.isfinite(tempered)
        log_prior = -math.log(size) if self.log_prior is None else self.log_prior
        log_mass = jnp.where(finite, tempered, -jnp.inf) + log_prior
        return log_mass, jnp.any(self.mask & ~finite)


def _as_drawn(
    log_likelihoods: ArrayLike,
    name: str,
    values: ArrayLike,
    range_of: tuple[float, float],
    mask: ArrayLike | None,
    size: int,
) -> _Drawn:
    """Check what was drawn; the probabilities are above the one end, at most the other."""
    log_likelihoods, values = jnp.asarray(log_likelihoods, float), jnp.asarray(values, float)
    check_shape("log_likelihoods", log_likelihoods, (None,))
    check_shape(name, values, log_likelihoods.shape)
    check_whole("size", size, 1)
    mask = jnp.ones(len(values), bool) if mask is None else jnp.asarray(mask)
    check_mask("mask", mask, len(values))
    low, high = range_of
    possible = ~mask | ((values > low) & (values <= high + _SLACK))
    known = concrete(possible)
    if known is not None and not known.all():
        place = int(np.flatnonzero(~known)[0])
        raise BQNESError(
            f"{name}[{place}] is {values[place]}; it must be above {low:g} and at most {high:g}: "
            "what was drawn had a probability, and padding is masked out."
        )
    probabilities = jnp.where(mask & possible, jnp.minimum(values, high), high)
    return _Drawn(log_likelihoods, probabilities, mask, jnp.any(~possible))


@functools.partial(jax.jit, static_argnums=2)
def _drawn_evidence(drawn: _Drawn, temperature: Float[Array, ""], size: int) -> Evidence:
    mask = drawn.mask
    log_mass, failed = drawn.log_masses(temperature, size)
    mass, raised, log_scale, lost = _in_one_unit(log_mass, drawn.probabilities)
    estimates = jnp.cumsum(mass) - mass + raised
    weights = jnp.where(mask, jnp.arange(1, len(mass) + 1), 0).astype(mass.dtype)
    weights /= jnp.maximum(jnp.sum(weights), 1)
    mean = jnp.sum(weights * estimates)
    scatter = jnp.sum(weights**2 * (estimates - mean) ** 2)
    return _of_draws(drawn, mean, scatter, log_scale, failed | lost)


@functools.partial(jax.jit, static_argnums=2)
def _included_evidence(
    drawn: _Drawn,
    temperature: Float[Array, ""],
    size: int,
    predicted: tuple[Float[Array, " n"], Float[Array, ""]] | None,
) -> Evidence:
    inclusion, count = drawn.probabilities, jnp.sum(drawn.mask)
    log_mass, failed = drawn.log_masses(temperature, size)
    _, terms, log_scale, lost = _in_one_unit(log_mass, jnp.log(inclusion))
    failed |= lost
    mean = jnp.sum(terms)
    if predicted is not None:
        log_each, log_sum = predicted
        share = jnp.where(drawn.mask, jnp.exp(log_each - log_sum), 0) / size / inclusion
        total = jnp.sum(share)  # 1, if the draws were all there is to know of the surrogate's sum
        useful = jnp.isfinite(total) & (total > 0)
        total = jnp.where(useful, total, 1)
        terms = terms - mean * jnp.where(useful, share / total, 0)
        log_scale = log_scale - jnp.log(total)
        failed |= ~useful
    left_out = 1 - inclusion
    total = jnp.sum(left_out)
    centre = jnp.sum(left_out * terms) / jnp.where(total > 0, total, 1)
    scatter = jnp.sum(left_out * (terms - centre) ** 2) * count / jnp.maximum(count - 1, 1)
    return _of_draws(drawn, mean, scatter, log_scale, failed)


def _in_one_unit(
    log_mass: Float[Array, " n"], log_probabilities: Float[Array, " n"]
) -> tuple[Float[Array, " n"], Float[Array, " n"], Float[Array, ""], Bool[Array, ""]]:
    """Return masses, and masses divided by probabilities, in units of the largest quotient.

    No square of them overflows then, however unlikely something was that was drawn. Also returned
    are the logarithm of the unit, and whether a quotient was left out that is no number even so.
    """
    log_raised = log_mass - log_probabilities
    known = log_raised < jnp.inf
    log_scale = jnp.max(log_raised, where=known, initial=-jnp.inf)
    log_scale = jnp.where(jnp.isfinite(log_scale), log_scale, 0)
    mass = jnp.exp(jnp.where(known, log_mass - log_scale, -jnp.inf))
    raised = jnp.exp(jnp.where(known, log_raised - log_scale, -jnp.inf))
    return mass, raised, log_scale, jnp.any(~known)


def _of_draws(
    drawn: _Drawn,
    mean: Float[Array, ""],
    scatter: Float[Array, ""],
    log_scale: Float[Array, ""],
    failed: Bool[Array, ""],
) -> Evidence:
    mean = jnp.where(drawn.impossible, 0, mean)
    return _in_logarithms(
        mean,
        log_scale,
        posterior_variance=jnp.zeros_like(mean),
        sampling_variance=jnp.where(jnp.sum(drawn.mask) > 1, scatter, jnp.inf),
        status=flag(~(mean > 0), Status.EMPTY)
        | flag(failed, Status.MASKED_TARGETS)
        | flag(drawn.impossible, Status.INFEASIBLE),
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
        known = positive & ~jnp.isnan(variance)  # which a sum beyond the largest numbers is
        return jnp.where(known, jnp.sqrt(jnp.maximum(variance, 0)) / safe, jnp.inf)

    return Evidence(
        log_evidence=jnp.where(positive, log_scale + jnp.log(safe), -jnp.inf),
        posterior_sd=relative(posterior_variance),
        sampling_sd=relative(sampling_variance),
        status=status,
    )


def log_posterior(
    log_likelihoods: ArrayLike,
    log_prior: ArrayLike | None = None,
    *,
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
    counted = scores < jnp.inf  # neither is NaN
    if mask is not None:
        check_shape("mask", jnp.asarray(mask), scores.shape)
        counted &= jnp.asarray(mask)
    scores = jnp.where(counted, scores, -jnp.inf)
    total = jax.nn.logsumexp(scores)
    return scores - jnp.where(jnp.isfinite(total), total, 0)


def quadrature_weights(
    model: LikelihoodModel, archs: ArrayLike, weights: ArrayLike
) -> Float[Array, " n"]:
    """Return w with E[Z] = c + Σ w_n (ℓ_n − c) under the plain GP, ℓ_n its n (padded) targets.

    w = (K + ρI)⁻¹ Σ_α π(α) k(A, α), and c is the prior mean; the sum runs over `archs` [m, length]
    with `weights` [m].
    """
    if model.warp != "none":
        raise BQNESError(
            f"warp is {model.warp!r}; only the plain GP (warp='none') is linear in the likelihoods."
        )
    archs, weights = _weigh(model, archs, weights)
    return rule_of(model.latent, archs, weights)


def _weigh(
    model: Surrogate, archs: ArrayLike, weights: ArrayLike
) -> tuple[Num[Array, "m length"], Float[Array, " m"]]:
    archs, weights = as_rows(model.kernel, archs), jnp.asarray(weights, float)
    check_shape("weights", weights, archs.shape[:1])
    check_distribution("weights", weights)
    return jnp.asarray(archs), weights


@functools.partial(jax.jit, static_argnames="sampled")
def weighted_evidence(
    model: Surrogate,
    archs: Num[Array, "m length"],
    weights: Float[Array, " m"],
    sampled: bool,
) -> Evidence:
    """Sum over architectures that have been checked; `sampled` where they are uniform draws.

    The Monte Carlo error is that of a ratio of two averages, to first order.
    """
    values, variance = model.weighted_sum(archs, weights)
    mean = jnp.sum(weights * values)
    draws = len(weights)
    spread = draws / max(draws - 1, 1) * jnp.sum((weights * (values - mean)) ** 2)
    sampling_variance = spread if sampled else jnp.zeros_like(mean)
    status = model.status | flag(~(mean > 0), Status.NEGATIVE)
    return _in_logarithms(mean, model.log_scale, variance, sampling_variance, status)


@jax.jit
def rule_of(
    posterior: Posterior, archs: Num[Array, "m length"], weights: Float[Array, " m"]
) -> Float[Array, " n"]:
    """Return (K + ρI)⁻¹ Σ_α π(α) k(A, α) for the design A of a process, whatever was observed."""
    kernel_mean = matmul(weights, gp.posterior_basis(posterior, archs))
    solved = matmul(posterior.factor, matmul(posterior.factor.T, kernel_mean))
    if not posterior.weight_space:  # factor·factorᵀ = a (K + ρI)⁻¹
        return solved / posterior.hyperparameters.amplitude
    # Push-through: (K + ρI)⁻¹Ψ = Ψ(ΨᵀΨ + ρI)⁻¹, and factor·factorᵀ = σ² (ΨᵀΨ + ρI)⁻¹.
    features = masked_features(posterior.kernel, posterior.design)
    return matmul(features, solved) / posterior.hyperparameters.noise
