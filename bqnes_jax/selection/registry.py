"""Stage 2 by name: from N trained candidates to an ensemble of M members with weights."""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int32

from bqnes_jax.compiling import jit_quickly
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
from bqnes_jax.pooling import POOLS, Pool
from bqnes_jax.quadrature.scale import scale_temperature
from bqnes_jax.registry import Registry
from bqnes_jax.selection.base import (
    Candidates,
    Method,
    countable_points,
    floor_entries,
    log_mixture,
    mean_loss,
    prepare,
    prepare_classes,
    required_classes,
)
from bqnes_jax.selection.beam import beam, top
from bqnes_jax.selection.caruana import caruana
from bqnes_jax.selection.corrective import corrective
from bqnes_jax.selection.logpool import log_pool_loss, logpool
from bqnes_jax.selection.quadrature import quadrature
from bqnes_jax.selection.recombine import recombine, recombine_smallest
from bqnes_jax.selection.stacking import restack, stack
from bqnes_jax.types import Status, flag, throw_if_failed


class SelectionInfo(NamedTuple):
    """How good an ensemble is on the validation points.

    Attributes:
        loss: mean of −log p, p being what the pool gives the true class; infinite if a mixture
            gives a point probability 0, though not all candidates do.
        used: how many members have a positive weight.
        status: EMPTY where no candidate was usable (all weights are then 0); MASKED_TARGETS where
            points to which every candidate gives probability 0 were left out of the loss; or what
            the method reports: NOT_CONVERGED (stacking, log pool), INFEASIBLE (recombination).
    """

    loss: Float[Array, ""]
    used: Int32[Array, ""]
    status: Int32[Array, ""]


class Selection(NamedTuple):
    """An ensemble.

    Attributes:
        members: M indices of candidates. A slot that is not in use repeats the heaviest member.
        weights: non-negative; exactly 0 in a slot that is not in use. Those of a mixture have the
            sum 1, those of a log pool any.
        info: the same for every method.
        pool: what the weights are for, as `pooling.ensemble_probabilities` takes it.
    """

    members: Int32[Array, " M"]
    weights: Float[Array, " M"]
    info: SelectionInfo
    pool: Pool


class _Entry(NamedTuple):
    method: Method
    needs_kernel: bool = False
    needs_classes: bool = False
    pool: Pool = Pool.MIXTURE
    takes_limit: bool = False


_METHODS = Registry(
    "selection method",
    {
        "beam": _Entry(beam, takes_limit=True),
        "stack": _Entry(stack, takes_limit=True),
        "restack": _Entry(restack, needs_kernel=True, takes_limit=True),
        "recombine": _Entry(recombine, needs_kernel=True),
        "recombine_smallest": _Entry(recombine_smallest, needs_kernel=True),
        "quadrature": _Entry(quadrature, needs_kernel=True, takes_limit=True),
        "top": _Entry(top, takes_limit=True),
        "corrective": _Entry(corrective, takes_limit=True),
        "caruana": _Entry(caruana, takes_limit=True),
        "logpool": _Entry(logpool, needs_classes=True, pool=Pool.LOG, takes_limit=True),
    },
)


def methods() -> tuple[str, ...]:
    """Return the names that `select` knows."""
    return _METHODS.names()


def pool_of(name: str) -> Pool:
    """Return what the weights of a method are for: a mixture, or a pool in log space.

    Example:
        >>> pool_of("logpool").value
        'log'
    """
    return _METHODS.find(name).pool


def needs_kernel(name: str) -> bool:
    """Tell whether a method has to know how alike the candidates are."""
    return _METHODS.find(name).needs_kernel


def needs_classes(name: str) -> bool:
    """Tell whether a method has to know the log-probabilities of all classes."""
    return _METHODS.find(name).needs_classes


def takes_limit(name: str) -> bool:
    """Tell whether a method can leave slots open, so that one program serves several sizes."""
    return _METHODS.find(name).takes_limit


def register(
    name: str,
    method: Method,
    *,
    needs_kernel: bool = False,
    needs_classes: bool = False,
    pool: str = Pool.MIXTURE,
    takes_limit: bool = False,
) -> None:
    """Add a method of your own: a pure function (Candidates, size) -> Choice.

    `size` is at most the number of candidates. What the method leaves open, `select` does: weights
    of a mixture are normalised, unused slots filled, and no weight goes to a candidate that is not
    usable. A method whose weights are for the pool `"log"` needs the classes. One that takes a
    limit fills only the first slots, as many as `Candidates.limit` says.

    Example:
        >>> def first_ones(candidates, size):
        ...     return Choice(jnp.arange(size, dtype=jnp.int32), jnp.ones(size), jnp.int32(0))
        >>> from bqnes_jax.selection import Choice
        >>> register("first ones", first_ones)
        >>> select("first ones", jnp.log(jnp.array([[0.5, 0.5], [0.9, 0.9]])), 1).members.tolist()
        [0]
    """
    check_choice("pool", pool, POOLS)
    needs_classes = needs_classes or pool == Pool.LOG
    _METHODS.register(name, _Entry(method, needs_kernel, needs_classes, Pool(pool), takes_limit))


def select(
    name: str,
    log_probs: ArrayLike,
    size: int,
    *,
    classes: ArrayLike | None = None,
    kernel: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    log_prior: ArrayLike | None = None,
    temperature: ArrayLike | None = None,
    rule: ArrayLike | None = None,
    measures: ArrayLike | None = None,
    limit: ArrayLike | None = None,
    throw: bool = False,
) -> Selection:
    """Choose M of N candidates and their weights by what they predict for the validation points.

    - `top`: the M with the smallest losses, equal weights.
    - `beam`: greedily, those with which the equally weighted ensemble does best.
    - `caruana`: the same with replacement; weights are how often each was drawn.
    - `stack`: the M largest stacking weights (`stacking_weights`), renormalised.
    - `restack`: the same members; the other weights go to those that the kernel says are like them.
    - `recombine`: points and weights with the kernel moments of the posterior over candidates.
    - `recombine_smallest`: the same with the test functions of the published code.
    - `quadrature`: the largest weights of the quadrature of the posterior predictive distribution.
    - `corrective`: a greedy search, with swaps, for the best weighted M-subset.
    - `logpool`: the like for the log-linear pool, p ∝ Π_m p_m^w_m, whose weights have any sum.

    Args:
        name: one of the above, or a name given to `register`; static under `jit`, as is `size`.
        log_probs: N×n, of the true class of each validation point under each candidate. −inf is a
            probability of 0; a candidate with NaN anywhere has failed and is never a member.
        size: M. Where it exceeds the number of usable candidates, slots stay unused.
        classes: N×n×C, log-probabilities of all classes at the same points, for `logpool`. Half
            precision is enough; it is widened piece by piece.
        kernel: N×N Gram matrix between the candidates, for `restack`, `recombine` and `quadrature`.
        mask: N, false for candidates to leave out, such as padding.
        log_prior: N, of the architectures, for `recombine`; equal unless given.
        temperature: divides the summed log-likelihood in the posterior, for `recombine` and
            `quadrature`; by default `quadrature.scale_temperature(n)`.
        rule: N, the weights (K + ρI)⁻¹ z of a quadrature rule for the prior, for `quadrature`.
        measures: N, the log-likelihoods that the posterior is formed by, as `measure_candidates`
            returns them; by default those of the validation points.
        limit: how many members there may be, where that is fewer than M; it may be traced, so that
            one program serves several sizes. `recombine` has none.
        throw: whether to raise an error that explains a status other than OK.

    Returns:
        A `Selection`.

    Example:
        >>> log_probs = jnp.log(jnp.array([[0.9, 0.1], [0.1, 0.9], [0.4, 0.4]]))
        >>> chosen = select("corrective", log_probs, 2)
        >>> sorted(chosen.members.tolist()), chosen.weights.round(3).tolist()
        ([0, 1], [0.5, 0.5])
    """
    entry = _METHODS.find(name)
    check_whole("size", size, 1)
    log_probs, usable = prepare(log_probs, mask)
    count = len(log_probs)
    if entry.needs_kernel and kernel is None:
        raise BQNESError(
            f"kernel is None; {name!r} needs the Gram matrix between the candidates: "
            f"pass kernel of shape ({count}, {count})."
        )
    if entry.needs_classes and classes is None:
        raise BQNESError(
            f"classes is None; {name!r} needs what the candidates say about every class: pass "
            f"their log-probabilities, of shape {log_probs.shape} and an axis of classes."
        )
    if not entry.needs_classes:
        classes = None
    if classes is not None:
        classes, usable = prepare_classes(classes, log_probs, usable)
    if kernel is not None:
        kernel = as_float(kernel).astype(log_probs.dtype)
        check_shape("kernel", kernel, (count, count))
        known = concrete(usable)
        if known is not None:
            check_finite("kernel", kernel, known[:, None] & known)
    prior = as_float(np.zeros(count) if log_prior is None else log_prior)
    check_shape("log_prior", prior, (count,))
    known = concrete(prior)
    if known is not None:  # −inf rules an architecture out
        check_finite("log_prior", prior, known != -np.inf)
    if temperature is None:
        temperature = scale_temperature(log_probs.shape[1])
    check_positive("temperature", temperature)
    if rule is not None:
        rule = as_float(rule).astype(log_probs.dtype)
        check_shape("rule", rule, (count,))
    if measures is not None:
        measures = as_float(measures).astype(log_probs.dtype)
        check_shape("measures", measures, (count,))
    if limit is not None:
        if not entry.takes_limit:
            raise BQNESError(f"limit is given, but {name!r} fills every slot; give the size alone.")
        check_positive("limit", limit)
        limit = jnp.asarray(limit, jnp.int32)
    candidates = Candidates(
        log_probs,
        usable,
        kernel,
        prior.astype(log_probs.dtype),
        jnp.asarray(temperature, log_probs.dtype),
        classes,
        rule,
        measures,
        limit,
    )
    found = _select(candidates, entry.method, int(size), entry.pool)
    if throw:
        throw_if_failed(found.info.status, f"select({name!r})")
    return found


@jit_quickly(("method", "size", "pool"))
def _select(raw: Candidates, method: Method, size: int, pool: Pool) -> Selection:
    usable = raw.usable
    kernel = raw.kernel
    if kernel is not None:
        kernel = jnp.where(usable[:, None] & usable, kernel, 0)
    candidates = raw._replace(log_probs=floor_entries(raw.log_probs, usable), kernel=kernel)
    choice = method(candidates, min(size, len(usable)))
    unused = size - len(choice.members)
    members = jnp.pad(choice.members, (0, unused)).astype(jnp.int32)
    weights = jnp.pad(choice.weights, (0, unused))
    weights = jnp.where(usable[members] & (weights > 0), weights, 0)  # NaN is not above zero
    used, total = weights > 0, jnp.sum(weights)
    members = jnp.where(used, members, members[jnp.argmax(weights)])
    status = choice.status | flag(~jnp.any(used), Status.EMPTY)
    if pool == Pool.MIXTURE:
        weights = weights / jnp.where(total > 0, total, 1)
        countable = countable_points(candidates.log_probs)
        loss = mean_loss(log_mixture(candidates.log_probs[members], weights), countable)
        status = status | flag(~jnp.all(countable), Status.MASKED_TARGETS)
    else:
        loss = log_pool_loss(
            weights, candidates.log_probs[members], required_classes(candidates)[members]
        )
    info = SelectionInfo(loss, jnp.sum(used, dtype=jnp.int32), status)
    return Selection(members, weights, info, pool)
