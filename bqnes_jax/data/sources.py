"""Where data come from: one function, `load`, and what is there to be loaded."""

import importlib.util
import os
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Array, Float, Float32, UInt8

from bqnes_jax.data.archives import PUBLISHED, how_to_get, read_npz
from bqnes_jax.data.examples import Dataset, Examples
from bqnes_jax.data.prepared import find_prepared, read_prepared
from bqnes_jax.errors import BQNESError, check_whole

EMBEDDED = "digits"


class Available(NamedTuple):
    """A data set that `load` finds under this name."""

    name: str
    kind: str  # "embedded", "prepared" or "npz"
    path: Path | None


def data_directory(directory: str | os.PathLike[str] | None = None) -> Path:
    """Return the directory given, or `$BQNES_DATA_DIR`, or TFDS's own."""
    return Path(
        directory or os.environ.get("BQNES_DATA_DIR") or Path.home() / "tensorflow_datasets"
    )


def load(
    name: str, directory: str | os.PathLike[str] | None = None, *, size: int | None = None
) -> Dataset:
    """Load a data set into memory.

    Args:
        name: "digits" (in scikit-learn), what is in the directory (see `available`), or the path of
            an `.npz` with x_train, y_train, x_test, y_test or x, y.
        directory: where data sets are; by default `$BQNES_DATA_DIR`.
        size: shrink images to size × size, by the mean over the area each pixel covers.

    Example:
        >>> digits = load("digits", size=4)
        >>> digits.train.inputs.shape, digits.train.labels[:4].tolist(), digits.classes
        ((1797, 4, 4, 1), [0, 1, 2, 3], 10)
    """
    dataset = _find(name, data_directory(directory))
    if size is None:
        return dataset
    shape = dataset.train.inputs.shape
    if len(shape) != 4 or dataset.train.inputs.dtype != np.uint8:
        raise BQNESError(
            f"size is {size}, but the inputs of {name!r} have shape {shape}, and are no images "
            "that can be shrunk; leave size out."
        )
    check_whole("size", size, 1, min(shape[1:3]))
    train, test = (
        Examples(downsample(images, size), labels)
        for images, labels in (dataset.train, dataset.test)
    )
    return dataset._replace(train=train, test=test)


def available(directory: str | os.PathLike[str] | None = None) -> list[Available]:
    """List what `load` finds, by name."""
    directory = data_directory(directory)
    found = {EMBEDDED: Available(EMBEDDED, "embedded", None)}
    for path in sorted(directory.glob("*.npz")):
        found[path.stem] = Available(path.stem, "npz", path)
    public = {name.replace("-", "_"): name for name in PUBLISHED}
    for info in sorted(directory.glob("*/*/dataset_info.json")):
        name = public.get(info.parents[1].name, info.parents[1].name)
        found[name] = Available(name, "prepared", find_prepared(name, directory))
    return sorted(found.values())


def downsample(
    images: UInt8[np.ndarray | Array, "n height width channels"], size: int
) -> UInt8[np.ndarray, "n {size} {size} channels"]:
    """Average over the area that each pixel of a smaller image covers, and round.

    Example:
        >>> downsample(np.array([[0, 4], [8, 255]], np.uint8).reshape(1, 2, 2, 1), 1).item()
        67
    """
    images = np.asarray(images)
    height, width = images.shape[1:3]
    if not height or not width:
        raise BQNESError(f"images have shape {images.shape}; each needs at least one pixel.")
    rows, columns = _area_weights(height, size), _area_weights(width, size)
    small = np.empty((len(images), size, size, images.shape[3]), np.uint8)
    for start in range(0, len(images), 1024):  # in floating point all would take four times more
        part = images[start : start + 1024].astype(np.float32)
        means = np.einsum("ih,nhwc,jw->nijc", rows, part, columns, optimize=True)
        small[start : start + 1024] = np.rint(means)
    return small


def _area_weights(length: int, size: int) -> Float32[np.ndarray, "{size} {length}"]:
    """Return the share of each of `length` pixels in each of `size` larger ones; rows sum to 1."""
    edges = np.arange(size + 1) * (length / size)
    pixels = np.arange(length)
    overlap = np.minimum(edges[1:, None], pixels + 1) - np.maximum(edges[:-1, None], pixels)
    return (np.maximum(overlap, 0) * (size / length)).astype(np.float32)


def _find(name: str, directory: Path) -> Dataset:
    if name == EMBEDDED:
        return _digits()
    if name.endswith(".npz"):
        return read_npz(Path(name).stem, Path(name))
    folder = find_prepared(name, directory)
    if folder is not None:
        return read_prepared(name, folder)
    path = directory / f"{name}.npz"
    if path.is_file():
        return read_npz(name, path)
    if name in PUBLISHED:
        raise BQNESError(
            f"data set {name!r} is not in {directory}{_subset(name, directory)}; {how_to_get(name)}"
        )
    names = ", ".join(item.name for item in available(directory))
    raise BQNESError(
        f"data set {name!r} is not known; there are {names} in {directory}, the published "
        f"{', '.join(PUBLISHED)}, and any path of an .npz."
    )


_SUBSETS = {
    "cifar10": "cifar10_subset",
    "cifar100": "cifar100_subset",
    "imagenet16-120": "tinyimagenet16_120",
}


def _subset(name: str, directory: Path) -> str:
    subset = _SUBSETS.get(name)
    if subset is None or not (directory / f"{subset}.npz").is_file():
        return ""
    return f" (only {subset!r}, which is not the same)"


def _digits() -> Dataset:
    table = _digits_table()
    images = np.rint(table[:, :-1] * (255 / 16)).astype(np.uint8).reshape(-1, 8, 8, 1)
    train = Examples(images, table[:, -1].astype(np.int32))
    return Dataset(EMBEDDED, 10, train, Examples(images[:0], train.labels[:0]))


def _digits_table() -> Float[np.ndarray, "n 65"]:
    """Return the pixels and labels of scikit-learn: from its file, as importing it is slow."""
    package = importlib.util.find_spec("sklearn")
    for folder in (package and package.submodule_search_locations) or ():
        path = Path(folder, "datasets", "data", "digits.csv.gz")
        if path.is_file():
            return np.loadtxt(path, delimiter=",")
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    return np.column_stack([pixels, labels])
