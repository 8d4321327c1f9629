"""What the metrics check, and what several of them start from."""

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int

from bqnes_jax.errors import (
    BQNESError,
    as_float,
    check_distribution,
    check_finite,
    check_labels,
    check_shape,
    is_distribution,
)


def confidence_and_hits(
    probabilities: Float[Array, "points classes"], labels: Int[Array, " points"]
) -> tuple[Float[Array, " points"], Float[Array, " points"]]:
    """Return the highest probability of each point, and 1 where its class is the label, else 0."""
    probabilities = nan_unless_sound(probabilities, labels)
    confidence = probabilities.max(axis=1)
    hits = (probabilities.argmax(axis=1) == labels).astype(confidence.dtype)
    return confidence, jnp.where(jnp.isnan(confidence), jnp.nan, hits)


def nan_unless_sound(
    probabilities: Float[Array, "points classes"], labels: Int[Array, " points"]
) -> Float[Array, "points classes"]:
    """Replace what is no probability vector, or has a label that is no class, by NaN."""
    return jnp.where(is_sound(probabilities, labels)[:, None], probabilities, jnp.nan)


def is_sound(
    probabilities: Float[Array, "points classes"], labels: Int[Array, " points"]
) -> Bool[Array, " points"]:
    """Tell which points have a probability vector, and a label that is a class."""
    in_range = (labels >= 0) & (labels < probabilities.shape[1])
    return is_distribution(probabilities) & in_range


def check_probabilities(
    probabilities: ArrayLike, labels: ArrayLike, log: bool
) -> tuple[jax.Array, jax.Array]:
    """Check what is given as (n, C) and labels (n,); return probabilities and labels as arrays."""
    probabilities = _as_probabilities("probabilities", probabilities, 2, log)
    return probabilities, check_labels("labels", labels, probabilities.shape)


def check_members(member_probabilities: ArrayLike, log: bool) -> jax.Array:
    """Check what is given as (N, n, C), and return probabilities as an array."""
    return _as_probabilities("member_probabilities", member_probabilities, 3, log)


def _as_probabilities(name: str, given: ArrayLike, axes: int, log: bool) -> jax.Array:
    """Return the probabilities that are given, or whose logarithms are."""
    probabilities = at_least_single(given)
    check_shape(name, probabilities, (None,) * axes)
    _check_not_empty(name, probabilities)
    if log:
        name, probabilities = f"exp({name})", jnp.exp(probabilities)
    check_distribution(name, probabilities)
    return probabilities


def check_columns(**columns: ArrayLike) -> tuple[jax.Array, ...]:
    """Check arrays of as many points as `targets`, and return them in one floating type."""
    arrays = {name: at_least_single(column) for name, column in columns.items()}
    points = jnp.size(arrays["targets"])
    for name, array in arrays.items():
        check_shape(name, array, (points,))
        _check_not_empty(name, array)
        check_finite(name, array)
    dtype = jnp.result_type(*arrays.values())
    return tuple(array.astype(dtype) for array in arrays.values())


def _check_not_empty(name: str, array: jax.Array) -> None:
    if array.size == 0:
        raise BQNESError(f"{name} has shape {array.shape}; at least one point is needed.")


def at_least_single(array: ArrayLike) -> jax.Array:
    """Convert to a floating type that has at least the precision of float32."""
    array = as_float(array)
    return array.astype(jnp.promote_types(array.dtype, jnp.float32))
