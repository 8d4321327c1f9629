"""Some architectures of a space, as a space of its own: those that results exist for."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Int32

from bqnes_jax.errors import BQNESError, check_whole
from bqnes_jax.spaces.base import (
    Architecture,
    Architectures,
    CoordinateSpace,
    EnumerableSpace,
    GraphSpace,
)
from bqnes_jax.types import PRNGKey


@dataclasses.dataclass(frozen=True)
class Subset:
    """The architectures with these numbers in another space, equally likely a priori.

    A mutation is a random one of the nearest others: those that differ in the fewest entries. Of
    `graph` and `coordinates` it offers what the whole space does, and only that.

    Example:
        >>> from bqnes_jax.spaces import NATS
        >>> some = Subset(NATS, (777, 1234, 9504))
        >>> some.size, some.from_index(2).tolist()
        (3, [3, 0, 1, 0, 0, 4])
        >>> int(some.index(NATS.from_index(1234)))
        1
    """

    whole: EnumerableSpace
    numbers: tuple[int, ...]

    def __post_init__(self) -> None:
        if self.whole.size is None:
            raise BQNESError(
                f"space {self.whole.name!r} cannot be listed, so that there are no numbers of its "
                "architectures; take a part of a space that can."
            )
        increasing = all(a < b for a, b in zip(self.numbers, self.numbers[1:], strict=False))
        if not self.numbers or not increasing:
            raise BQNESError("numbers must be increasing, at least one: sort them, each once.")
        check_whole("the first of numbers", self.numbers[0], 0)
        check_whole("the last of numbers", self.numbers[-1], 0, self.whole.size - 1)
        # Attributes of the instance: those of the class would be there for every space.
        if isinstance(self.whole, GraphSpace):
            object.__setattr__(self, "graph", self.whole.graph)
        if isinstance(self.whole, CoordinateSpace):
            object.__setattr__(self, "coordinates", self.whole.coordinates)

    @property
    def name(self) -> str:
        """The name of the whole space and how many of it there are."""
        return f"{self.whole.name}-{self.size}"

    @property
    def size(self) -> int:
        """How many architectures there are."""
        return len(self.numbers)

    @property
    def options(self) -> tuple[int, ...]:
        """How many values each entry can take in the whole space."""
        return self.whole.options

    def sample(self, key: PRNGKey, n: int) -> Architectures:
        """Draw n architectures uniformly, independently."""
        check_whole("n", n, 0)
        return self.from_index(jax.random.randint(key, (n,), 0, self.size, jnp.int32))

    def mutate(self, key: PRNGKey, arch: ArrayLike) -> Architecture:
        """Return a random one of the nearest other architectures."""
        every = jnp.asarray(_list(self))
        distance = jnp.sum(every != jnp.asarray(arch), axis=1)
        distance = jnp.where(distance == 0, len(self.options) + 1, distance)
        nearest = distance == jnp.min(distance)
        return every[jax.random.categorical(key, jnp.where(nearest, 0.0, -jnp.inf))]

    def index(self, arch: ArrayLike) -> Int32[Array, "*batch"]:
        """Return the places of architectures; of those that are not there, any."""
        numbers = jnp.asarray(np.array(self.numbers, np.int32))
        place = jnp.searchsorted(numbers, self.whole.index(arch)).astype(jnp.int32)
        return jnp.minimum(place, self.size - 1)

    def from_index(self, index: ArrayLike) -> Int32[Array, "*batch length"]:
        """Return the architectures at these places."""
        return jnp.asarray(_list(self))[jnp.asarray(index)]

    def to_string(self, arch: ArrayLike) -> str:
        """Write one architecture as the whole space does."""
        return self.whole.to_string(arch)

    def from_string(self, text: str) -> Architecture:
        """Read one architecture as the whole space does."""
        return self.whole.from_string(text)


@functools.cache
def _list(subset: Subset) -> np.ndarray:
    with jax.ensure_compile_time_eval():
        return np.asarray(subset.whole.from_index(np.array(subset.numbers, np.int32)))
