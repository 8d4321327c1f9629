"""Trees of arrays as bytes: dicts, lists and tuples of numbers, nothing that is run when read.

A tree is described in JSON, an array by its type and shape, and the numbers of all arrays follow
each other in the order of the description.
"""

import hashlib
import json
import math
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from bqnes_jax.files.digests import write_bound
from bqnes_jax.files.untrusted import open_file, size_of_file
from bqnes_jax.identity import canonical

Tree = Any  # dict | list | tuple | None of such, or an array

_LEVELS = 32
_TYPES = {
    kind.name: kind.newbyteorder("<")
    for kind in map(np.dtype, ("?", *"bhiq", *"BHIQ", *"efd"))  # bool, int, uint, float
} | {"bfloat16": np.dtype(ml_dtypes.bfloat16)}


def as_tree(value: object, levels: int = _LEVELS) -> Tree:
    """Return dicts, lists, tuples and arrays as they are kept; TypeError for anything else.

    Numbers become arrays, NamedTuples tuples, and mappings dicts with their keys in order.

    Example:
        >>> as_tree({"w": np.ones(2, np.float32), "b": 0.5})
        {'b': array(0.5), 'w': array([1., 1.], dtype=float32)}
    """
    if value is None:
        return None
    if not levels:
        raise TypeError("it is nested too deep")
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            raise TypeError("it has keys that are not text")
        return {key: as_tree(value[key], levels - 1) for key in sorted(value)}
    if isinstance(value, tuple):
        return tuple(as_tree(one, levels - 1) for one in value)
    if isinstance(value, list):
        return [as_tree(one, levels - 1) for one in value]
    array = np.asarray(value)
    if array.dtype.name not in _TYPES:
        raise TypeError(f"it holds {type(value).__name__}, which is no array of numbers")
    if not _is_shape(list(array.shape)):
        raise TypeError(f"it holds an array of shape {array.shape}")
    return array


def describe(tree: Tree) -> object:
    """Return the JSON that describes a tree."""
    if tree is None:
        return None
    if isinstance(tree, dict):
        return {"dict": {key: describe(one) for key, one in tree.items()}}
    if isinstance(tree, list | tuple):
        return {type(tree).__name__: [describe(one) for one in tree]}
    return [tree.dtype.name, list(tree.shape)]


def leaves(tree: Tree) -> Iterator[np.ndarray]:
    """Yield the arrays of a tree, in the order of its description."""
    if isinstance(tree, dict):
        tree = list(tree.values())
    if isinstance(tree, list | tuple):
        for one in tree:
            yield from leaves(one)
    elif tree is not None:
        yield tree


def to_bytes(tree: Tree) -> bytes:
    """Write the numbers of a tree, in the order of its description."""
    return b"".join(leaf.astype(_TYPES[leaf.dtype.name]).tobytes() for leaf in leaves(tree))


def size_of(description: object, levels: int = _LEVELS) -> int:
    """Return how many bytes the numbers of a tree take; ValueError if it describes none."""
    if description is None:
        return 0
    if not levels:
        raise ValueError("it is nested too deep")
    if isinstance(description, dict) and len(description) == 1:
        ((kind, content),) = description.items()
        if kind == "dict" and isinstance(content, dict):
            return sum(size_of(one, levels - 1) for one in content.values())
        if kind in ("list", "tuple") and isinstance(content, list):
            return sum(size_of(one, levels - 1) for one in content)
    elif isinstance(description, list) and len(description) == 2:
        name, shape = description
        if isinstance(name, str) and name in _TYPES and _is_shape(shape):
            return math.prod(shape) * _TYPES[name].itemsize
    raise ValueError("it does not describe a tree of arrays")


def from_bytes(description: object, content: bytes) -> Tree:
    """Read a tree; ValueError if the content is not of the size that is described."""
    if size_of(description) != len(content):
        raise ValueError("it has more or fewer numbers than it describes")
    place = 0

    def read(one: object) -> Tree:
        nonlocal place
        if one is None:
            return None
        if isinstance(one, list):
            name, shape = one
            dtype, count = _TYPES[name], math.prod(shape)
            array = np.frombuffer(content, dtype, count, place).reshape(shape)
            place += array.nbytes
            return array.astype(dtype.newbyteorder("="))
        ((kind, parts),) = one.items()  # type: ignore[union-attr]
        if kind == "dict":
            return {key: read(part) for key, part in parts.items()}
        items = [read(part) for part in parts]
        return tuple(items) if kind == "tuple" else items

    return read(description)


def _is_shape(shape: object) -> bool:
    return (
        isinstance(shape, list)
        and len(shape) <= _LEVELS
        and all(type(length) is int and 0 <= length < 2**40 for length in shape)
    )


_MAGIC = b"BQTREE\r\n"  # a transfer that translates line ends shows at once
_HEADER_LIMIT = 1 << 20


def write_tree(path: Path, tree: Tree) -> None:
    """Write a tree into a file of its own, bound by its digest; TypeError if it is none."""
    kept = as_tree(tree)
    content = to_bytes(kept)
    header = {"tree": describe(kept), "sha256": hashlib.sha256(content).hexdigest()}
    text = canonical(header)
    if len(text) > _HEADER_LIMIT:
        count = sum(1 for _ in leaves(kept))
        raise TypeError(f"it has {count:,} arrays, whose description is more than a header holds")
    head = _MAGIC + struct.pack("<I", len(text)) + text
    write_bound(path, head + hashlib.sha256(head).digest() + content)


def read_tree(path: Path) -> Tree:
    """Read a tree from a file of its own; ValueError if it is damaged."""
    with open_file(path, follow=False) as file:
        start = file.read(len(_MAGIC) + 4)
        if len(start) < len(_MAGIC) + 4 or not start.startswith(_MAGIC):
            raise ValueError("it does not start like a tree of arrays")
        (length,) = struct.unpack("<I", start[len(_MAGIC) :])
        text = file.read(min(length, _HEADER_LIMIT))
        if hashlib.sha256(start + text).digest() != file.read(hashlib.sha256().digest_size):
            raise ValueError("it has been altered: the checksum of its header differs")
        header = _read_header(text)
        size = size_of(header.get("tree"))
        if size_of_file(file) - file.tell() != size:
            raise ValueError("it is cut short")
        content = file.read(size)
    if hashlib.sha256(content).hexdigest() != header.get("sha256"):
        raise ValueError("it has been altered: the checksum of its content differs")
    return from_bytes(header.get("tree"), content)


def _read_header(text: bytes) -> dict:
    try:
        header = json.loads(text)
    except RecursionError:
        raise ValueError("it has a header that is nested too deep") from None
    except ValueError:
        raise ValueError("it has a header that is not JSON") from None
    if not isinstance(header, dict):
        raise ValueError("it has a header that is not a JSON object")
    return header
