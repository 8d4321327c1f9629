"""Regularised evolution as in NES-RE: the offspring of those that do well together."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int32

from bqnes_jax.candidates.base import History, SearchConfig, Situation, first_fresh
from bqnes_jax.candidates.random import draw_fresh
from bqnes_jax.selection import select
from bqnes_jax.types import PRNGKey

_TRIES = 16  # mutations for each architecture asked for: many neighbours have been evaluated


def evolution(
    key: PRNGKey, situation: Situation, q: int
) -> tuple[Int32[Array, "q length"], Float[Array, " q"]]:
    """Ask for mutations of parents drawn from the best of the population.

    The population is the youngest `config.population` that did not fail. Until there are as many,
    architectures are drawn at random. The parents are the `config.parents` that beam search would
    pick from it; without predictions, those with the largest likelihoods.
    """
    space, config, history = situation.space, situation.config, situation.history
    draw_key, parent_key, mutate_key = jax.random.split(key, 3)
    prior = situation.landscape.prior
    draws = draw_fresh(draw_key, space, history, q, prior=prior)

    def breed() -> Int32[Array, "q length"]:
        parents, weights = _parents(history, config)
        chosen = jax.random.categorical(parent_key, jnp.log(weights), shape=(_TRIES * q,))
        keys = jax.random.split(mutate_key, _TRIES * q)
        mutants = jax.vmap(space.mutate)(keys, history.archs[parents[chosen]])
        return first_fresh(jnp.concatenate([mutants, draws]), history, q, prior=prior)

    grown = jnp.sum(history.finite) >= config.population
    return jax.lax.cond(grown, breed, lambda: draws), jnp.zeros(q)


def _parents(
    history: History, config: SearchConfig
) -> tuple[Int32[Array, " p"], Float[Array, " p"]]:
    """Return those that may have offspring, and equal weights, 0 in places that are not filled."""
    size = min(config.population, len(history.finite))
    count = min(config.parents, size)
    age = jnp.where(history.finite, jnp.arange(len(history.finite)), -1)
    born, population = jax.lax.top_k(age, size)
    alive = born >= 0
    if history.log_probs is None:
        scores = jnp.where(alive, history.log_likelihoods[population], -jnp.inf)
        best, members = jax.lax.top_k(scores, count)
        return population[members], (best > -jnp.inf).astype(best.dtype)
    chosen = select("beam", history.log_probs[population], count, mask=alive)
    return population[chosen.members], chosen.weights
