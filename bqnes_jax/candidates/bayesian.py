"""Candidates by Bayesian quadrature and by Bayesian optimisation: what a surrogate says."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int32

from bqnes_jax.candidates.base import History, Pool, Situation, first_fresh, is_among
from bqnes_jax.candidates.random import draw_fresh
from bqnes_jax.quadrature.acquisition import (
    choose_greedily,
    log_expected_improvement,
    uncertainty_sampling,
)
from bqnes_jax.spaces.base import Architectures
from bqnes_jax.surrogates import Prediction, gp, predict
from bqnes_jax.types import PRNGKey

_NEIGHBOURS = 16  # looked at in each round of local search, for each start
_PRIOR_SHARE = 0.1  # what the surrogate has ruled out may still be drawn

Asked = tuple[Int32[Array, "q length"], Float[Array, " q"]]


def uncertain(key: PRNGKey, situation: Situation, q: int) -> Asked:
    """Ask for where the integrand is most uncertain, the prior being uniform: the paper's `us`."""
    return _best_of_pool(key, situation, q, situation.model, uncertainty_sampling)


def improving(key: PRNGKey, situation: Situation, q: int) -> Asked:
    """Ask for the largest expected improvement of the log-likelihood under a GP of its own: `ei`.

    Log-likelihoods are standardised, for a GP with prior mean 0.
    """
    history, landscape = situation.history, situation.landscape
    targets = _standardised(history)
    best = jnp.max(targets, where=history.usable, initial=-jnp.inf)
    best = jnp.where(jnp.isfinite(best), best, 0)
    model = gp.fit(
        landscape.kernel,
        landscape.rows(history.archs),
        targets,
        history.usable,
        situation.config.fit,
    )
    score = functools.partial(log_expected_improvement, best=best)
    return _best_of_pool(key, situation, q, model, score)


def believed(key: PRNGKey, situation: Situation, q: int) -> Asked:
    """Ask for draws from the posterior as the surrogate believes it, a tenth of it from the prior.

    In a space that can be listed the scores are the log-probabilities of the draws, so that
    `quadrature.drawn_evidence` is an unbiased estimate of the evidence whatever the surrogate
    believes. In others the draws are from a pool, and the scores 0.
    """
    pool_key, draw_key = jax.random.split(key)
    pool = situation.landscape.pool(pool_key, situation.history)
    likely = jnp.maximum(predict(situation.model, pool.rows).mean, 0)
    likely = likely if pool.row_of is None else likely[pool.row_of]
    share = likely / jnp.maximum(jnp.sum(likely), jnp.finfo(likely.dtype).tiny)
    log_mass = jnp.log((1 - _PRIOR_SHARE) * share + _PRIOR_SHARE / len(share))

    def draw(fresh, key):
        left = jax.nn.log_softmax(jnp.where(fresh, log_mass, -jnp.inf))
        left = jnp.where(fresh, left, -jnp.inf)  # with nothing left there would be NaN
        drawn = jax.random.categorical(key, left)
        return fresh & jnp.any(pool.archs != pool.archs[drawn], axis=1), (drawn, left[drawn])

    _, (drawn, scores) = lax.scan(draw, pool.fresh, jax.random.split(draw_key, q))
    known = situation.space.size is not None
    return _different(key, situation, pool.archs[drawn]), scores if known else jnp.zeros(q)


def _best_of_pool(
    key: PRNGKey,
    situation: Situation,
    q: int,
    surrogate,
    acquisition: Callable[[Prediction, Float[Array, " m"]], Float[Array, " m"]],
) -> Asked:
    def score(prediction: Prediction) -> Float[Array, " m"]:
        return acquisition(prediction, jnp.zeros_like(prediction.mean))  # any constant

    pool = situation.landscape.pool(key, situation.history)
    if situation.space.size is None:
        pool = _climb(key, situation, pool, lambda rows: score(predict(surrogate, rows)))
    chosen, scores = choose_greedily(
        surrogate,
        pool.rows,
        score,
        pool.fresh,
        q,
        lambda best: jnp.all(pool.archs == pool.archs[best], axis=1),
        pool.row_of,
    )
    return _different(key, situation, pool.archs[chosen]), scores


def _climb(
    key: PRNGKey, situation: Situation, pool: Pool, score: Callable[[Array], Float[Array, " m"]]
) -> Pool:
    """Add to a pool what steps to better neighbours, from its best architectures, arrive at."""
    space, landscape, config, history = situation[:4]

    def score_fresh(archs: Architectures) -> Float[Array, " m"]:
        fresh = ~is_among(archs, history.archs, history.evaluated)
        return jnp.where(fresh, score(landscape.rows(archs)), -jnp.inf)

    def climb(carry, key):
        archs, scores = carry
        keys = jax.random.split(key, (len(archs), _NEIGHBOURS))
        others = jax.vmap(jax.vmap(space.mutate, (0, None)))(keys, archs)
        found = score_fresh(others.reshape(-1, archs.shape[1])).reshape(len(archs), _NEIGHBOURS)
        best = jnp.argmax(found, axis=1)
        each = jnp.arange(len(archs))
        better = found[each, best] > scores
        archs = jnp.where(better[:, None], others[each, best], archs)
        return (archs, jnp.where(better, found[each, best], scores)), None

    values = jnp.where(pool.fresh, score(pool.rows), -jnp.inf)
    scores, starts = lax.top_k(values, min(config.parents, len(values)))
    keys = jax.random.split(jax.random.fold_in(key, 1), config.climbs)
    (tops, _), _ = lax.scan(climb, (pool.archs[starts], scores), keys)
    archs = jnp.concatenate([pool.archs, tops])
    fresh = ~is_among(archs, history.archs, history.evaluated)
    return Pool(archs, landscape.rows(archs), None, fresh)


def _different(key: PRNGKey, situation: Situation, archs: Architectures) -> Architectures:
    """Replace what a pool had to offer twice by draws from the prior; a whole space never has."""
    if situation.space.size is not None:
        return archs
    draws = draw_fresh(key, situation.space, situation.history, len(archs))
    return first_fresh(jnp.concatenate([archs, draws]), situation.history, len(archs))


def _standardised(history: History) -> Float[Array, " budget"]:
    usable = history.usable
    values = jnp.where(usable, history.log_likelihoods, 0)
    count = jnp.maximum(jnp.sum(usable), 1)
    centred = jnp.where(usable, values - jnp.sum(values) / count, 0)
    scale = jnp.sqrt(jnp.sum(centred**2) / count)
    return centred / jnp.where(scale > 0, scale, 1)
