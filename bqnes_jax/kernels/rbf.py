"""Squared-exponential kernels: on the coordinates of a space, and on features of another kernel."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from bqnes_jax.errors import BQNESError, as_float, check_positive
from bqnes_jax.kernels.base import GeneralKernel, Kernel, View, matmul
from bqnes_jax.spaces.base import CoordinateSpace, Space


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=["length_scales"], meta_fields=["space"]
)
@dataclasses.dataclass(frozen=True)
class RBF(GeneralKernel):
    """k(α, α') = exp(−½ Σ_d ((x_d − x'_d) / ℓ_d)²) with x = `space.coordinates(α)`.

    `length_scales` is one number for all dimensions or one for each.

    Example:
        >>> from bqnes_jax.spaces import NATS
        >>> kernel = RBF(NATS, length_scales=1.0)
        >>> neighbours = jnp.array([[0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 1]])
        >>> bool(jnp.allclose(kernel.gram(neighbours)[0, 1], jnp.exp(-1)))  # ½(1² + 1²)
        True
    """

    space: CoordinateSpace
    length_scales: ArrayLike = 1.0

    def __post_init__(self) -> None:
        if isinstance(self.length_scales, jax.Array | np.ndarray | list | tuple | float | int):
            scales = as_float(self.length_scales)
            check_positive("length_scales", scales)
            object.__setattr__(self, "length_scales", scales)

    def features(self, archs: ArrayLike) -> Float[Array, "n d"]:
        """Return the coordinates in units of the length scales; n×dimension."""
        coordinates = self.space.coordinates(archs)
        scales = jnp.asarray(self.length_scales)
        if scales.shape not in ((), (1,), coordinates.shape[-1:]):
            raise BQNESError(
                f"length_scales has shape {scales.shape}; it must be one number, or one for each "
                f"of the {coordinates.shape[-1]} coordinates of space {self.space.name!r}."
            )
        return coordinates / scales

    def cross(self, archs: ArrayLike, others: ArrayLike) -> Float[Array, "n m"]:
        """Evaluate the kernel between each of one set and each of another."""
        return _squared_exponential(self.features(archs), self.features(others))

    def diag(self, archs: ArrayLike) -> Float[Array, " n"]:
        """Return ones."""
        return jnp.ones(jnp.shape(archs)[0])


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=["inner", "length_scale"], meta_fields=[]
)
@dataclasses.dataclass(frozen=True)
class FeatureRBF(GeneralKernel):
    """k(α, α') = exp(−‖ψ(α) − ψ(α')‖² / 2ℓ²) with ψ the features of a finite kernel.

    A linear kernel on few features cannot have a narrow peak: what is alike is likely everywhere
    along a direction. This one forgets with distance. Features of length 1 (those of `WL`) are at
    most √2 apart.

    Example:
        >>> from bqnes_jax.kernels import WL
        >>> from bqnes_jax.spaces import NATS
        >>> kernel = FeatureRBF(WL(NATS), length_scale=0.5)
        >>> kernel.diag(NATS.from_index(jnp.array([9504, 0]))).tolist()
        [1.0, 1.0]
    """

    inner: Kernel
    length_scale: ArrayLike = 0.5

    def __post_init__(self) -> None:
        if isinstance(self.length_scale, jax.Array | np.ndarray | float | int):
            scale = as_float(self.length_scale)
            check_positive("length_scale", scale)
            object.__setattr__(self, "length_scale", scale)
        # While JAX maps over a kernel, its parts may be anything.
        if isinstance(self.inner, Kernel) and not self.inner.finite:
            raise BQNESError(
                f"inner is {type(self.inner).__name__}; it must be a finite kernel, such as WL."
            )

    @property
    def space(self) -> Space | None:
        """The space of the inner kernel."""
        return self.inner.space

    def features(self, archs: ArrayLike) -> Float[Array, "n d"]:
        """Return the features of the inner kernel."""
        return self.inner.features(archs)

    def cross(self, archs: ArrayLike, others: ArrayLike) -> Float[Array, "n m"]:
        """Evaluate the kernel between each of one set and each of another."""
        # ‖a‖² + ‖b‖² − 2⟨a, b⟩: features are wide, of length about 1, and seldom close.
        squares = self.inner.diag(archs)[:, None] + self.inner.diag(others)
        squares -= 2 * self.inner.cross(archs, others)
        scale = self.length_scale  # whose square may be 0 to the arithmetic
        return jnp.exp(-0.5 * jnp.maximum(squares, 0) / scale / scale)

    def diag(self, archs: ArrayLike) -> Float[Array, " n"]:
        """Return ones."""
        return jnp.ones(jnp.shape(archs)[0])

    def split(self) -> tuple[View, Kernel]:
        """Take what is fixed about the inner kernel out."""
        view, inner = self.inner.split()
        return view, FeatureRBF(inner, self.length_scale)


@jax.custom_jvp
@jax.jit
def _squared_exponential(a: Float[Array, "n d"], b: Float[Array, "m d"]) -> Float[Array, "n m"]:
    # Differences first: ‖a‖² + ‖b‖² − 2⟨a, b⟩ loses all digits where points are close. One
    # coordinate after another, which runs along the rows of a matrix and so is vectorised.
    def add(squares, pair):
        return squares + (pair[0][:, None] - pair[1]) ** 2, None

    nothing = jnp.zeros((len(a), len(b)), jnp.result_type(a, b))
    return jnp.exp(-0.5 * lax.scan(add, nothing, (a.T, b.T))[0])


@_squared_exponential.defjvp
def _squared_exponential_jvp(
    primals: tuple[Array, Array], tangents: tuple[Array, Array]
) -> tuple[Array, Array]:
    """Differentiate by products of matrices: dk = −k ⟨a − b, da − db⟩."""
    (a, b), (da, db) = primals, tangents
    kernel = _squared_exponential(a, b)
    centre = lax.stop_gradient(jnp.mean(a, axis=0))  # smaller numbers, smaller rounding
    a, b = a - centre, b - centre
    own = jnp.sum(a * da, axis=1)[:, None] + jnp.sum(b * db, axis=1)
    return kernel, -kernel * (own - matmul(da, b.T) - matmul(a, db.T))
