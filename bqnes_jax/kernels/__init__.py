"""Kernels: how alike two architectures are."""

from bqnes_jax.kernels.base import Kernel, is_finite
from bqnes_jax.kernels.linear import Linear
from bqnes_jax.kernels.rbf import RBF
from bqnes_jax.kernels.wl import WL, vocabulary, wl_histograms, wl_labels

__all__ = ["RBF", "WL", "Kernel", "Linear", "is_finite", "vocabulary", "wl_histograms", "wl_labels"]
