"""Files that are there whole or not at all."""

import contextlib
import errno
import json
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

from bqnes_jax.errors import BQNESError

TEMPORARY = ".tmp"


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
        content = json.loads(path.read_bytes())
    except OSError as error:
        raise BQNESError(f"{what} {path} cannot be read ({error.strerror}).") from None
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        raise BQNESError(f"{what} {path} is not a JSON object; it has been altered or cut short.")
    return content


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
