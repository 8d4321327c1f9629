"""What every surrogate offers to acquisition: a prediction, and what one more point would change.

Both functions dispatch on the type of the surrogate.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float

from bqnes_jax.errors import BQNESError, check_finite, check_mask, check_shape
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
    archs, targets = (x if isinstance(x, jax.Array) else np.asarray(x) for x in (archs, targets))
    checked = as_rows(kernel, archs)
    check_shape(name, targets, archs.shape[:1])
    mask = np.ones(len(archs), bool) if mask is None else mask
    mask = mask if isinstance(mask, jax.Array) else np.asarray(mask)
    check_mask("mask", mask, len(archs))
    check_finite(name, targets, where=mask)
    return Design(jnp.asarray(checked), jnp.asarray(targets, float), jnp.asarray(mask))


def as_rows(kernel: Kernel, archs: ArrayLike) -> jax.Array | np.ndarray:
    """Check architectures [n, length], and their entries if the kernel names a space."""
    archs = archs if isinstance(archs, jax.Array) else np.asarray(archs)
    if archs.ndim != 2:
        raise BQNESError(
            f"architectures have shape {archs.shape}; it must be (n, length), one row for each."
        )
    return as_architectures(kernel.space, archs) if hasattr(kernel, "space") else archs
