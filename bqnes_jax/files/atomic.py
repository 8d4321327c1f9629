"""Files written whole or not at all, and locks on directories."""

import contextlib
import errno
import glob
import json
import os
import secrets
import stat
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

from bqnes_jax.errors import BQNESError
from bqnes_jax.files.remote import Remote

_ENDING = ".tmp"
_TEMPORARY = f"-{'[0-9a-f]' * 16}{_ENDING}"
_ABANDONED = 60.0  # seconds; to write one file takes less


def write_whole(path: Path, content: bytes, *, overwrite: bool = True, swept: bool = False) -> None:
    """Write a file whole or not at all, and have it on the disk when this returns.

    A file that is replaced keeps its mode; a link is replaced, and what it points to stays. What
    killed writers of the file left is removed, unless its directory is one that is swept anyway.
    """
    if isinstance(path, Remote):
        path.write(content) if overwrite else path.create(content)
        return
    stem = path.stem[:40]
    if not swept:
        sweep(path.parent, f"{glob.escape(stem)}{_TEMPORARY}")
    name = path.with_name(f"{stem}-{secrets.token_hex(8)}{_ENDING}")
    try:
        with name.open("xb") as file:
            _keep_mode(path, file.fileno())
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


def make_folder(path: Path) -> None:
    """Make a folder in that of a run, if there is none; OSError if it is a link to another."""
    if path.is_symlink():
        raise OSError(errno.ENOTDIR, "it is a link, which is not followed", str(path))
    path.mkdir(parents=True, exist_ok=True)


def _keep_mode(path: Path, handle: int) -> None:
    """Give a new file the mode of the one that it will replace."""
    with contextlib.suppress(FileNotFoundError):
        mode = path.lstat().st_mode
        if stat.S_ISREG(mode) and os.name == "posix":
            os.fchmod(handle, stat.S_IMODE(mode))


def write_json(path: Path, content: object) -> None:
    """Write JSON for people to read, too."""
    write_whole(path, as_json(content))


def as_json(content: object) -> bytes:
    """Return JSON for people to read, too."""
    return (json.dumps(content, indent=2, allow_nan=False) + "\n").encode()


def sweep(directory: Path, names: str = f"*{_TEMPORARY}", *, age: float = _ABANDONED) -> None:
    """Remove what killed writers left in a directory; the young may belong to one at work.

    A clock may have been set back since: what is from the future is as old as it is far.
    """
    if isinstance(directory, Remote):  # nothing is ever half written
        return
    for path in directory.glob(names):
        with contextlib.suppress(OSError):  # gone meanwhile, or not ours to remove
            if abs(time.time() - path.lstat().st_mtime) > age:
                path.unlink()


@contextlib.contextmanager
def hold_lock(path: Path, what: str, *, wait: bool = False) -> Iterator[None]:
    """Refuse to do what another process is doing, or wait; the system lets go when one ends.

    Whoever holds the lock of a directory sweeps it. In an object store a lock is a lease.
    """
    busy = f"{what} is at work in another process"
    if isinstance(path, Remote):
        with _lease(path, busy, wait=wait):
            yield
        return
    with explain_writing(what):
        handle = _open_lock(path)
    try:
        try:
            if not _try_lock(handle):
                if not wait:
                    raise _refusal(busy)
                warnings.warn(f"{busy}; waiting for it.", stacklevel=3)
                while not _try_lock(handle):
                    time.sleep(0.2)
        except OSError:  # some network disks have no locks
            warnings.warn(f"{what} cannot be locked; let no other process use it.", stacklevel=3)
        sweep(path.parent)
        yield
    finally:
        os.close(handle)


def _refusal(busy: str) -> BQNESError:
    return BQNESError(f"{busy}; wait for it, or choose another directory.")


@contextlib.contextmanager
def _lease(path: Remote, busy: str, *, wait: bool) -> Iterator[None]:
    """Hold a lock of an object store; one whose holder was killed is free after a minute."""
    while True:
        with path.hold() as held:
            if held:
                yield
                return
        if not wait:
            raise BQNESError(f"{_refusal(busy)} If it was killed, its lock ends in a minute.")
        warnings.warn(f"{busy}; waiting for it.", stacklevel=4)
        time.sleep(5)


def _open_lock(path: Path) -> int:
    """Open a file to lock, which nothing is ever written to, and no link to another."""
    flags = os.O_RDWR | os.O_CREAT
    flags |= getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    handle = os.open(path, flags, 0o666)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, f"{path.name} is not a regular file")
    return handle


def _try_lock(handle: int) -> bool:
    """Tell whether this process now has the lock.

    The lines for Windows are tested with a stand-in for its module, not on Windows.
    """
    try:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES, errno.EDEADLK):
            return False
        raise
    return True


@contextlib.contextmanager
def explain_writing(what: str) -> Iterator[None]:
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
