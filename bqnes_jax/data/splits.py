"""Training, validation and test examples, cut from a data set once and for all.

The validation examples come from the training set (CIFAR-10, and sets of your own) or from the test
set (CIFAR-100, ImageNet16-120: networks train on the whole training set); where there is no test
set, all three come from the training set.
"""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Int

from bqnes_jax.data.examples import (
    Dataset,
    Examples,
    Split,
    as_examples,
    check_split,
    count_classes,
)
from bqnes_jax.errors import BQNESError, check_choice, check_whole
from bqnes_jax.files import explain_writing, load_json, write_whole

Sizes = tuple[int | float, int | float, int | float]
Indices = Int[np.ndarray, " n"]


class SplitIndices(NamedTuple):
    """Which images are used for what.

    Attributes:
        train: places in the training set.
        valid: places in the training set or test set, as `valid_from` says.
        test: places in the test set; in the training set of a data set without one.
        valid_from: "train" or "test".
    """

    train: Indices
    valid: Indices
    test: Indices
    valid_from: str


# Where NAS-Bench-201 takes the validation images from, and what part of each is used.
_VALID_FROM = {
    "cifar10": "train",
    "cifar10_subset": "train",
    "cifar100": "test",
    "cifar100_subset": "test",
    "imagenet16-120": "test",
    "tinyimagenet16_120": "test",
}
_HALVES: dict[str, Sizes] = {"train": (0.5, 0.5, 1.0), "test": (1.0, 0.5, 0.5)}
_OWN: Sizes = (0.8, 0.2, 1.0)
_OWN_WITHOUT_TEST: Sizes = (0.6, 0.2, 0.2)


def split(
    dataset: Dataset,
    sizes: Sizes | None = None,
    *,
    valid_from: str | None = None,
    seed: int = 777,
    file: str | os.PathLike[str] | None = None,
) -> Split:
    """Cut a data set into training, validation and test images.

    Args:
        dataset: as `load` returns it.
        sizes: (train, valid, test), each a count, or a fraction of the set it comes from. By
            default as in NAS-Bench-201 for its three data sets; (0.8, 0.2, 1.0) for others with a
            test set; (0.6, 0.2, 0.2) for those without.
        valid_from: "train" or "test"; by default as in NAS-Bench-201, otherwise "train".
        seed: of the shuffling.
        file: a split file (see `read_split`), instead of all these.

    Example:
        >>> from bqnes_jax.data.sources import load
        >>> data = split(load("digits"), sizes=(0.8, 100, 100))
        >>> [len(part.labels) for part in data.parts.values()]
        [1437, 100, 100]
    """
    if file is None:
        indices = split_indices(dataset, sizes, valid_from=valid_from, seed=seed)
    elif sizes is None and valid_from is None:
        indices = read_split(file, dataset)
    else:
        raise BQNESError("both a split file and sizes are given; the file decides: leave them out.")
    pools = {"train": dataset.train, "test": dataset.test}
    test = pools["test"] if len(dataset.test.labels) else pools["train"]
    return Split(
        _take(pools["train"], indices.train),
        _take(pools[indices.valid_from], indices.valid),
        _take(test, indices.test),
        dataset.classes,
        dataset.name,
    )


def from_arrays(
    inputs: ArrayLike | Sequence[Any],
    labels: ArrayLike | Sequence[Any],
    *,
    split: Sizes | None = None,
    seed: int = 777,
    name: str = "arrays",
) -> Split:
    """Cut examples of your own into training, validation and test data.

    Args:
        inputs: real numbers with a leading axis: tables, images, sequences.
        labels: whole numbers 0 … C − 1, each of which occurs in the training part.
        split: (train, valid, test), each a count or a fraction; by default (0.6, 0.2, 0.2).
        seed: of the shuffling.
        name: what the data are called in reports.

    Example:
        >>> data = from_arrays(np.arange(20.0)[:, None], np.arange(20) % 2, split=(10, 5, 5))
        >>> data.classes, {name: len(part.labels) for name, part in data.parts.items()}
        (2, {'train': 10, 'valid': 5, 'test': 5})
    """
    examples = as_examples(inputs, labels)
    nothing = Examples(examples.inputs[:0], examples.labels[:0])
    dataset = Dataset(name, count_classes(examples.labels), examples, nothing)
    places = split_indices(dataset, split, seed=seed)
    train, valid, test = (
        _take(examples, chosen) for chosen in (places.train, places.valid, places.test)
    )
    data = Split(train, valid, test, dataset.classes, name)
    check_split(data)
    return data


def split_indices(
    dataset: Dataset,
    sizes: Sizes | None = None,
    *,
    valid_from: str | None = None,
    seed: int = 777,
) -> SplitIndices:
    """Draw which images are used for what; see `split`."""
    check_whole("seed", seed, 0, 2**32 - 1)
    has_test = bool(len(dataset.test.labels))
    if valid_from is None:
        valid_from = _VALID_FROM.get(dataset.name, "train") if has_test else "train"
    check_choice("valid_from", valid_from, ("train", "test") if has_test else ("train",))
    if sizes is None:
        halves = dataset.name in _VALID_FROM or valid_from == "test"
        sizes = _HALVES[valid_from] if halves else _OWN
        sizes = sizes if has_test else _OWN_WITHOUT_TEST
    if not isinstance(sizes, tuple | list) or len(sizes) != 3:
        raise BQNESError(f"sizes are {sizes!r}; they must be three: (train, valid, test).")
    comes_from = {"train": "train", "valid": valid_from, "test": "test" if has_test else "train"}
    pools = {"train": len(dataset.train.labels), "test": len(dataset.test.labels)}
    # NumPy promises that this generator's numbers never change, and of no other.
    generator = np.random.RandomState(seed)
    shuffled = {name: generator.permutation(length) for name, length in pools.items()}
    chosen = {}
    for part, size in zip(comes_from, sizes, strict=True):
        pool = comes_from[part]
        count = _count(part, size, pools[pool])
        left = shuffled[pool]
        if count > len(left):
            raise BQNESError(
                f"the split is {sizes}: {part} needs {count} examples, and {len(left)} of the "
                f"{pools[pool]} of the {pool} set are left; make it smaller."
            )
        chosen[part], shuffled[pool] = np.sort(left[:count]), left[count:]
    return SplitIndices(**chosen, valid_from=valid_from)


def write_split(path: str | os.PathLike[str], indices: SplitIndices) -> None:
    """Write a split file."""
    content = {
        name: value if isinstance(value, str) else value.tolist()
        for name, value in indices._asdict().items()
    }
    with explain_writing(f"split {path}"):
        write_whole(Path(path), json.dumps(content).encode())


def read_split(path: str | os.PathLike[str], dataset: Dataset) -> SplitIndices:
    """Read a split file: JSON with lists of places `train`, `valid`, `test`, and `valid_from`.

    A part that is not named is the whole set it comes from. NAS-Bench-201's own files (`train` and
    `valid` of CIFAR-10, `xvalid` and `xtest` of the others) are read as they are.
    """
    path = Path(path)
    try:
        content = load_json(path)
        named = {name.removeprefix("x"): value for name, value in content.items()}
        default = "test" if "xvalid" in content else _VALID_FROM.get(dataset.name, "train")
        valid_from = named.pop("valid_from", default)
        lists = {name: _places(value) for name, value in named.items()}
        if "valid" not in lists or not set(lists) <= {"train", "valid", "test"}:
            raise ValueError
    except OSError as error:
        raise BQNESError(f"{path} cannot be read ({error.strerror}).") from None
    except (ValueError, TypeError, AttributeError, OverflowError):
        raise BQNESError(
            f"{path} is not a split file: it must be JSON with lists of whole numbers train, valid "
            "and test."
        ) from None
    has_test = bool(len(dataset.test.labels))
    check_choice(f"valid_from in {path}", valid_from, ("train", "test") if has_test else ("train",))
    pools = {"train": len(dataset.train.labels), "test": len(dataset.test.labels)}
    comes_from = {"train": "train", "valid": valid_from, "test": "test" if has_test else "train"}
    for part, pool in comes_from.items():
        lists.setdefault(part, np.arange(pools[pool]))
        places = lists[part]
        if not places.size or places.min() < 0 or places.max() >= pools[pool]:
            raise BQNESError(
                f"{path} has {part} indices outside the {pool} set, 0 to {pools[pool] - 1}, or "
                "none; it belongs to another data set."
            )
    for pool in ("train", "test"):
        together = [lists[part] for part in comes_from if comes_from[part] == pool]
        places = np.concatenate([*together, np.arange(0)])
        if len(np.unique(places)) < len(places):
            raise BQNESError(f"{path} uses an image of the {pool} set more than once.")
    return SplitIndices(**lists, valid_from=valid_from)


def _places(value: object) -> Indices:
    if not isinstance(value, list):
        raise TypeError
    if len(value) == 2 and value[0] == "int":  # NAS-Bench-201 writes ["int", ["0", "5", …]]
        value = [int(text) for text in value[1]]
    if not all(type(place) is int for place in value):
        raise TypeError
    return np.array(value, np.int64)


def _count(part: str, size: int | float, pool: int) -> int:
    whole = isinstance(size, int | np.integer) and not isinstance(size, bool)
    if whole and size > 0:
        return int(size)
    if isinstance(size, float) and 0 < size <= 1 and int(size * pool + 1e-6):
        return int(size * pool + 1e-6)
    raise BQNESError(
        f"the size of {part} is {size!r}; it must be a count, at least 1, or a fraction up to 1.0 "
        f"of {pool} examples."
    )


def _take(pool: Examples, places: Indices) -> Examples:
    return Examples(pool.inputs[places], pool.labels[places])
