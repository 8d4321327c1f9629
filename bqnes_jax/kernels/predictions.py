"""How alike models are by what they predict, for models of which nothing else is known."""

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float

from bqnes_jax.errors import as_float, check_mask, check_shape
from bqnes_jax.kernels.base import matmul


def prediction_gram(log_probs: ArrayLike, *, mask: ArrayLike | None = None) -> Float[Array, "N N"]:
    """Return the Gram matrix between models by their predictions.

    k(a, b) = exp(−H²(a, b) / h), where H² is the squared Hellinger distance between what two models
    say, 1 − Σ_c √(p_a(c|x) p_b(c|x)), averaged over the points, and h its median over the pairs of
    different models. Models that always say the same have k = 1.

    Args:
        log_probs: N×n×C, of all classes.
        mask: N, false for models to leave out; their rows and columns are 0.

    Example:
        >>> said = jnp.log(jnp.array([[[0.9, 0.1]], [[0.9, 0.1]], [[0.1, 0.9]]]))
        >>> [round(float(k), 2) for k in prediction_gram(said)[0]]
        [1.0, 1.0, 0.37]
    """
    log_probs = as_float(log_probs)
    check_shape("log_probs", log_probs, (None, None, None))
    mask = jnp.ones(len(log_probs), bool) if mask is None else jnp.asarray(mask)
    check_mask("mask", mask, len(log_probs))
    return _gram(log_probs, mask)


@jax.jit
def _gram(log_probs: Float[Array, "N n C"], mask: Bool[Array, " N"]) -> Float[Array, "N N"]:
    dtype = jnp.promote_types(log_probs.dtype, jnp.float32)
    count, points, _ = log_probs.shape
    roots = jnp.exp(jnp.where(mask[:, None, None], log_probs, 0).astype(dtype) / 2)
    roots = roots.reshape(count, -1)
    distances = jnp.maximum(1 - matmul(roots, roots.T) / points, 0)
    different = mask & mask[:, None] & ~jnp.eye(count, dtype=bool)
    # Rounding leaves some distance between models that are the same.
    different = different & (distances > 100 * jnp.finfo(dtype).eps)
    scale = jnp.nanmedian(jnp.where(different, distances, jnp.nan))
    gram = jnp.exp(-jnp.where(different, distances, 0) / jnp.where(scale > 0, scale, 1))
    return jnp.where(mask & mask[:, None], gram, 0)
