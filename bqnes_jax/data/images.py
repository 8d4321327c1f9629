"""Labelled images on the device, and how a network sees them."""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Integer, Shaped, UInt8

from bqnes_jax.errors import BQNESError, check_shape, concrete


class ImageData(NamedTuple):
    """Images as bytes, (n, height, width, channels), and labels 0 … classes − 1, of three splits.

    Example:
        >>> images, labels = np.zeros((4, 8, 8, 1), np.uint8), np.zeros(4, np.int32)
        >>> ImageData(images, labels, images, labels, images, labels).test_images.shape
        (4, 8, 8, 1)
    """

    train_images: UInt8[Array | np.ndarray, "n_train h w c"]
    train_labels: Integer[Array | np.ndarray, " n_train"]
    valid_images: UInt8[Array | np.ndarray, "n_valid h w c"]
    valid_labels: Integer[Array | np.ndarray, " n_valid"]
    test_images: UInt8[Array | np.ndarray, "n_test h w c"]
    test_labels: Integer[Array | np.ndarray, " n_test"]


def check_images(data: ImageData, classes: int) -> None:
    """Refuse images that are not bytes of one size, and labels that are not of the classes."""
    size = np.shape(data.train_images)[1:]
    for split in ("train", "valid", "test"):
        images, labels = getattr(data, f"{split}_images"), getattr(data, f"{split}_labels")
        if np.ndim(images) != 4 or images.dtype != np.uint8:
            raise BQNESError(
                f"{split}_images have type {images.dtype} and shape {images.shape}; they must be "
                "uint8 of shape (n, height, width, channels): scale them to 0 … 255 and round."
            )
        check_shape(f"{split}_images", images, (None, *size))
        check_shape(f"{split}_labels", labels, (len(images),))
        if not len(images):
            raise BQNESError(f"{split}_images are none; give at least one image.")
        values = concrete(labels)
        if not np.issubdtype(labels.dtype, np.integer):
            raise BQNESError(f"{split}_labels have type {labels.dtype}; they must be integers.")
        if values is not None and not 0 <= values.min() <= values.max() < classes:
            raise BQNESError(
                f"{split}_labels are from {values.min()} to {values.max()}; they must be from 0 to "
                f"{classes - 1}, or the network needs more classes."
            )


def channel_moments(
    images: UInt8[Array, "n h w c"],
) -> tuple[Float[Array, " c"], Float[Array, " c"]]:
    """Return the mean and the standard deviation of each channel, in units of 255."""
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
