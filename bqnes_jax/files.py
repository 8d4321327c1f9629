"""Files that are there whole or not at all, and files that are not trusted."""

import contextlib
import errno
import fcntl
import io
import json
import os
import secrets
import warnings
from collections.abc import Iterator
from pathlib import Path

from bqnes_jax.errors import BQNESError

TEMPORARY = ".tmp"

_TEXT_LIMIT = 1 << 26  # bytes; the places of a million images take a tenth
_LEVELS = 32  # how deep lists and dicts may be nested; ours are five deep
_SMALL, _RATIO = 1 << 28, 100  # what any file may unpack to: bytes, and times its own size


def write_whole(path: Path, content: bytes, overwrite: bool = True) -> None:
    """Write a file whole or not at all, and have it on the disk when this returns."""
    name = path.with_name(f"{path.stem}-{secrets.token_hex(8)}{TEMPORARY}")
    try:
        with name.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if overwrite:
            os.replace(name, path)
        else:
            with contextlib.suppress(FileExistsError):  # another was first: the caller compares
                os.link(name, path)
    finally:
        name.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)  # the name is on the disk when the folder is
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def write_json(path: Path, content: object) -> None:
    """Write JSON for people to read, too."""
    write_whole(path, (json.dumps(content, indent=2, allow_nan=False) + "\n").encode())


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


def load_json(path: Path) -> object:
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


@contextlib.contextmanager
def locked(path: Path, what: str) -> Iterator[None]:
    """Refuse to do what another process is doing; the system lets go when a process ends."""
    with writing(what):
        file = path.open("w")
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BQNESError(
                f"{what} is at work in another process; wait for it, or choose another directory."
            ) from None
        except OSError as error:  # some network disks have no locks
            warnings.warn(
                f"{what} cannot be locked ({error.strerror}); let no other process use it.",
                stacklevel=3,
            )
        yield


@contextlib.contextmanager
def writing(what: str) -> Iterator[None]:
    """Turn what the system says about writing into one sentence."""
    remedies = {errno.ENOSPC: "free some space", errno.EDQUOT: "free some of your quota"}
    try:
        yield
    except OSError as error:
        remedy = remedies.get(error.errno, "choose a directory that can be written")
        raise BQNESError(
            f"{what} cannot be written ({error.strerror}); what was stored before is intact: "
            f"{remedy} and run again."
        ) from None
