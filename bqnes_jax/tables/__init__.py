"""Results in memory: what each architecture of a space scored, and where such tables come from."""

from bqnes_jax.tables.base import Table, Tabulated, evaluator
from bqnes_jax.tables.packed import (
    choose_again,
    choose_different,
    find,
    load,
    names,
    numbers_of,
    pack,
    read,
    weight_seeds,
)
from bqnes_jax.tables.published import nats_bench, nb201_proxy

__all__ = [
    "Table",
    "Tabulated",
    "choose_again",
    "choose_different",
    "evaluator",
    "find",
    "load",
    "names",
    "nats_bench",
    "nb201_proxy",
    "numbers_of",
    "pack",
    "read",
    "weight_seeds",
]
