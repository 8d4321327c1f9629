"""The inner product of features that are known already."""

from collections.abc import Callable

import flax
import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from bqnes_jax.kernels.base import Kernel, is_finite, matmul


@flax.struct.dataclass
class Linear:
    """k(x, x') = ⟨x, x'⟩, where an "architecture" is the vector of its features.

    It takes the features of a finite kernel out of a loop: with Ψ = `WL(space).features(archs)`,
    this kernel on rows of Ψ is the WL kernel on rows of `archs`, and computes no graph again.

    Example:
        >>> Linear().gram(jnp.array([[1.0, 0.0], [3.0, 4.0]])).tolist()
        [[1.0, 3.0], [3.0, 25.0]]
    """

    finite = True

    def features(self, archs: ArrayLike) -> Float[Array, "n d"]:
        """Return the vectors as they are."""
        return jnp.asarray(archs)

    def gram(self, archs: ArrayLike) -> Float[Array, "n n"]:
        """Evaluate the kernel between all pairs."""
        return self.cross(archs, archs)

    def cross(self, archs: ArrayLike, others: ArrayLike) -> Float[Array, "n m"]:
        """Evaluate the kernel between each of one set and each of another."""
        return matmul(jnp.asarray(archs), jnp.asarray(others).T)

    def diag(self, archs: ArrayLike) -> Float[Array, " n"]:
        """Return the squared lengths."""
        return jnp.sum(jnp.asarray(archs) ** 2, axis=1)


def split(kernel: Kernel) -> tuple[Callable[[ArrayLike], Array], Kernel]:
    """Split a kernel into what is fixed about an architecture and a kernel on that.

    Returns `(view, kernel on views)`: the same kernel, but a loop can compute the views once. A
    finite kernel without hyper-parameters becomes its features and `Linear`; a kernel may offer a
    `split` of its own; any other sees architectures as they are.

    Example:
        >>> from bqnes_jax.kernels import WL
        >>> from bqnes_jax.spaces import NATS
        >>> view, kernel = split(WL(NATS))
        >>> archs = NATS.from_index(jnp.array([9504, 777]))
        >>> bool(jnp.allclose(kernel.gram(view(archs)), WL(NATS).gram(archs)))
        True
    """
    if hasattr(kernel, "split"):
        return kernel.split()
    if is_finite(kernel) and not jax.tree.leaves(kernel):
        return kernel.features, Linear()
    return jnp.asarray, kernel
