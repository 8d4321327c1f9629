"""Labelled examples: inputs of any shape, and the number of the class of each."""

import dataclasses
import functools
import hashlib
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Int32, Shaped

from bqnes_jax.errors import BQNESError, concrete


class Examples(NamedTuple):
    """Inputs with a leading axis, and the number of the class of each."""

    inputs: Shaped[np.ndarray | Array, "n *shape"]
    labels: Int32[np.ndarray | Array, " n"]


class Dataset(NamedTuple):
    """A data set in memory; `test` is empty where the source has no test set of its own."""

    name: str
    classes: int
    train: Examples
    test: Examples


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["train", "valid", "test"],
    meta_fields=["classes", "name"],
)
@dataclasses.dataclass(frozen=True)
class Split:
    """What is trained on, what ensembles are chosen by, and what they are judged by.

    It is a pytree of its six arrays; the number of classes and the name are static under `jit`.
    """

    train: Examples
    valid: Examples
    test: Examples
    classes: int
    name: str = "arrays"

    @property
    def parts(self) -> dict[str, Examples]:
        """The three parts by name."""
        return {"train": self.train, "valid": self.valid, "test": self.test}


def fingerprint(data: Split) -> str:
    """Return a hash of the inputs and labels, by their part."""
    digest = hashlib.sha256()
    for part in data.parts.values():
        for array in (np.asarray(part.inputs), np.asarray(part.labels, np.int32)):
            digest.update(f"{array.shape}{array.dtype}".encode())
            digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def as_examples(inputs: object, labels: object, *, where: str = "") -> Examples:
    """Check inputs and labels, and convert them to arrays.

    Args:
        inputs: numbers with a leading axis.
        labels: whole numbers, one for each input.
        where: the beginning of each error, such as the name of a file.
    """
    inputs, labels = _array(inputs, f"{where}inputs"), _array(labels, f"{where}labels")
    if inputs.ndim == 0 or inputs.dtype.kind not in "buif":
        raise BQNESError(
            f"{where}inputs have type {inputs.dtype} and shape {inputs.shape}; they must be real "
            "numbers with a leading axis, one entry for each example."
        )
    if labels.dtype.kind in "USO":
        raise BQNESError(
            f"{where}labels are text or objects such as {labels.flat[0] if labels.size else ''!r}; "
            "they must be whole numbers: use numpy.unique(labels, return_inverse=True)[1]."
        )
    if labels.dtype.kind not in "bui" or labels.shape != inputs.shape[:1]:
        raise BQNESError(
            f"{where}labels have type {labels.dtype} and shape {labels.shape}; they must be whole "
            f"numbers, one for each of the {len(inputs)} inputs."
        )
    if labels.size and not -(2**31) <= int(labels.min()) <= int(labels.max()) < 2**31:
        raise BQNESError(
            f"{where}labels are from {labels.min()} to {labels.max()}; they must be from 0 to the "
            "number of classes − 1."
        )
    if inputs.dtype.kind == "f" and not np.isfinite(inputs).all():
        raise BQNESError(f"{where}inputs hold NaN or infinity; leave those examples out.")
    return Examples(np.ascontiguousarray(inputs), labels.astype(np.int32))


def _array(values: object, what: str) -> np.ndarray:
    try:
        return np.asarray(values)
    except ValueError:  # lists of several lengths
        raise BQNESError(f"{what} are not all of one shape; make an array of them.") from None


def count_classes(labels: np.ndarray | Array, where: str = "") -> int:
    """Return C of labels that are 0 … C − 1, each at least once; refuse others."""
    if not labels.size:
        raise BQNESError(f"{where}there are no training examples; give some of each class.")
    lowest, highest = int(labels.min()), int(labels.max())
    if lowest != 0:
        remedy = f"subtract {lowest}" if lowest > 0 else "number the classes from 0"
        raise BQNESError(
            f"{where}labels are from {lowest} to {highest}; they must be from 0 to the number of "
            f"classes − 1: {remedy}."
        )
    if highest == 0:
        raise BQNESError(f"{where}all labels are 0; there must be at least two classes.")
    check_every_class(labels, highest + 1, where=where)
    return highest + 1


def check_every_class(labels: np.ndarray | Array, classes: int, *, where: str = "") -> None:
    """Refuse training labels among which a class of 0 … C − 1 does not occur."""
    present = np.unique(labels)  # not all classes: one label may claim a billion of them
    if present.size < classes:
        first = int(np.argmin(np.append(present, -1) == np.arange(present.size + 1)))
        raise BQNESError(
            f"{where}class {first} of 0 to {classes - 1} has no training example "
            f"({classes - present.size} such); give more training examples, or number the classes "
            "anew."
        )


def check_split(data: Split) -> None:
    """Refuse data that nothing can be learnt from, before anything is trained."""
    shape = np.shape(data.train.inputs)[1:]
    for name, part in data.parts.items():
        if not len(part.labels):
            raise BQNESError(f"the part {name} of the data is empty; give it at least one example.")
        if len(part.labels) != len(part.inputs) or np.shape(part.inputs)[1:] != shape:
            raise BQNESError(
                f"{name}.inputs have shape {np.shape(part.inputs)} and labels "
                f"{np.shape(part.labels)}; they must be ({len(part.labels)}, "
                f"{', '.join(map(str, shape))}), as the training inputs are."
            )
        labels = concrete(part.labels)
        if labels is not None and not 0 <= labels.min() <= labels.max() < data.classes:
            raise BQNESError(
                f"{name}.labels are from {labels.min()} to {labels.max()}; they must be from 0 to "
                f"{data.classes - 1}."
            )
    inputs, labels = concrete(data.train.inputs), concrete(data.train.labels)
    if labels is not None:
        check_every_class(labels, data.classes)
    if inputs is not None and len(inputs) > 1 and (inputs == inputs[:1]).all():
        raise BQNESError(
            "the training inputs are all the same; nothing can be learnt from them: check how they "
            "were read and scaled."
        )
