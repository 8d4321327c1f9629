"""Readers of files that are not trusted: sizes and depths are checked before memory is used."""

import contextlib
import errno
import io
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bqnes_jax.errors import BQNESError
from bqnes_jax.files.remote import Remote

_TEXT_LIMIT = 1 << 26  # bytes; the places of a million images take a tenth
_LEVELS = 32  # how deep lists and dicts may be nested; ours are five deep
_PART = 1 << 20  # bytes read at a time
_SMALL, _RATIO = 1 << 28, 100  # what any file may unpack to: bytes, and times its own size


def read_json(path: Path, what: str) -> dict:
    """Read a JSON object that the program wrote; `what` names it in the error."""
    try:
        content = load_json(path, follow=False)
    except OSError as error:
        raise BQNESError(f"{what} {path} cannot be read ({error.strerror}).") from None
    except ValueError:
        content = None
    if not isinstance(content, dict):
        raise BQNESError(f"{what} {path} is not a JSON object; it has been altered or cut short.")
    return content


def load_json(path: Path, *, follow: bool = True) -> Any:
    """Read any JSON; ValueError if it is none, or not plain."""
    try:
        content = json.loads(read_small(path, follow=follow))
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    check_plain(content)
    return content


def open_file(path: Path, *, follow: bool = True) -> io.BufferedReader:
    """Open a file for reading; OSError if it is none, whatever a link says that is not followed.

    A FIFO would keep its reader waiting, and a device has no end. Links are followed to files that
    people name, and not to those that a run or a store keeps.
    """
    if isinstance(path, Remote):
        return path.read()
    if not stat.S_ISREG(os.stat(path, follow_symlinks=follow).st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    # Another may have put something else there meanwhile.
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    handle = os.open(path, flags if follow else flags | getattr(os, "O_NOFOLLOW", 0))
    status = os.fstat(handle)
    if not stat.S_ISREG(status.st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    if _is_hollow(status):
        os.close(handle)
        raise OSError(errno.EFBIG, "nearly all of it is a hole", str(path))
    return os.fdopen(handle, "rb")


def size_of_file(file: io.BufferedReader) -> int:
    """Return how many bytes an open file has, on a disk or in memory."""
    try:
        return os.fstat(file.fileno()).st_size
    except io.UnsupportedOperation:
        place = file.tell()
        size = file.seek(0, os.SEEK_END)
        file.seek(place)
        return size


def is_there(path: Path) -> bool:
    """Tell whether there is something of that name, be it a link to nothing."""
    return path.exists() if isinstance(path, Remote) else os.path.lexists(path)


def _is_hollow(status: os.stat_result) -> bool:
    """Tell whether a file claims far more bytes than the disk holds of it, as a sparse one can."""
    blocks = getattr(status, "st_blocks", None)  # of 512 bytes; Windows does not say
    return blocks is not None and status.st_size > max(_SMALL, _RATIO * 512 * blocks)


def read_small(path: Path, *, follow: bool = True, limit: int = _TEXT_LIMIT) -> bytes:
    """Read a file that people write, too; ValueError if it is far larger than they do."""
    if isinstance(path, Remote):
        return path.read_bytes(limit)
    with open_file(path, follow=follow) as file:
        size = size_of_file(file)  # which may be less than can be read
        if size > limit:
            raise ValueError(f"it has {size:,} bytes, more than {limit:,}")
        return Bounded(file, limit).read()


def read_log(path: Path, *, limit: int = _TEXT_LIMIT) -> bytes:
    """Read a file that lines are added to; in an object store it has an object for each."""
    if isinstance(path, Remote):
        return path.read_log(limit)
    return read_small(path, follow=False, limit=limit)


def check_plain(content: object, levels: int = _LEVELS) -> None:
    """Refuse what is nested too deep, and whole numbers beyond 64 bits, with a ValueError.

    Otherwise comparing, printing and converting it would fail, each in its own way.
    """
    if isinstance(content, dict):
        content = [*content, *content.values()]
    parts = content if isinstance(content, list | tuple | set) else [content]
    if any(isinstance(part, int) and not -(2**63) <= part < 2**63 for part in parts):
        raise ValueError("it has a number beyond 64 bits")
    for part in parts:
        if isinstance(part, dict | list | tuple | set):
            if not levels:
                raise ValueError("it is nested too deep")
            check_plain(part, levels - 1)


def check_unpacked(claimed: int, stored: int) -> None:
    """Refuse content that claims to be far larger than its file, with a ValueError."""
    if claimed > max(_SMALL, _RATIO * stored):
        raise ValueError(f"its {stored:,} bytes would unpack to {claimed:,}")


class Bounded(io.BufferedIOBase):
    """A stream that has at most so many bytes; reading more of it is a ValueError.

    It is read a part at a time: memory is taken for what is there, and not for what is asked for.
    """

    def __init__(self, stream: io.BufferedIOBase, limit: int):
        self._stream, self._limit, self._left = stream, limit, limit

    def readable(self) -> bool:
        """Tell that it can be read."""
        return True

    def read(self, size: int | None = -1, /) -> bytes:
        """Read so many bytes, or all of them."""
        if size is not None and 0 <= size <= _PART:
            return self._count_bytes(self._stream.read(size))
        wanted = self._left + 1 if size is None or size < 0 else size
        parts = []
        while wanted and (part := self._stream.read(min(wanted, _PART))):
            parts.append(self._count_bytes(part))
            wanted -= len(part)
        return b"".join(parts)

    def readline(self, size: int | None = -1, /) -> bytes:
        """Read a line."""
        most = self._left + 1
        return self._count_bytes(
            self._stream.readline(most if size is None or size < 0 else min(size, most))
        )

    def _count_bytes(self, part: bytes) -> bytes:
        self._left -= len(part)
        if self._left < 0:
            raise ValueError(f"it has more than {self._limit:,} bytes")
        return part


@contextlib.contextmanager
def refuse_damaged(
    path: Path,
    damaged: str = "is cut short, altered or in another format",
    *,
    remedy: str = "get it again.",
    absent: str = "does not exist.",
) -> Iterator[None]:
    """Turn what readers raise at bytes they do not understand into one sentence."""
    try:
        yield
    except BQNESError:
        raise
    except FileNotFoundError:
        raise BQNESError(f"{path} {absent}") from None
    except Exception as error:  # gzip, tar, zip, pickle, protobuf, Riegeli: there is no list
        reason = " ".join(str(error).split())[:120] or type(error).__name__
        raise BQNESError(f"{path} {damaged} ({reason}); {remedy}") from error
