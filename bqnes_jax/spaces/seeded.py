"""Weights as well as architectures: a space whose candidates are (architecture, weight seed)."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import jraph
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int, Int32

from bqnes_jax.errors import BQNESError, check_whole
from bqnes_jax.spaces.base import (
    Architecture,
    Architectures,
    CoordinateSpace,
    EnumerableSpace,
    GraphSpace,
    Space,
    as_listed,
)
from bqnes_jax.types import PRNGKey

_OPENING, _CLOSING = " (seed ", ")"
_MOST = 10_000  # seeds


@dataclasses.dataclass(frozen=True)
class Seeded:
    """All architectures of a space with each of a few weight seeds, equally likely a priori.

    A candidate is the architecture with one more entry, its seed: 0 … seeds − 1. Its graph and its
    coordinates are those of the architecture, so that to a surrogate the replicates of an
    architecture are one point, observed several times with independent noise.

    Example:
        >>> from bqnes_jax.spaces import NATS
        >>> space = Seeded(NATS, 3)
        >>> space.size, space.from_index(3 * 9504 + 2).tolist()
        (46875, [3, 0, 1, 0, 0, 4, 2])
        >>> space.to_string(space.from_index(2))[-9:]
        ' (seed 2)'
    """

    base: Space
    seeds: int

    def __post_init__(self) -> None:
        check_whole("seeds", self.seeds, 1, _MOST)
        if isinstance(self.base, Seeded):
            raise BQNESError("base has weight seeds already; give the space of its architectures.")
        # Attributes of the instance: those of the class would be there for every space.
        if isinstance(self.base, GraphSpace):
            object.__setattr__(self, "graph", self._graph)
        if isinstance(self.base, CoordinateSpace):
            object.__setattr__(self, "coordinates", self._coordinates)

    @property
    def name(self) -> str:
        """The name of the space of the architectures: what can be built is the same."""
        return self.base.name

    @property
    def size(self) -> int | None:
        """How many candidates there are; None where the architectures cannot be listed."""
        return None if self.base.size is None else self.base.size * self.seeds

    @property
    def options(self) -> tuple[int, ...]:
        """How many values each entry can take, the seed last."""
        return (*self.base.options, self.seeds)

    @property
    def first(self) -> "Seeded":
        """All architectures with the first seed only."""
        return Seeded(self.base, 1)

    def sample(self, key: PRNGKey, n: int) -> Architectures:
        """Draw n architectures from the prior, each with a uniform seed."""
        if self.seeds == 1:
            return self._join(self.base.sample(key, n), jnp.zeros(n, jnp.int32))
        arch_key, seed_key = jax.random.split(key)
        archs = self.base.sample(arch_key, n)
        return self._join(archs, jax.random.randint(seed_key, (n,), 0, self.seeds, jnp.int32))

    def mutate(self, key: PRNGKey, arch: Architecture) -> Architecture:
        """Change the architecture, or its seed as often as any one entry of it."""
        arch = jnp.asarray(arch, jnp.int32)
        if self.seeds == 1:
            return arch.at[:-1].set(self.base.mutate(key, arch[:-1]))
        which_key, arch_key, seed_key = jax.random.split(key, 3)
        neighbour = arch.at[:-1].set(self.base.mutate(arch_key, arch[:-1]))
        shift = jax.random.randint(seed_key, (), 1, self.seeds, jnp.int32)
        replicate = arch.at[-1].set((arch[-1] + shift) % self.seeds)
        entry = jax.random.randint(which_key, (), 0, len(arch))
        return jnp.where(entry == len(arch) - 1, replicate, neighbour)

    def index(self, arch: ArrayLike) -> Int32[Array, "*batch"]:
        """Number candidates by their architecture, its seeds one after the other."""
        arch = jnp.asarray(arch, jnp.int32)
        return self._listed.index(arch[..., :-1]) * self.seeds + arch[..., -1]

    def from_index(self, index: ArrayLike) -> Int32[Array, "*batch length"]:
        """Return the candidates of these numbers."""
        index = jnp.asarray(index, jnp.int32)
        return self._join(self._listed.from_index(index // self.seeds), index % self.seeds)

    def to_string(self, arch: ArrayLike) -> str:
        """Write the architecture, and its seed in brackets."""
        arch = np.asarray(arch)
        return f"{self.base.to_string(arch[:-1])}{_OPENING}{int(arch[-1])}{_CLOSING}"

    def from_string(self, text: str) -> Architecture:
        """Read an architecture with its seed."""
        written, opening, seed = text.rpartition(_OPENING)
        seed = seed.removesuffix(_CLOSING)
        if not (opening and text.endswith(_CLOSING) and seed.isdecimal()):
            raise BQNESError(
                f"{text!r} has no seed; the form is 'architecture{_OPENING}0{_CLOSING}'."
            )
        check_whole("seed", int(seed), 0, self.seeds - 1)
        return self._join(self.base.from_string(written), jnp.int32(int(seed)))

    @property
    def _listed(self) -> EnumerableSpace:
        return as_listed(self.base)

    @staticmethod
    def _join(
        archs: Int32[Array, "*batch length"], seeds: Int32[Array, "*batch"]
    ) -> Int32[Array, "*batch longer"]:
        return jnp.concatenate([archs, seeds[..., None]], axis=-1)

    def _graph(self, arch: ArrayLike) -> jraph.GraphsTuple:
        assert isinstance(self.base, GraphSpace)
        return self.base.graph(jnp.asarray(arch)[..., :-1])

    def _coordinates(self, arch: ArrayLike) -> Float[Array, "*batch dimension"]:
        assert isinstance(self.base, CoordinateSpace)
        return self.base.coordinates(jnp.asarray(arch)[..., :-1])


class Parts(NamedTuple):
    """Candidates taken apart.

    Attributes:
        space: what the architectures are of.
        archs: the architectures without their seeds.
        seeds: of the weights of each; 0 where a space has none.
    """

    space: Space
    archs: Int[np.ndarray, "n length"]
    seeds: Int[np.ndarray, " n"]


def split_seeds(space: Space, archs: ArrayLike) -> Parts:
    """Take candidates apart into architectures and weight seeds, on the host.

    Example:
        >>> from bqnes_jax.spaces import NATS
        >>> split_seeds(Seeded(NATS, 3), np.array([[3, 3, 3, 3, 3, 3, 2]])).seeds.tolist()
        [2]
    """
    archs = np.asarray(archs)
    if not isinstance(space, Seeded):
        return Parts(space, archs, np.zeros(len(archs), np.int32))
    return Parts(space.base, archs[:, :-1], archs[:, -1])


def count_seeds(space: Space) -> int:
    """Return with how many weight seeds each architecture of a space can be trained."""
    return space.seeds if isinstance(space, Seeded) else 1
