"""Surrogates: what we believe about a function of the architecture.

`gp` models any target; `wsabi` models the likelihood. Both have `fit` and `condition`; `predict`
and `fantasise` work on what either returns.
"""

from bqnes_jax.surrogates import gp, wsabi
from bqnes_jax.surrogates.base import Hyperparameters, Prediction, fantasise, predict
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
    "WarpConfig",
    "fantasise",
    "gp",
    "predict",
    "wsabi",
]
