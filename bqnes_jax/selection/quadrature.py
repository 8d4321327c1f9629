"""The posterior predictive distribution by Bayesian quadrature on all candidates."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from bqnes_jax.errors import BQNESError
from bqnes_jax.selection.base import Candidates, Choice
from bqnes_jax.selection.recombine import posterior_mass
from bqnes_jax.selection.stacking import keep_largest
from bqnes_jax.types import Status


def quadrature(candidates: Candidates, size: int) -> Choice:
    """Keep the M largest weights of the quadrature of the posterior predictive distribution.

    What is wanted is p(y|x, D) = Σ_α π(α) ℓ(α) p(y|x, α) / Z. With a Gaussian process of kernel k
    on the integrand f(α) = ℓ(α) p(y|x, α), seen at the candidates A with relative noise ρ, the mean
    of the sum is

        Σ_n v_n ℓ_n p(y|x, α_n),    v = (K_AA + ρI)⁻¹ z,    z_n = Σ_α π(α) k(α_n, α),

    whatever x and y are. The same rule gives Z = Σ_n v_n ℓ_n, so that the weights of the candidates
    are w_n ∝ v_n ℓ_n: their likelihoods, as in the posterior over candidates, but less for those
    that stand close together, as a search leaves them where it found good ones. Negative v_n count
    as 0. What is not kept is shared out by the kernel, as in `restack`.
    """
    weights = quadrature_weights(candidates)
    members, weights = keep_largest(candidates, weights, size)
    return Choice(members, weights, jnp.int32(Status.OK))


def quadrature_weights(candidates: Candidates) -> Float[Array, " N"]:
    """Return w_n ∝ max(v_n, 0) ℓ_n, and w_n ∝ ℓ_n where no such product is positive."""
    if candidates.rule is None:
        raise BQNESError(
            "rule is None; 'quadrature' needs the weights of a quadrature rule on the candidates: "
            "pass rule, as bqnes_jax.quadrature.quadrature_weights returns it."
        )
    mass = posterior_mass(candidates, jnp.zeros_like(candidates.log_prior))
    weights = jnp.where(candidates.rule > 0, candidates.rule * mass, 0)
    return jnp.where(jnp.any(weights > 0), weights, mass)
