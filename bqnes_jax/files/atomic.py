"""Files written whole or not at all, and locks on directories."""

import contextlib
import errno
import json
import os
import secrets
import warnings
from collections.abc import Iterator
from pathlib import Path

import filelock

from bqnes_jax.errors import BQNESError

TEMPORARY = ".tmp"


def write_whole(path: Path, content: bytes, *, overwrite: bool = True) -> None:
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
    if os.name == "posix":  # the name is on the disk when the folder is; Windows cannot open one
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def write_json(path: Path, content: object) -> None:
    """Write JSON for people to read, too."""
    write_whole(path, (json.dumps(content, indent=2, allow_nan=False) + "\n").encode())


@contextlib.contextmanager
def locked(path: Path, what: str) -> Iterator[None]:
    """Refuse to do what another process is doing; the system lets go when a process ends."""
    lock = filelock.FileLock(path, thread_local=False)
    with writing(what):
        path.touch()
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        raise BQNESError(
            f"{what} is at work in another process; wait for it, or choose another directory."
        ) from None
    except OSError:  # some network disks have no locks
        warnings.warn(f"{what} cannot be locked; let no other process use it.", stacklevel=3)
    try:
        yield
    finally:
        lock.release()


@contextlib.contextmanager
def writing(what: str) -> Iterator[None]:
    """Turn what the system says about writing into one sentence."""
    remedies: dict[int | None, str] = {
        errno.ENOSPC: "free some space",
        errno.EDQUOT: "free some of your quota",
    }
    try:
        yield
    except OSError as error:
        remedy = remedies.get(error.errno, "choose a directory that can be written")
        raise BQNESError(
            f"{what} cannot be written ({error.strerror}); what was stored before is intact: "
            f"{remedy} and run again."
        ) from None
