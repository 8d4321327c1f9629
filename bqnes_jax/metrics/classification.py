"""Accuracy, likelihood and the Brier score."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int

from bqnes_jax.errors import check_labels
from bqnes_jax.metrics.base import (
    at_least_single,
    check_members,
    check_probabilities,
    confidence_and_hits,
    is_sound,
    nan_unless_sound,
)


def accuracy(probabilities: ArrayLike, labels: ArrayLike, *, log: bool = False) -> jax.Array:
    """Return the fraction of points whose predicted class, argmax_c p_ic, is the label.

    Example:
        >>> float(accuracy(jnp.array([[0.9, 0.1], [0.5, 0.5]]), jnp.array([0, 1])))
        0.5
    """
    return _accuracy(*check_probabilities(probabilities, labels, log))


def log_likelihood(probabilities: ArrayLike, labels: ArrayLike, *, log: bool = False) -> jax.Array:
    """Sum the log-likelihood over the points, Σ_i log p_i(y_i).

    A label of probability 0 makes it -inf. In float32 a probability below exp(-103) is 0: where
    predictions are that sure, give their logarithms.

    Example:
        >>> round(float(log_likelihood(jnp.array([[0.5, 0.5], [0.5, 0.5]]), jnp.array([0, 1]))), 4)
        -1.3863
        >>> float(log_likelihood(jnp.array([[0.0, -500.0]]), jnp.array([1]), log=True))
        -500.0
    """
    _, labels = check_probabilities(probabilities, labels, log)
    return _log_likelihood(at_least_single(probabilities), labels, log)


def mean_log_likelihood(
    probabilities: ArrayLike, labels: ArrayLike, *, log: bool = False
) -> jax.Array:
    """Average the log-likelihood over the points, (1/n) Σ_i log p_i(y_i).

    Example:
        >>> round(float(mean_log_likelihood(jnp.array([[0.5, 0.5]]), jnp.array([0]))), 4)
        -0.6931
    """
    return log_likelihood(probabilities, labels, log=log) / jnp.shape(labels)[0]


def brier_score(probabilities: ArrayLike, labels: ArrayLike, *, log: bool = False) -> jax.Array:
    """Return the Brier score, (1/n) Σ_i Σ_c (p_ic - 1[y_i = c])², from 0 (perfect) to 2.

    With two classes it is twice the one-column form that scikit-learn reports by default.

    Example:
        >>> float(brier_score(jnp.array([[0.5, 0.5]]), jnp.array([0])))
        0.5
    """
    return _brier_score(*check_probabilities(probabilities, labels, log))


def aurc(probabilities: ArrayLike, labels: ArrayLike, *, log: bool = False) -> jax.Array:
    """Return the area under the risk–coverage curve: the mean error rate among the surest.

    (1/n) Σ_k (errors among the k surest points) / k; the surest have the highest probability of the
    predicted class, and of equally sure ones those that come first.

    Example:
        >>> probabilities = jnp.array([[0.9, 0.1], [0.6, 0.4]])
        >>> float(aurc(probabilities, jnp.array([0, 1])))  # right where it is surer
        0.25
    """
    return _aurc(*check_probabilities(probabilities, labels, log))


def per_member(
    metric: Callable[..., Any],
    member_probabilities: ArrayLike,
    labels: ArrayLike,
    *,
    log: bool = False,
    **options: Any,
) -> Any:
    """Map any metric of this module over members: probabilities (N, n, C) and labels (n,).

    Returns what the metric returns, with a leading axis N.

    Example:
        >>> members = jnp.array([[[0.9, 0.1]], [[0.2, 0.8]]])
        >>> per_member(accuracy, members, jnp.array([0])).tolist()
        [1.0, 0.0]
    """
    shape = check_members(member_probabilities, log).shape[1:]
    labels = check_labels("labels", labels, shape)
    of_one = partial(metric, labels=labels, log=log, **options)
    return jax.vmap(of_one)(at_least_single(member_probabilities))


@jax.jit
def _accuracy(
    probabilities: Float[Array, "points classes"], labels: Int[Array, " points"]
) -> Float[Array, ""]:
    return confidence_and_hits(probabilities, labels)[1].mean()


@partial(jax.jit, static_argnames="log")
def _log_likelihood(
    given: Float[Array, "points classes"], labels: Int[Array, " points"], log: bool
) -> Float[Array, ""]:
    of_label = jnp.take_along_axis(given, labels[:, None], axis=1)[:, 0]
    sound = is_sound(jnp.exp(given) if log else given, labels)
    return jnp.where(sound, of_label if log else jnp.log(of_label), jnp.nan).sum()


@jax.jit
def _brier_score(
    probabilities: Float[Array, "points classes"], labels: Int[Array, " points"]
) -> Float[Array, ""]:
    truth = labels[:, None] == jnp.arange(probabilities.shape[1])
    return ((nan_unless_sound(probabilities, labels) - truth) ** 2).sum(axis=1).mean()


@jax.jit
def _aurc(
    probabilities: Float[Array, "points classes"], labels: Int[Array, " points"]
) -> Float[Array, ""]:
    confidence, hits = confidence_and_hits(probabilities, labels)
    errors = jnp.cumsum(1 - hits[jnp.argsort(-confidence)])
    return jnp.mean(errors / jnp.arange(1, len(hits) + 1))
