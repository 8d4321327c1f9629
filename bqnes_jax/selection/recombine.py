"""Posterior recombination: few candidates that stand for the posterior over all of them."""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from bqnes_jax.quadrature.evidence import log_posterior
from bqnes_jax.quadrature.nystrom import choose_landmarks, nystrom_test_functions
from bqnes_jax.quadrature.recombination import recombine as recombined
from bqnes_jax.selection.base import Candidates, Choice, required_kernel, zeros
from bqnes_jax.types import Status


def posterior_mass(candidates: Candidates, log_prior: Float[Array, " N"]) -> Float[Array, " N"]:
    """Return exp(log_prior) times the tempered likelihood, normalised over the candidates."""
    missed = jnp.where(candidates.usable, zeros(candidates.log_probs), jnp.iinfo(jnp.int32).max)
    likely = candidates.usable & (missed == jnp.min(missed))  # a likelihood of 0 has no mass
    if candidates.measures is None:
        evidence = jnp.sum(candidates.log_probs, axis=1)
    else:
        evidence, likely = candidates.measures, candidates.usable
    posterior = log_posterior(evidence, log_prior, mask=likely, temperature=candidates.temperature)
    return jnp.exp(posterior).astype(candidates.log_probs.dtype)


def recombine_smallest(candidates: Candidates, size: int) -> Choice:
    """Recombine with the functions of the published code, which tell the candidates apart least.

    Its test functions are the M − 1 eigenvectors of the Gram matrix of all candidates with the
    smallest eigenvalues: directions in which the kernel says that nothing varies.
    """
    mass = posterior_mass(candidates, candidates.log_prior)
    kernel = required_kernel(candidates)
    # What is not usable comes last, and not first for an eigenvalue of 0.
    padding = jnp.diag(jnp.where(candidates.usable, 0, 1 + jnp.trace(kernel)))
    _, vectors = jnp.linalg.eigh(kernel + padding)  # eigenvalues ascend
    return _recombine(vectors[:, : size - 1], mass, size)


def recombine(candidates: Candidates, size: int) -> Choice:
    """Keep the posterior's expectations of M − 1 Nyström test functions, with at most M members.

    The posterior is μ_n ∝ exp(Σ_i log p_n(y_i | x_i) / temperature) π(α_n), normalised in log
    space. A single member has no function to get right: it is the mode. Many ensembles keep these
    expectations; which one is found may depend on how much padding the candidates come with.
    """
    mass = posterior_mass(candidates, candidates.log_prior)
    if size == 1:
        return _recombine(jnp.zeros((len(mass), 0), mass.dtype), mass, size)
    kernel = required_kernel(candidates)
    functions = nystrom_test_functions(kernel, choose_landmarks(kernel, mass, size - 1))
    return _recombine(functions, mass, size)


def _recombine(functions: Float[Array, "N S"], mass: Float[Array, " N"], size: int) -> Choice:
    if size == 1:
        weights, members = lax.top_k(mass, 1)
        return Choice(members, weights, jnp.int32(Status.OK))
    found = recombined(functions, mass)
    # Where there is no mass at all recombination has to answer something, which is no member.
    return Choice(found.indices, jnp.where(mass[found.indices] > 0, found.weights, 0), found.status)
