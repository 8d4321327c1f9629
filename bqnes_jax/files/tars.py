"""Tars, read without trust: what a header claims is bounded before memory is taken for it."""

import io
import tarfile
from collections.abc import Iterator
from typing import Literal

_HEADER_LIMIT = 1 << 16  # bytes of a long name or of further fields
_FILE_LIMIT = 1 << 29  # bytes of a member; what is claimed beyond the end tarfile looks for
_MEMBERS = 1 << 17  # the largest published archive has an eighth


class _Member(tarfile.TarInfo):
    """A member; of those that are no files tarfile reads all that they claim at once."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> "_Member":
        """Read the header of a member."""
        member = super().frombuf(buf, encoding, errors)
        if member.type in (tarfile.GNUTYPE_SPARSE, tarfile.XGLTYPE):
            raise ValueError("it has a file with holes, or fields for all files")
        _check_size(member, _FILE_LIMIT if member.isfile() else _HEADER_LIMIT)
        return member

    def _proc_gnusparse_10(self, *_: object) -> None:
        raise ValueError("it has a file with holes")  # whose list tarfile reads without an end

    _proc_gnusparse_00 = _proc_gnusparse_01 = _proc_gnusparse_10


class _Tar(tarfile.TarFile):
    """A tar with an end to its members."""

    tarinfo = _Member

    def __iter__(self) -> Iterator[tarfile.TarInfo]:
        for number, member in enumerate(super().__iter__()):
            if number >= _MEMBERS:
                raise ValueError(f"it has more than {_MEMBERS:,} members")
            _check_size(member, _FILE_LIMIT)  # further fields may have said another
            yield member


def _check_size(member: tarfile.TarInfo, limit: int) -> None:
    if not 0 <= member.size <= limit:  # after one below 0 tarfile would go back, and round
        raise ValueError(f"it has a header that claims {member.size:,} bytes")


def open_tar(file: io.BufferedIOBase, mode: Literal["r:", "r|"]) -> tarfile.TarFile:
    """Open a tar that is not compressed, with any place in it in reach or only the next."""
    return _Tar.open(fileobj=file, mode=mode)  # type: ignore[arg-type]
