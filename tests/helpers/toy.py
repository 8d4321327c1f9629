"""A space and kernels of a user's own, small enough for brute force."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from bqnes_jax.errors import BQNESError
from bqnes_jax.kernels import FiniteKernel, GeneralKernel


@dataclasses.dataclass(frozen=True)
class Grid:
    """Points of a square grid; an architecture is (row, column)."""

    side: int = 6

    name = "grid"

    @property
    def options(self):
        return (self.side, self.side)

    @property
    def size(self):
        return self.side**2

    def sample(self, key, n):
        return jax.random.randint(key, (n, 2), 0, self.side, jnp.int32)

    def mutate(self, key, arch):
        axis, shift = jax.random.split(key)
        axis = jax.random.randint(axis, (), 0, 2)
        shift = jax.random.randint(shift, (), 1, self.side, jnp.int32)
        return arch.at[axis].set((arch[axis] + shift) % self.side)

    def index(self, arch):
        return arch[..., 0] * self.side + arch[..., 1]

    def from_index(self, index):
        return jnp.stack([index // self.side, index % self.side], axis=-1).astype(jnp.int32)

    def to_string(self, arch):
        return f"{int(arch[0])},{int(arch[1])}"

    def from_string(self, text):
        try:
            row, column = map(int, text.split(","))
        except ValueError:
            raise BQNESError(f"{text!r} is not a point; the form is 'row,column'.") from None
        return jnp.array([row, column], jnp.int32)

    def coordinates(self, arch):
        return jnp.asarray(arch, float) / (self.side - 1)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Polynomial(FiniteKernel):
    """A finite kernel: products of powers of the coordinates up to a degree."""

    space: Grid = dataclasses.field(default=Grid(), metadata={"static": True})
    degree: int = dataclasses.field(default=2, metadata={"static": True})

    def features(self, archs):
        x, y = jnp.moveaxis(self.space.coordinates(archs), -1, 0)
        powers = range(self.degree + 1)
        return jnp.stack([x**i * y**j for i in powers for j in powers], axis=-1)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Overlap(GeneralKernel):
    """A kernel that is not finite, with a hyper-parameter: alike where entries are the same."""

    space: Grid = dataclasses.field(default=Grid(), metadata={"static": True})
    decay: jax.typing.ArrayLike = 0.5

    def cross(self, archs, others):
        different = jnp.asarray(archs)[:, None, :] != jnp.asarray(others)
        return jnp.exp(-self.decay * jnp.sum(different, axis=-1))


GRID = Grid()
POINTS = np.stack(np.divmod(np.arange(36), 6), axis=-1)  # all of them, in the order of their index


@dataclasses.dataclass(frozen=True)
class Endless(Grid):
    """The same points, of a space that does not say how many there are."""

    size = None
    index = from_index = property()
