"""Names for what travels between functions."""

import enum

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int32, Key, UInt32

PRNGKey = Key[Array, ""] | UInt32[Array, "2"]


class Status(enum.IntFlag):
    """What went differently, as bits of an int32: compiled code cannot raise, so it reports.

    Example:
        >>> Status.JITTERED | Status.AT_BOUND
        <Status.JITTERED|AT_BOUND: 3>
        >>> Status(0) == Status.OK
        True
    """

    OK = 0
    JITTERED = 1  # the covariance was not positive definite and got a larger diagonal
    AT_BOUND = 2  # a fitted hyper-parameter sits at a bound
    MASKED_TARGETS = 4  # observations that are not finite were left out
    EMPTY = 8  # nothing usable was left: the result is the prior, or a default
    NEGATIVE = 16  # an estimate that must be positive is not (the plain GP's evidence)
    INFEASIBLE = 32  # the conditions could not be met to tolerance, or the input has no answer
    NOT_CONVERGED = 64  # an iteration stopped before its tolerance


def flag(condition: Bool[Array, ""], status: Status) -> Int32[Array, ""]:
    """The status where the condition holds, otherwise OK; combine them with `|`."""
    return jnp.where(condition, jnp.int32(status), jnp.int32(0))
