"""Images in: data sets and how they are split."""

from bqnes_jax.data.archives import Dataset, Images
from bqnes_jax.data.prepared import prepare
from bqnes_jax.data.sources import Available, available, data_directory, downsample, load
from bqnes_jax.data.splits import (
    Split,
    SplitIndices,
    read_split,
    split,
    split_indices,
    write_split,
)

__all__ = [
    "Available",
    "Dataset",
    "Images",
    "Split",
    "SplitIndices",
    "available",
    "data_directory",
    "downsample",
    "load",
    "prepare",
    "read_split",
    "split",
    "split_indices",
    "write_split",
]
