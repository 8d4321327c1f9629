"""Arrays of numbers in `.npy` and `.npz` files, read without trust.

Nothing in a file is run, and what it says about itself is compared with its size before memory is
set aside. What is wrong comes out as a ValueError, or as what zipfile and zlib raise: read within
`files.refuse_damaged`.
"""

import contextlib
import io
import math
import re
import typing
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np

from bqnes_jax.files.untrusted import check_unpacked, open_file, size_of_file

Fields = TypeVar("Fields", bound=tuple)

_MAGIC = b"\x93NUMPY"
_WIDTHS = {b"\x01\x00": 2, b"\x02\x00": 4, b"\x03\x00": 4}  # by version: bytes of a header's length
_HEADER_LIMIT = 1 << 14
_HEADER = re.compile(
    r"\{ *'descr': *'([<>|=](?:b1|[iu][1248]|f[248]|U[1-9]\d{0,5}))',"
    r" *'fortran_order': *(True|False),"
    r" *'shape': *\(((?:\d{1,18}, *){0,8}(?:\d{1,18})?)\),? *\} *\n?",
    re.ASCII,
)


class Stored(NamedTuple):
    """An array in an open file: what its header says, and the stream where its numbers start."""

    stream: io.BufferedIOBase
    dtype: np.dtype
    shape: tuple[int, ...]
    by_columns: bool

    def read(self) -> np.ndarray:
        """Return the numbers, in the byte order of this machine."""
        array = np.empty(self.shape[::-1] if self.by_columns else self.shape, self.dtype)
        if self.stream.readinto(array.reshape(-1).view(np.uint8).data) != array.nbytes:
            raise ValueError("it is cut short")
        array = array.astype(self.dtype.newbyteorder("="), copy=False)
        return array.T if self.by_columns else array


class Npz:
    """The arrays of an open `.npz` by name; the header of each is read when it is asked for."""

    def __init__(self, archive: zipfile.ZipFile):
        self._archive = archive
        self._members = {one.filename.removesuffix(".npy"): one for one in archive.infolist()}
        self.names = list(self._members)

    def __contains__(self, name: str) -> bool:
        return name in self._members

    def __getitem__(self, name: str) -> Stored:
        if name not in self:
            raise ValueError(f"it has no {name}")
        member = self._members[name]
        if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise ValueError(f"{name} is compressed in another way than NumPy does")
        stream = self._archive.open(member)
        assert isinstance(stream, io.BufferedIOBase)  # which typing.IO does not say
        return _read_header(stream, member.file_size)


@contextlib.contextmanager
def open_npz(path: Path) -> Iterator[Npz]:
    """Open an `.npz`, unless it would unpack to far more than it is."""
    with open_file(path) as file, zipfile.ZipFile(file) as archive:
        claimed = sum(member.file_size for member in archive.infolist())
        check_unpacked(claimed, size_of_file(file))
        yield Npz(archive)


def read_arrays(path: Path, kind: type[Fields]) -> Fields:
    """Read a NamedTuple from an `.npz`; its annotations say the types and shapes of its fields.

    Axes of the same name have the same length; a field of type `str` is one text.
    """
    with open_npz(path) as file:
        stored, lengths = {}, {}
        for name, hint in typing.get_type_hints(kind).items():
            stored[name] = file[name]
            _check_form(name, stored[name], hint, lengths)
        values = {name: one.read() for name, one in stored.items()}
    return kind(**{name: str(v) if v.dtype.kind == "U" else v for name, v in values.items()})


def read_npy(path: Path) -> np.ndarray:
    """Read an `.npy` of numbers."""
    with open_file(path) as file:
        return _read_header(file, size_of_file(file)).read()


def map_npy(path: Path) -> np.ndarray:
    """Return an `.npy` of numbers that stays in its file until it is indexed."""
    with open_file(path) as file:
        _, dtype, shape, by_columns = _read_header(file, size_of_file(file))
        return np.memmap(file, dtype, "r", file.tell(), shape, "F" if by_columns else "C")


def _read_header(stream: io.BufferedIOBase, size: int) -> Stored:
    """Read the header of an array in a stream of that many bytes."""
    start = stream.read(len(_MAGIC) + 2)
    width = _WIDTHS.get(start[len(_MAGIC) :])
    if not start.startswith(_MAGIC) or width is None:
        raise ValueError("it does not start like an array of NumPy")
    length = int.from_bytes(stream.read(width), "little")
    header = stream.read(min(length, _HEADER_LIMIT)).decode("latin1")
    match = _HEADER.fullmatch(header)
    if match is None:
        raise ValueError("it is not an array of numbers")
    dtype = np.dtype(match[1])
    shape = tuple(int(number) for number in re.findall(r"\d+", match[3]))
    claimed = len(start) + width + length + math.prod(shape) * dtype.itemsize
    if claimed != size:
        raise ValueError(f"it has {size:,} bytes, and its header says {claimed:,}")
    return Stored(stream, dtype, shape, match[2] == "True")


def _check_form(name: str, stored: Stored, hint: type, lengths: dict[str, int]) -> None:
    """Refuse an array of another type or shape than an annotation says."""
    if hint is str:
        fits = stored.dtype.kind == "U" and stored.shape == ()
    else:
        axes = hint.dim_str.split()
        fits = stored.dtype.name in hint.dtypes and len(axes) == len(stored.shape)
        for axis, length in zip(axes, stored.shape, strict=False):
            wanted = int(axis) if axis.isdigit() else length
            fits &= lengths.setdefault(axis, wanted) == length
    if not fits:
        raise ValueError(f"{name} is of type {stored.dtype} and shape {stored.shape}")
