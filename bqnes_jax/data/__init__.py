"""Data sets: where they come from, how they are split, and what networks see of them."""

from bqnes_jax.data.archives import PUBLISHED, how_to_get
from bqnes_jax.data.augment import NO_AUGMENTATION, AugmentConfig, augment
from bqnes_jax.data.corruptions import CORRUPTIONS, FAMILIES, SEVERITIES, corrupt
from bqnes_jax.data.examples import Dataset, Examples, Split, check_split, fingerprint
from bqnes_jax.data.images import channel_moments, check_images, normalise
from bqnes_jax.data.prepared import prepare
from bqnes_jax.data.sources import Available, available, data_directory, downsample, load
from bqnes_jax.data.splits import (
    SplitIndices,
    from_arrays,
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
    "Examples",
    "Split",
    "SplitIndices",
    "augment",
    "available",
    "channel_moments",
    "check_images",
    "check_split",
    "corrupt",
    "data_directory",
    "downsample",
    "fingerprint",
    "from_arrays",
    "how_to_get",
    "load",
    "normalise",
    "prepare",
    "read_split",
    "split",
    "split_indices",
    "write_split",
]
