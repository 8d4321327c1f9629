"""Test images under dataset shift: corrupted here, or as published (CIFAR-10-C).

Both are a function (corruption, severity) -> images with labels; severity 0 is the clean images.
"""

import os
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from bqnes_jax.data.corruptions import CORRUPTIONS, SEVERITIES, corrupt
from bqnes_jax.data.examples import Dataset, Examples
from bqnes_jax.data.prepared import find_prepared, read_test
from bqnes_jax.data.splits import SplitIndices
from bqnes_jax.errors import BQNESError
from bqnes_jax.files import refuse_damaged
from bqnes_jax.files.arrays import map_npy, read_npy
from bqnes_jax.types import PRNGKey

CLEAN = "clean"
Shifted = Callable[[str, int], Examples]

_AT_ONCE = 128  # images corrupted together: what a corruption needs on the way fits into the cache
# What TFDS calls differently.
_TFDS_NAMES = {"elastic_transform": "elastic", "glass_blur": "frosted_glass_blur"}


def corrupt_test(key: PRNGKey, test: Examples) -> Shifted:
    """Corrupt test images as they are asked for; a corruption's random numbers are always the same.

    Example:
        >>> from bqnes_jax.data import load
        >>> images, labels = load("digits").train
        >>> shifted = corrupt_test(jax.random.key(0), Examples(images[:5], labels[:5]))
        >>> shifted("fog", 3).inputs.shape
        (5, 8, 8, 1)
    """

    def shift(name: str, severity: int) -> Examples:
        if name == CLEAN:
            return test
        own = jax.random.fold_in(key, list(CORRUPTIONS).index(name))
        n, parts = len(test.labels), []
        for start in range(0, n, _AT_ONCE):
            places = np.arange(start, start + _AT_ONCE) % n  # all of one size, compiled once
            part = jnp.asarray(test.inputs[places])
            parts.append(np.asarray(corrupt(name, jax.random.fold_in(own, start), part, severity)))
        return Examples(np.concatenate(parts)[:n], test.labels)

    return shift


def read_corrupted(path: str | os.PathLike[str], dataset: Dataset, places: SplitIndices) -> Shifted:
    """Read corrupted test images that others made.

    Args:
        path: the folder CIFAR-10-C or CIFAR-100-C (`fog.npy`, …, `labels.npy`), or the folder
            `cifar10_corrupted` that TFDS prepared as `array_record`: whose order is not that of
            the data set, so that all its images are tested on.
        dataset: whose test images were corrupted, all of them and in their size.
        places: which of its images are used for what: none that is validated on is tested on.
    """
    path = Path(path)
    if (path / "labels.npy").is_file():
        return _from_arrays(path, dataset, places.test)
    if any(path.glob("*_[1-5]/*/dataset_info.json")):
        return _from_tfds(path, dataset, places)
    raise BQNESError(
        f"{path} holds no corrupted images; give the unpacked folder CIFAR-10-C (with labels.npy), "
        "or the folder cifar10_corrupted that TFDS prepared."
    )


def _from_arrays(path: Path, dataset: Dataset, places: Int[np.ndarray, " m"]) -> Shifted:
    clean, n = dataset.test, len(dataset.test.labels)
    with refuse_damaged(path / "labels.npy"):
        labels = read_npy(path / "labels.npy")
    as_many = labels.shape == (len(SEVERITIES) * n,)
    _check_labels(path, labels[:n] if as_many else labels, clean.labels, as_many)

    def shift(name: str, severity: int) -> Examples:
        if name == CLEAN:
            return Examples(clean.inputs[places], clean.labels[places])
        file = path / f"{name}.npy"
        with refuse_damaged(file):
            every = map_npy(file)
            if every.shape != (len(labels), *clean.inputs.shape[1:]) or every.dtype != np.uint8:
                raise ValueError(f"its shape is {every.shape}")
            return Examples(every[(severity - 1) * n + places], clean.labels[places])

    return shift


def _from_tfds(path: Path, dataset: Dataset, places: SplitIndices) -> Shifted:
    clean = dataset.test
    if places.valid_from == "test":
        raise BQNESError(
            f"{path} has its images in another order, so that the validation images among them are "
            "not known; use the folder CIFAR-10-C, or validate on images of the training set."
        )

    def shift(name: str, severity: int) -> Examples:
        if name == CLEAN:
            return clean
        folder = find_prepared(f"{_TFDS_NAMES.get(name, name)}_{severity}", path)
        if folder is None:
            raise BQNESError(
                f"{path} has no {name} of severity {severity}; prepare it, or leave it out."
            )
        found = read_test(folder)
        same = found.inputs.shape == clean.inputs.shape
        if not same or not np.array_equal(np.sort(found.labels), np.sort(clean.labels)):
            raise BQNESError(
                f"{folder} has other images or labels than the {len(clean.labels)} test images; it "
                "is of another data set."
            )
        return found

    return shift


def _check_labels(path: Path, found: np.ndarray, clean: np.ndarray | Array, as_many: bool) -> None:
    if not as_many or not np.array_equal(found, clean):
        raise BQNESError(
            f"{path} has other labels than the {len(clean)} test images of the run; it is of "
            "another data set."
        )
