"""Candidates: which architectures to train.

`make` knows the strategies by name; `register` adds one of your own.
"""

from bqnes_jax.candidates.base import (
    Chooser,
    History,
    Info,
    Outcome,
    SearchConfig,
    Situation,
    State,
    Strategy,
    record,
)
from bqnes_jax.candidates.registry import default_kernel, make, register, strategies

__all__ = [
    "Chooser",
    "History",
    "Info",
    "Outcome",
    "SearchConfig",
    "Situation",
    "State",
    "Strategy",
    "default_kernel",
    "make",
    "record",
    "register",
    "strategies",
]
