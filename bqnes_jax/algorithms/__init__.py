"""The algorithms of the paper by name: a candidate strategy and a way to select the ensemble.

`make(name, space, size)` returns `run(key, evaluate)`, a pure function: compile it with `jax.jit`,
map it over keys for repeats. `evaluate` tells what evaluating architectures gives; one that looks
results up is `tables.evaluator(table, space)`; with `driver=drivers.loop` it may train on the host.
"""

from bqnes_jax.algorithms.base import Algorithm, Given, Maker, Result, select_members
from bqnes_jax.algorithms.pairs import Pair, classes_for, select_ensemble
from bqnes_jax.algorithms.registry import (
    algorithms,
    check_seeds,
    find,
    find_trainable,
    make,
    register,
)
from bqnes_jax.algorithms.whole_space import best_single, variational_ensemble

__all__ = [
    "Algorithm",
    "Given",
    "Maker",
    "Pair",
    "Result",
    "algorithms",
    "best_single",
    "check_seeds",
    "classes_for",
    "find",
    "find_trainable",
    "make",
    "register",
    "select_ensemble",
    "select_members",
    "variational_ensemble",
]
