"""Intervals by the bootstrap: how far a metric depends on which points were drawn."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int

from bqnes_jax.errors import BQNESError, check_whole
from bqnes_jax.metrics.base import at_least_single, check_probabilities
from bqnes_jax.types import PRNGKey


class Interval(NamedTuple):
    """A metric of all points, and between which values it lies for most draws of points."""

    estimate: Float[Array, "*shape"]
    low: Float[Array, "*shape"]
    high: Float[Array, "*shape"]


def bootstrap_interval(
    key: PRNGKey,
    metric: Callable[..., Any],
    probabilities: ArrayLike,
    labels: ArrayLike,
    *,
    draws: int = 1000,
    level: float = 0.95,
    log: bool = False,
    **options: Any,
) -> Interval:
    """Return a metric with the percentile interval over points drawn with replacement.

    Args:
        key: of the draws.
        metric: any of this package of probabilities and labels whose result is an array.
        probabilities: of shape (n, C).
        labels: of shape (n,).
        draws: how often n points are drawn.
        level: the share of the draws that the interval covers.
        log: whether `probabilities` are logarithms.
        **options: of the metric.

    Example:
        >>> from bqnes_jax.metrics import accuracy
        >>> probabilities, labels = jnp.full((100, 2), 0.5), jnp.arange(100) % 2
        >>> found = bootstrap_interval(jax.random.key(0), accuracy, probabilities, labels)
        >>> float(found.estimate), bool(0.35 < found.low < 0.45 < 0.55 < found.high < 0.65)
        (0.5, True)
    """
    _, labels = check_probabilities(probabilities, labels, log)
    given = at_least_single(probabilities)
    check_whole("draws", draws, 1)
    if not 0 < level < 1:
        raise BQNESError(f"level is {level!r}; it must be between 0 and 1, such as 0.95.")
    return _interval(key, given, labels, metric, draws, level, (("log", log), *options.items()))


@functools.partial(jax.jit, static_argnums=(3, 4, 5, 6))
def _interval(
    key: PRNGKey,
    given: Float[Array, "points classes"],
    labels: Int[Array, " points"],
    metric: Callable[..., Any],
    draws: int,
    level: float,
    options: tuple[tuple[str, Any], ...],
) -> Interval:
    points = len(labels)

    def draw(key: PRNGKey) -> Any:
        chosen = jax.random.randint(key, (points,), 0, points)
        return metric(given[chosen], labels[chosen], **dict(options))

    values = jax.lax.map(draw, jax.random.split(key, draws))
    tails = jnp.array([(1 - level) / 2, (1 + level) / 2], given.dtype)
    low, high = jnp.quantile(values, tails, axis=0)
    return Interval(metric(given, labels, **dict(options)), low, high)
