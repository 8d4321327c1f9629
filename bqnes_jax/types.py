"""Names for what travels between functions."""

import enum
from collections.abc import Iterable

import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Int32, Key, UInt32

from bqnes_jax.errors import BQNESError, concrete

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

    def explain(self) -> str:
        """Say for each bit what happened and what to do; nothing for OK.

        Example:
            >>> Status.AT_BOUND.explain().partition("; ")[0]
            'A fitted hyper-parameter sits at its bound'
        """
        return " ".join(_EXPLANATIONS[bit] for bit in Status if bit in self)


_EXPLANATIONS = {
    Status.JITTERED: (
        "The covariance was not positive definite and got a larger diagonal; allow more noise "
        "(noise_bounds of FitConfig), or leave out architectures that are nearly the same."
    ),
    Status.AT_BOUND: (
        "A fitted hyper-parameter sits at its bound; widen noise_bounds or kernel_bounds of "
        "FitConfig (--fit.noise-bounds, --fit.kernel-bounds)."
    ),
    Status.MASKED_TARGETS: (
        "Observations that are not finite, or points to which every candidate gives probability "
        "0, were left out; look for trainings that failed and for labels that are wrong."
    ),
    Status.EMPTY: (
        "Nothing usable was left, so that the result is the prior or a default; pass at least one "
        "entry that is finite and not masked out, and ask for no more than there are."
    ),
    Status.NEGATIVE: (
        "An estimate that must be positive is not; use a surrogate that is positive (warp "
        "'linear', 'moment' or 'log' of WarpConfig), or evaluate more architectures."
    ),
    Status.INFEASIBLE: (
        "The moments of the posterior could not be met to tolerance, or the input has no answer; "
        "check that it is finite, ask for more members, or use restack."
    ),
    Status.NOT_CONVERGED: (
        "An iteration stopped before its tolerance, and the best so far is returned; compute in "
        "float64 (jax_enable_x64), or leave out candidates that are nearly the same."
    ),
}


def explain_each(statuses: Iterable[tuple[str, Status]]) -> list[str]:
    """Explain each thing that went differently once, after the names of all that it happened to.

    Example:
        >>> said = explain_each([("a", Status.EMPTY), ("b", Status.OK), ("c", Status.EMPTY)])
        >>> len(said), said[0].partition(" was")[0]
        (1, 'a, c: Nothing usable')
    """
    pairs = list(statuses)
    return [
        f"{', '.join(name for name, status in pairs if bit in status)}: {bit.explain()}"
        for bit in Status
        if any(bit in status for _, status in pairs)
    ]


def flag(condition: Bool[Array, ""], status: Status) -> Int32[Array, ""]:
    """Return the status where the condition holds, otherwise OK; combine them with `|`."""
    return jnp.where(condition, jnp.int32(status), jnp.int32(0))


def throw_if_failed(status: ArrayLike, what: str) -> None:
    """Raise an error that explains the status, unless it is OK.

    Args:
        status: the status bits, one or an array of them, of a result that is at hand.
        what: the name of the function that gave the result, which begins the message.
    """
    bits = concrete(status)
    if bits is None:
        raise BQNESError(
            f"{what}: throw is True, but while JAX traces there is no status to look at; throw "
            "only outside of jit, vmap and grad, or look at the status of the result."
        )
    found = Status(int(np.bitwise_or.reduce(bits, axis=None)))
    if found:
        raise BQNESError(f"{what}: {found.explain()}")
