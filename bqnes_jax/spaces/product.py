"""The product space: named choices with a few options each, any of them with any of the others.

An architecture is `int32[choices]`: which of its options each choice has. As text it is
`depth=2, width=32, activation=relu`.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Iterable, Mapping, Set
from typing import TypeGuard

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int32

from bqnes_jax.errors import BQNESError, check_shape, check_whole, concrete
from bqnes_jax.spaces.base import Architecture, Architectures, as_architectures
from bqnes_jax.types import PRNGKey

MAX_LISTED = 20_000  # of a space with more architectures `size` is None

Option = int | float | str | bool | None


@dataclasses.dataclass(frozen=True, init=False, eq=False, repr=False)
class Product:
    """All combinations of the options of named choices, equally likely a priori.

    Options that are numbers, in increasing order, are points on a scale; texts, `True`, `False` and
    `None` are categories, as far from each other as can be. A choice with one option is a constant.
    Two spaces are equal if their choices have the same names and the same options, of the same
    types, in the same order.

    Attributes:
        choices: the names with their options, in the order in which they were given.

    Example:
        >>> space = Product(depth=(1, 2, 3), width=(16, 32, 64), activation=("relu", "tanh"))
        >>> space.size
        18
        >>> arch = space.encode({"depth": 2, "width": 32, "activation": "relu"})
        >>> arch.tolist(), space.to_string(arch)
        ([1, 1, 0], 'depth=2, width=32, activation=relu')
        >>> space.decode(space.from_index(17))
        {'depth': 3, 'width': 64, 'activation': 'tanh'}
        >>> space.coordinates(arch).tolist()  # two scales and two categories
        [0.5, 0.5, 1.0, 0.0]
    """

    choices: tuple[tuple[str, tuple[Option, ...]], ...]

    name = "product"

    def __init__(self, /, **choices: object) -> None:
        if not choices:
            raise BQNESError(
                "there are no choices; name at least one with its options: depth=(1, 2, 3)."
            )
        checked = tuple((name, _check_options(name, options)) for name, options in choices.items())
        if all(len(options) == 1 for _, options in checked):
            raise BQNESError(
                "every choice has one option; there is nothing to choose: give one of them another."
            )
        object.__setattr__(self, "choices", checked)

    def __repr__(self) -> str:
        return self._text

    def __eq__(self, other: object) -> bool:
        return self._text == other._text if type(other) is type(self) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._text)

    @functools.cached_property
    def _text(self) -> str:
        # Unlike the options themselves it tells 0, 0.0 and False apart, as compiled code must.
        choices = ", ".join(f"{name}={options!r}" for name, options in self.choices)
        return f"{type(self).__name__}({choices})"

    @property
    def options(self) -> tuple[int, ...]:
        """How many options each choice has."""
        return tuple(len(options) for _, options in self.choices)

    @property
    def count(self) -> int:
        """How many architectures there are, exactly."""
        return math.prod(self.options)

    @property
    def size(self) -> int | None:
        """How many architectures there are; None for more than `MAX_LISTED`."""
        return self.count if self.count <= MAX_LISTED else None

    def sample(self, key: PRNGKey, n: int) -> Architectures:
        """Draw n architectures uniformly, independently (so with repetitions)."""
        check_whole("n", n, 0)
        options = np.array(self.options, np.int32)
        return jax.random.randint(key, (n, len(options)), 0, options, jnp.int32)

    def mutate(self, key: PRNGKey, arch: ArrayLike) -> Architecture:
        """Change one choice to a different option, both drawn uniformly; constants stay."""
        arch = self._one(arch)
        choice_key, shift_key = jax.random.split(key)
        free = jnp.array([i for i, n in enumerate(self.options) if n > 1], jnp.int32)
        choice = free[jax.random.randint(choice_key, (), 0, len(free))]
        options = jnp.array(self.options, jnp.int32)[choice]
        shift = jax.random.randint(shift_key, (), 1, options, jnp.int32)
        return arch.at[choice].set((arch[choice] + shift) % options)

    def index(self, arch: ArrayLike) -> Int32[Array, "*batch"]:
        """Number architectures as a list of all has them, the last choice changing first."""
        arch = as_architectures(self, arch)
        return arch @ jnp.asarray(self._place_values())

    def from_index(self, index: ArrayLike) -> Int32[Array, "*batch length"]:
        """Return the architectures of these numbers, 0 … size − 1."""
        place_values, values = self._place_values(), concrete(index)
        if not jnp.issubdtype(jnp.result_type(index), jnp.integer):
            raise BQNESError(f"index is of type {jnp.result_type(index)}; it must be an integer.")
        if (
            values is not None
            and values.size
            and not 0 <= values.min() <= values.max() < self.count
        ):
            worst = values.min() if values.min() < 0 else values.max()
            raise BQNESError(
                f"index {worst} is outside space {self.name!r}; "
                f"it must be from 0 to {self.count - 1}."
            )
        index = jnp.asarray(index, jnp.int32)
        return index[..., None] // place_values % np.array(self.options, np.int32)

    def to_string(self, arch: ArrayLike) -> str:
        """Write one architecture: the names with what is chosen, in order."""
        return ", ".join(f"{name}={option}" for name, option in self.decode(arch).items())

    def from_string(self, text: str) -> Architecture:
        """Read one architecture; every choice must be there, in order, as `to_string` writes it."""
        parts = text.strip().split(", ") if isinstance(text, str) else []
        pairs = [part.split("=") for part in parts]
        if [pair[:-1] for pair in pairs] != [[name] for name in self._names]:
            form = self.to_string(np.zeros(len(self.choices), np.int32))
            raise BQNESError(f"{text!r} is not an architecture; the form is {form!r}.")
        arch = []
        for (name, options), (_, written) in zip(self.choices, pairs, strict=True):
            known = [str(option) for option in options]
            if written not in known:
                raise BQNESError(
                    f"{name} in {text!r} is {written}; allowed are {_show(known)}: "
                    "write one as it is here."
                )
            arch.append(known.index(written))
        return jnp.array(arch, jnp.int32)

    def decode(self, arch: ArrayLike) -> dict[str, Option]:
        """Return what one architecture chooses by name: the very options that were given."""
        chosen = np.asarray(self._one(arch))
        return {
            name: options[place]
            for (name, options), place in zip(self.choices, chosen, strict=True)
        }

    def encode(self, choices: Mapping[str, object]) -> Architecture:
        """Return the architecture that chooses these options by name; the inverse of `decode`.

        Names may be in any order. A number is found by its value: 2.0 is the option 2.
        """
        unknown = [name for name in choices if name not in self._names]
        if unknown:
            raise BQNESError(
                f"choices have {unknown[0]!r}; the names are {_show(self._names)}: leave it out."
            )
        missing = [name for name in self._names if name not in choices]
        if missing:
            raise BQNESError(
                f"choices lack {_show(missing)}; each of {_show(self._names)} must be there: "
                "add an option of it."
            )
        arch = []
        for name, options in self.choices:
            value = _plain(choices[name])
            places = [place for place, option in enumerate(options) if _same(option, value)]
            if not places:
                raise BQNESError(
                    f"{name} is {value!r}; allowed are {_show(map(repr, options))}: "
                    "choose one of them."
                )
            arch.append(places[0])
        return jnp.array(arch, jnp.int32)

    def coordinates(self, arch: ArrayLike) -> Float[Array, "*batch dimension"]:
        """Return a point on [0, 1] for each scale and a one-hot vector for each set of categories.

        The options of a scale are equally far apart, whatever their values, from 0, the first, to
        1, the last. A constant, of either kind, is one coordinate that is 0.
        """
        arch = as_architectures(self, arch)
        # Of each coordinate: the choice it is about, its category or −1, the steps of its scale.
        about, category, steps = np.array(
            [
                (place, which, max(len(options) - 1, 1))
                for place, (_, options) in enumerate(self.choices)
                for which in (range(len(options)) if _is_categorical(options) else (-1,))
            ],
            np.int32,
        ).T
        chosen = arch[..., about]
        scaled = chosen / jnp.asarray(steps, jnp.result_type(float))
        return jnp.where(category < 0, scaled, (chosen == category).astype(scaled.dtype))

    @property
    def _names(self) -> list[str]:
        return [name for name, _ in self.choices]

    def _one(self, arch: ArrayLike) -> Architecture:
        arch = as_architectures(self, arch)
        check_shape("architecture", arch, (len(self.choices),))
        return arch

    def _place_values(self) -> Int32[np.ndarray, " length"]:
        if self.size is None:
            raise BQNESError(
                f"space {self.name!r} has {self.count} architectures, which have no numbers; at "
                f"most {MAX_LISTED} can be listed: draw from it with sample(key, n)."
            )
        later = np.array([*self.options[1:], 1], np.int32)
        return np.cumprod(later[::-1], dtype=np.int32)[::-1]


def _check_options(name: str, given: object) -> tuple[Option, ...]:
    """Return the options of a choice as a tuple, and refuse what cannot be one."""
    if not _is_text(name):
        raise BQNESError(
            f"the name of a choice is {name!r}; it must have neither ',' nor '=', nor blanks "
            "around it, nor be empty: rename it."
        )
    if not _is_list(given):
        raise BQNESError(f"{name} is {given!r}; it must be a tuple or a list of options: make one.")
    options = tuple(_check_option(name, _plain(option)) for option in given)
    if not options:
        raise BQNESError(f"{name} has no options; give it at least one, or leave it out.")
    _check_together(name, options)
    return options


def _check_option(name: str, option: object) -> Option:
    if not _is_option(option):
        raise BQNESError(
            f"{name} has an option of type {type(option).__name__}; options must be numbers, "
            "texts, True, False or None: give it a name."
        )
    if isinstance(option, float) and not math.isfinite(option):
        raise BQNESError(f"{name} has the option {option}; numbers must be finite: drop it.")
    if isinstance(option, str) and not _is_text(option):
        raise BQNESError(
            f"{name} has the option {option!r}; a text must have neither ',' nor '=', nor blanks "
            "around it, nor be empty: rename it."
        )
    return option


def _check_together(name: str, options: tuple[Option, ...]) -> None:
    numbers = [option for option in options if _is_number(option)]
    others = [option for option in options if not _is_number(option)]
    if numbers and others:
        raise BQNESError(
            f"{name} has the options {numbers[0]} and {others[0]!r}; all must be numbers or none: "
            "write the numbers as texts, or a number for what is none."
        )
    first: dict[object, Option] = {}
    for option in options:
        written = option if numbers else str(option)  # None and 'None' are the same text
        if written in first:
            raise BQNESError(
                f"{name} has the options {first[written]!r} and {option!r}, which cannot be told "
                "apart; each must be there once: drop or rename one."
            )
        first[written] = option
    for before, after in itertools.pairwise(numbers):
        if after < before:
            raise BQNESError(
                f"{name} has the option {after} after {before}; numbers must increase: sort them."
            )


def _is_list(given: object) -> TypeGuard[Iterable[object]]:
    """Tell whether there are options in an order; sets have none, and a text is not its letters."""
    if isinstance(given, str | bytes | Mapping | Set) or not isinstance(given, Iterable):
        return False
    try:
        iter(given)
    except TypeError:  # an array without axes, too
        return False
    return True


def _plain(value: object) -> object:
    """Return a number of NumPy as one of Python, anything else as it is."""
    return value.item() if isinstance(value, np.generic) else value


def _is_option(value: object) -> TypeGuard[Option]:
    return type(value) in (int, float, str, bool, type(None))


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_categorical(options: tuple[Option, ...]) -> bool:
    return len(options) > 1 and not _is_number(options[0])


def _is_text(text: str) -> bool:
    return text == text.strip() != "" and not {",", "="} & set(text)


def _same(option: Option, value: object) -> bool:
    """Compare numbers by value, and others with their own type only."""
    alike = _is_number(option) and _is_number(value)
    return (alike or type(option) is type(value)) and option == value


def _show(values: Iterable[str]) -> str:
    """Join with commas; of many, the first and the last."""
    values = list(values)
    return ", ".join(values if len(values) <= 12 else [*values[:6], "…", values[-1]])
