"""Kernels: how alike two architectures are."""

from bqnes_jax.kernels.base import GeneralKernel, Kernel
from bqnes_jax.kernels.choice import KernelConfig, make_kernel
from bqnes_jax.kernels.labels import vocabulary, wl_histograms, wl_labels
from bqnes_jax.kernels.linear import Affine, FiniteKernel, Linear, WithCoordinates
from bqnes_jax.kernels.predictions import prediction_gram
from bqnes_jax.kernels.rbf import RBF, FeatureRBF
from bqnes_jax.kernels.wl import WL, Words

__all__ = [
    "RBF",
    "WL",
    "Affine",
    "FeatureRBF",
    "FiniteKernel",
    "GeneralKernel",
    "Kernel",
    "KernelConfig",
    "Linear",
    "WithCoordinates",
    "Words",
    "make_kernel",
    "prediction_gram",
    "vocabulary",
    "wl_histograms",
    "wl_labels",
]
