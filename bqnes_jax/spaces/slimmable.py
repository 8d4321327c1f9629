"""The slimmable space: a chain of blocks whose layers may be narrower, or absent.

An architecture is `int32[blocks · layers]`, block after block. An entry is 0 where the layer is
absent, and otherwise which of the `widths` fractions of its channels the layer has, `widths` being
all of them. In the *canonical* form the first layer of a block is present and absent layers are the
last ones of their block, so that there is one array for each network. As text the default space has
forms like `3321-2000-3300-1000-3111-2200-1230`.
"""

import dataclasses
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int32

from bqnes_jax.errors import BQNESError, check_shape, check_whole, concrete
from bqnes_jax.spaces.base import Architecture, Architectures, as_architectures
from bqnes_jax.types import PRNGKey


@dataclasses.dataclass(frozen=True)
class SlimmableSpace:
    """All canonical architectures, equally likely a priori. Use the instance `SLIMMABLE`.

    A block of depth d has widths^d forms, so there are (Σ_{d=1}^{layers} widths^d)^blocks
    architectures: 120⁷ ≈ 3.6·10¹⁴ of seven blocks of up to four layers in three widths. (The paper
    counts 614,625 of them, a number that does not follow from its description of the space.)

    Attributes:
        blocks: how many blocks there are.
        layers: how many layers a block has at most.
        widths: how many widths a layer can have.

    Example:
        >>> SLIMMABLE.count == 120**7
        True
        >>> small = SlimmableSpace(blocks=2, layers=3, widths=2)
        >>> arch = small.from_string("210-100")
        >>> arch.tolist()
        [2, 1, 0, 1, 0, 0]
        >>> int(small.distance(arch, small.largest))
        8
    """

    blocks: int = 7
    layers: int = 4
    _: dataclasses.KW_ONLY
    widths: int = 3

    name = "slimmable"
    size = None  # too many to list; `count` tells how many

    def __post_init__(self):
        check_whole("blocks", self.blocks, 1, 1000)
        check_whole("layers", self.layers, 1, 1000)
        check_whole("widths", self.widths, 1, 9)  # one digit each in the text
        if self.layers == self.widths == 1:
            raise BQNESError("layers and widths are both 1; there is nothing to choose.")

    @property
    def options(self) -> tuple[int, ...]:
        """How many values each entry can take, 0 included."""
        return (self.widths + 1,) * (self.blocks * self.layers)

    @property
    def count(self) -> int:
        """How many canonical architectures there are, exactly."""
        return sum(self.widths**depth for depth in range(1, self.layers + 1)) ** self.blocks

    @property
    def largest(self) -> Architecture:
        """Every layer, at its full width."""
        return jnp.full(self.blocks * self.layers, self.widths, jnp.int32)

    @property
    def smallest(self) -> Architecture:
        """One layer in each block, at the smallest width."""
        return self._join(jnp.zeros((self.blocks, self.layers), jnp.int32).at[:, 0].set(1))

    def sample(self, key: PRNGKey, n: int) -> Architectures:
        """Draw n canonical architectures uniformly, independently."""
        check_whole("n", n, 0)
        depth_key, width_key = jax.random.split(key)
        # So that each form of a block is equally likely, not each depth.
        log_forms = np.arange(1, self.layers + 1) * math.log(self.widths)
        depths = 1 + jax.random.categorical(
            depth_key, jnp.asarray(log_forms), shape=(n, self.blocks, 1)
        )
        shape = (n, self.blocks, self.layers)
        chosen = jax.random.randint(width_key, shape, 1, self.widths + 1, jnp.int32)
        return self._join(jnp.where(jnp.arange(self.layers) < depths, chosen, 0))

    def mutate(self, key: PRNGKey, arch: ArrayLike) -> Architecture:
        """Move one entry by one step, up or down, uniformly among the canonical results.

        What is not canonical is repaired first.
        """
        arch = self.repair(self._one(arch))
        steps = jnp.eye(len(arch), dtype=jnp.int32)
        neighbours = arch + jnp.concatenate([steps, -steps])
        log_mass = jnp.where(self.is_canonical(neighbours), 0.0, -jnp.inf)
        return neighbours[jax.random.categorical(key, log_mass)]

    def is_canonical(self, arch: ArrayLike) -> Bool[Array, "*batch"]:
        """Tell whether architectures are in the canonical form; any leading axes are kept."""
        blocks = self._split(arch)
        inside = jnp.all((blocks >= 0) & (blocks <= self.widths), axis=(-2, -1))
        first = jnp.all(blocks[..., 0] > 0, axis=-1)
        trailing = jnp.all((blocks[..., :-1] > 0) | (blocks[..., 1:] == 0), axis=(-2, -1))
        return inside & first & trailing

    def repair(self, arch: ArrayLike) -> Int32[Array, "*batch length"]:
        """Bring any integers into the canonical form; any leading axes are kept.

        They are clipped to what is allowed, absent layers are moved to the end of their block (the
        others keep their order), and the first layer gets at least the smallest width. What is
        canonical stays as it is.
        """
        blocks = jnp.clip(self._split(arch), 0, self.widths)
        order = jnp.argsort(blocks == 0, axis=-1, stable=True)
        blocks = jnp.take_along_axis(blocks, order, axis=-1)
        return self._join(blocks.at[..., 0].set(jnp.maximum(blocks[..., 0], 1)))

    def distance(self, a: ArrayLike, b: ArrayLike) -> Int32[Array, "*batch"]:
        """Return Σ |a − b|: how many mutations lead from one to the other, at least."""
        difference = as_architectures(self, a) - as_architectures(self, b)
        return jnp.sum(jnp.abs(difference), axis=-1, dtype=jnp.int32)

    def coordinates(self, arch: ArrayLike) -> Float[Array, "*batch length"]:
        """Return the entries divided by `widths`: from 0, absent, to 1, the full width."""
        return as_architectures(self, arch) / jnp.asarray(self.widths, jnp.result_type(float))

    def to_string(self, arch: ArrayLike) -> str:
        """Write one canonical architecture: a digit for each layer, a dash between blocks."""
        arch = self._one(arch)
        text = "-".join("".join(map(str, block)) for block in np.asarray(self._split(arch)))
        self._check_canonical(text, arch)
        return text

    def from_string(self, text: str) -> Architecture:
        """Read one canonical architecture."""
        block = f"[0-{self.widths}]{{{self.layers}}}"
        form = "-".join([block] * self.blocks)
        if not isinstance(text, str) or re.fullmatch(form, text.strip()) is None:
            raise BQNESError(
                f"{text!r} is not an architecture; it must have {self.blocks} blocks of "
                f"{self.layers} digits from 0 to {self.widths} with dashes between them."
            )
        digits = [int(digit) for digit in text.strip().replace("-", "")]
        arch = jnp.array(digits, jnp.int32)
        self._check_canonical(text, arch)
        return arch

    def _check_canonical(self, text: str, arch: Architecture) -> None:
        if not concrete(self.is_canonical(arch)):
            raise BQNESError(
                f"{text!r} is not in the canonical form (the first layer of each block present, "
                "absent layers last); `repair` brings it there."
            )

    def _one(self, arch: ArrayLike) -> Architecture:
        arch = as_architectures(self, arch)
        check_shape("architecture", arch, (len(self.options),))
        return arch

    def _split(self, arch: ArrayLike) -> Int32[Array, "*batch blocks layers"]:
        """Give blocks an axis of their own; the values may be any integers."""
        arch = arch if isinstance(arch, jax.Array) else np.asarray(arch)
        if not jnp.issubdtype(arch.dtype, jnp.integer):
            raise BQNESError(
                f"architectures of space {self.name!r} are of type {arch.dtype}; they must be "
                "integers (read text with from_string)."
            )
        if arch.ndim == 0 or arch.shape[-1] != self.blocks * self.layers:
            raise BQNESError(
                f"architectures of space {self.name!r} have shape {arch.shape}; the last axis must "
                f"have length {self.blocks * self.layers}."
            )
        return jnp.asarray(arch, jnp.int32).reshape(*arch.shape[:-1], self.blocks, self.layers)

    def _join(self, blocks: Int32[Array, "*batch blocks layers"]) -> Int32[Array, "*batch length"]:
        return blocks.reshape(*blocks.shape[:-2], self.blocks * self.layers)


SLIMMABLE = SlimmableSpace()
