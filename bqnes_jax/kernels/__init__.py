"""Kernels: how alike two architectures are."""

from bqnes_jax.kernels.base import Kernel, is_finite
from bqnes_jax.kernels.linear import Linear, split
from bqnes_jax.kernels.rbf import RBF, FeatureRBF
from bqnes_jax.kernels.wl import WL, vocabulary, wl_histograms, wl_labels

__all__ = [
    "RBF",
    "WL",
    "FeatureRBF",
    "Kernel",
    "Linear",
    "is_finite",
    "split",
    "vocabulary",
    "wl_histograms",
    "wl_labels",
]
