"""Readers of files that are not trusted: sizes and depths are checked before memory is used."""

import contextlib
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bqnes_jax.errors import BQNESError

_TEXT_LIMIT = 1 << 26  # bytes; the places of a million images take a tenth
_LEVELS = 32  # how deep lists and dicts may be nested; ours are five deep
_SMALL, _RATIO = 1 << 28, 100  # what any file may unpack to: bytes, and times its own size


def read_json(path: Path, what: str) -> dict:
    """Read a JSON object; `what` names it in the error."""
    try:
        content = load_json(path)
    except OSError as error:
        raise BQNESError(f"{what} {path} cannot be read ({error.strerror}).") from None
    except ValueError:
        content = None
    if not isinstance(content, dict):
        raise BQNESError(f"{what} {path} is not a JSON object; it has been altered or cut short.")
    return content


def load_json(path: Path) -> Any:
    """Read any JSON; ValueError if it is none, or not plain."""
    try:
        content = json.loads(read_small(path))
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    check_plain(content)
    return content


def read_small(path: Path) -> bytes:
    """Read a file that people write, too; ValueError if it is far larger than they do."""
    size = path.stat().st_size
    if size > _TEXT_LIMIT:
        raise ValueError(f"it has {size:,} bytes")
    return path.read_bytes()


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


def read_at_most(file: io.BufferedIOBase, limit: int) -> bytes:
    """Read a stream to its end, a part at a time; ValueError if there is more than the limit."""
    parts, size = [], 0
    while part := file.read(1 << 20):
        parts.append(part)
        size += len(part)
        if size > limit:
            raise ValueError(f"it unpacks to more than {limit:,} bytes")
    return b"".join(parts)


@contextlib.contextmanager
def damaged_means_refused(
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
