"""Predicting with a weighted ensemble: a mixture (the paper's), or a pool in log space.

Two pools of members p_m with weights w ≥ 0:

- `"mixture"`: p(c|x) = Σ_m w_m p_m(c|x), with Σw = 1;
- `"log"`: p(c|x) ∝ Π_m p_m(c|x)^w_m, with any positive Σw. Its reciprocal is a temperature: the
  larger Σw, the surer the pool. A p_m below e^−12 (6e−6) counts as e^−12, so that no member alone
  can rule a class out, and a probability of 0 is defined.

A temperature T after pooling makes p(c|x)^(1/T) of it, normalised: below 1 it is surer.

A member of weight exactly 0 has no influence, whatever it holds: NaN of a failed training, or a
probability of 0. What an eager call refuses about the weights, a compiled one answers with NaN.
"""

import enum
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from bqnes_jax.errors import (
    BQNESError,
    as_float,
    check_choice,
    check_distribution,
    check_positive,
    check_shape,
    concrete,
    is_distribution,
)

__all__ = [
    "LOG_FLOOR",
    "POOLS",
    "Pool",
    "apply_temperature",
    "ensemble_log_probabilities",
    "ensemble_probabilities",
]


def __dir__() -> list[str]:
    return __all__  # and nothing that is imported


LOG_FLOOR = -12.0


@jax.tree_util.register_static
class Pool(enum.StrEnum):
    """Where an ensemble averages; part of a tree's structure, so that it passes through `jit`."""

    MIXTURE = "mixture"
    LOG = "log"


POOLS = tuple(pool.value for pool in Pool)


def ensemble_probabilities(
    weights: ArrayLike, member_probabilities: ArrayLike, *, pool: str = Pool.MIXTURE
) -> jax.Array:
    """Return class probabilities of a weighted ensemble.

    Args:
        weights: non-negative, of shape (M,); summing to 1 for a mixture.
        member_probabilities: of shape (M, n, C); only members of positive weight are checked.
        pool: `"mixture"` for Σ w_m p_m, or `"log"` for the normalised Π p_m^w_m.

    Returns:
        Probabilities of shape (n, C), in the wider of the two floating types given.

    Example:
        >>> members = jnp.array([[[0.75, 0.25]], [[0.25, 0.75]]])
        >>> ensemble_probabilities(jnp.array([0.75, 0.25]), members).tolist()
        [[0.625, 0.375]]
    """
    weights, members = _check(weights, member_probabilities, "member_probabilities", pool)
    check_distribution("member_probabilities", members, where=_rows_in_use(weights))
    return _probabilities(weights, members, pool)


def ensemble_log_probabilities(
    weights: ArrayLike,
    member_log_probabilities: ArrayLike,
    *,
    pool: str = Pool.MIXTURE,
    temperature: ArrayLike | None = None,
) -> jax.Array:
    """Return log-probabilities of a weighted ensemble, from those of members, without underflow.

    The same two pools as `ensemble_probabilities`: log Σ_m w_m exp(ℓ_m), or Σ_m w_m ℓ_m minus its
    log-sum-exp over the classes; -inf (probability 0) is allowed.

    Args:
        weights: non-negative, of shape (M,); summing to 1 for a mixture.
        member_log_probabilities: of shape (M, n, C); only members of positive weight are checked.
        pool: `"mixture"` or `"log"`: where the average is taken.
        temperature: of the pooled prediction, as in `apply_temperature`; None leaves it as it is.

    Returns:
        Log-probabilities of shape (n, C), in the wider of the two floating types given.

    Example:
        >>> members = jax.nn.log_softmax(jnp.array([[[500.0, 0.0]], [[480.0, 0.0]]]))
        >>> log_probabilities = ensemble_log_probabilities(jnp.array([0.5, 0.5]), members)
        >>> [round(float(value), 3) for value in log_probabilities[0]]
        [0.0, -480.693]
    """
    weights, members = _check(weights, member_log_probabilities, "member_log_probabilities", pool)
    values = concrete(members)
    if values is not None:
        with np.errstate(all="ignore"):
            exponentials = np.exp(values)
        check_distribution(
            "exp(member_log_probabilities)", exponentials, where=_rows_in_use(weights)
        )
    pooled = _log_probabilities(weights, members, pool)
    return pooled if temperature is None else apply_temperature(pooled, temperature)


def apply_temperature(log_probs: ArrayLike, temperature: ArrayLike) -> Float[Array, "*batch C"]:
    """Return log-probabilities at a temperature; what is below −12 counts as −12, unless T is 1.

    Args:
        log_probs: of all classes, on the last axis.
        temperature: a positive number, or one for each of the leading axes.

    Example:
        >>> even = apply_temperature(jnp.log(jnp.array([0.9, 0.1])), 2.0)
        >>> [round(p, 3) for p in jnp.exp(even).tolist()]
        [0.75, 0.25]
    """
    check_positive("temperature", temperature)
    log_probs = as_float(log_probs)
    temperature = jnp.asarray(temperature, log_probs.dtype)
    return _temper(log_probs, temperature)


@jax.jit
def _temper(
    log_probs: Float[Array, "*batch C"], temperature: Float[Array, "..."]
) -> Float[Array, "*batch C"]:
    temperature = temperature.reshape(
        temperature.shape + (1,) * (log_probs.ndim - temperature.ndim)
    )
    tempered = jax.nn.log_softmax(jnp.maximum(log_probs, LOG_FLOOR) / temperature, axis=-1)
    return jnp.where(temperature == 1, log_probs, tempered)


@partial(jax.jit, static_argnames="pool")
def _probabilities(
    weights: Float[Array, " members"], members: Float[Array, "members points classes"], pool: str
) -> Float[Array, "points classes"]:
    if pool == Pool.LOG:
        zero = members == 0
        logs = jnp.where(zero, -jnp.inf, jnp.log(jnp.where(zero, 1, members)))
        return jnp.exp(_log_probabilities(weights, logs, pool))
    weights = _nan_unless_sound(weights, pool)
    return _fold(lambda sum_, w, p: sum_ + w * p, 0.0, weights, members, nothing=0.0)


@partial(jax.jit, static_argnames="pool")
def _log_probabilities(
    weights: Float[Array, " members"], logs: Float[Array, "members points classes"], pool: str
) -> Float[Array, "points classes"]:
    combine = _log_mixture if pool == Pool.MIXTURE else _log_product
    return combine(_nan_unless_sound(weights, pool), logs)


def _log_mixture(
    weights: Float[Array, " members"], logs: Float[Array, "members points classes"]
) -> Float[Array, "points classes"]:
    """Return log Σ_m w_m exp(ℓ_m), with the weights outside the exponent.

    So the derivative by a weight of 0 is the true one, exp(ℓ_m - log p), not that of log 0.
    """
    fold = partial(_fold, weights=weights, members=logs, nothing=-jnp.inf)
    highest = fold(lambda top, w, log_p: jnp.where(w > 0, jnp.maximum(top, log_p), top), -jnp.inf)
    shift = jax.lax.stop_gradient(jnp.where(jnp.isneginf(highest), 0, highest))
    # Only members of weight 0 can lie above the shift; their exponential must stay finite.
    ceiling = jnp.log(jnp.finfo(logs.dtype).max) / 2
    total = fold(
        lambda sum_, w, log_p: sum_ + w * jnp.exp(jnp.minimum(log_p - shift, ceiling)), 0.0
    )
    empty = total == 0
    return jnp.where(empty, -jnp.inf, shift + jnp.log(jnp.where(empty, 1, total)))


def _log_product(
    weights: Float[Array, " members"], logs: Float[Array, "members points classes"]
) -> Float[Array, "points classes"]:
    """Return log_softmax over the classes of Σ_m w_m ℓ_m, each ℓ_m at least LOG_FLOOR."""
    total = _fold(
        lambda sum_, w, log_p: sum_ + w * jnp.maximum(log_p, LOG_FLOOR), 0.0, weights, logs, 0.0
    )
    return jax.nn.log_softmax(total, axis=-1)


def _fold(
    combine: Callable[..., jax.Array],
    start: float,
    weights: Float[Array, " members"],
    members: Float[Array, "members points classes"],
    nothing: float,
) -> Float[Array, "points classes"]:
    """Combine member after member, reading `nothing` where one of weight 0 is not finite.

    One pass without a copy of all members: a reduction over the leading axis is far slower on CPUs,
    and a matrix product rounds its factors on accelerators unless told otherwise.
    """

    def step(carry, member):
        weight, values = member
        values = jnp.where((weight == 0) & ~jnp.isfinite(values), nothing, values)
        return combine(carry, weight, values), None

    carry = jnp.full(members.shape[1:], start, members.dtype)
    return jax.lax.scan(step, carry, (weights, members))[0]


def _nan_unless_sound(weights: Float[Array, " members"], pool: str) -> Float[Array, " members"]:
    return jnp.where(_is_sound(weights, pool), weights, jnp.nan)


def _is_sound(weights, pool: str):
    if pool == Pool.MIXTURE:
        return is_distribution(weights)
    total = weights.sum(-1)
    return (weights >= 0).all(-1) & (total > 0) & (total < np.inf)


def _rows_in_use(weights: jax.Array) -> np.ndarray | jax.Array:
    values = concrete(weights)  # a comparison by JAX would be traced along with an outer jit
    return (weights if values is None else values)[:, None] > 0


def _check(
    weights: ArrayLike, members: ArrayLike, name: str, pool: str
) -> tuple[jax.Array, jax.Array]:
    check_choice("pool", pool, POOLS)
    weights, members = as_float(weights), as_float(members)
    check_shape("weights", weights, (None,))
    check_shape(name, members, (weights.shape[0], None, None))
    dtype = jnp.result_type(weights, members, jnp.float32)
    weights = weights.astype(dtype)
    if pool == Pool.MIXTURE:
        check_distribution("weights", weights)
    elif (values := concrete(weights)) is not None and not _is_sound(values, pool):
        raise BQNESError(
            f"weights are {np.array2string(values, threshold=6, precision=4)}; those of a pool in "
            "log space must be finite and non-negative, and one of them positive."
        )
    return weights, members.astype(dtype)
