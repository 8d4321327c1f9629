"""Bayesian Quadrature for Neural Ensemble Search, JAX-native and functional."""

from bqnes_jax import (
    algorithms,
    candidates,
    data,
    ensemble,
    kernels,
    metrics,
    models,
    quadrature,
    selection,
    spaces,
    store,
    surrogates,
    tables,
    training,
)
from bqnes_jax.errors import BQNESError
from bqnes_jax.types import Status

__all__ = [
    "BQNESError",
    "Status",
    "algorithms",
    "candidates",
    "data",
    "ensemble",
    "kernels",
    "metrics",
    "models",
    "quadrature",
    "selection",
    "spaces",
    "store",
    "surrogates",
    "tables",
    "training",
]
