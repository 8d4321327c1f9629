"""Networks whose architecture is an input: one program for a whole space."""

from bqnes_jax.models.cells import NATSNetwork, NATSNetworkConfig
from bqnes_jax.models.darts import DARTSNetwork, DARTSNetworkConfig
from bqnes_jax.models.mobilenet import MobileNet, MobileNetConfig, NormStatistics
from bqnes_jax.models.networks import NetworkConfig, parameter_count

__all__ = [
    "DARTSNetwork",
    "DARTSNetworkConfig",
    "MobileNet",
    "MobileNetConfig",
    "NATSNetwork",
    "NATSNetworkConfig",
    "NetworkConfig",
    "NormStatistics",
    "parameter_count",
]
