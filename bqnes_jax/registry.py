"""Things by name: those that the package brings, and those that a user adds."""

from collections.abc import Mapping
from typing import Generic, TypeVar

from bqnes_jax.errors import BQNESError, check_choice

T = TypeVar("T")


class Registry(Generic[T]):
    """A table from names to things, in which built-in names keep their meaning.

    Attributes:
        what: what a name stands for, as messages say it.
        built_in: the names that cannot be replaced.

    Example:
        >>> colours = Registry("colour", {"red": (255, 0, 0)})
        >>> colours.register("green", (0, 255, 0))
        >>> colours.names(), colours.find("green")
        (('red', 'green'), (0, 255, 0))
        >>> "blue" in colours
        False
    """

    def __init__(self, what: str, built_in: Mapping[str, T]) -> None:
        self.what = what
        self.built_in = tuple(built_in)
        self._things = dict(built_in)

    def __contains__(self, name: object) -> bool:
        return name in self._things

    def names(self) -> tuple[str, ...]:
        """Return all names, the built-in ones first."""
        return tuple(self._things)

    def register(self, name: str, thing: T) -> None:
        """Add a thing, or replace one that was added before."""
        if name in self.built_in:
            raise BQNESError(
                f"{self.what} {name!r} is built in and cannot be replaced; choose a name other "
                f"than {', '.join(map(repr, self.built_in))}."
            )
        self._things[name] = thing

    def find(self, name: str) -> T:
        """Return the thing of that name, and refuse a name that does not exist."""
        check_choice(self.what, name, self.names())
        return self._things[name]
