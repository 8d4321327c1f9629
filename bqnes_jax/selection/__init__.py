"""Selection: which of the trained candidates form the ensemble, and with what weights.

`select` knows the methods by name; `register` adds one of your own.
"""

from bqnes_jax.selection.base import Candidates, Choice, Method
from bqnes_jax.selection.logpool import LogPool, log_pool_weights
from bqnes_jax.selection.measure import MEASURES, Measure, measure_candidates
from bqnes_jax.selection.registry import (
    Selection,
    SelectionInfo,
    methods,
    needs_classes,
    needs_kernel,
    pool_of,
    register,
    select,
    takes_limit,
)
from bqnes_jax.selection.stacking import Stacking, stacking_weights

__all__ = [
    "MEASURES",
    "Candidates",
    "Choice",
    "LogPool",
    "Measure",
    "Method",
    "Selection",
    "SelectionInfo",
    "Stacking",
    "log_pool_weights",
    "measure_candidates",
    "methods",
    "needs_classes",
    "needs_kernel",
    "pool_of",
    "register",
    "select",
    "stacking_weights",
    "takes_limit",
]
