"""Errors of a surrogate: regression metrics."""

from functools import partial

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from bqnes_jax.errors import BQNESError, check_positive, concrete
from bqnes_jax.metrics.base import check_columns


def rmse(predictions: ArrayLike, targets: ArrayLike, *, normalised: bool = True) -> jax.Array:
    """Return the root mean squared error, over the size of the mean target if `normalised`.

    sqrt((1/n) Σ_i (m_i - t_i)²) / |(1/n) Σ_i t_i|, for predictions and targets of shape (n,).

    Example:
        >>> predictions, targets = jnp.array([1.0, 5.0]), jnp.array([2.0, 6.0])
        >>> float(rmse(predictions, targets)), float(rmse(predictions, targets, normalised=False))
        (0.25, 1.0)
    """
    predictions, targets = check_columns(predictions=predictions, targets=targets)
    values = concrete(targets)
    # A subnormal mean is 0 to XLA.
    least = jnp.finfo(targets.dtype).tiny
    if normalised and values is not None and abs(values.mean(dtype=float)) < least:
        raise BQNESError(
            "targets have mean 0, by which nothing can be normalised; use normalised=False."
        )
    return _rmse(predictions, targets, normalised)


def nlpd(means: ArrayLike, variances: ArrayLike, targets: ArrayLike) -> jax.Array:
    """Return the negative log predictive density of independent Gaussians, averaged over points.

    (1/n) Σ_i ½ [log 2πσ²_i + (t_i - m_i)²/σ²_i], for means, variances and targets of shape (n,).

    Example:
        >>> round(float(nlpd(jnp.array([0.0]), jnp.array([1.0]), jnp.array([1.0]))), 4)
        1.4189
    """
    means, variances, targets = check_columns(means=means, variances=variances, targets=targets)
    check_positive("variances", variances)
    return _nlpd(means, variances, targets)


@partial(jax.jit, static_argnames="normalised")
def _rmse(
    predictions: Float[Array, " points"], targets: Float[Array, " points"], normalised: bool
) -> Float[Array, ""]:
    errors = predictions - targets
    largest = jax.lax.stop_gradient(jnp.abs(errors).max())
    perfect = largest == 0
    scale = jnp.where(perfect, 1, largest)  # squares of likelihoods would underflow
    mean_square = ((errors / scale) ** 2).mean()
    # sqrt has no finite derivative at 0: take 0 there, the subgradient at the minimum.
    root = jnp.where(perfect, 0, scale * jnp.sqrt(jnp.where(perfect, 1, mean_square)))
    return root / jnp.abs(targets.mean()) if normalised else root


@jax.jit
def _nlpd(
    means: Float[Array, " points"],
    variances: Float[Array, " points"],
    targets: Float[Array, " points"],
) -> Float[Array, ""]:
    standardised = (targets - means) / jnp.sqrt(variances)
    return (jnp.log(2 * jnp.pi) + jnp.log(variances) + standardised**2).mean() / 2
