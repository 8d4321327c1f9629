"""Search spaces: what can be built."""

from bqnes_jax.spaces.base import (
    Architecture,
    Architectures,
    ChoiceSpace,
    CoordinateSpace,
    EnumerableSpace,
    GraphSpace,
    Space,
    as_architectures,
    enumerate_space,
)
from bqnes_jax.spaces.darts import DARTS, DARTSSpace
from bqnes_jax.spaces.nats import NATS, NATSSpace
from bqnes_jax.spaces.product import Product
from bqnes_jax.spaces.seeded import Seeded, count_seeds, split_seeds
from bqnes_jax.spaces.slimmable import SLIMMABLE, SlimmableSpace
from bqnes_jax.spaces.subset import Subset

__all__ = [
    "DARTS",
    "NATS",
    "SLIMMABLE",
    "Architecture",
    "Architectures",
    "ChoiceSpace",
    "CoordinateSpace",
    "DARTSSpace",
    "EnumerableSpace",
    "GraphSpace",
    "NATSSpace",
    "Product",
    "Seeded",
    "SlimmableSpace",
    "Space",
    "Subset",
    "as_architectures",
    "count_seeds",
    "enumerate_space",
    "split_seeds",
]
