"""Candidates by Bayesian quadrature and by Bayesian optimisation: what a surrogate says."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int32

from bqnes_jax.candidates.base import History, Pool, Situation, first_fresh
from bqnes_jax.candidates.landscape import Drawn
from bqnes_jax.candidates.random import draw_fresh
from bqnes_jax.quadrature.acquisition import (
    Acquisition,
    choose_greedily,
    log_expected_improvement,
    score_candidates,
    uncertainty_sampling,
)
from bqnes_jax.spaces.base import Architectures
from bqnes_jax.surrogates import Surrogate, gp
from bqnes_jax.types import PRNGKey

_NEIGHBOURS = 16  # looked at in each round of local search, for each start
_PRIOR_SHARE = 0.1  # what the surrogate has ruled out may still be drawn

Asked = tuple[Int32[Array, "q length"], Float[Array, " q"]]


def ask_uncertain(key: PRNGKey, situation: Situation, q: int) -> Asked:
    """Ask for where the integrand, likelihood times prior, is most uncertain: the paper's `us`."""
    return _best_of_pool(key, situation, q, situation.model, uncertainty_sampling)


def ask_improvement(key: PRNGKey, situation: Situation, q: int) -> Asked:
    """Ask for the largest expected improvement of the log-likelihood under a GP of its own: `ei`.

    Log-likelihoods are standardised, for a GP with prior mean 0. One that failed counts as the
    worst of the others.
    """
    history, landscape = situation.history, situation.landscape
    targets = _standardise(history)
    best = jnp.max(targets, where=history.evaluated, initial=-jnp.inf)
    best = jnp.where(jnp.isfinite(best), best, 0)
    model = gp.fit(
        landscape.kernel,
        landscape.rows(history.archs),
        targets,
        mask=history.evaluated,
        config=situation.config.fit,
        axes=None if situation.fitted is None else situation.fitted.latent.axes,
    )
    score = functools.partial(log_expected_improvement, best=best)
    return _best_of_pool(key, situation, q, situation.expect(model), score)


def draw_posterior(key: PRNGKey, situation: Situation, q: int) -> Asked:
    """Ask for draws from the posterior as the surrogate believes it, a tenth of them by the prior.

    In a space that can be listed the scores are the log-probabilities of the draws, so that
    `quadrature.drawn_evidence` is an unbiased estimate of the evidence whatever the surrogate
    believes. In others the draws are from a pool, and the scores 0.
    """
    pool_key, draw_key, rest_key = jax.random.split(key, 3)
    pool = situation.landscape.pool(pool_key, situation.history)
    likely = jnp.maximum(situation.model.predict(pool.rows).mean, 0)
    likely = likely if pool.row_of is None else likely[pool.row_of]
    if pool.log_prior is None:
        before = 1 / len(likely)
    else:
        before = jax.nn.softmax(pool.log_prior)
        likely *= before
    log_mass = jnp.log(draw_masses(likely, jnp.sum(likely), before))

    def draw(fresh, key):
        left = jax.nn.log_softmax(jnp.where(fresh, log_mass, -jnp.inf))
        left = jnp.where(fresh, left, -jnp.inf)  # with nothing left there would be NaN
        drawn = jax.random.categorical(key, left)
        return fresh & jnp.any(pool.archs != pool.archs[drawn], axis=1), (drawn, left[drawn])

    _, (drawn, scores) = lax.scan(draw, pool.fresh, jax.random.split(draw_key, q))
    known = not isinstance(situation.landscape, Drawn)
    return _different(rest_key, situation, pool.archs[drawn]), scores if known else jnp.zeros(q)


def draw_masses(
    likely: Float[Array, " m"], likely_sum: ArrayLike, before: ArrayLike
) -> Float[Array, " m"]:
    """Return with what mass `draw_posterior` draws architectures, from their believed likelihoods.

    `before` is their prior probability.
    """
    share = jnp.maximum(likely, 0) / jnp.maximum(likely_sum, jnp.finfo(likely.dtype).tiny)
    return (1 - _PRIOR_SHARE) * share + _PRIOR_SHARE * before


def _best_of_pool(
    key: PRNGKey,
    situation: Situation,
    q: int,
    surrogate: Surrogate,
    acquisition: Acquisition,
) -> Asked:
    pool_key, climb_key, draw_key, hopeless_key = jax.random.split(key, 4)
    pool = situation.landscape.pool(pool_key, situation.history)
    if isinstance(situation.landscape, Drawn):
        pool = _climb(
            climb_key,
            situation.landscape,
            situation,
            pool,
            lambda some: score_candidates(
                acquisition, surrogate.predict(some.rows), None, some.log_prior
            ),
            q,
        )
    chosen, scores = choose_greedily(
        surrogate,
        pool.rows,
        acquisition,
        pool.fresh,
        q,
        lambda best: jnp.all(pool.archs == pool.archs[best], axis=1),
        row_of=pool.row_of,
        log_prior=pool.log_prior,
        logarithmic=True,
    )
    # With nothing but failures every score is alike, and the first of a list is no good guess.
    hopeful = jnp.any(situation.history.finite)
    archs = lax.cond(
        hopeful,
        lambda: _different(draw_key, situation, pool.archs[chosen]),
        lambda: draw_fresh(
            hopeless_key, situation.space, situation.history, q, prior=situation.landscape.prior
        ),
    )
    return archs, jnp.where(hopeful, scores, 0)


def _climb(
    key: PRNGKey,
    landscape: Drawn,
    situation: Situation,
    pool: Pool,
    score: Callable[[Pool], Float[Array, " m"]],
    q: int,
) -> Pool:
    """Add to a pool what steps to better neighbours, from its best architectures, arrive at.

    Where only one is to be chosen, those that are not among the best of the pool are left out.
    """
    space, _, config, history = situation[:4]

    def score_fresh(pool: Pool) -> Float[Array, " m"]:
        return jnp.where(pool.fresh, score(pool), -jnp.inf)

    def climb(carry, key):
        archs, scores = carry
        keys = jax.random.split(key, (len(archs), _NEIGHBOURS))
        others = jax.vmap(jax.vmap(space.mutate, (0, None)))(keys, archs)
        found = score_fresh(landscape.pool_of(others.reshape(-1, archs.shape[1]), history))
        found = found.reshape(len(archs), _NEIGHBOURS)
        best = jnp.argmax(found, axis=1)
        each = jnp.arange(len(archs))
        better = found[each, best] > scores
        archs = jnp.where(better[:, None], others[each, best], archs)
        return (archs, jnp.where(better, found[each, best], scores)), None

    values = score_fresh(pool)
    scores, starts = lax.top_k(values, min(config.parents, len(values)))
    keys = jax.random.split(key, config.climbs)
    (tops, _), _ = lax.scan(climb, (pool.archs[starts], scores), keys)
    kept = pool.archs[starts] if q == 1 else pool.archs
    return landscape.pool_of(jnp.concatenate([kept, tops]), history)


def _different(key: PRNGKey, situation: Situation, archs: Architectures) -> Architectures:
    """Replace what a pool had to offer twice by draws from the prior; a whole space never has."""
    space, landscape, _, history = situation[:4]
    if not isinstance(landscape, Drawn):
        return archs
    draws = draw_fresh(key, space, history, len(archs), prior=landscape.prior)
    proposals = jnp.concatenate([archs, draws])
    return first_fresh(proposals, history, len(archs), prior=landscape.prior)


def _standardise(history: History) -> Float[Array, " budget"]:
    worst = jnp.min(history.log_likelihoods, where=history.finite, initial=jnp.inf)
    worst = jnp.where(jnp.isfinite(worst), worst, 0)
    values = jnp.where(history.finite, history.log_likelihoods, worst)
    count = jnp.maximum(history.count, 1)
    mean = jnp.sum(values, where=history.evaluated) / count
    centred = jnp.where(history.evaluated, values - mean, 0)
    scale = jnp.sqrt(jnp.sum(centred**2) / count)
    return centred / jnp.where(scale > 0, scale, 1)
