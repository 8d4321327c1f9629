"""The protocol of a surrogate: what acquisition and evidence ask of what we believe."""

from typing import NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int32

from bqnes_jax.errors import BQNESError, check_finite, check_mask, check_shape, concrete
from bqnes_jax.kernels.base import Kernel
from bqnes_jax.spaces.base import as_architectures


class Prediction(NamedTuple):
    """Mean [n] and variance [n] (or covariance [n, n]) at n architectures."""

    mean: Float[Array, " n"]
    variance: Float[Array, " n"] | Float[Array, "n n"]


class Hyperparameters(NamedTuple):
    """Variance of the function (times the kernel) and of the observation noise; prior mean."""

    amplitude: ArrayLike = 1.0
    noise: ArrayLike = 1e-3
    mean: ArrayLike = 0.0


class Design(NamedTuple):
    """Architectures and what was observed at them, padded: only where the mask is true."""

    archs: Array
    targets: Float[Array, " n"]
    mask: Bool[Array, " n"]


class WeightedSum(NamedTuple):
    """The predicted means of m summands, and the variance of their weighted sum."""

    means: Float[Array, " m"]
    variance: Float[Array, ""]


@runtime_checkable
class Surrogate(Protocol):
    """What is believed about a function of the architecture; a pytree, like everything in it."""

    @property
    def kernel(self) -> Kernel:
        """How alike two architectures are to the surrogate."""
        ...

    @property
    def design(self) -> Design:
        """What it was conditioned on."""
        ...

    @property
    def log_scale(self) -> Float[Array, ""]:
        """The logarithm of the unit in which it predicts."""
        ...

    @property
    def status(self) -> Int32[Array, ""]:
        """What went differently, as `Status` bits."""
        ...

    def predict(self, archs: ArrayLike, *, full_covariance: bool = False) -> Prediction:
        """Return the moments of the function at m architectures."""
        ...

    def fantasise(self, archs: ArrayLike, mask: ArrayLike | None = None) -> "Surrogate":
        """Return the surrogate as if q architectures had been observed at their predicted means."""
        ...

    def weighted_sum(self, archs: ArrayLike, weights: Float[Array, " m"]) -> WeightedSum:
        """Return the moments that a weighted sum over m architectures needs."""
        ...


@runtime_checkable
class Bounded(Protocol):
    """What a surrogate may have besides: bounds of its predictions."""

    def outlook(self, archs: ArrayLike) -> Prediction | None:
        """Return what the moments of `predict` do not exceed, where that is much less work."""
        ...


def as_design(
    kernel: Kernel,
    archs: ArrayLike,
    targets: ArrayLike,
    mask: ArrayLike | None,
    name: str,
    *,
    logarithms: bool = False,
) -> Design:
    """Convert a design set, and refuse one whose shapes do not fit or whose values are not finite.

    Traced values cannot be looked at: what is not finite is then left out by the mask. Where the
    targets are logarithms, −∞ is the logarithm of 0, and allowed.
    """
    # NumPy until all is checked, so that bad input compiles nothing.
    archs, targets = (x if isinstance(x, jax.Array) else np.asarray(x) for x in (archs, targets))
    checked = as_rows(kernel, archs)
    check_shape(name, targets, archs.shape[:1])
    mask = np.ones(len(archs), bool) if mask is None else mask
    mask = mask if isinstance(mask, jax.Array) else np.asarray(mask)
    check_mask("mask", mask, len(archs))
    known = concrete(targets) if logarithms else None
    check_finite(name, targets, where=mask if known is None else mask & (known != -np.inf))
    return Design(jnp.asarray(checked), jnp.asarray(targets, float), jnp.asarray(mask))


def as_rows(kernel: Kernel, archs: ArrayLike) -> jax.Array | np.ndarray:
    """Check architectures [n, length], and their entries where the kernel is on a space."""
    archs = archs if isinstance(archs, jax.Array) else np.asarray(archs)
    if archs.ndim != 2:
        raise BQNESError(
            f"architectures have shape {archs.shape}; it must be (n, length), one row for each."
        )
    return archs if kernel.space is None else as_architectures(kernel.space, archs)
