"""Quadrature: where to look next, and what it adds up to."""

from bqnes_jax.quadrature.acquisition import (
    Proposal,
    log_expected_improvement,
    propose,
    uncertainty_sampling,
    upper_confidence_bound,
)
from bqnes_jax.quadrature.evidence import (
    Evidence,
    exact_evidence,
    log_posterior,
    quadrature_weights,
    sampled_evidence,
)

__all__ = [
    "Evidence",
    "Proposal",
    "exact_evidence",
    "log_expected_improvement",
    "log_posterior",
    "propose",
    "quadrature_weights",
    "sampled_evidence",
    "uncertainty_sampling",
    "upper_confidence_bound",
]
