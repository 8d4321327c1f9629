"""What training has to know about a network that has the architecture as an input."""

from typing import Protocol, runtime_checkable

import flax.linen as nn
from jax.typing import ArrayLike
from jaxtyping import Array, Int

from bqnes_jax.errors import check_whole
from bqnes_jax.spaces.base import Space, as_architectures


@runtime_checkable
class NetworkConfig(Protocol):
    """The macro-skeleton around the cells of a space."""

    @property
    def channels(self) -> int:
        """How many there are in the first cells."""
        ...

    @property
    def classes(self) -> int:
        """How many there are to tell apart."""
        ...

    @property
    def space(self) -> Space:
        """What can be built."""
        ...

    def build(self) -> nn.Module:
        """Return the network: logits of an architecture, images, and whether it is trained."""
        ...

    def count_kept(self, image_shape: tuple[int, ...]) -> float:
        """Estimate how many numbers a gradient remembers of an image."""
        ...

    def count_parameters(self, arch: Array, input_channels: int) -> Int[Array, "*batch"]:
        """Count the parameters that architectures use."""
        ...


def parameter_count(
    arch: ArrayLike, config: NetworkConfig, *, input_channels: int = 3
) -> Int[Array, "*batch"]:
    """Count the parameters that architectures use; any leading axes are kept.

    Example:
        >>> import numpy as np
        >>> from bqnes_jax.models import NATSNetworkConfig
        >>> int(parameter_count(np.array([3, 3, 4, 1, 3, 1]), NATSNetworkConfig(classes=100)))
        808276
    """
    check_whole("input_channels", input_channels, 1)
    return config.count_parameters(as_architectures(config.space, arch), input_channels)
