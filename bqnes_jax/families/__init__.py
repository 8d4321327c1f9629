"""Network families: what turns architectures into predictions."""

from bqnes_jax.families.base import (
    CountingFamily,
    Evaluation,
    NetworkFamily,
    Setting,
    SharingFamily,
    Trainer,
)
from bqnes_jax.families.cells import CellFamily
from bqnes_jax.families.darts import DARTSFamily
from bqnes_jax.families.flax import from_flax
from bqnes_jax.families.functions import FunctionFamily, from_functions
from bqnes_jax.families.registry import Kind, NoOptions, families, find, is_named, register
from bqnes_jax.families.seeded import SeededFamily, count_parameters, with_seeds
from bqnes_jax.families.slices import SliceFamily

__all__ = [
    "CellFamily",
    "CountingFamily",
    "DARTSFamily",
    "Evaluation",
    "FunctionFamily",
    "Kind",
    "NetworkFamily",
    "NoOptions",
    "SeededFamily",
    "Setting",
    "SharingFamily",
    "SliceFamily",
    "Trainer",
    "count_parameters",
    "families",
    "find",
    "from_flax",
    "from_functions",
    "is_named",
    "register",
    "with_seeds",
]
