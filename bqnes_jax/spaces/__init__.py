"""Search spaces: what can be built."""

from bqnes_jax.spaces.base import (
    Architecture,
    Architectures,
    CoordinateSpace,
    EnumerableSpace,
    GraphSpace,
    Space,
    as_architectures,
    enumerate_space,
)
from bqnes_jax.spaces.nats import NATS, NATSSpace
from bqnes_jax.spaces.slimmable import SLIMMABLE, SlimmableSpace
from bqnes_jax.spaces.subset import Subset

__all__ = [
    "NATS",
    "SLIMMABLE",
    "Architecture",
    "Architectures",
    "CoordinateSpace",
    "EnumerableSpace",
    "GraphSpace",
    "NATSSpace",
    "SlimmableSpace",
    "Space",
    "Subset",
    "as_architectures",
    "enumerate_space",
]
