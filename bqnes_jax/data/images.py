"""Labelled images on the device, and how a network sees them."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Shaped, UInt8

from bqnes_jax.data.examples import Split
from bqnes_jax.errors import BQNESError, check_shape, concrete

_CHANNELS = (1, 3, 4)


def check_images(data: Split, classes: int) -> None:
    """Refuse images that are not bytes of one size, and labels that are not of the classes."""
    size = np.shape(data.train.inputs)[1:]
    for part, (images, labels) in data.parts.items():
        if np.ndim(images) != 4 or images.dtype != np.uint8:
            raise BQNESError(
                f"{part}.inputs have type {images.dtype} and shape {images.shape}; they must be "
                "uint8 of shape (n, height, width, channels): scale them to 0 … 255 and round."
            )
        if images.shape[1] in _CHANNELS and images.shape[3] not in _CHANNELS:
            raise BQNESError(
                f"{part}.inputs have shape {images.shape}, channels first; they must be "
                "(n, height, width, channels): use images.transpose(0, 2, 3, 1)."
            )
        check_shape(f"{part}.inputs", images, (None, *size))
        check_shape(f"{part}.labels", labels, (len(images),))
        if not len(images):
            raise BQNESError(f"{part}.inputs are none; give at least one image.")
        values = concrete(labels)
        if not np.issubdtype(labels.dtype, np.integer):
            raise BQNESError(f"{part}.labels have type {labels.dtype}; they must be integers.")
        if values is not None and not 0 <= values.min() <= values.max() < classes:
            raise BQNESError(
                f"{part}.labels are from {values.min()} to {values.max()}; they must be from 0 to "
                f"{classes - 1}, or the network needs more classes."
            )


def channel_moments(
    images: UInt8[Array, "n h w c"],
) -> tuple[Float[Array, " c"], Float[Array, " c"]]:
    """Return the mean and the standard deviation of each channel, in units of 255."""
    if images.size == 0:
        raise BQNESError(f"images have shape {images.shape}, without a pixel; give at least one.")
    scaled = images / jnp.asarray(255, jnp.result_type(float))
    return jnp.mean(scaled, (0, 1, 2)), jnp.std(scaled, (0, 1, 2))


def normalise(
    images: Shaped[Array, "n h w c"], mean: Float[Array, " c"], deviation: Float[Array, " c"]
) -> Float[Array, "n h w c"]:
    """Scale bytes to mean 0 and deviation 1 per channel; a constant channel becomes 0.

    Example:
        >>> images = jnp.array([0, 255], jnp.uint8).reshape(2, 1, 1, 1)
        >>> normalise(images, *channel_moments(images)).ravel().tolist()
        [-1.0, 1.0]
    """
    return (images / jnp.asarray(255, mean.dtype) - mean) / jnp.where(deviation > 0, deviation, 1)
