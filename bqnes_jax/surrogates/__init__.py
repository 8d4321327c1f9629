"""Surrogates: what we believe about a function of the architecture.

`gp` models any target; `wsabi` models the likelihood. Both have `fit` and `condition`, which return
a `Surrogate`.
"""

from bqnes_jax.surrogates import gp, wsabi
from bqnes_jax.surrogates.base import Hyperparameters, Prediction, Surrogate
from bqnes_jax.surrogates.fitting import FitConfig
from bqnes_jax.surrogates.gp import Posterior
from bqnes_jax.surrogates.wsabi import TEMPERATURE, LikelihoodModel, WarpConfig

__all__ = [
    "TEMPERATURE",
    "FitConfig",
    "Hyperparameters",
    "LikelihoodModel",
    "Posterior",
    "Prediction",
    "Surrogate",
    "WarpConfig",
    "gp",
    "wsabi",
]
