"""Text as text: nothing in what comes from files steers a terminal, a page or a program."""

import unicodedata
from collections.abc import Sequence

_KEPT = "\n\t"


def plain(text: str) -> str:
    """Return text whose control characters are written out, so that any terminal shows them.

    So are halves of characters, which names that are not UTF-8 have, and what reverses text.

    Example:
        >>> plain("red \\x1b[31m, half \\udcff")
        'red \\\\x1b[31m, half \\\\udcff'
    """
    return "".join(map(_show, text)) if not text.isprintable() else text


def in_a_line(text: str) -> str:
    """Return plain text in which spaces stand for the ends of lines.

    Example:
        >>> in_a_line("a model\\nwarning: none")
        'a model warning: none'
    """
    return " ".join(plain(text).split())


def _show(character: str) -> str:
    harmless = character in _KEPT or unicodedata.category(character) not in ("Cc", "Cf", "Cs")
    return character if harmless else character.encode("unicode_escape").decode()


def count_members(size: int, used: int | float) -> str:
    """Say how many members an ensemble has, and of how many if that is fewer.

    Example:
        >>> count_members(5, 5), count_members(5, 3), count_members(5, 3.25)
        ('5', '3 of 5', '3.25 of 5')
    """
    return str(size) if used == size else f"{round(used, 2):g} of {size}"


def align(lines: Sequence[Sequence[str]]) -> str:
    """Write cells in columns: the first begins at the left, the others end at the right."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "".join(
        name.ljust(widths[0])
        + "".join(f"  {text.rjust(w)}" for text, w in zip(rest, widths[1:], strict=True)).rstrip()
        + "\n"
        for name, *rest in lines
    )
