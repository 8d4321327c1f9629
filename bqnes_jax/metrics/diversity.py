"""Diversity: how far members say different things."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from bqnes_jax.errors import is_distribution
from bqnes_jax.metrics.base import check_members


class Disagreement(NamedTuple):
    """Fractions of points at which members predict different classes."""

    pairwise: jax.Array  # (N, N), symmetric, 0 on the diagonal
    per_member: jax.Array  # (N,), the mean over the other members


def disagreement(member_probabilities: ArrayLike, *, log: bool = False) -> Disagreement:
    """Return how often members (N, n, C) predict different classes, in pairs and on average.

    D_ab = (1/n) Σ_i 1[argmax_c p_aic ≠ argmax_c p_bic]; a member's own number is the mean of D_ab
    over the N - 1 others, and 0 for a member that is alone.

    Example:
        >>> members = jnp.array([[[0.9, 0.1], [0.9, 0.1]], [[0.8, 0.2], [0.2, 0.8]]])
        >>> disagreement(members).pairwise.tolist()
        [[0.0, 0.5], [0.5, 0.0]]
    """
    return _disagreement(check_members(member_probabilities, log))


def mutual_information(member_probabilities: ArrayLike, *, log: bool = False) -> jax.Array:
    """Return how much the class of each point depends on which member is right.

    H((1/N) Σ_m p_m) - (1/N) Σ_m H(p_m) in nats, of shape (n,): 0 where members (N, n, C) say the
    same, at most the smaller of log N and log C.

    Example:
        >>> members = jnp.array([[[1.0, 0.0], [0.5, 0.5]], [[0.0, 1.0], [0.5, 0.5]]])
        >>> [round(float(value), 4) for value in mutual_information(members)]
        [0.6931, 0.0]
    """
    return _mutual_information(check_members(member_probabilities, log))


@jax.jit
def _disagreement(members: Float[Array, "members points classes"]) -> Disagreement:
    count, points, _ = members.shape
    predicted = jnp.argmax(members, axis=-1)
    differing = jax.lax.map(lambda mine: (mine != predicted).sum(axis=1), predicted)
    unsound = ~is_distribution(members).all(axis=1)
    pairwise = jnp.where(unsound | unsound[:, None], jnp.nan, differing.astype(members.dtype))
    pairwise = pairwise / points
    return Disagreement(pairwise, pairwise.sum(axis=1) / max(count - 1, 1))


@jax.jit
def _mutual_information(
    members: Float[Array, "members points classes"],
) -> Float[Array, " points"]:
    def entropy(probabilities):
        return jax.scipy.special.entr(probabilities).sum(axis=-1)

    sound = is_distribution(members).all(axis=0)
    information = entropy(members.mean(axis=0)) - entropy(members).mean(axis=0)
    return jnp.where(sound, jnp.maximum(information, 0), jnp.nan)
