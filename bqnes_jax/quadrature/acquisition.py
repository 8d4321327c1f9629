"""Where to look next: scores of candidates, and the best q of a pool.

An acquisition function maps a prediction at m architectures and their log prior to m scores, the
larger the better. Parameters of its own are bound with `jax.tree_util.Partial`, which keeps them
arrays: `Partial(log_expected_improvement, best=2.5)`.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy.special import log_ndtr
from jax.tree_util import Partial
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int32, Num

from bqnes_jax.errors import BQNESError, check_mask, check_shape, check_whole
from bqnes_jax.surrogates import Prediction, Surrogate
from bqnes_jax.surrogates.base import Bounded, as_rows
from bqnes_jax.types import Status, flag

_SHORTLIST = 128  # candidates whose scores are computed where bounds rule out all others

# Scores m architectures by a prediction and their log prior.
Acquisition = Callable[[Prediction, Float[Array, " m"]], Float[Array, " m"]]


def uncertainty_sampling(
    prediction: Prediction, log_prior: Float[Array, " m"]
) -> Float[Array, " m"]:
    """Return log(variance · π²): where the integrand is most uncertain.

    Under WSABI-L the variance is Σ(α, α) μ(α)², so this is the logarithm of the published
    a_US(α) = Σ(α, α) μ(α)² π(α)². What is known, of variance 0 or below, scores −∞.
    """
    variance = prediction.variance
    known = variance <= 0
    score = jnp.log(jnp.where(known, 1, variance)) + 2 * log_prior
    return jnp.where(known, -jnp.inf, score)


def upper_confidence_bound(
    prediction: Prediction, log_prior: Float[Array, " m"], *, weight: ArrayLike = 2.0
) -> Float[Array, " m"]:
    """Return mean + weight · standard deviation, 0 where the variance is below; no prior."""
    return prediction.mean + weight * jnp.sqrt(jnp.maximum(prediction.variance, 0))


def log_expected_improvement(
    prediction: Prediction, log_prior: Float[Array, " m"], *, best: ArrayLike
) -> Float[Array, " m"]:
    """Return log E[max(f − best, 0)] = log σ + log h(z), z = (mean − best)/σ; no prior.

    h(z) = φ(z) + z Φ(z) vanishes in float32 from z ≈ −14 on; its logarithm does not.
    """
    mean, variance = prediction
    certain = variance <= 0
    sd = jnp.sqrt(jnp.where(certain, 1, variance))
    gain = mean - best
    # A known value improves by just what it is above the best.
    better = certain & (gain > 0)
    known = jnp.where(better, jnp.log(jnp.where(better, gain, 1)), -jnp.inf)
    return jnp.where(certain, known, jnp.log(sd) + _log_h(jnp.where(certain, 0, gain / sd)))


class Proposal(NamedTuple):
    """The q best of a pool, best first; a score of −inf marks a slot that could not be filled."""

    indices: Int32[Array, " q"]
    archs: Num[Array, "q length"]
    scores: Float[Array, " q"]
    status: Int32[Array, ""]


def propose(
    surrogate: Surrogate,
    pool: ArrayLike,
    *,
    acquisition=uncertainty_sampling,
    q: int = 1,
    log_prior: ArrayLike | None = None,
    eligible: ArrayLike | None = None,
    distinct: bool = False,
) -> Proposal:
    """Choose the q architectures of a pool [m, length] with the largest scores.

    What the surrogate was conditioned on is never proposed, nor where `eligible` [m] is false; with
    `distinct`, neither is what has the same features as a point observed or chosen before (which
    the surrogate cannot tell from it). After each choice the surrogate is conditioned on its own
    mean there, so that the q choices differ. To search a whole space pass `enumerate_space(space)`.

    Example:
        >>> from bqnes_jax.kernels import WL
        >>> from bqnes_jax.spaces import NATS, enumerate_space
        >>> from bqnes_jax.surrogates import wsabi
        >>> archs = NATS.sample(jax.random.key(0), 10)
        >>> model = wsabi.fit(WL(NATS), archs, -500.0 * jnp.sum(archs != 3, axis=1))
        >>> propose(model, enumerate_space(NATS), q=4).archs.shape
        (4, 6)
    """
    pool = jnp.asarray(as_rows(surrogate.kernel, pool))
    if len(pool) == 0:
        raise BQNESError(f"pool has shape {pool.shape}; it must be (m, length) with m at least 1.")
    if not callable(acquisition):
        raise BQNESError(
            f"acquisition is {acquisition!r}; it must be a function of a prediction and a log "
            "prior, such as uncertainty_sampling."
        )
    check_whole("q", q, 1, pool.shape[0])
    log_prior = jnp.asarray(np.zeros(len(pool)) if log_prior is None else log_prior, float)
    eligible = jnp.asarray(np.ones(len(pool), bool) if eligible is None else eligible)
    check_shape("log_prior", log_prior, (pool.shape[0],))
    check_mask("eligible", eligible, pool.shape[0])
    bound = acquisition if isinstance(acquisition, Partial) else Partial(acquisition)
    return _propose(surrogate, pool, bound, log_prior, eligible, q, distinct)


@functools.partial(jax.jit, static_argnums=(5, 6))
def _propose(
    surrogate: Surrogate,
    pool: Num[Array, "m length"],
    acquisition: Partial,
    log_prior: Float[Array, " m"],
    eligible: Bool[Array, " m"],
    q: int,
    distinct: bool,
) -> Proposal:
    described = surrogate.kernel.features if distinct else (lambda archs: archs)
    views = described(pool)
    observed = surrogate.design
    taken = _is_among(views, described(observed.archs), observed.mask)
    indices, scores = choose_greedily(
        surrogate,
        pool,
        acquisition,
        eligible & ~taken,
        q,
        lambda best: _equal(views, views[best]),
        log_prior=log_prior,
    )
    return Proposal(indices, pool[indices], scores, flag(jnp.any(scores == -jnp.inf), Status.EMPTY))


def choose_greedily(
    surrogate: Surrogate,
    rows: Num[Array, "m length"],
    acquisition: Acquisition,
    eligible: Bool[Array, " k"],
    q: int,
    excludes: Callable[[Int32[Array, ""]], Bool[Array, " k"]],
    *,
    row_of: Int32[Array, " k"] | None = None,
    log_prior: Float[Array, " k"] | None = None,
    logarithmic: bool = False,
) -> tuple[Int32[Array, " q"], Float[Array, " q"]]:
    """Choose q of k, each after conditioning on the surrogate's own mean at those before it.

    The surrogate sees the i-th of them as `rows[row_of[i]]`, so that many can share a row (one row
    each unless given); `excludes(i)` tells what choosing one rules out, itself included.

    A `logarithmic` acquisition must grow with the mean and with the variance. Then those are not
    scored which bounds rule out, and scores that differ by less than √ε count as equal: the first
    of equals is chosen, however they were rounded.
    """
    eps = jnp.finfo(float).eps
    alike = jnp.sqrt(eps) if logarithmic else 0.0

    def valid(scores: Float[Array, " l"], eligible: Bool[Array, " l"]) -> Float[Array, " l"]:
        # A score may underflow to −inf and still be the best there is; only NaN is none.
        scores = jnp.maximum(scores, jnp.finfo(scores.dtype).min)
        return jnp.where(eligible & ~jnp.isnan(scores), scores, -jnp.inf)

    def best_of_all(current: Surrogate, eligible: Bool[Array, " k"]):
        scores = score_candidates(acquisition, current.predict(rows), row_of, log_prior)
        scores = valid(scores, eligible)
        best = jnp.argmax(scores >= jnp.max(scores) - alike).astype(jnp.int32)
        return best, scores[best]

    def best_of_few(outlook: Prediction, current: Surrogate, eligible: Bool[Array, " k"]):
        hopes = valid(score_candidates(acquisition, outlook, row_of, log_prior), eligible)
        # To sort numbers of 64 bits takes far longer.
        hopes, few = lax.top_k(hopes.astype(jnp.float32), _SHORTLIST)
        least = jnp.min(hopes)
        seen = current.predict(rows[few if row_of is None else row_of[few]])
        prior = None if log_prior is None else log_prior[few]
        scores = valid(score_candidates(acquisition, seen, None, prior), eligible[few])
        top = jnp.max(scores)
        place = jnp.argmin(jnp.where(scores >= top - alike, few, len(eligible)))
        rounding = 2 * jnp.finfo(jnp.float32).eps * jnp.abs(least)

        # A loop instead of a condition: under `vmap` it is entered only where a search needs it.
        def is_doubtful(found):
            return ~found[0]

        def look_at_all(_):
            return jnp.asarray(True), *best_of_all(current, eligible)

        certain = top - alike > least + rounding
        return lax.while_loop(is_doubtful, look_at_all, (certain, few[place], scores[place]))[1:]

    def choose(carry, slot):
        chosen, filled, eligible = carry
        current = surrogate if q == 1 else surrogate.fantasise(chosen, filled)
        worth_it = logarithmic and len(eligible) > 4 * _SHORTLIST
        outlook = current.outlook(rows) if worth_it and isinstance(current, Bounded) else None
        if outlook is None:
            best, score = best_of_all(current, eligible)
        else:
            best, score = best_of_few(outlook, current, eligible)
        row = rows[best if row_of is None else row_of[best]]
        carry = chosen.at[slot].set(row), filled.at[slot].set(True)
        return (*carry, eligible & ~excludes(best)), (best, score)

    start = (jnp.zeros((q, rows.shape[1]), rows.dtype), jnp.zeros(q, bool), eligible)
    return lax.scan(choose, start, jnp.arange(q))[1]


def score_candidates(
    acquisition: Acquisition,
    prediction: Prediction,
    row_of: Int32[Array, " k"] | None,
    log_prior: Float[Array, " k"] | None,
) -> Float[Array, " k"]:
    """Score k candidates by predictions at the rows that they have."""
    if log_prior is None:
        scores = acquisition(prediction, jnp.zeros_like(prediction.mean))  # any constant
        return scores if row_of is None else scores[row_of]
    if row_of is not None:
        prediction = Prediction(*(moment[row_of] for moment in prediction))
    return acquisition(prediction, log_prior)


def _is_among(rows: Array, others: Array, mask: Bool[Array, " n"]) -> Bool[Array, " m"]:
    """Tell which rows [m, d] equal one of the unmasked others [n, d], without an m×n×d array."""

    def compare(found, other):
        row, counts = other
        return found | (counts & _equal(rows, row)), None

    return lax.scan(compare, jnp.zeros(rows.shape[0], bool), (others, mask))[0]


def _equal(rows: Num[Array, "m d"], row: Num[Array, " d"]) -> Bool[Array, " m"]:
    """Tell which rows equal another, but for rounding (which depends on the shape of a batch)."""
    if jnp.issubdtype(rows.dtype, jnp.integer):
        return jnp.all(rows == row, axis=1)
    close = 16 * jnp.finfo(rows.dtype).eps * jnp.maximum(1, jnp.abs(row))
    return jnp.all(jnp.abs(rows - row) <= close, axis=1)


def _log_h(z: Float[Array, " m"]) -> Float[Array, " m"]:
    """Return log(φ(z) + z Φ(z)) for any z.

    Below −1, h(z) = φ(z)·(1 + z·Φ(z)/φ(z)), whose bracket is 1/z² − 3/z⁴ + … and cancels: far out
    the series replaces it. Each branch sees only arguments at which it and its gradient are finite.
    """
    far = -10.0 if z.dtype == jnp.float32 else -20.0
    near, left = jnp.maximum(z, -1), jnp.clip(z, far, -1)
    near_value = jnp.log(_density(near) + near * jnp.exp(log_ndtr(near)))
    ratio = jnp.exp(log_ndtr(left) - _log_density(left))
    left_value = _log_density(left) + jnp.log1p(left * ratio)
    inverse = 1 / jnp.minimum(z, far) ** 2
    series = functools.reduce(lambda s, c: c - inverse * s, (10395, 945, 105, 15, 3))
    far_value = _log_density(z) + jnp.log(inverse) + jnp.log1p(-inverse * series)
    return jnp.where(z > -1, near_value, jnp.where(z > far, left_value, far_value))


def _log_density(z: Array) -> Array:
    return -0.5 * (z**2 + jnp.log(2 * jnp.pi))


def _density(z: Array) -> Array:
    return jnp.exp(_log_density(z))
