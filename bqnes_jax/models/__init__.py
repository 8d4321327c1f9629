"""Networks whose architecture is an input: one program for a whole space."""

from bqnes_jax.models.mobilenet import MobileNet, MobileNetConfig, NormStatistics
from bqnes_jax.models.nats import NATSNetwork, NATSNetworkConfig, parameter_count

__all__ = [
    "MobileNet",
    "MobileNetConfig",
    "NATSNetwork",
    "NATSNetworkConfig",
    "NormStatistics",
    "parameter_count",
]
