"""Data sets prepared once, in TFDS's layout, and read through its `data_source`: no TensorFlow.

`tensorflow_datasets` is imported when it is needed: that takes a second.
"""

import contextlib
import hashlib
import json
import math
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bqnes_jax.data.archives import (
    PUBLISHED,
    check_dataset,
    how_to_get,
    read_npz,
    read_published,
)
from bqnes_jax.data.examples import Dataset, Examples
from bqnes_jax.errors import BQNESError, check_choice
from bqnes_jax.files import (
    check_unpacked,
    hold_lock,
    load_json,
    open_file,
    read_small,
    refuse_damaged,
)

VERSION = "1.0.0"
_CHECKSUM = "content.sha256"  # records carry their own, but not how many there are, nor the classes
_SCRATCH = ".prepare-"  # how folders begin that a set is written in before it has its name
_AT_ONCE = 4096  # examples decoded together: Python objects of all would take several times more


def tfds_name(name: str) -> str:
    """Return the name TFDS files a data set under: only letters, digits and underscores."""
    return name.replace("-", "_")


def prepare(
    name: str,
    source: str | os.PathLike[str],
    directory: str | os.PathLike[str],
    *,
    verify: bool = True,
) -> Path:
    """Convert published files, or an `.npz`, to a prepared data set, in their order.

    Args:
        name: a known data set, or any name of your own for an `.npz`.
        source: the archive, the folder of files, or the `.npz`.
        directory: the data directory; the set comes into a folder of its own there.
        verify: compare the checksums of a known data set with the published ones.
    """
    source, directory = Path(source), Path(directory)
    if not re.fullmatch("[a-z][a-z0-9_-]*", name):
        raise BQNESError(f"name is {name!r}; it must be of small letters, digits, '-' and '_'.")
    target = directory / tfds_name(name) / VERSION
    _check_absent(target)
    if source.suffix == ".npz":
        dataset = read_npz(name, source)
        if dataset.train.inputs.ndim != 4 or dataset.train.inputs.dtype != np.uint8:
            raise BQNESError(
                f"{source} has inputs of type {dataset.train.inputs.dtype} and shape "
                f"{dataset.train.inputs.shape}; only images, uint8 of shape (n, height, width) or "
                "(n, height, width, channels), need to be prepared: use the file as it is."
            )
    else:
        check_choice("name of a data set that is not an .npz", name, tuple(PUBLISHED))
        dataset = read_published(name, source, verify=verify)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with _scratch(directory) as scratch:
            _check_absent(target)  # another process may have been faster
            _write(dataset, scratch)
            made = scratch / tfds_name(name) / VERSION
            (made / _CHECKSUM).write_text(_digest(dataset))
            target.parent.mkdir(exist_ok=True)
            os.rename(made, target)
    except (OSError, RuntimeError) as error:  # the latter from Riegeli, a full disk included
        reason = " ".join(str(error).split())[:160]
        raise BQNESError(
            f"{name} cannot be written to {directory} ({reason}); choose a directory with room "
            "that can be written."
        ) from error
    return target


def _check_absent(target: Path) -> None:
    if target.exists():
        raise BQNESError(f"{target} is there already; remove it to prepare it again.")


@contextlib.contextmanager
def _scratch(directory: Path) -> Iterator[Path]:
    """Make a folder for work in a data directory, and remove those that killed processes left.

    One process works there at a time; the others wait for it.
    """
    with hold_lock(directory / ".prepare.lock", f"data directory {directory}", wait=True):
        for left in directory.glob(f"{_SCRATCH}*"):
            shutil.rmtree(left, ignore_errors=True)
        with tempfile.TemporaryDirectory(prefix=_SCRATCH, dir=directory) as scratch:
            yield Path(scratch)


def find_prepared(name: str, directory: Path) -> Path | None:
    """Return the folder of the highest version of a prepared data set, if there is one."""
    folders = [info.parent for info in (directory / tfds_name(name)).glob("*/dataset_info.json")]
    return max(folders, key=_version, default=None)


def read_prepared(name: str, folder: Path) -> Dataset:
    """Read a data set that `prepare`, or TFDS itself, wrote as `array_record`."""
    with refuse_damaged(folder):
        builder = _open(folder, how_to_get(name) if name in PUBLISHED else "prepare it again.")
        features = builder.info.features
        if not {"image", "label"} <= set(features or ()) or "train" not in builder.info.splits:
            raise BQNESError(f"{folder} has no images and labels for training; it is of no use.")
        shape = _shape(features["image"])
        parts = {
            split: _read_split(builder.as_data_source(split), shape, folder)
            for split in ("train", "test")
            if split in builder.info.splits
        }
        train = parts["train"]
        test = parts.get("test", Examples(train.inputs[:0], train.labels[:0]))
        dataset = Dataset(name, int(features["label"].num_classes), train, test)
        checksum = folder / _CHECKSUM  # what TFDS itself prepared has none
        if checksum.is_file() and read_small(checksum) != _digest(dataset).encode():
            raise ValueError("the checksum of its content differs")
    check_dataset(dataset, folder)
    return dataset


def read_test(folder: Path) -> Examples:
    """Read the test images of a prepared data set, which may have no others."""
    with refuse_damaged(folder):
        builder = _open(folder, "get it as arrays.")
        shape = _shape(builder.info.features["image"])
        return _read_split(builder.as_data_source("test"), shape, folder)


def _open(folder: Path, otherwise: str) -> Any:  # TFDS's types say less than its documentation
    import tensorflow_datasets as tfds

    for path in folder.iterdir():  # TFDS would wait for what a FIFO never gives
        open_file(path).close()
    info = load_json(folder / "dataset_info.json")
    if info.get("fileFormat") != "array_record":
        raise BQNESError(
            f"{folder} was prepared as {info.get('fileFormat', 'tfrecord')}, which only TensorFlow "
            f'reads; prepare it with file_format="array_record", or {otherwise}'
        )
    _check_features(load_json(folder / "features.json"))
    return tfds.builder_from_directory(folder)


def _check_features(content: object) -> None:
    """Refuse a description of features by which TFDS would import modules that are not its own."""
    if isinstance(content, list):
        content = dict(enumerate(content))
    for key, value in content.items() if isinstance(content, dict) else ():
        named = key in ("type", "pythonClassName", "python_class_name")
        own = isinstance(value, str) and value.startswith("tensorflow_datasets.core.features.")
        if (named and not own) or key in ("jsonFeature", "json_feature", "proto_cls"):
            raise ValueError(f"its {key} is not one of TFDS's own")
        _check_features(value)


def _shape(image) -> tuple[int, int, int]:
    shape = image.shape
    if (
        not isinstance(shape, tuple)
        or len(shape) != 3
        or not all(isinstance(n, int) for n in shape)
    ):
        raise ValueError("its images are not all of one shape")
    return shape


def _read_split(source, shape: tuple[int, ...], folder: Path) -> Examples:
    stored = sum(path.stat().st_size for path in folder.iterdir())
    check_unpacked(len(source) * math.prod(shape), stored)
    images = np.empty((len(source), *shape), np.uint8)
    labels = np.empty(len(source), np.int32)
    for start in range(0, len(source), _AT_ONCE):
        places = range(start, min(start + _AT_ONCE, len(source)))
        examples = source.__getitems__(list(places))
        for place, example in zip(places, examples, strict=True):
            images[place], labels[place] = example["image"], example["label"]
    return Examples(images, labels)


def _write(dataset: Dataset, directory: Path) -> None:
    import tensorflow_datasets as tfds
    from tensorflow_datasets.core import registered

    with registered.skip_registration():

        class Builder(tfds.core.GeneratorBasedBuilder):
            """The arrays of one data set, as TFDS wants them."""

            name = tfds_name(dataset.name)
            VERSION = tfds.core.Version(VERSION)

            def _info(self):
                # As bytes an image is stored five times faster than as the list of its numbers.
                # Shuffling would break split files, which count in the published order.
                image = tfds.features.Tensor(
                    shape=dataset.train.inputs.shape[1:], dtype=np.uint8, encoding="bytes"
                )
                label = tfds.features.ClassLabel(num_classes=dataset.classes)
                features = tfds.features.FeaturesDict({"image": image, "label": label})
                return tfds.core.DatasetInfo(
                    builder=self, features=features, disable_shuffling=True
                )

            def _split_generators(self, dl_manager):
                parts = {"train": dataset.train, "test": dataset.test}
                return {
                    split: self._generate_examples(part)
                    for split, part in parts.items()
                    if len(part.labels)
                }

            def _generate_examples(self, part):
                for place, (image, label) in enumerate(zip(*part, strict=True)):
                    yield place, {"image": image, "label": int(label)}

    with _silent(tfds):
        Builder(data_dir=directory, file_format="array_record").download_and_prepare(
            download_config=tfds.download.DownloadConfig(try_download_gcs=False)
        )


def _digest(dataset: Dataset) -> str:
    arrays = [*dataset.train, *dataset.test]
    described = [dataset.classes, *(array.shape for array in arrays)]
    digest = hashlib.sha256(json.dumps(described).encode())
    for array in arrays:
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


@contextlib.contextmanager
def _silent(tfds) -> Iterator[None]:
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        tfds.disable_progress_bar()
        try:
            yield
        finally:
            tfds.enable_progress_bar()


def _version(folder: Path) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", folder.name))
