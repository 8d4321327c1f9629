"""The protocol of a kernel: how alike two architectures are.

A kernel is a pytree (for instance a `flax.struct.dataclass`): its array leaves are its positive
hyper-parameters, which `surrogates.gp.fit` may adapt; everything else about it is static. A kernel
of your own needs the four methods of `Kernel`.
"""

from typing import Protocol, runtime_checkable

import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike
from jaxtyping import Array, Float


@runtime_checkable
class Kernel(Protocol):
    """A positive semi-definite function of two architectures.

    Where `finite` is true, k(α, α') = ⟨ψ(α), ψ(α')⟩ with ψ = `features`, and a surrogate may work
    with the features instead of the Gram matrix, whichever is smaller. A kernel without the
    attribute is taken as not finite. In either case architectures with equal `features` are one
    point to the surrogate.
    """

    def features(self, archs: ArrayLike) -> Float[Array, "n d"]:
        """Describe each architecture by a vector."""

    def gram(self, archs: ArrayLike) -> Float[Array, "n n"]:
        """Evaluate the kernel between all pairs."""

    def cross(self, archs: ArrayLike, others: ArrayLike) -> Float[Array, "n m"]:
        """Evaluate the kernel between each of one set and each of another."""

    def diag(self, archs: ArrayLike) -> Float[Array, " n"]:
        """Evaluate the kernel of each architecture with itself."""


def is_finite(kernel: Kernel) -> bool:
    """Tell whether the kernel is the inner product of its features."""
    return bool(getattr(kernel, "finite", False))


def matmul(a: Float[Array, "n k"], b: Float[Array, "k *m"]) -> Float[Array, "n *m"]:
    """Multiply at full precision; accelerators would otherwise round the factors."""
    return jnp.matmul(a, b, precision=lax.Precision.HIGHEST)
