"""Trees of weights as vectors, which a store can keep, and back."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bqnes_jax.errors import BQNESError


def size_of(shapes: dict) -> int:
    """Count the numbers in a tree of arrays or of their shapes."""
    return sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(shapes))


def unravel(vectors: Float[Array, "*batch w"], shapes: dict) -> dict:
    """Turn vectors that `ravel_pytree` made into trees of such shapes; leading axes are kept.

    Example:
        >>> shapes = {"a": jax.ShapeDtypeStruct((2,), float), "b": jax.ShapeDtypeStruct((), float)}
        >>> unravel(jnp.array([1.0, 2.0, 3.0]), shapes)["b"].item()
        3.0
    """
    if vectors.shape[-1] != size_of(shapes):
        raise BQNESError(
            f"weights are {vectors.shape[-1]:,} numbers, and the network has {size_of(shapes):,}: "
            "one of them has been altered or replaced."
        )
    leaves, tree = jax.tree.flatten(shapes)
    ends = np.cumsum([int(np.prod(leaf.shape)) for leaf in leaves])[:-1].tolist()
    parts = jnp.split(jnp.asarray(vectors), ends, axis=-1)
    lead = vectors.shape[:-1]
    return tree.unflatten(
        part.reshape(*lead, *leaf.shape) for part, leaf in zip(parts, leaves, strict=True)
    )
