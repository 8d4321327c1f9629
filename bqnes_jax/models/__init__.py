"""Networks whose architecture is an input: one program for a whole space."""

from bqnes_jax.models.nats import NATSNetwork, NATSNetworkConfig, parameter_count

__all__ = ["NATSNetwork", "NATSNetworkConfig", "parameter_count"]
