"""Images: what training and evaluation see of them."""

from bqnes_jax.data.augment import AugmentConfig, augment
from bqnes_jax.data.images import ImageData, channel_moments, check_images, normalise

__all__ = [
    "AugmentConfig",
    "ImageData",
    "augment",
    "channel_moments",
    "check_images",
    "normalise",
]
