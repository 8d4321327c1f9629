"""Predicting with a weighted ensemble, in probability space (the paper's) or in log space.

Two pools of members p_m with weights w (w ≥ 0, Σw = 1), by the name of the space they average in:

- `"probability"`: the mixture p(c|x) = Σ_m w_m p_m(c|x);
- `"log"`: the normalised geometric mean p(c|x) ∝ Π_m p_m(c|x)^w_m.

A member of weight exactly 0 has no influence, whatever it holds: NaN of a failed training, or a
probability of 0. What an eager call refuses about the weights, a compiled one answers with NaN.
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from bqnes_jax.errors import (
    as_float,
    check_choice,
    check_distribution,
    check_shape,
    concrete,
    is_distribution,
)

SPACES = ("probability", "log")


def ensemble_probabilities(
    weights: ArrayLike, member_probabilities: ArrayLike, space: str = "probability"
) -> jax.Array:
    """Class probabilities of a weighted ensemble.

    In log space, a class to which any member of positive weight gives probability 0 gets 0; at a
    point where that rules out every class, the geometric mean is 0/0 and the mixture stands in.
    A probability that underflowed to 0 rules out like any other: where confident members can do
    that, keep log-probabilities and use `ensemble_log_probabilities`.

    Args:
        weights: non-negative, summing to 1, of shape (M,).
        member_probabilities: of shape (M, n, C); only members of positive weight are checked.
        space: `"probability"` for Σ w_m p_m, or `"log"` for the normalised Π p_m^w_m.

    Returns:
        Probabilities of shape (n, C), in the wider of the two floating types given.

    Example:
        >>> members = jnp.array([[[0.75, 0.25]], [[0.25, 0.75]]])
        >>> ensemble_probabilities(jnp.array([0.75, 0.25]), members).tolist()
        [[0.625, 0.375]]
    """
    weights, members = _checked(weights, member_probabilities, "member_probabilities", space)
    check_distribution("member_probabilities", members, where=_rows_in_use(weights))
    return _probabilities(weights, members, space)


def ensemble_log_probabilities(
    weights: ArrayLike, member_log_probabilities: ArrayLike, space: str = "probability"
) -> jax.Array:
    """Log-probabilities of a weighted ensemble, from those of its members, without underflow.

    The same two pools as `ensemble_probabilities`: log Σ_m w_m exp(ℓ_m), or Σ_m w_m ℓ_m minus its
    log-sum-exp over the classes; -inf (probability 0) is allowed and means what it says.

    Args:
        weights: non-negative, summing to 1, of shape (M,).
        member_log_probabilities: of shape (M, n, C); only members of positive weight are checked.
        space: `"probability"` or `"log"`: where the average is taken.

    Returns:
        Log-probabilities of shape (n, C), in the wider of the two floating types given.

    Example:
        >>> members = jax.nn.log_softmax(jnp.array([[[500.0, 0.0]], [[480.0, 0.0]]]))
        >>> log_probabilities = ensemble_log_probabilities(jnp.array([0.5, 0.5]), members)
        >>> [round(float(value), 3) for value in log_probabilities[0]]
        [0.0, -480.693]
    """
    weights, members = _checked(
        weights, member_log_probabilities, "member_log_probabilities", space
    )
    values = concrete(members)
    if values is not None:
        with np.errstate(all="ignore"):
            exponentials = np.exp(values)
        check_distribution(
            "exp(member_log_probabilities)", exponentials, where=_rows_in_use(weights)
        )
    return _log_probabilities(weights, members, space)


@partial(jax.jit, static_argnames="space")
def _probabilities(
    weights: Float[Array, " members"], members: Float[Array, "members points classes"], space: str
) -> Float[Array, "points classes"]:
    if space == "log":
        zero = members == 0
        logs = jnp.where(zero, -jnp.inf, jnp.log(jnp.where(zero, 1, members)))
        return jnp.exp(_log_probabilities(weights, logs, space))
    weights = _nan_unless_distribution(weights)
    return _fold(lambda sum_, w, p: sum_ + w * p, 0.0, weights, members, nothing=0.0)


@partial(jax.jit, static_argnames="space")
def _log_probabilities(
    weights: Float[Array, " members"], logs: Float[Array, "members points classes"], space: str
) -> Float[Array, "points classes"]:
    pool = _log_mixture if space == "probability" else _log_geometric_mean
    return pool(_nan_unless_distribution(weights), logs)


def _log_mixture(
    weights: Float[Array, " members"], logs: Float[Array, "members points classes"]
) -> Float[Array, "points classes"]:
    """log Σ_m w_m exp(ℓ_m), with the weights outside the exponent.

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


def _log_geometric_mean(
    weights: Float[Array, " members"], logs: Float[Array, "members points classes"]
) -> Float[Array, "points classes"]:
    """log_softmax over the classes of Σ_m w_m ℓ_m; the mixture where no class is left."""
    fold = partial(_fold, weights=weights, members=logs, nothing=-jnp.inf)
    total = fold(lambda sum_, w, log_p: sum_ + w * jnp.where(jnp.isneginf(log_p), 0, log_p), 0.0)
    ruled_out = fold(lambda veto, w, log_p: veto + w * jnp.isneginf(log_p), 0.0) > 0
    nothing_left = ruled_out.all(axis=-1, keepdims=True)
    scores = jnp.where(ruled_out & ~nothing_left, -jnp.inf, total)
    return jnp.where(nothing_left, _log_mixture(weights, logs), jax.nn.log_softmax(scores, axis=-1))


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


def _nan_unless_distribution(weights: Float[Array, " members"]) -> Float[Array, " members"]:
    return jnp.where(is_distribution(weights), weights, jnp.nan)


def _rows_in_use(weights: jax.Array) -> np.ndarray | jax.Array:
    values = concrete(weights)  # a comparison by JAX would be traced along with an outer jit
    return (weights if values is None else values)[:, None] > 0


def _checked(
    weights: ArrayLike, members: ArrayLike, name: str, space: str
) -> tuple[jax.Array, jax.Array]:
    check_choice("space", space, SPACES)
    weights, members = as_float(weights), as_float(members)
    check_shape("weights", weights, (None,))
    check_shape(name, members, (weights.shape[0], None, None))
    dtype = jnp.result_type(weights, members, jnp.float32)
    weights = weights.astype(dtype)
    check_distribution("weights", weights)
    return weights, members.astype(dtype)
