"""One file that says what the other files of a directory may hold: their sha256.

A digest is noted before its file is written, so that a writer that is killed leaves no file without
one; and lines are only ever added, so that two writers lose none. The form is that of `sha256sum`.
"""

import errno
import hashlib
import os
import warnings
from collections.abc import Mapping
from pathlib import Path

from bqnes_jax.errors import BQNESError
from bqnes_jax.files.atomic import write_whole
from bqnes_jax.files.remote import Remote
from bqnes_jax.files.untrusted import Bounded, open_file, read_log

DIGESTS = "SHA256SUMS"
_LIMIT = 1 << 32  # bytes; no file of a run is as large


def write_bound(path: Path, content: bytes) -> None:
    """Write a file whole or not at all, after noting its digest beside it."""
    note(path.parent, path.name, hashlib.sha256(content).hexdigest())
    write_whole(path, content)


def check_bound(path: Path, remedy: str) -> None:
    """Refuse a file that holds anything else than was ever written to it.

    A file of which nothing was noted may hold anything, which is worth a warning.
    """
    try:
        found = _digest_file(path)
    except OSError as error:
        raise BQNESError(f"{path} cannot be read ({error.strerror}); {remedy}") from None
    if not is_noted(path.parent, path.name, found):
        raise BQNESError(
            f"{path} has been altered: it is not what {DIGESTS} says was written; {remedy}"
        )


def is_noted(directory: Path, name: str, digest: str) -> bool:
    """Tell whether something has had this digest; where none was ever noted, warn and say yes."""
    noted = (_read(directory) or {}).get(name)
    if noted is None:
        warnings.warn(
            f"{directory} has no {DIGESTS}, by which damage is found, or one that lacks some of "
            "its files: it is of an older version, or the file was removed.",
            stacklevel=3,
        )
        return True
    return digest in noted


def is_unknown(directory: Path, name: str) -> bool:
    """Tell whether no digest of that name was ever noted."""
    return name not in (_read(directory) or {})


def digest_folder(folder: Path) -> str:
    """Return the sha256 of the files in a folder: their names, and all that they hold."""
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if not path.is_dir()):
        own = _digest_file(path)
        digest.update(f"{own}  {path.relative_to(folder)}\n".encode(errors="surrogateescape"))
    return digest.hexdigest()


def _digest_file(path: Path) -> str:
    """Return the sha256 of a file; OSError if it is none, or goes on beyond any file of a run."""
    with open_file(path, follow=False) as file:
        try:
            return hashlib.file_digest(Bounded(file, _LIMIT), "sha256").hexdigest()
        except ValueError:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG)) from None


def note(directory: Path, name: str, digest: str) -> None:
    """Note a digest, for good when this returns."""
    noted = _read(directory)
    if noted is not None and digest in noted.get(name, ()):
        return
    path = directory / DIGESTS
    if isinstance(path, Remote):
        path.append(f"{digest}  {name}\n".encode())
        return
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
    handle = os.open(path, flags, 0o666)
    try:
        # Whoever was killed here may have left half a line.
        line = f"\n{digest}  {name}\n" if _ends_within_a_line(handle) else f"{digest}  {name}\n"
        if os.write(handle, line.encode()) != len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.fsync(handle)
    finally:
        os.close(handle)


def _ends_within_a_line(handle: int) -> bool:
    size = os.fstat(handle).st_size
    if not size:
        return False
    os.lseek(handle, size - 1, os.SEEK_SET)
    return os.read(handle, 1) != b"\n"


def _read(directory: Path) -> Mapping[str, set[str]] | None:
    """Read all digests by name; None where there is no file. Broken lines count as nothing."""
    try:
        text = read_log(directory / DIGESTS).decode(errors="replace")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise BQNESError(f"{directory / DIGESTS} cannot be read ({error.strerror}).") from None
    except ValueError as error:
        raise BQNESError(f"{directory / DIGESTS} is no list of digests: {error}.") from None
    noted: dict[str, set[str]] = {}
    for line in text.splitlines():
        digest, _, name = line.partition("  ")
        noted.setdefault(name, set()).add(digest)
    return noted
