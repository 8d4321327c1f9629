"""The published files of known data sets, and `.npz` files, as arrays. Nothing in them is run."""

import gzip
import hashlib
import io
import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bqnes_jax.data.examples import Dataset, Examples, as_examples, count_classes
from bqnes_jax.errors import BQNESError
from bqnes_jax.files import Bounded, open_file, refuse_damaged
from bqnes_jax.files.arrays import open_npz
from bqnes_jax.files.tars import open_tar
from bqnes_jax.files.unpickling import NumberType, Stateful, Unpickler

_LIMIT = 1 << 28  # bytes of an unpacked IDX file; the largest published one has a fifth
_TAR_LIMIT = 1 << 29  # bytes of an unpacked archive of CIFAR; the published ones have a third


class Published(NamedTuple):
    """A data set as its authors publish it.

    Attributes:
        classes: how many there are.
        shape: of one image.
        checksums: by file name, md5 (32 digits) or sha256 (64) as published.
        get: the shell command or sentence that gets the files.
        source: what the command line is then given.
        read: from the path of the file, or of the folder of files, to (train, test).
    """

    classes: int
    shape: tuple[int, int, int]
    checksums: dict[str, str]
    get: str
    source: str
    read: Callable[[Path], tuple[Examples, Examples]]


def read_published(name: str, path: Path, *, verify: bool = True) -> Dataset:
    """Read the published files of a known data set, after comparing their checksums."""
    published = PUBLISHED[name]
    several = len(published.checksums) > 1
    for file, checksum in published.checksums.items():
        full = path / file if several else path
        if not full.is_file():
            raise BQNESError(f"{full} is not a file; {how_to_get(name)}")
        if verify:
            _check_checksum(full, checksum)
    with refuse_damaged(path):
        train, test = published.read(path)
    dataset = Dataset(name, published.classes, train, test)
    check_dataset(dataset, path)
    if train.inputs.shape[1:] != published.shape:
        raise BQNESError(
            f"{path} has images of shape {train.inputs.shape[1:]}; those of {name} have shape "
            f"{published.shape}."
        )
    return dataset


def read_npz(name: str, path: Path) -> Dataset:
    """Read `x_train`, `y_train`, `x_test`, `y_test` (or `x`, `y`) and, if there, `classes`."""
    with refuse_damaged(path), open_npz(path) as file:
        names = ("x_train", "y_train") if "x_train" in file else ("x", "y")
        absent = [key for key in names if key not in file]
        if "x_test" in file and "y_test" not in file:
            absent.append("y_test")
        if absent:
            raise BQNESError(
                f"{path} has no {absent[0]}; it must hold x_train, y_train, x_test and y_test, or "
                f"x and y (it holds {', '.join(file.names[:9])})."
            )
        train = _examples(path, *(file[key].read() for key in names))
        if "x_test" in file:
            test = _examples(path, file["x_test"].read(), file["y_test"].read())
        else:
            test = Examples(train.inputs[:0], train.labels[:0])
        named = file["classes"].shape[0] if "classes" in file else None
    classes = count_classes(train.labels, f"{path}: ") if named is None else named
    dataset = Dataset(name, classes, train, test)
    check_dataset(dataset, path)
    return dataset


def check_dataset(dataset: Dataset, path: Path) -> None:
    """Refuse labels without a class, and inputs of several shapes."""
    for part in (dataset.train, dataset.test):
        labels = part.labels
        if labels.size and not 0 <= labels.min() <= labels.max() < dataset.classes:
            worst = labels.min() if labels.min() < 0 else labels.max()
            raise BQNESError(
                f"{path} has the label {worst}; labels go from 0 to {dataset.classes - 1}."
            )
    shapes = [part.inputs.shape[1:] for part in (dataset.train, dataset.test)]
    if shapes[0] != shapes[1]:
        raise BQNESError(f"{path} has inputs of shapes {shapes[0]} and {shapes[1]}; make them one.")
    if not len(dataset.train.labels):
        raise BQNESError(f"{path} has no training examples.")


def how_to_get(name: str, directory: Path | None = None) -> str:
    """Say what to type to have a known data set, in a directory that is not the usual one."""
    published = PUBLISHED[name]
    place = "" if directory is None else f" --directory {directory}"
    return f"{published.get} bqnes data prepare {name} --from {published.source}{place}"


def _check_checksum(path: Path, expected: str) -> None:
    algorithm = "md5" if len(expected) == 32 else "sha256"
    with refuse_damaged(path), open_file(path) as file:
        found = hashlib.file_digest(file, algorithm).hexdigest()
    if found != expected:
        raise BQNESError(
            f"{path} has {algorithm} {found}, the published file {expected}: it is cut short or "
            "altered; get it again, or turn verification off if you packed it yourself."
        )


def _examples(path: Path, inputs: np.ndarray, labels: np.ndarray) -> Examples:
    """Check the arrays of a file; bytes of shape (n, height, width) are images of one channel."""
    if inputs.ndim == 3 and inputs.dtype == np.uint8:
        inputs = inputs[..., None]
    return as_examples(inputs, labels, where=f"{path}: ")


def _channels_last(path: Path, data: np.ndarray, labels: np.ndarray, side: int) -> Examples:
    """Order the rows of CIFAR and ImageNet16, three planes each, as images."""
    if data.dtype != np.uint8:
        raise BQNESError(f"{path} holds data that are not an array of uint8.")
    images = data.reshape(-1, 3, side, side).transpose(0, 2, 3, 1)
    return _examples(path, images, labels)


def _array(found: object) -> np.ndarray:
    if not isinstance(found, PickledArray):
        raise ValueError("its data are not an array")
    return found.array()


def _labels(found: object) -> np.ndarray:
    if isinstance(found, PickledArray):
        return found.array()
    if not isinstance(found, list) or not all(type(label) is int for label in found):
        raise ValueError("its labels are not whole numbers")
    return np.array(found, np.int64)


def _join(parts: list[Examples]) -> Examples:
    return Examples(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))


def _read_cifar(folder: str, train: tuple[str, ...], test: str, label_key: str):
    def read(path: Path) -> tuple[Examples, Examples]:
        found = {}
        with (
            open_file(path) as packed,
            gzip.open(packed) as unpacked,
            open_tar(stream := Bounded(unpacked, _TAR_LIMIT), "r|") as archive,
        ):
            for member in archive:
                part = member.name.removeprefix(folder + "/")
                if part in (*train, test) and member.isfile():
                    file = archive.extractfile(member)
                    assert isinstance(file, io.BufferedIOBase)  # the member is a file
                    batch = unpickle(file)
                    labels = _labels(batch[label_key])
                    found[part] = _channels_last(path, _array(batch["data"]), labels, 32)
            while stream.read(1 << 20):  # to its end, where its checksum is compared
                pass
        absent = [part for part in (*train, test) if part not in found]
        if absent:
            raise BQNESError(f"{path} has no {folder}/{absent[0]}; it is another archive.")
        return _join([found[part] for part in train]), found[test]

    return read


_IMAGENET16_CLASSES = 120
_IMAGENET16_TEST = "val_data"


def _read_imagenet16(path: Path) -> tuple[Examples, Examples]:
    parts = {}
    for name in PUBLISHED["imagenet16-120"].checksums:
        with open_file(path / name) as file:
            batch = unpickle(file)
        labels = _labels(batch["labels"])  # counted from 1, of a thousand classes
        chosen = labels <= _IMAGENET16_CLASSES
        data = _array(batch["data"])[chosen]
        parts[name] = _channels_last(path / name, data, labels[chosen] - 1, 16)
    test = parts.pop(_IMAGENET16_TEST)
    return _join(list(parts.values())), test


def _read_idx(path: Path) -> tuple[Examples, Examples]:
    def array(name: str) -> np.ndarray:
        with open_file(path / name) as packed, gzip.open(packed) as file:
            content = Bounded(file, _LIMIT).read()
        dimensions = content[3]
        if content[:3] != b"\0\0\x08" or dimensions not in (1, 3):
            raise ValueError(f"{name} is not an IDX file of bytes")
        shape = struct.unpack(f">{dimensions}I", content[4 : 4 + 4 * dimensions])
        return np.frombuffer(content, np.uint8, offset=4 + 4 * dimensions).reshape(shape)

    names = list(PUBLISHED["fashion_mnist"].checksums)
    train, test = (_examples(path, *map(array, pair)) for pair in (names[:2], names[2:]))
    return train, test


def unpickle(file: io.BufferedIOBase) -> dict[str, Any]:
    """Read plain containers and arrays of numbers from a pickle, and refuse everything else.

    The published batches of CIFAR and ImageNet16 are pickles.
    """
    content = _Unpickler.read(file, encoding="latin1")
    if not isinstance(content, dict):
        raise pickle.UnpicklingError(f"it holds a {type(content).__name__}, not a dict")
    return content


class PickledArray(Stateful):
    """What NumPy's pickles say of an array; NumPy itself would trust them."""

    def __init__(self, *_: object):
        pass

    def array(self) -> np.ndarray:
        """Return the numbers."""
        _, shape, kind, fortran, content = self.state
        if not isinstance(kind, NumberType):
            raise pickle.UnpicklingError("it holds an array without a type")
        content = content.encode("latin1") if isinstance(content, str) else content
        return np.frombuffer(content, kind.dtype).reshape(shape, order="F" if fortran else "C")


def _latin1(text: Any, encoding: object) -> Any:
    return text  # how Python 3 writes bytes in the old protocols; an array encodes it


class _Unpickler(Unpickler):
    reads = "published data set"
    admitted = {  # noqa: RUF012
        ("numpy.core.multiarray", "_reconstruct"): PickledArray,
        ("numpy", "ndarray"): "an argument of _reconstruct, never called",
        ("numpy", "dtype"): NumberType,
        ("_codecs", "encode"): _latin1,
    }


_TORONTO = "https://www.cs.toronto.edu/~kriz/"
_FASHION = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"

PUBLISHED = {
    "cifar10": Published(
        10,
        (32, 32, 3),
        {"cifar-10-python.tar.gz": "c58f30108f718f92721af3b95e74349a"},
        f"get it with: curl -LO {_TORONTO}cifar-10-python.tar.gz &&",
        "cifar-10-python.tar.gz",
        _read_cifar(
            "cifar-10-batches-py",
            tuple(f"data_batch_{i}" for i in range(1, 6)),
            "test_batch",
            "labels",
        ),
    ),
    "cifar100": Published(
        100,
        (32, 32, 3),
        {"cifar-100-python.tar.gz": "eb9058c3a382ffc7106e4002c42a8d85"},
        f"get it with: curl -LO {_TORONTO}cifar-100-python.tar.gz &&",
        "cifar-100-python.tar.gz",
        _read_cifar("cifar-100-python", ("train",), "test", "fine_labels"),
    ),
    "imagenet16-120": Published(
        _IMAGENET16_CLASSES,
        (16, 16, 3),
        {
            "train_data_batch_1": "27846dcaa50de8e21a7d1a35f30f0e91",
            "train_data_batch_2": "c7254a054e0e795c69120a5727050e3f",
            "train_data_batch_3": "4333d3df2e5ffb114b05d2ffc19b1e87",
            "train_data_batch_4": "1620cdf193304f4a92677b695d70d10f",
            "train_data_batch_5": "348b3c2fdbb3940c4e9e834affd3b18d",
            "train_data_batch_6": "6e765307c242a1b3d7d5ef9139b48945",
            "train_data_batch_7": "564926d8cbf8fc4818ba23d2faac7564",
            "train_data_batch_8": "f4755871f718ccb653440b9dd0ebac66",
            "train_data_batch_9": "bb6dd660c38c58552125b1a92f86b5d4",
            "train_data_batch_10": "8f03f34ac4b42271a294f91bf480f29b",
            _IMAGENET16_TEST: "3410e3017fdaefba8d5073aaa65e4bd6",
        },
        "get the folder ImageNet16 (train_data_batch_1 to 10 and val_data) that NAS-Bench-201 "
        "links to, https://drive.google.com/open?id=1L0Lzq8rWpZLPfiQGd6QR8q5xLV88emU7, then run:",
        "ImageNet16",
        _read_imagenet16,
    ),
    "fashion_mnist": Published(
        10,
        (28, 28, 1),
        {
            "train-images-idx3-ubyte.gz": (
                "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84"
            ),
            "train-labels-idx1-ubyte.gz": (
                "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845"
            ),
            "t10k-images-idx3-ubyte.gz": (
                "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073"
            ),
            "t10k-labels-idx1-ubyte.gz": (
                "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5"
            ),
        },
        "get it with: curl --create-dirs --output-dir fashion --remote-name-all "
        f"{_FASHION}{{train-images-idx3,train-labels-idx1,t10k-images-idx3,t10k-labels-idx1}}"
        "-ubyte.gz &&",
        "fashion",
        _read_idx,
    ),
}
