"""Candidates: which architectures to train.

`make` knows the strategies by name; `register` adds one of your own.
"""

from bqnes_jax.candidates.base import (
    Chooser,
    History,
    Info,
    Outcome,
    Pending,
    Prior,
    SearchConfig,
    Situation,
    State,
    Strategy,
    tell,
)
from bqnes_jax.candidates.inclusion import inclusion_probabilities
from bqnes_jax.candidates.registry import make, register, strategies, uses_surrogate

__all__ = [
    "Chooser",
    "History",
    "Info",
    "Outcome",
    "Pending",
    "Prior",
    "SearchConfig",
    "Situation",
    "State",
    "Strategy",
    "inclusion_probabilities",
    "make",
    "register",
    "strategies",
    "tell",
    "uses_surrogate",
]
