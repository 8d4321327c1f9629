"""Networks whose architecture is an input: one program for a whole space."""

from bqnes_jax.models.cells import NATSNetwork, NATSNetworkConfig, parameter_count
from bqnes_jax.models.mobilenet import MobileNet, MobileNetConfig, NormStatistics

__all__ = [
    "MobileNet",
    "MobileNetConfig",
    "NATSNetwork",
    "NATSNetworkConfig",
    "NormStatistics",
    "parameter_count",
]
