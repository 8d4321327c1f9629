"""The scale of the likelihood: how much a validation set counts, and what that leaves to average.

A log-likelihood summed over n points is divided by a temperature T, so that the n points count as
c = n/T independent observations. A small c makes the posterior over architectures nearly uniform,
a large one makes it a single architecture; its effective sample size tells which it is.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float

from bqnes_jax.errors import BQNESError, check_mask, check_positive, check_shape
from bqnes_jax.surrogates import TEMPERATURE

# What the published temperature makes of the 5,000 validation images of CIFAR-100.
OBSERVATIONS = 5_000 / TEMPERATURE

_HALVINGS = 60


def scale_temperature(points: int | None, *, observations: float = OBSERVATIONS) -> float:
    """Return the T at which so many validation points count as so many observations, T = n/c.

    Where the number of points is not known (None), that is the published 128.

    Example:
        >>> scale_temperature(5_000), scale_temperature(600)
        (128.0, 15.36)
    """
    check_positive("observations", observations)
    return TEMPERATURE if points is None else points / observations


def effective_size(log_posterior: ArrayLike) -> Float[Array, ""]:
    """Return 1/Σμ²: how many equally likely candidates a posterior μ over n of them is worth.

    It is n where all are equally likely, 1 where one has all the mass, and 0 where there is none.
    The logarithms of μ need not be normalised.

    Example:
        >>> round(effective_size(jnp.log(jnp.array([0.5, 0.25, 0.25]))).item(), 3)
        2.667
    """
    log_posterior = jnp.asarray(log_posterior, float)
    check_shape("log_posterior", log_posterior, (None,))
    return _effective_size(log_posterior)


def choose_temperature(
    log_likelihoods: ArrayLike,
    *,
    effective: float = 0.3,
    mask: ArrayLike | None = None,
    otherwise: ArrayLike = TEMPERATURE,
) -> Float[Array, ""]:
    """Choose the T at which the posterior over n candidates has a given effective sample size.

    The effective sample size grows with T, from the number of candidates that share the largest
    log-likelihood to n, so that there is one such T; bisection finds it.

    Args:
        log_likelihoods: n, summed over the validation points; what is not finite does not count.
        effective: the effective sample size, as a share of the candidates that count; below 1.
        mask: n, false for padding.
        otherwise: what is returned if there is no such T: all are alike, or too few count.

    Returns:
        The temperature.

    Example:
        >>> tempered = jnp.log(jnp.array([0.5, 0.25, 0.25]))  # worth 2.667 of 3
        >>> choose_temperature(7 * tempered, effective=2.6667 / 3).round(2).item()
        7.0
    """
    values = jnp.asarray(log_likelihoods, float)
    check_shape("log_likelihoods", values, (None,))
    check_positive("otherwise", otherwise)
    if not 0 < effective < 1:
        raise BQNESError(f"effective is {effective!r}; it must be between 0 and 1, a share.")
    mask = jnp.asarray(np.ones(len(values), bool) if mask is None else mask)
    check_mask("mask", mask, len(values))
    return _choose_temperature(values, mask, effective, jnp.asarray(otherwise, values.dtype))


@jax.jit
def _effective_size(scores: Float[Array, " n"]) -> Float[Array, ""]:
    largest = jnp.max(scores, initial=-jnp.inf)
    weights = jnp.exp(scores - jnp.where(jnp.isfinite(largest), largest, 0))
    return jnp.sum(weights) ** 2 / jnp.maximum(jnp.sum(weights**2), 1)  # the largest is 1, if any


@jax.jit
def _choose_temperature(
    values: Float[Array, " n"],
    mask: Bool[Array, " n"],
    effective: ArrayLike,
    otherwise: Float[Array, ""],
) -> Float[Array, ""]:
    counts = mask & jnp.isfinite(values)
    best = jnp.max(values, where=counts, initial=-jnp.inf)
    short = jnp.where(counts, best - values, jnp.inf)
    widest = jnp.max(short, where=counts, initial=0)
    nearest = jnp.min(short, where=short > 0, initial=jnp.inf)
    wanted = effective * jnp.sum(counts)
    possible = (widest > 0) & (jnp.sum(short == 0) < wanted)

    def halve(_, ends):
        middle = jnp.mean(jnp.stack(ends))
        enough = _effective_size(-short / jnp.exp(middle)) >= wanted
        return jnp.where(enough, ends[0], middle), jnp.where(enough, middle, ends[1])

    # At the lower end only ties are left; at the upper all weights are within a factor √effective.
    ends = jnp.where(possible, nearest / 50, 1), jnp.where(possible, widest, 1)
    upper = jnp.log(ends[1]) + jnp.log(2 / -jnp.log(jnp.asarray(effective, values.dtype)))
    low, high = lax.fori_loop(0, _HALVINGS, halve, (jnp.log(ends[0]), upper))
    return jnp.where(possible, jnp.exp((low + high) / 2), otherwise)
