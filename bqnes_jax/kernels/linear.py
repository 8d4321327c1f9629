"""Kernels that are inner products of features."""

import abc
import dataclasses
import functools
from typing import cast

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from bqnes_jax.errors import BQNESError
from bqnes_jax.kernels.base import Kernel, View, matmul
from bqnes_jax.spaces.base import CoordinateSpace


class FiniteKernel(abc.ABC):
    """A base for kernels k = ⟨ψ, ψ'⟩: a subclass says its `space` and what ψ = `features` is.

    Example:
        >>> from bqnes_jax.spaces import NATS
        >>> @jax.tree_util.register_dataclass
        ... @dataclasses.dataclass(frozen=True)
        ... class SameCounts(FiniteKernel):
        ...     space = NATS
        ...
        ...     def features(self, archs):  # how often each of the five operations occurs
        ...         return jnp.sum(jax.nn.one_hot(archs, 5), axis=1)
        >>> SameCounts().gram(NATS.from_index(jnp.array([0, 1]))).tolist()
        [[36.0, 30.0], [30.0, 26.0]]
    """

    finite = True

    @abc.abstractmethod
    def features(self, archs: ArrayLike) -> Float[Array, "n d"]:
        """Describe each architecture by a vector."""

    def gram(self, archs: ArrayLike) -> Float[Array, "n n"]:
        """Evaluate the kernel between all pairs."""
        features = self.features(archs)
        return matmul(features, features.T)

    def cross(self, archs: ArrayLike, others: ArrayLike) -> Float[Array, "n m"]:
        """Evaluate the kernel between each of one set and each of another."""
        return matmul(self.features(archs), self.features(others).T)

    def diag(self, archs: ArrayLike) -> Float[Array, " n"]:
        """Return the squared lengths of the features."""
        return jnp.sum(self.features(archs) ** 2, axis=1)

    def add_features(self, archs: ArrayLike, weights: ArrayLike) -> Float[Array, " d"]:
        """Return Σ w_n ψ_n."""
        return matmul(jnp.asarray(weights), self.features(archs))

    def split(self: Kernel) -> tuple[View, Kernel]:
        """Take the features out; with hyper-parameters in them, leave architectures as they are.

        Example:
            >>> from bqnes_jax.kernels import WL
            >>> from bqnes_jax.spaces import NATS
            >>> view, kernel = WL(NATS).split()
            >>> archs = NATS.from_index(jnp.array([9504, 777]))
            >>> bool(jnp.allclose(kernel.gram(view(archs)), WL(NATS).gram(archs)))
            True
        """
        return (jnp.asarray, self) if jax.tree.leaves(self) else (self.features, Linear())


@functools.partial(jax.tree_util.register_dataclass, data_fields=[], meta_fields=[])
@dataclasses.dataclass(frozen=True)
class Linear(FiniteKernel):
    """k(x, x') = ⟨x, x'⟩, where an "architecture" is the vector of its features.

    It takes the features of a finite kernel out of a loop: with Ψ = `WL(space).features(archs)`,
    this kernel on rows of Ψ is the WL kernel on rows of `archs`, and computes no graph again.

    Example:
        >>> Linear().gram(jnp.array([[1.0, 0.0], [3.0, 4.0]])).tolist()
        [[1.0, 3.0], [3.0, 25.0]]
    """

    space = None

    def features(self, archs: ArrayLike) -> Float[Array, "n d"]:
        """Return the vectors as they are."""
        return jnp.asarray(archs)


@functools.partial(jax.tree_util.register_dataclass, data_fields=[], meta_fields=["space"])
@dataclasses.dataclass(frozen=True)
class Affine(FiniteKernel):
    """k(α, α') = ⟨φ, φ'⟩ / (‖φ‖ ‖φ'‖) with φ = (1, x), x = `space.coordinates(α)`.

    Functions that are linear in the coordinates, and constants, are what it can express.

    Example:
        >>> from bqnes_jax.spaces import NATS
        >>> neighbours = jnp.array([[0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 1]])
        >>> round(Affine(NATS).gram(neighbours)[0, 1].item(), 3)  # they share 1 and 5 choices of 6
        0.857
    """

    space: CoordinateSpace

    def features(self, archs: ArrayLike) -> Float[Array, "n d"]:
        """Return φ / ‖φ‖; n×(dimension + 1)."""
        coordinates = self.space.coordinates(archs)
        ones = jnp.ones((*coordinates.shape[:-1], 1), coordinates.dtype)
        features = jnp.concatenate([ones, coordinates], axis=-1)
        return features / jnp.linalg.norm(features, axis=-1, keepdims=True)


@functools.partial(jax.tree_util.register_dataclass, data_fields=["inner"], meta_fields=[])
@dataclasses.dataclass(frozen=True)
class WithCoordinates(FiniteKernel):
    """k(α, α') = ½ ⟨ψ, ψ'⟩ + ½ ⟨x, x'⟩, ψ the features of a finite kernel and x the coordinates.

    The WL kernel does not tell where in a cell an operation is; this one does. Coordinates have
    length 1, as its features have.

    Example:
        >>> from bqnes_jax.kernels import WL
        >>> from bqnes_jax.spaces import NATS
        >>> kernel = WithCoordinates(WL(NATS))
        >>> mirrored = jnp.array([[3, 0, 0, 3, 0, 0], [3, 3, 0, 0, 0, 0]])
        >>> bool(kernel.gram(mirrored)[0, 1] < 1)
        True
    """

    inner: Kernel

    def __post_init__(self) -> None:
        # While JAX maps over a kernel, its parts may be anything.
        if isinstance(self.inner, Kernel) and not (
            self.inner.finite and isinstance(self.inner.space, CoordinateSpace)
        ):
            raise BQNESError(
                f"inner is {type(self.inner).__name__}; it must be a finite kernel on a space "
                "with coordinates, such as WL."
            )

    @property
    def space(self) -> CoordinateSpace:
        """The space of the inner kernel."""
        return cast(CoordinateSpace, self.inner.space)

    def features(self, archs: ArrayLike) -> Float[Array, "n d"]:
        """Return both, side by side."""
        coordinates = self.space.coordinates(archs)
        square = jnp.sum(coordinates**2, axis=1, keepdims=True)
        unit = coordinates / jnp.sqrt(jnp.where(square > 0, square, 1))
        return jnp.concatenate([self.inner.features(archs), unit], axis=1) / jnp.sqrt(2)
