"""Pickles of plain containers, numbers and tensors, read without trust and without PyTorch."""

import io
import math
import pickle
import struct
from typing import Any, NamedTuple

import numpy as np

from bqnes_jax.files.unpickling import NumberType, Unpickler, make_dict

_AXES = 8  # convolutions have four
_MAGIC, _VERSION = 0x1950A86A20F9469CFC6C, 1001  # of PyTorch's format before 1.6


class _Bytes(NamedTuple):
    """The numbers of a tensor, in PyTorch's old format: a file within the file."""

    content: bytes

    def numbers(self) -> np.ndarray:
        file = io.BytesIO(self.content)  # shares them, as the array does: copies could be many
        magic, version = (_StorageUnpickler(file).load() for _ in range(2))
        if (magic, version) != (_MAGIC, _VERSION):
            raise pickle.UnpicklingError("it holds a tensor in another format than PyTorch's old")
        _StorageUnpickler(file).load()  # of the machine that wrote it
        dtype = _StorageUnpickler(file).load()
        _StorageUnpickler(file).load()  # the key of the storage
        if not isinstance(dtype, np.dtype):
            raise pickle.UnpicklingError("it holds a tensor of an unknown type")
        (size,) = struct.unpack("<q", file.read(8))
        if size < 0:  # to NumPy: as many as there are
            raise pickle.UnpicklingError("it holds a tensor of fewer numbers than none")
        return np.frombuffer(self.content, dtype, size, file.tell())


class Tensor(NamedTuple):
    """A tensor as PyTorch pickles it; `array` reads its numbers."""

    storage: _Bytes
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def array(self) -> np.ndarray:
        """Return the numbers; a tensor that is not in the order of its axes is refused."""
        numbers = self.storage.numbers()
        whole = len(self.shape) <= _AXES and all(
            type(n) is int and 0 <= n < 2**63 for n in (self.offset, *self.shape)
        )
        size = math.prod(self.shape) if whole else -1
        if not whole or self.offset + size > len(numbers):
            raise pickle.UnpicklingError("it holds a tensor that is larger than its numbers")
        expected = [math.prod(self.shape[axis + 1 :]) for axis in range(len(self.shape))]
        axes = zip(self.shape, self.strides, expected, strict=True)
        if any(length > 1 and have != want for length, have, want in axes):
            raise pickle.UnpicklingError("it holds a tensor whose axes are out of order")
        return numbers[self.offset : self.offset + size].reshape(self.shape)


def unpickle(file: io.BufferedIOBase) -> Any:
    """Read the one object of a file."""
    return _Unpickler.read(file)


def _number(kind: object, content: Any) -> float | int:
    if not isinstance(kind, NumberType):
        raise pickle.UnpicklingError("it holds a number without a type")
    return np.frombuffer(content, kind.dtype, 1)[0].item()


def _tensor(storage: object, offset: Any, shape: Any, strides: Any, *_: object) -> Tensor:
    if not isinstance(storage, _Bytes):
        raise pickle.UnpicklingError("it holds a tensor without numbers")
    if any(type(axes) is not tuple or len(axes) > _AXES for axes in (shape, strides)):
        raise pickle.UnpicklingError(f"it holds a tensor whose axes are not {_AXES} at most")
    return Tensor(storage, offset, shape, strides)


class _Unpickler(Unpickler):
    reads = "file of NATS-Bench"
    admitted = {  # noqa: RUF012
        ("collections", "OrderedDict"): make_dict,
        ("numpy", "dtype"): NumberType,
        ("numpy.core.multiarray", "scalar"): _number,
        ("torch._utils", "_rebuild_tensor_v2"): _tensor,
        ("torch.storage", "_load_from_bytes"): _Bytes,
    }


class _StorageUnpickler(Unpickler):
    """Reads PyTorch's description of a storage, and returns the type of its numbers."""

    reads = "file of NATS-Bench"
    opcodes = 200  # published ones have some thirty
    admitted = {  # noqa: RUF012
        ("torch", "FloatStorage"): np.dtype("<f4"),
        ("torch", "DoubleStorage"): np.dtype("<f8"),
        ("torch", "LongStorage"): np.dtype("<i8"),
    }

    def persistent_load(self, pid: object) -> object:
        """Return the type of the numbers, which the id of a storage has in the second place."""
        return pid[1] if type(pid) is tuple and pid[:1] == ("storage",) and len(pid) > 1 else None
