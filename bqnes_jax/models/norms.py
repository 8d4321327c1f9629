"""Batch norms of activations [channels, height, width, n], as in PyTorch."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from bqnes_jax.models.shifts import Activations

EPSILON, MOMENTUM = 1e-5, 0.1  # PyTorch's, whose momentum is that of the new value


def find_moments(x: Activations) -> tuple[Float[Array, " channels"], Float[Array, " channels"]]:
    """Return mean and variance of each channel over the batch, in float32 at least."""
    x = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    mean = jnp.mean(x, axis=(1, 2, 3))
    return mean, jnp.mean((x - along(mean, x)) ** 2, axis=(1, 2, 3))


@jax.custom_vjp
def normalise_batch(
    x: Activations, weight: Float[Array, " channels"], bias: Float[Array, " channels"]
) -> tuple[Activations, Float[Array, " channels"], Float[Array, " channels"]]:
    """Normalise a batch by its own moments, and return these as constants."""
    mean, var = find_moments(x)
    return normalise(x, mean, var, weight, bias), mean, var


def _normalise_batch_forward(x, weight, bias):
    normalised, mean, var = normalise_batch(x, weight, bias)
    return (normalised, mean, var), (x, mean, var, weight)


def _normalise_batch_backward(residuals, gradients):
    x, mean, var, weight = residuals
    return pull_norm(x, mean, var, weight, gradients[0])


normalise_batch.defvjp(_normalise_batch_forward, _normalise_batch_backward)


def pull_norm(
    x: Activations,
    mean: Float[Array, " channels"],
    var: Float[Array, " channels"],
    weight: Float[Array, " channels"],
    gradient: Activations,
) -> tuple[Activations, Float[Array, " channels"], Float[Array, " channels"]]:
    """Return the gradients of a batch norm by its input, weight and bias.

    With x̂ = (x − mean)·s, s = 1/√(var + ε), and g the gradient by the output, they are
    weight·s·(g − Σg/n − x̂·Σgx̂/n), Σgx̂ and Σg: two passes, where JAX's own would make more.
    """
    scale = lax.rsqrt(var + EPSILON)
    g = gradient.astype(var.dtype)
    normal = (x.astype(var.dtype) - along(mean, x)) * along(scale, x)
    by_bias, by_weight = jnp.sum(g, axis=(1, 2, 3)), jnp.sum(g * normal, axis=(1, 2, 3))
    count = x[0].size
    centred = g - along(by_bias / count, x) - normal * along(by_weight / count, x)
    by_x = (along(weight * scale, x) * centred).astype(x.dtype)
    return by_x, by_weight.astype(weight.dtype), by_bias.astype(weight.dtype)


def normalise(
    x: Activations,
    mean: Float[Array, " channels"],
    var: Float[Array, " channels"],
    weight: Float[Array, " channels"],
    bias: Float[Array, " channels"],
) -> Activations:
    """Scale each channel to mean 0 and variance 1 by these moments, then by weight and bias."""
    scale = weight * lax.rsqrt(var + EPSILON)
    return ((x - along(mean, x)) * along(scale, x) + along(bias, x)).astype(x.dtype)


def along(values: ArrayLike, x: Array, *, axis: int = 0) -> Array:
    """Give a vector the number of axes of x, itself along one of them."""
    values = jnp.asarray(values)
    return values.reshape((1,) * axis + (-1,) + (1,) * (x.ndim - axis - 1))
