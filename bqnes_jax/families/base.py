"""The protocol of a network family: what turns architectures into predictions.

A family of your own is one object with the members of `NetworkFamily`; `from_functions` and
`from_flax` make one from functions. It then has runs, a store, resume, reports and the command
line. Nothing else in the program knows which family it is dealing with.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from jax.sharding import Mesh
from jax.typing import ArrayLike
from jaxtyping import Float, Int, Int32

from bqnes_jax.data import Split
from bqnes_jax.errors import BQNESError
from bqnes_jax.spaces import Space

Variables = Any  # a tree of arrays: dicts, lists and tuples of them
Progress = Callable[[int, int, str], None]  # done, of how many, what is done

_TOLERANCE = 1e-2  # of the sum of the probabilities of a point


class Evaluation(NamedTuple):
    """What training one architecture gave.

    Attributes:
        valid_log_probs: log-probabilities of all classes at each validation point; None if the
            training failed.
        test_log_probs: likewise at each test point.
        train_loss: mean loss at the end of the training; NaN where it is not known.
        seconds: wall time of the training.
        variables: what was trained, for `NetworkFamily.predict`; None if it cannot be kept.
        train_log_likelihood: of the labels of the training points, summed, with the network as it
            was in the end; NaN where it is not known.
    """

    valid_log_probs: Float[np.ndarray, "n classes"] | None = None
    test_log_probs: Float[np.ndarray, "m classes"] | None = None
    train_loss: float = math.nan
    seconds: float = math.nan
    variables: Variables = None
    train_log_likelihood: float = math.nan

    @property
    def failed(self) -> bool:
        """Whether there are no predictions."""
        return self.valid_log_probs is None


class Setting(NamedTuple):
    """In which circumstances a family trains. Only the seed changes what is trained.

    Attributes:
        seed: of the weights.
        directory: where a family may keep what it prepares once for all architectures.
        progress: called with (done, of how many, what) while that is prepared.
        asked: how many architectures will be asked for at a time; None if that is not known.
        mesh: the devices that architectures are divided among; by default all.
    """

    seed: int = 0
    directory: Path | None = None
    progress: Progress | None = None
    asked: int | None = None
    mesh: Mesh | None = None


class Trainer(NamedTuple):
    """A family that is ready to train on some data; made by `NetworkFamily.prepare`.

    Attributes:
        train: a function of architectures [K, length] that yields their evaluations in the same
            order, some at a time, as they are done.
        shared: what all networks have in common, as a tree of arrays, for `NetworkFamily.predict`.
        together: with several hosts, whether all of them train the same architectures in one
            program; otherwise each trains some of them.
    """

    train: Callable[[Int32[np.ndarray, "K length"]], Iterator[list[Evaluation]]]
    shared: Variables = None
    together: bool = False


@runtime_checkable
class NetworkFamily(Protocol):
    """Networks of one kind, one for each architecture of a space."""

    @property
    def name(self) -> str:
        """A short name, for files and reports."""
        ...

    @property
    def space(self) -> Space:
        """What can be built."""
        ...

    def check(self, data: Split) -> None:
        """Refuse data that these networks cannot be trained on, with a BQNESError."""
        ...

    def manifest(self, classes: int) -> Mapping[str, object]:
        """Describe, as JSON can, all that decides what is trained, but for data and seed."""
        ...

    def prepare(self, data: Split, setting: Setting) -> Trainer:
        """Do what is done once for all architectures, and return what trains them."""
        ...

    def predict(
        self,
        shared: Variables,
        variables: Sequence[Variables],
        archs: Int32[np.ndarray, "M length"],
        inputs: ArrayLike,
    ) -> Float[np.ndarray, "M n classes"]:
        """Return log-probabilities by M networks whose variables were kept."""
        ...


@runtime_checkable
class SharingFamily(NetworkFamily, Protocol):
    """Networks that can also be parts of one network, which is trained once for all of them."""

    def shared_family(self) -> tuple[str, Any]:
        """Return the family of the same space that shares weights: its name and its options."""
        ...


@runtime_checkable
class CountingFamily(NetworkFamily, Protocol):
    """Networks that keep more variables than an architecture uses, and can count those it does."""

    def count_parameters(
        self, archs: Int32[np.ndarray, "M length"], classes: int, input_shape: tuple[int, ...]
    ) -> Int[np.ndarray, " M"]:
        """Return how many parameters predictions by each architecture use."""
        ...


def check_log_probs_shape(log_probs: ArrayLike, shape: tuple[int, int], text: str) -> None:
    """Refuse an array that does not have a row for each input and a column for each class."""
    if np.shape(log_probs) != shape:
        raise BQNESError(
            f"predict returned an array of shape {np.shape(log_probs)} for {text}; it must be "
            f"(inputs, classes), here {shape}."
        )


def check_log_probs(log_probs: np.ndarray, shape: tuple[int, int], text: str) -> None:
    """Refuse what are no log-probabilities of the classes; NaN is a training that failed."""
    check_log_probs_shape(log_probs, shape, text)
    with np.errstate(over="ignore"):
        sums = np.exp(log_probs.astype(np.float64)).sum(axis=1)
    wrong = ~(np.abs(sums - 1) <= _TOLERANCE) & ~np.isnan(sums)
    if wrong.any():
        raise BQNESError(
            f"predict returned values for {text} whose exponentials sum to {sums[wrong][0]:.4g} at "
            f"a point ({wrong.sum()} of {len(sums)} points); they must be log-probabilities: apply "
            "jax.nn.log_softmax over the last axis."
        )
