"""What Flax modules of several networks have in common: batch norms and initial kernels."""

import math
from typing import cast

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike
from jaxtyping import Array

from bqnes_jax.models.norms import MOMENTUM, normalise, normalise_batch
from bqnes_jax.models.shifts import Activations


def batch_norm(module: nn.Module, x: Activations, train: bool) -> Activations:
    """Normalise by the module's running statistics, or in training by those of the batch."""
    weight, bias, mean, var = norm_variables(module, x.shape[:1])
    if not train:
        return normalise(x, mean, var, weight, bias)
    normalised = normalise_batch(x, weight, bias)
    x, mean, var = cast(tuple[Array, Array, Array], normalised)
    track(module, mean, var, x[0].size)
    return x


def norm_variables(module: nn.Module, shape: tuple[int, ...]) -> tuple[Array, ...]:
    """Declare weight, bias, running mean and running variance of batch norms."""
    ones, zeros = jnp.ones(shape), jnp.zeros(shape)
    return (
        module.param("weight", lambda _: ones),
        module.param("bias", lambda _: zeros),
        module.variable("batch_stats", "running_mean", lambda: zeros).value,
        module.variable("batch_stats", "running_var", lambda: ones).value,
    )


def track(
    module: nn.Module, mean: Array, var: Array, count: int, *, chosen: ArrayLike = True
) -> None:
    """Move the running statistics towards those of a batch, only where chosen.

    As in PyTorch the variance is then the unbiased one, unlike that which normalises the batch.
    """
    for name, new in (("running_mean", mean), ("running_var", var * count / max(count - 1, 1))):
        old = module.get_variable("batch_stats", name)
        new = (1 - MOMENTUM) * old + MOMENTUM * lax.stop_gradient(new)
        module.put_variable("batch_stats", name, jnp.where(chosen, new, old))


def uniform(inputs: int):
    """Initialise as PyTorch does: uniformly within 1/√inputs."""
    bound = 1 / math.sqrt(inputs)
    return lambda key, shape: jax.random.uniform(key, shape, minval=-bound, maxval=bound)
