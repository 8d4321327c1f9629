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
    drawn_evidence,
    evidence_over,
    exact_evidence,
    included_evidence,
    log_posterior,
    quadrature_weights,
    sampled_evidence,
)
from bqnes_jax.quadrature.nystrom import choose_landmarks, nystrom_test_functions
from bqnes_jax.quadrature.recombination import Recombination, recombine
from bqnes_jax.quadrature.scale import (
    OBSERVATIONS,
    choose_temperature,
    effective_size,
    scale_temperature,
)

__all__ = [
    "OBSERVATIONS",
    "Evidence",
    "Proposal",
    "Recombination",
    "choose_landmarks",
    "choose_temperature",
    "drawn_evidence",
    "effective_size",
    "evidence_over",
    "exact_evidence",
    "included_evidence",
    "log_expected_improvement",
    "log_posterior",
    "nystrom_test_functions",
    "propose",
    "quadrature_weights",
    "recombine",
    "sampled_evidence",
    "scale_temperature",
    "uncertainty_sampling",
    "upper_confidence_bound",
]
