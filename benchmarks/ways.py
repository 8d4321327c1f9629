"""What a job of the speed suite is made of: ways to do it, each with a check of its answer."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from timing import precision

Size = int | tuple[int, int]


class Way(NamedTuple):
    """One way to do a job.

    Attributes:
        name: ours begin with "ours".
        run: does it; None where what it needs is not installed.
        problems: how many are solved by one call.
        precision: what it computes in.
        check: tells of an answer what it is worth, and whether it is good enough to be compared.
        ratio: how many times faster than a peer it is to be.
        against: that peer; by default the fastest.
        limit: seconds that it may take for one problem.
        amortise: of the compile time, what is added to the time for one problem when comparing.
    """

    name: str
    run: Callable[[], Any] | None
    problems: int = 1
    precision: str = "float32"
    check: Callable[[Any], tuple[str, bool]] = lambda answer: ("", True)
    ratio: float | None = None
    against: str | None = None
    limit: float | None = None
    amortise: float = 0.0


class Case(NamedTuple):
    """A job at one size: the ways to do it, and what it takes at least.

    `flops` and `numbers` (read or written) are those of one problem.
    """

    ways: list[Way]
    flops: float
    numbers: float


@dataclass(frozen=True)
class Job:
    """A job at the sizes of the table, and at four more to see how its cost grows."""

    name: str
    title: str
    case: Callable[[Size], Case]
    sizes: dict[str, tuple[Size, ...]]
    growth: dict[str, tuple[Size, ...]]
    measure: Callable[[Size], float] = lambda size: size  # what the exponent is of


def ours(name: str, function: Callable, *arguments, **fields) -> Way:
    """Time a function in the precision that is named, on arguments that are on the device."""
    kind = fields.get("precision", "float32")
    with precision(kind):
        arguments = jax.tree.map(_on_device, arguments)

    def run():
        with precision(kind):
            return function(*arguments)

    return Way(f"ours, {name}" if name else "ours", run, **fields)


def _on_device(values):
    """Put an array of NumPy there, in the precision that is set."""
    if not isinstance(values, np.ndarray):
        return values
    return jnp.asarray(values, float if values.dtype.kind == "f" else values.dtype)


def peer(name: str, prepare: Callable, *arguments, **fields) -> Way:
    """Prepare a peer, if it is installed."""
    try:
        run = prepare(*arguments)
    except ImportError:
        run = None
    return Way(name, run, precision="float64", **fields)
