"""Images in: data sets, how they are split, corrupted, and what networks see of them."""

from bqnes_jax.data.archives import PUBLISHED, Dataset, Images, how_to_get
from bqnes_jax.data.augment import NO_AUGMENTATION, AugmentConfig, augment
from bqnes_jax.data.corruptions import CORRUPTIONS, FAMILIES, SEVERITIES, corrupt
from bqnes_jax.data.images import channel_moments, check_images, normalise
from bqnes_jax.data.prepared import prepare
from bqnes_jax.data.sources import Available, available, data_directory, downsample, load
from bqnes_jax.data.splits import (
    Split,
    SplitIndices,
    fingerprint,
    read_split,
    split,
    split_indices,
    write_split,
)

__all__ = [
    "CORRUPTIONS",
    "FAMILIES",
    "NO_AUGMENTATION",
    "PUBLISHED",
    "SEVERITIES",
    "AugmentConfig",
    "Available",
    "Dataset",
    "Images",
    "Split",
    "SplitIndices",
    "augment",
    "available",
    "channel_moments",
    "check_images",
    "corrupt",
    "data_directory",
    "downsample",
    "fingerprint",
    "how_to_get",
    "load",
    "normalise",
    "prepare",
    "read_split",
    "split",
    "split_indices",
    "write_split",
]
