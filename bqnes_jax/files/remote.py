"""Files in object stores, as paths: S3, Google Cloud Storage, or the memory of this process.

An object is written in one step, so that it is there whole or not at all; there is no renaming, no
appending and no lock. In their place an object can be created only if there is none of its name:
what grows is a folder of numbered objects, and who creates a number has it alone. What a store
needs to be reached (addresses, credentials) is what `fsspec` and its own library read from the
environment.
"""

import contextlib
import errno
import io
import os
import re
import secrets
import threading
import time
from collections.abc import Generator, Iterable, Iterator
from pathlib import Path
from typing import Any

from bqnes_jax.errors import BQNESError

_SCHEMES = {"s3": "s3", "gs": "gcs", "memory": "s3"}  # and the extra that has what it needs
_URL = re.compile(r"([A-Za-z][\w+.-]+):/+(.*)", re.DOTALL)  # pathlib makes one of two slashes
_LEASE = 60.0  # seconds, after which a lock that was not renewed is another's to take
_HELD, _FREE = b"held by ", b"free"
_NUMBER = re.compile(r"[0-9]{8}")
_LIMIT = 1 << 32  # bytes; no object of a run is as large


def as_path(place: str | os.PathLike[str]) -> Path:
    """Return the path of a file or a directory; a URL such as s3://bucket/run is `Remote`.

    What is named file:///runs is a path here.

    Example:
        >>> str(as_path("memory://runs") / "digits"), str(as_path("runs") / "digits")
        ('memory://runs/digits', 'runs/digits')
    """
    text = os.fspath(place)
    match = _URL.fullmatch(text)
    if match is None:
        return Path(place)
    scheme, name = match.groups()
    if scheme == "file":
        return Path(f"/{name}")
    if scheme not in _SCHEMES:
        raise BQNESError(
            f"{scheme}://{name} is of a kind that is not known; it must begin with "
            f"{', '.join(f'{scheme}://' for scheme in _SCHEMES)}, or be a path."
        )
    if not name.strip("/"):
        raise BQNESError(f"{text} names no place; write {scheme}://bucket/directory.")
    return Remote(f"{scheme}:/{name}")


class Remote(type(Path())):
    """The path of an object, or of a folder of them; it does what the files of a run need."""

    __slots__ = ()

    def __str__(self) -> str:
        scheme, *names = self.parts
        return f"{scheme}//{'/'.join(names)}"

    def __repr__(self) -> str:
        return f"Remote({str(self)!r})"

    def is_file(self) -> bool:
        """Tell whether there is an object of this name."""
        with _explain_store(self):
            return self._system.isfile(str(self))

    def exists(self, **_: Any) -> bool:
        """Tell whether there is an object of this name, or one in this folder."""
        with _explain_store(self):
            return self._system.exists(str(self))

    def is_dir(self) -> bool:
        """Tell whether there is an object in this folder."""
        with _explain_store(self):
            return self._system.isdir(str(self))

    def is_symlink(self) -> bool:
        """Tell that it is no link."""
        return False

    def mkdir(self, *_: Any, **__: Any) -> None:
        """Do nothing: a folder is there with its first object."""

    def iterdir(self) -> Generator["Remote", None, None]:
        """Yield what is in this folder, in order."""
        return (self / name for name in sorted(self._sizes()))

    def unlink(self, missing_ok: bool = True) -> None:
        """Remove an object, if there is one."""
        with _explain_store(self), contextlib.suppress(FileNotFoundError):
            self._system.rm_file(str(self))

    def read_bytes(self, limit: int = _LIMIT) -> bytes:
        """Read an object; FileNotFoundError if there is none, ValueError if it has more bytes."""
        with _explain_store(self, FileNotFoundError):
            try:
                content = self._system.cat_file(str(self), start=0, end=limit + 1)
            except FileNotFoundError:
                raise
            except (OSError, ValueError):  # of nothing there is no part
                if self._system.size(str(self)) != 0:
                    raise
                content = b""
        _check_size(len(content), limit)
        return content

    def read(self) -> io.BufferedReader:
        """Open an object that has been read; OSError if no object of a run is as large."""
        try:
            content = self.read_bytes(_LIMIT)
        except ValueError:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(self)) from None
        return io.BufferedReader(io.BytesIO(content))  # type: ignore[arg-type]

    def write(self, content: bytes) -> None:
        """Write an object whole or not at all, in place of another of its name."""
        with _explain_store(self):
            self._system.pipe_file(str(self), content)

    def create(self, content: bytes) -> bool:
        """Write an object if there is none of its name, and tell whether there was none."""
        with _explain_store(self):
            try:
                self._system.pipe_file(str(self), content, mode="create")
            except OSError:  # stores refuse in several words
                if not self._system.isfile(str(self)):
                    raise
                # Ours, if it was sent again because the answer to the first was lost.
                return self._system.cat_file(str(self)) == content
        return True

    def append(self, line: bytes, number: int | None = None) -> None:
        """Let a log have another line: the next one, or that of a number.

        FileExistsError if another has written that one.
        """
        place = _next_number(self._lines()) if number is None else number
        while not self._line(place).create(line):
            if number is not None:
                raise FileExistsError(f"{self} has a line {number} by another process")
            place += 1

    def read_log(self, limit: int = _LIMIT) -> bytes:
        """Read all lines of a log; FileNotFoundError if there is none, ValueError if they are long.

        What somebody else has put beside them is no line.
        """
        sizes = self._sizes()
        paths = self._lines(sizes)
        if not paths:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self))
        _check_size(sum(sizes[path.name] for path in paths), limit)
        with _explain_store(self):
            lines = self._system.cat([str(path) for path in paths])
        return b"".join(lines[name] for name in sorted(lines))

    def _line(self, number: int) -> "Remote":
        return self / f"{number:08d}"

    def _lines(self, names: Iterable[str] | None = None) -> list["Remote"]:
        """Return the numbered objects in this folder, in order."""
        names = self._sizes() if names is None else names
        return [self / name for name in sorted(names) if _NUMBER.fullmatch(name)]

    def _sizes(self) -> dict[str, int]:
        """Return what is in this folder, by name, and its sizes.

        The folder itself may be an object, too: consoles make one for a folder that is empty.
        """
        with _explain_store(self):
            try:
                found = self._system.ls(str(self), detail=True)
            except FileNotFoundError:
                return {}
            own = self._system._strip_protocol(str(self))
        places = {one["name"].rstrip("/"): one["size"] or 0 for one in found}
        return {name.rsplit("/", 1)[-1]: size for name, size in places.items() if name != own}

    @property
    def _system(self) -> Any:
        return _system_of(self.parts[0].removesuffix(":"))

    @contextlib.contextmanager
    def hold(self) -> Iterator[bool]:
        """Hold a lock, if nobody else does, and tell whether it is held.

        Whoever creates the next number has it, and says so again before the lease ends. Clocks are
        compared: those of hosts must not be apart by more than the lease.
        """
        taken = self._lines()
        if taken and _is_held(taken[-1]):
            yield False
            return
        own = self._line(_next_number(taken))
        token = _HELD + secrets.token_hex(8).encode()
        if not own.create(_stamp(token)):
            yield False
            return
        ended = threading.Event()

        def renew() -> None:
            while not ended.wait(_LEASE / 6):
                with contextlib.suppress(BQNESError):  # the next time, perhaps
                    own.write(_stamp(token))

        thread = threading.Thread(target=renew, daemon=True)
        thread.start()
        try:
            yield True
        finally:
            ended.set()
            thread.join()
            with contextlib.suppress(BQNESError):  # then the lease ends by itself
                own.write(_FREE)


def _check_size(size: int, limit: int) -> None:
    if size > limit:
        raise ValueError(f"it has more than {limit:,} bytes")


def _next_number(paths: Iterable[Remote]) -> int:
    return max((int(path.name) + 1 for path in paths), default=0)


def _stamp(token: bytes) -> bytes:
    return b"%b until %d" % (token, time.time() + _LEASE)


def _is_held(lock: Remote) -> bool:
    """Tell whether the lease of a lock has not ended.

    One that ends too late is of a clock that has been set back since, or of one that is wrong:
    whether its holder lives is seen from whether it is renewed.
    """
    content = lock.read_bytes()
    match = re.fullmatch(_HELD + rb"\w+ until (\d{1,12})", content)
    left = 0 if match is None else int(match[1]) - time.time()
    if left > 2 * _LEASE:
        time.sleep(_LEASE)
        return lock.read_bytes() != content
    return left > 0


def _system_of(scheme: str) -> Any:
    try:
        import fsspec

        # What others write is seen at once: nothing is remembered.
        return fsspec.filesystem(scheme, use_listings_cache=False)
    except ImportError as error:
        raise BQNESError(
            f"{scheme}:// needs a package that is not installed ({error}); install it with pip "
            f"install 'bqnes-jax[{_SCHEMES[scheme]}]'."
        ) from None


@contextlib.contextmanager
def _explain_store(path: Remote, *expected: type[Exception]) -> Iterator[None]:
    """Say in a sentence what a store says, except for what is expected."""
    try:
        yield
    except (BQNESError, *expected):
        raise
    except Exception as error:  # each store has its own kinds
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise BQNESError(
            f"{path} cannot be reached ({reason}); what was stored before is intact: check the "
            "address, the network and your credentials, and run again."
        ) from None
