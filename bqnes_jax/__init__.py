"""Bayesian Quadrature for Neural Ensemble Search, JAX-native and functional."""

from bqnes_jax import ensemble, kernels, metrics, quadrature, selection, spaces, surrogates, tables
from bqnes_jax.errors import BQNESError
from bqnes_jax.types import Status

__all__ = [
    "BQNESError",
    "Status",
    "ensemble",
    "kernels",
    "metrics",
    "quadrature",
    "selection",
    "spaces",
    "surrogates",
    "tables",
]
