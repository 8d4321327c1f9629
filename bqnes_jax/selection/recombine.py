"""Posterior recombination: few candidates that stand for the posterior over all of them."""

import jax.numpy as jnp
from jax import lax

from bqnes_jax.quadrature.evidence import log_posterior
from bqnes_jax.quadrature.nystrom import choose_landmarks, nystrom_test_functions
from bqnes_jax.quadrature.recombination import recombine as recombined
from bqnes_jax.selection.base import Candidates, Choice, zeros
from bqnes_jax.types import Status


def recombine(candidates: Candidates, size: int) -> Choice:
    """Keep the posterior's expectations of M − 1 Nyström test functions, with at most M members.

    The posterior is μ_n ∝ exp(Σ_i log p_n(y_i | x_i) / temperature) π(α_n), normalised in log
    space. A single member has no function to get right: it is the mode. Many ensembles keep these
    expectations; which one is found may depend on how much padding the candidates come with.
    """
    missed = jnp.where(candidates.usable, zeros(candidates.log_probs), jnp.iinfo(jnp.int32).max)
    likely = candidates.usable & (missed == jnp.min(missed))  # a likelihood of 0 has no mass
    evidence = jnp.sum(candidates.log_probs, axis=1)
    posterior = log_posterior(evidence, candidates.log_prior, likely, candidates.temperature)
    mass = jnp.exp(posterior).astype(candidates.log_probs.dtype)
    if size == 1:
        weights, members = lax.top_k(mass, 1)
        return Choice(members, weights, jnp.int32(Status.OK))
    landmarks = choose_landmarks(candidates.kernel, mass, size - 1)
    found = recombined(nystrom_test_functions(candidates.kernel, landmarks), mass)
    # Where there is no mass at all recombination has to answer something, which is no member.
    return Choice(found.indices, jnp.where(mass[found.indices] > 0, found.weights, 0), found.status)
