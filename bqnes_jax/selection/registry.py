"""Stage 2 by name: from N trained candidates to an ensemble of M members with weights."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int32

from bqnes_jax.errors import (
    BQNESError,
    as_float,
    check_choice,
    check_finite,
    check_positive,
    check_shape,
    check_whole,
    concrete,
)
from bqnes_jax.selection.base import (
    Candidates,
    Method,
    countable_points,
    floored,
    log_mixture,
    mean_loss,
    prepared,
)
from bqnes_jax.selection.beam import beam, top
from bqnes_jax.selection.corrective import corrective
from bqnes_jax.selection.recombine import recombine
from bqnes_jax.selection.stacking import restack, stack
from bqnes_jax.surrogates import TEMPERATURE
from bqnes_jax.types import Status, flag


class SelectionInfo(NamedTuple):
    """How good an ensemble is on the validation points.

    Attributes:
        loss: mean of −log Σ_m w_m p_m; infinite if a point gets probability 0 from all members
            though not from all candidates.
        used: how many members have a positive weight.
        status: EMPTY where no candidate was usable (all weights are then 0); MASKED_TARGETS where
            points to which every candidate gives probability 0 were left out of the loss; or what
            the method reports: NOT_CONVERGED (stacking), INFEASIBLE (recombination).
    """

    loss: Float[Array, ""]
    used: Int32[Array, ""]
    status: Int32[Array, ""]


class Selection(NamedTuple):
    """An ensemble.

    Attributes:
        members: M indices of candidates. A slot that is not in use repeats the heaviest member.
        weights: non-negative with sum 1; exactly 0 in a slot that is not in use.
        info: the same for every method.
    """

    members: Int32[Array, " M"]
    weights: Float[Array, " M"]
    info: SelectionInfo


class _Entry(NamedTuple):
    method: Method
    needs_kernel: bool


_METHODS = {
    "beam": _Entry(beam, False),
    "stack": _Entry(stack, False),
    "restack": _Entry(restack, True),
    "recombine": _Entry(recombine, True),
    "top": _Entry(top, False),
    "corrective": _Entry(corrective, False),
}
_BUILT_IN = tuple(_METHODS)


def methods() -> tuple[str, ...]:
    """Return the names that `select` knows."""
    return tuple(_METHODS)


def register(name: str, method: Method, needs_kernel: bool = False) -> None:
    """Add a method of your own: a pure function (Candidates, size) -> Choice.

    `size` is at most the number of candidates. What the method leaves open, `select` does: weights
    are normalised, unused slots filled, and no weight goes to a candidate that is not usable.

    Example:
        >>> def first_ones(candidates, size):
        ...     return Choice(jnp.arange(size, dtype=jnp.int32), jnp.ones(size), jnp.int32(0))
        >>> from bqnes_jax.selection import Choice
        >>> register("first ones", first_ones)
        >>> select("first ones", jnp.log(jnp.array([[0.5, 0.5], [0.9, 0.9]])), 1).members.tolist()
        [0]
    """
    if name in _BUILT_IN:
        raise BQNESError(f"name is {name!r}, which is built in; choose one not in {_BUILT_IN}.")
    _METHODS[name] = _Entry(method, needs_kernel)


def select(
    name: str,
    log_probs: ArrayLike,
    size: int,
    kernel: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    log_prior: ArrayLike | None = None,
    temperature: ArrayLike = TEMPERATURE,
) -> Selection:
    """Choose M of N candidates and their weights by what they predict for the validation points.

    - `top`: the M with the smallest losses, equal weights.
    - `beam`: greedily, those with which the equally weighted ensemble does best.
    - `stack`: the M largest stacking weights (`stacking_weights`), renormalised.
    - `restack`: the same members; the other weights go to those that the kernel says are like them.
    - `recombine`: points and weights with the kernel moments of the posterior over candidates.
    - `corrective`: a greedy search, with swaps, for the best weighted M-subset.

    Args:
        name: one of the above, or a name given to `register`; static under `jit`, as is `size`.
        log_probs: N×n, of the true class of each validation point under each candidate. −inf is a
            probability of 0; a candidate with NaN anywhere has failed and is never a member.
        size: M. Where it exceeds the number of usable candidates, slots stay unused.
        kernel: N×N Gram matrix between the candidates, for `restack` and `recombine`.
        mask: N, false for candidates to leave out, such as padding.
        log_prior: N, of the architectures, for `recombine`; equal unless given.
        temperature: divides the summed log-likelihood in the posterior, for `recombine`.

    Returns:
        A `Selection`.

    Example:
        >>> log_probs = jnp.log(jnp.array([[0.9, 0.1], [0.1, 0.9], [0.4, 0.4]]))
        >>> chosen = select("corrective", log_probs, 2)
        >>> sorted(chosen.members.tolist()), chosen.weights.round(3).tolist()
        ([0, 1], [0.5, 0.5])
    """
    check_choice("name", name, methods())
    check_whole("size", size, 1)
    method, needs_kernel = _METHODS[name]
    log_probs, usable = prepared(log_probs, mask)
    count = len(log_probs)
    if needs_kernel and kernel is None:
        raise BQNESError(
            f"kernel is None; {name!r} needs the Gram matrix between the candidates: "
            f"pass kernel of shape ({count}, {count})."
        )
    if kernel is not None:
        kernel = as_float(kernel).astype(log_probs.dtype)
        check_shape("kernel", kernel, (count, count))
        known = concrete(usable)
        if known is not None:
            check_finite("kernel", kernel, known[:, None] & known)
    prior = jnp.zeros(count) if log_prior is None else as_float(log_prior)
    check_shape("log_prior", prior, (count,))
    known = concrete(prior)
    if known is not None:  # −inf rules an architecture out
        check_finite("log_prior", prior, known != -np.inf)
    check_positive("temperature", temperature)
    candidates = Candidates(
        log_probs,
        usable,
        kernel,
        prior.astype(log_probs.dtype),
        jnp.asarray(temperature, log_probs.dtype),
    )
    return _select(candidates, method, int(size))


@functools.partial(jax.jit, static_argnames=("method", "size"))
def _select(raw: Candidates, method: Method, size: int) -> Selection:
    usable = raw.usable
    kernel = raw.kernel
    if kernel is not None:
        kernel = jnp.where(usable[:, None] & usable, kernel, 0)
    candidates = raw._replace(log_probs=floored(raw.log_probs, usable), kernel=kernel)
    choice = method(candidates, min(size, len(usable)))
    unused = size - len(choice.members)
    members = jnp.pad(choice.members, (0, unused)).astype(jnp.int32)
    weights = _normalised(jnp.pad(choice.weights, (0, unused)), usable[members])
    members = jnp.where(weights > 0, members, members[jnp.argmax(weights)])
    countable = countable_points(candidates.log_probs)
    loss = mean_loss(log_mixture(candidates.log_probs[members], weights), countable)
    used = weights > 0
    status = (
        choice.status
        | flag(~jnp.any(used), Status.EMPTY)
        | flag(~jnp.all(countable), Status.MASKED_TARGETS)
    )
    info = SelectionInfo(loss, jnp.sum(used, dtype=jnp.int32), status)
    return Selection(members, weights, info)


def _normalised(weights: Float[Array, " M"], allowed: Bool[Array, " M"]) -> Float[Array, " M"]:
    weights = jnp.where(allowed & (weights > 0), weights, 0)  # NaN is not above zero
    total = jnp.sum(weights)
    return weights / jnp.where(total > 0, total, 1)
