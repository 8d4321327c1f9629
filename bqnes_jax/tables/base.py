"""Results in memory: what each architecture of a space scored."""

import functools
from typing import NamedTuple

from jax.tree_util import Partial
from jaxtyping import Array, Float, Int32

from bqnes_jax.candidates import Outcome
from bqnes_jax.errors import check_shape
from bqnes_jax.selection import Measure, measure_candidates
from bqnes_jax.spaces import Architectures, EnumerableSpace


class Table(NamedTuple):
    """One row for each architecture of a space, in the order of its index; NaN where there is none.

    Attributes:
        log_likelihoods: summed over the validation points.
        accuracies: on the validation points, from 0 to 1.
        log_probs: of the true class of each of n validation points; None where they are not known.
        test_log_probs: of all classes at each of m test points; None where they are not known.
        classes: log-probabilities of all classes at the n validation points, which pools in log
            space need; None where they are not known.
        train_log_likelihoods: summed over the training points; None where they are not known.
        train_points: how many of those there are.
    """

    log_likelihoods: Float[Array, " size"]
    accuracies: Float[Array, " size"]
    log_probs: Float[Array, "size n"] | None = None
    test_log_probs: Float[Array, "size m classes"] | None = None
    classes: Float[Array, "size n classes"] | None = None
    train_log_likelihoods: Float[Array, " size"] | None = None
    train_points: int | None = None


def evaluator(table: Table, space: EnumerableSpace, *, measure: Measure = "valid") -> Partial:
    """Return the function that looks up what evaluating architectures of a space gave.

    `measure` is that of the search (`SearchConfig.measure`).

    It is a pytree whose leaves are the table's: as an argument of a compiled function, other tables
    of the same shapes do not compile again.

    Example:
        >>> import jax.numpy as jnp
        >>> from bqnes_jax.spaces import NATS
        >>> table = Table(-jnp.arange(15_625.0), jnp.zeros(15_625))
        >>> evaluator(table, NATS)(NATS.from_index(jnp.array([3, 4]))).log_likelihoods.tolist()
        [-3.0, -4.0]
    """
    for name, axes in (
        ("log_likelihoods", 1),
        ("accuracies", 1),
        ("log_probs", 2),
        ("test_log_probs", 3),
        ("classes", 3),
        ("train_log_likelihoods", 1),
    ):
        values = getattr(table, name)
        if values is not None:
            check_shape(f"table.{name}", values, (space.size, *[None] * (axes - 1)))
    known = table._replace(train_log_likelihoods=None, train_points=None)
    if measure == "valid":
        return Partial(_lookup(space), known, None)
    points = 1 if table.log_probs is None else table.log_probs.shape[1]
    measures = measure_candidates(
        measure, table.log_likelihoods, points, table.train_log_likelihoods, table.train_points
    )
    return Partial(_lookup(space), known, measures)


@functools.cache
def _lookup(space: EnumerableSpace):
    def look_up(
        table: Table, measures: Float[Array, " size"] | None, archs: Architectures
    ) -> Outcome:
        index = space.index(archs)
        log_probs = None if table.log_probs is None else table.log_probs[index]
        classes = None if table.classes is None else table.classes[index]
        measured = None if measures is None else measures[index]
        return Outcome(
            archs, table.log_likelihoods[index], log_probs, classes=classes, measures=measured
        )

    return look_up


class Tabulated(NamedTuple):
    """Results of real networks, and the space of the architectures that have them.

    Attributes:
        space: the architectures, as a space of its own; with their seeds where there are several.
        table: one row for each.
        test_labels: the classes of the points that `table.test_log_probs` are of.
    """

    space: EnumerableSpace
    table: Table
    test_labels: Int32[Array, " m"]
