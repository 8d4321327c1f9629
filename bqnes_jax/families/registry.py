"""Families by name: those of the package, and any that an importable module holds."""

import dataclasses
import importlib
import os
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from bqnes_jax.errors import BQNESError
from bqnes_jax.families.base import NetworkFamily
from bqnes_jax.families.cells import CellFamily
from bqnes_jax.families.darts import DARTSFamily
from bqnes_jax.families.slices import SliceFamily
from bqnes_jax.registry import Registry
from bqnes_jax.training import DARTSTrainConfig, SharedCellsConfig, SupernetConfig, TrainConfig


@dataclasses.dataclass(frozen=True)
class NoOptions:
    """The options of a family that has none."""


class Kind(NamedTuple):
    """A kind of family.

    Attributes:
        what: what its networks are, in a few words.
        options: how its networks are trained by default, as a dataclass.
        make: from such options to the family.
    """

    what: str
    options: Any
    make: Callable[[Any], NetworkFamily]


_KINDS = Registry[Kind](
    "family",
    {
        CellFamily.name: Kind("cells of NATS-Bench", TrainConfig(), CellFamily),
        "slimmable": Kind("slices of a MobileNetV2", SupernetConfig(), SliceFamily),
        "shared": Kind("cells that share their weights", SharedCellsConfig(), SliceFamily),
        DARTSFamily.name: Kind("pairs of cells of DARTS", DARTSTrainConfig(), DARTSFamily),
    },
)


def families() -> tuple[str, ...]:
    """Return the names that are known; a family in a module is `package.module:family`."""
    return _KINDS.names()


def register(name: str, kind: Kind) -> None:
    """Add a kind of family, to be chosen by its name.

    A family without options needs no name: it is found by its module, see `find`.
    """
    _KINDS.register(name, kind)


def is_named(name: str) -> bool:
    """Tell whether a family can be found by that name; one that was given as an object cannot."""
    return name in _KINDS or ":" in name


def find(name: str) -> Kind:
    """Return the kind of family of that name; `package.module:family` is imported.

    Example:
        >>> find("nats").what
        'cells of NATS-Bench'
    """
    if ":" not in name:
        if name not in _KINDS:
            known = ", ".join(map(repr, families()))
            raise BQNESError(
                f"family is {name!r}; allowed are {known}, or 'package.module:family' for one of "
                "your own."
            )
        return _KINDS.find(name)
    return Kind(name, NoOptions(), lambda _: _import(name))


def import_named(what: str, name: str) -> Any:
    """Import what a name such as package.module:object says; None if the module has no such."""
    module_name, _, attribute = name.partition(":")
    if os.getcwd() not in sys.path:  # as `python -m` does
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise BQNESError(
            f"{what} is {name!r}, but there is no module {error.name!r}; give "
            f"package.module:{what} of a module that can be imported from here."
        ) from error
    except (TypeError, ValueError):  # no name, or one that begins with a point
        raise BQNESError(f"{what} is {name!r}; it must be package.module:{what}.") from None
    return getattr(module, attribute, None)


def _import(name: str) -> NetworkFamily:
    family = import_named("family", name)
    if not isinstance(family, NetworkFamily):
        given = "has no such name" if family is None else f"holds a {type(family).__name__} there"
        raise BQNESError(
            f"family is {name!r}, but the module {given}; it must be a NetworkFamily, as "
            "bqnes_jax.families.from_functions returns."
        )
    return family
