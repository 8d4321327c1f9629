"""Pickles of plain containers, numbers and PyTorch's tensors, read without trust and without torch.

A pickle may name any function to be called. Here a name stands for one of a few harmless things of
this file, or is refused; and what an object wants to be set to (BUILD) is left out.
"""

import io
import math
import pickle
import struct
from typing import NamedTuple

import numpy as np

from bqnes_jax.errors import BQNESError

_MAGIC, _VERSION = 0x1950A86A20F9469CFC6C, 1001  # of PyTorch's format before 1.6


class Tensor(NamedTuple):
    """A tensor as PyTorch pickles it; `array` reads its numbers."""

    storage: "_Bytes"
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def array(self) -> np.ndarray:
        """Return the numbers; a tensor that is not in the order of its axes is refused."""
        numbers = self.storage.numbers()
        whole = all(type(n) is int and n >= 0 for n in (self.offset, *self.shape))
        size = math.prod(self.shape) if whole else -1
        if not whole or self.offset + size > len(numbers):
            raise pickle.UnpicklingError("it holds a tensor that is larger than its numbers")
        expected = [math.prod(self.shape[axis + 1 :]) for axis in range(len(self.shape))]
        axes = zip(self.shape, self.strides, expected, strict=True)
        if any(length > 1 and have != want for length, have, want in axes):
            raise pickle.UnpicklingError("it holds a tensor whose axes are out of order")
        return numbers[self.offset : self.offset + size].reshape(self.shape)


def unpickle(file: io.BufferedIOBase) -> object:
    """Read one object."""
    return _Unpickler(file).load()


class _Bytes(NamedTuple):
    """The numbers of a tensor, in PyTorch's old format: a file within the file."""

    content: bytes

    def numbers(self) -> np.ndarray:
        file = io.BytesIO(self.content)
        magic, version = (_StorageUnpickler(file).load() for _ in range(2))
        if (magic, version) != (_MAGIC, _VERSION):
            raise pickle.UnpicklingError("it holds a tensor in another format than PyTorch's old")
        _StorageUnpickler(file).load()  # of the machine that wrote it
        dtype = _StorageUnpickler(file).load()
        _StorageUnpickler(file).load()  # the key of the storage
        if not isinstance(dtype, np.dtype):
            raise pickle.UnpicklingError("it holds a tensor of an unknown type")
        (size,) = struct.unpack("<q", file.read(8))
        return np.frombuffer(file.read(), dtype, size)


class _Number:
    """The type of a NumPy number, as it is pickled: its name, and then its byte order."""

    def __init__(self, code: str, *_: object):
        if code not in ("f4", "f8", "i4", "i8"):
            raise pickle.UnpicklingError(f"it holds a number of type {code!r}")
        self.dtype = np.dtype(code)


def _number(kind: _Number, content: bytes) -> float | int:
    return np.frombuffer(content, kind.dtype.newbyteorder("<"), 1)[0].item()


def _tensor(storage: _Bytes, offset: int, shape: tuple, strides: tuple, *_: object) -> Tensor:
    if not isinstance(storage, _Bytes):
        raise pickle.UnpicklingError("it holds a tensor without numbers")
    return Tensor(storage, offset, tuple(shape), tuple(strides))


class _Restricted(pickle._Unpickler):  # in C a wrong byte can ask for gigabytes of memory
    admitted: dict[tuple[str, str], object] = {}  # noqa: RUF012

    def find_class(self, module: str, name: str) -> object:
        module = module.replace("numpy._core", "numpy.core")  # renamed in NumPy 2
        if (module, name) not in self.admitted:
            raise BQNESError(
                f"a file asks for {module}.{name}, which no file of NATS-Bench needs; it is not "
                "safe to read: get it again from its authors."
            )
        return self.admitted[module, name]

    def _leave_state_out(self) -> None:
        self.stack.pop()

    dispatch = {**pickle._Unpickler.dispatch, pickle.BUILD[0]: _leave_state_out}  # noqa: RUF012


class _Unpickler(_Restricted):
    admitted = {  # noqa: RUF012
        ("collections", "OrderedDict"): dict,
        ("numpy", "dtype"): _Number,
        ("numpy.core.multiarray", "scalar"): _number,
        ("torch._utils", "_rebuild_tensor_v2"): _tensor,
        ("torch.storage", "_load_from_bytes"): _Bytes,
    }


class _StorageUnpickler(_Restricted):
    """Reads PyTorch's description of a storage, and returns the type of its numbers."""

    admitted = {  # noqa: RUF012
        ("torch", "FloatStorage"): np.dtype("<f4"),
        ("torch", "DoubleStorage"): np.dtype("<f8"),
        ("torch", "LongStorage"): np.dtype("<i8"),
    }

    def persistent_load(self, description: tuple) -> object:
        kind, dtype, *_ = description
        return dtype if kind == "storage" else None
