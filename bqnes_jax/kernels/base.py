"""The protocol of a kernel: how alike two architectures are.

A kernel is a pytree, for instance a dataclass that `jax.tree_util.register_dataclass` knows: its
array leaves are its positive hyper-parameters, which `surrogates.gp.fit` may adapt; everything else
about it is static. A kernel of your own needs all of `Kernel`, most of which it can inherit: from
`FiniteKernel` if it is an inner product of features, otherwise from `GeneralKernel`.
"""

import abc
from collections.abc import Callable
from typing import Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from bqnes_jax.spaces.base import Space

View = Callable[[ArrayLike], Array]  # n architectures -> n rows


@runtime_checkable
class Kernel(Protocol):
    """A positive semi-definite function of two architectures.

    Where `finite` is true, k(α, α') = ⟨ψ(α), ψ(α')⟩ with ψ = `features`, and a surrogate may work
    with the features instead of the Gram matrix, whichever is smaller. In either case architectures
    with equal `features` are one point to the surrogate.
    """

    @property
    def finite(self) -> bool:
        """Whether the kernel is the inner product of its features."""
        ...

    @property
    def space(self) -> Space | None:
        """The space whose architectures are checked; None for a kernel on plain rows."""
        ...

    def features(self, archs: ArrayLike) -> Float[Array, "n d"]:
        """Describe each architecture by a vector."""
        ...

    def gram(self, archs: ArrayLike) -> Float[Array, "n n"]:
        """Evaluate the kernel between all pairs."""
        ...

    def cross(self, archs: ArrayLike, others: ArrayLike) -> Float[Array, "n m"]:
        """Evaluate the kernel between each of one set and each of another."""
        ...

    def diag(self, archs: ArrayLike) -> Float[Array, " n"]:
        """Evaluate the kernel of each architecture with itself."""
        ...

    def split(self) -> tuple[View, "Kernel"]:
        """Split the kernel into what is fixed about an architecture and a kernel on that.

        Returns `(view, kernel on views)`: the same kernel, but a loop can compute the views once.
        """
        ...


class GeneralKernel(abc.ABC):
    """A base for kernels: a subclass says its `space` and how to evaluate `cross`.

    The other methods follow from these two, `features` being the architectures themselves; replace
    what there is a faster way for.

    Example:
        >>> import dataclasses
        >>> from bqnes_jax.spaces import NATS
        >>> @jax.tree_util.register_dataclass
        ... @dataclasses.dataclass(frozen=True)
        ... class Overlap(GeneralKernel):
        ...     space: Space = dataclasses.field(metadata={"static": True})
        ...     decay: ArrayLike = 0.5
        ...
        ...     def cross(self, archs, others):
        ...         different = jnp.asarray(archs)[:, None, :] != jnp.asarray(others)
        ...         return jnp.exp(-self.decay * jnp.sum(different, axis=-1))
        >>> kernel = Overlap(NATS)
        >>> isinstance(kernel, Kernel)
        True
        >>> kernel.diag(NATS.from_index(jnp.array([9504, 777]))).tolist()
        [1.0, 1.0]
    """

    finite = False

    def features(self, archs: ArrayLike) -> Float[Array, "n d"]:
        """Return the architectures as they are."""
        return jnp.asarray(archs, float)

    def gram(self, archs: ArrayLike) -> Float[Array, "n n"]:
        """Evaluate the kernel between all pairs."""
        return self.cross(archs, archs)

    @abc.abstractmethod
    def cross(self, archs: ArrayLike, others: ArrayLike) -> Float[Array, "n m"]:
        """Evaluate the kernel between each of one set and each of another."""

    def diag(self, archs: ArrayLike) -> Float[Array, " n"]:
        """Evaluate the kernel of each architecture with itself."""
        return jax.vmap(lambda arch: self.cross(arch[None], arch[None])[0, 0])(jnp.asarray(archs))

    def split(self: Kernel) -> tuple[View, Kernel]:
        """Leave architectures as they are."""
        return jnp.asarray, self


def matmul(a: Float[Array, "*n k"], b: Float[Array, "k *m"]) -> Float[Array, "..."]:
    """Multiply at full precision; accelerators would otherwise round the factors."""
    return jnp.matmul(a, b, precision=lax.Precision.HIGHEST)
