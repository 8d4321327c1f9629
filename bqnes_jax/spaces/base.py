"""The protocol of a search space: what a space of your own must offer.

An architecture is data: an `int32[length]` array. Names, strings and graphs are views of it. A
space is a small hashable object (a frozen dataclass without arrays), so that it can be a static
argument of compiled functions. Everything but the two string functions must work under `jit` and
`vmap`.

A kernel needs one of two views: `graph` (for `kernels.WL`) or `coordinates` (for `kernels.RBF`); a
space offers the one, or both, that make sense for it.
"""

from typing import Any, Protocol, TypeGuard, runtime_checkable

import jax
import jax.numpy as jnp
import jraph
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int32

from bqnes_jax.errors import BQNESError, concrete
from bqnes_jax.types import PRNGKey

Architecture = Int32[Array, " length"]
Architectures = Int32[Array, "n length"]


@runtime_checkable
class Space(Protocol):
    """A set of architectures with a uniform prior."""

    @property
    def name(self) -> str:
        """A short name, for files and the command line."""
        ...

    @property
    def size(self) -> int | None:
        """How many architectures there are; None when they cannot be listed."""
        ...

    @property
    def options(self) -> tuple[int, ...]:
        """How many values each entry of an architecture can take."""
        ...

    def sample(self, key: PRNGKey, n: int) -> Architectures:
        """Draw n architectures from the prior, independently."""
        ...

    def mutate(self, key: PRNGKey, arch: Architecture) -> Architecture:
        """Return a random neighbour: one choice, changed to a different value."""
        ...

    def to_string(self, arch: ArrayLike) -> str:
        """Write one architecture as text."""
        ...

    def from_string(self, text: str) -> Architecture:
        """Read one architecture from text; the inverse of `to_string`."""
        ...


@runtime_checkable
class EnumerableSpace(Space, Protocol):
    """A space that is small enough to list."""

    @property
    def size(self) -> int:
        """How many architectures there are."""
        ...

    def index(self, arch: ArrayLike) -> Int32[Array, "*batch"]:
        """Number architectures 0 … size − 1; any leading axes are kept."""
        ...

    def from_index(self, index: ArrayLike) -> Int32[Array, "*batch length"]:
        """Return the architecture of that number; the inverse of `index`."""
        ...


@runtime_checkable
class GraphSpace(Space, Protocol):
    """A space whose architectures are labelled graphs."""

    def graph(self, arch: ArrayLike) -> jraph.GraphsTuple:
        """Return one labelled graph, padded to the same static shape for every architecture.

        The first graph of the tuple is the architecture's, the second holds the padding (the
        convention of `jraph.pad_with_graphs`); `nodes` are integer labels, and `edges` are such
        labels or None.
        """
        ...


@runtime_checkable
class CoordinateSpace(Space, Protocol):
    """A space whose architectures are points of a unit cube."""

    def coordinates(self, arch: ArrayLike) -> Float[Array, "*batch dimension"]:
        """Return coordinates in [0, 1]; any leading axes are kept."""
        ...


@runtime_checkable
class ChoiceSpace(Space, Protocol):
    """A space whose architectures are named choices."""

    def decode(self, arch: ArrayLike) -> dict[str, Any]:
        """Return the choices of one architecture by name."""
        ...


def can_be_listed(space: Space) -> TypeGuard[EnumerableSpace]:
    """Tell whether a space says how many architectures it has, and so numbers them."""
    return space.size is not None


def as_listed(space: Space) -> EnumerableSpace:
    """Return the space, and refuse one that cannot be listed."""
    if not can_be_listed(space):
        raise BQNESError(
            f"space {space.name!r} cannot be listed; draw from it with sample(key, n)."
        )
    return space


def enumerate_space(space: Space) -> Architectures:
    """List every architecture of a space, in the order of their index."""
    listed = as_listed(space)
    return listed.from_index(jnp.arange(listed.size, dtype=jnp.int32))


def as_architectures(space: Space, archs: ArrayLike) -> Int32[Array, "*batch length"]:
    """Convert to int32 and refuse what is not an architecture of the space (values if concrete)."""
    archs = archs if isinstance(archs, jax.Array) else np.asarray(archs)
    if not jnp.issubdtype(archs.dtype, jnp.integer):
        raise BQNESError(
            f"architectures of space {space.name!r} are of type {archs.dtype}; "
            "they must be integers (read text with from_string)."
        )
    length = len(space.options)
    if archs.ndim == 0 or archs.shape[-1] != length:
        raise BQNESError(
            f"architectures of space {space.name!r} have shape {archs.shape}; "
            f"the last axis must have length {length}."
        )
    values = concrete(archs)
    if values is not None:
        bad = (values < 0) | (values >= np.array(space.options))
        if bad.any():
            place = tuple(int(i) for i in np.argwhere(bad)[0])
            raise BQNESError(
                f"entry {place[-1]} of an architecture of space {space.name!r} is {values[place]}; "
                f"it must be from 0 to {space.options[place[-1]] - 1}."
            )
    return jnp.asarray(archs, jnp.int32)
