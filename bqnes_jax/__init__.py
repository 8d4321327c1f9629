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
from bqnes_jax.config import RunConfig, configure
from bqnes_jax.errors import BQNESError
from bqnes_jax.runs import Ensemble, Run, search
from bqnes_jax.types import Status

__all__ = [
    "BQNESError",
    "Ensemble",
    "Run",
    "RunConfig",
    "Status",
    "algorithms",
    "candidates",
    "configure",
    "data",
    "ensemble",
    "kernels",
    "metrics",
    "models",
    "quadrature",
    "search",
    "selection",
    "spaces",
    "store",
    "surrogates",
    "tables",
    "training",
]
