"""What every surrogate offers to acquisition: a prediction, and what one more point would change.

Both functions dispatch on the type of the surrogate; a surrogate of your own registers itself with
`predict.register` and `fantasise.register`.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float

from bqnes_jax.errors import BQNESError, check_finite, check_shape
from bqnes_jax.kernels.base import Kernel
from bqnes_jax.spaces.base import as_architectures


class Prediction(NamedTuple):
    """Mean [n] and variance [n] (or covariance [n, n]) at n architectures."""

    mean: Float[Array, " n"]
    variance: Float[Array, " n"] | Float[Array, "n n"]


class Hyperparameters(NamedTuple):
    """Variance of the function (times the kernel) and of the observation noise."""

    amplitude: ArrayLike = 1.0
    noise: ArrayLike = 1e-3


@functools.singledispatch
def predict(surrogate, archs: ArrayLike, full_covariance: bool = False) -> Prediction:
    """Return the moments of what the surrogate models, at n architectures."""
    raise BQNESError(f"{type(surrogate).__name__} is not a surrogate; fit one with gp or wsabi.")


@functools.singledispatch
def fantasise(surrogate, archs: ArrayLike, mask: ArrayLike | None = None):
    """Return the surrogate as if q architectures had been observed at their predicted means."""
    raise BQNESError(f"{type(surrogate).__name__} is not a surrogate; fit one with gp or wsabi.")


class Design(NamedTuple):
    """Architectures and what was observed at them, padded: only where the mask is true."""

    archs: Array
    targets: Float[Array, " n"]
    mask: Bool[Array, " n"]


def as_design(
    kernel: Kernel, archs: ArrayLike, targets: ArrayLike, mask: ArrayLike | None, name: str
) -> Design:
    """Convert a design set, and refuse one whose shapes do not fit or whose values are not finite.

    Traced values cannot be looked at: what is not finite is then left out by the mask.
    """
    # NumPy until all is checked, so that bad input compiles nothing.
    archs, targets, mask = (
        array if isinstance(array, jax.Array) else np.asarray(array)
        for array in (archs, targets, np.ones(len(archs), bool) if mask is None else mask)
    )
    if archs.ndim != 2:
        raise BQNESError(
            f"architectures have shape {archs.shape}; it must be (n, length), one row for each."
        )
    check_shape(name, targets, archs.shape[:1])
    check_shape("mask", mask, archs.shape[:1])
    if mask.dtype != bool:
        raise BQNESError(f"mask has type {mask.dtype}; it must be bool, true where observed.")
    check_finite(name, targets, where=mask)
    if hasattr(kernel, "space"):
        archs = as_architectures(kernel.space, archs)
    return Design(jnp.asarray(archs), jnp.asarray(targets, float), jnp.asarray(mask))
