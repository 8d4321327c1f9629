"""Selection: which of the trained candidates form the ensemble, and with what weights.

`select` knows the methods by name; `register` adds one of your own.
"""

from bqnes_jax.selection.base import Candidates, Choice, Method
from bqnes_jax.selection.registry import Selection, SelectionInfo, methods, register, select
from bqnes_jax.selection.stacking import Stacking, stacking_weights

__all__ = [
    "Candidates",
    "Choice",
    "Method",
    "Selection",
    "SelectionInfo",
    "Stacking",
    "methods",
    "register",
    "select",
    "stacking_weights",
]
