"""What families of networks for images have in common."""

import warnings

import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Float

from bqnes_jax.data import Split, channel_moments
from bqnes_jax.errors import BQNESError


def moments_of(data: Split) -> Float[np.ndarray, "2 channels"]:
    """Return mean and standard deviation of each channel, by which images are normalised."""
    return np.asarray(jnp.stack(channel_moments(jnp.asarray(data.train.inputs))))


def as_images(images: ArrayLike, moments: Float[np.ndarray, "2 channels"]) -> np.ndarray:
    """Check that images are from 0 to 255, as the networks saw them."""
    images = np.asarray(images)
    if images.dtype.kind not in "buif" or not np.isfinite(images).all():
        raise BQNESError("images hold what is not a real number; they must be from 0 to 255.")
    low, high = float(images.min()), float(images.max())
    if low < 0 or high > 255:
        raise BQNESError(
            f"images are from {low:g} to {high:g}; they must be from 0 to 255, as the networks saw "
            "them."
        )
    brightness = 255 * float(moments[0].mean())
    if high < brightness:
        warnings.warn(
            f"images are at most {high:g}, darker than the training images are on average "
            f"({brightness:.0f}); were they scaled to 0 … 255?",
            stacklevel=4,
        )
    return images if images.dtype == np.uint8 else images.astype(np.float32)
