"""Tables in files: what many networks predict, rounded into one `.npz`."""

import io
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int, Int32, UInt8, UInt16

from bqnes_jax.candidates.landscape import Listed
from bqnes_jax.data import Split
from bqnes_jax.errors import BQNESError, check_choice, check_whole
from bqnes_jax.files import damaged_means_refused, write_whole, writing
from bqnes_jax.files.arrays import open_npz, read_arrays
from bqnes_jax.kernels import WL
from bqnes_jax.spaces import NATS, Seeded, Subset
from bqnes_jax.spaces.base import as_listed
from bqnes_jax.storage import Predictions
from bqnes_jax.tables.base import Table, Tabulated
from bqnes_jax.tables.published import nb201_proxy


def load(name: str, *, seeds: int = 1) -> Tabulated:
    """Load a table that comes with the package.

    "digits": 1,024 cells of NATS-Bench, all different to the WL kernel, the best 64 of
    NAS-Bench-201 among them, trained on 300 images of 8×8 digits (the preset "tiny"), and what each
    says about 600 validation and 600 test images. `bqnes tabulate --table FILE` makes it again.

    With seeds=3: the best 64 and 192 others of these cells, each trained from three seeds, the
    first of which are those of the table without seeds. `bqnes tabulate --count 256 --seeds 3
    --table FILE` makes it again.

    Log-probabilities in both files were clipped at −20 when they were written; `pack` does that no
    longer.

    Example:
        >>> digits = load("digits")
        >>> digits.table.test_log_probs.shape
        (1024, 600, 10)
        >>> load("digits", seeds=3).space.size
        768
    """
    check_choice("table", name, ("digits",))
    check_choice("seeds", seeds, (1, 3))
    file = f"{name}.npz" if seeds == 1 else f"{name}-seeds.npz"
    return read(Path(__file__).parent / file)


def read(path: Path) -> Tabulated:
    """Read a table that `pack` has written."""
    with damaged_means_refused(
        path,
        "is not a table, or damaged",
        remedy="make it again.",
        absent="is not there; make one with: bqnes tabulate",
    ):
        with open_npz(path) as file:
            if "valid_losses" in file:
                raise BQNESError(
                    f"{path} has losses of NATS-Bench and no predictions, which ensembles need; "
                    "import those into a store."
                )
            marked, fitted = "unclipped" in file, "train" in file
        packed = read_arrays(path, _Packed)
        whole = marked and bool(read_arrays(path, _Mark).unclipped)
        expand = _expanded if whole else _expanded_from_clipped
        fit = read_arrays(path, _Fit) if fitted else None
        _check_packed(packed)
        if fit is not None and not (len(fit.train) == len(packed.valid) and fit.train_points > 0):
            raise ValueError("its training log-likelihoods are of other networks")
    space = Subset(NATS, tuple(packed.numbers.tolist()))
    seeds = len(packed.valid) // len(packed.numbers)
    log_probs = expand(packed.valid)
    return Tabulated(
        space if seeds == 1 else as_listed(Seeded(space, seeds)),
        Table(
            log_likelihoods=jnp.asarray(log_probs.sum(axis=1, dtype=float)),
            accuracies=jnp.asarray(packed.right / log_probs.shape[1]),
            log_probs=jnp.asarray(log_probs),
            test_log_probs=jax.nn.log_softmax(expand(packed.test)),  # were rounded
            train_log_likelihoods=None if fit is None else jnp.asarray(fit.train, float),
            train_points=None if fit is None else int(fit.train_points),
        ),
        jnp.asarray(packed.test_labels, jnp.int32),
    )


def choose_different(count: int, best: int) -> Int[np.ndarray, " n"]:
    """Return numbers of cells of NATS-Bench, no two of them the same to the WL kernel.

    First the `best` of NAS-Bench-201 on CIFAR-10, then uniform draws, `count` in all.
    """
    row_of = np.asarray(Listed(NATS, WL(NATS)).row_of)
    check_whole("count", count, 1, int(row_of.max()) + 1)
    check_whole("best", best, 0, count)
    ranking = np.argsort(-np.asarray(nb201_proxy("cifar10").accuracies)) if best else np.arange(0)
    draws = np.asarray(jax.random.permutation(jax.random.key(0), NATS.size))
    chosen: list[int] = []
    seen: set[int] = set()
    for limit, numbers in ((best, ranking), (count, draws)):
        for number in numbers.tolist():
            if len(chosen) < limit and row_of[number] not in seen:
                seen.add(int(row_of[number]))
                chosen.append(number)
    return np.array(chosen)


def pack(path: Path, numbers: np.ndarray, stored: Predictions, data: Split) -> None:
    """Write the predictions of networks that were all trained into one file, rounded.

    With several seeds a cell has as many rows one after the other, and its number once.
    """
    if not stored.ok.all():
        raise BQNESError(f"{(~stored.ok).sum()} trainings failed; leave those architectures out.")
    seeds, rest = divmod(len(stored.ok), len(numbers))
    if rest:
        raise BQNESError(
            f"{len(stored.ok)} networks are not equally many of each of {len(numbers)} cells; give "
            "all seeds of each."
        )
    cells = np.argsort(numbers)
    order = (cells[:, None] * seeds + np.arange(seeds)).ravel()
    valid, labels = stored.valid_log_probs[order], data.valid.labels
    content = io.BytesIO()
    packed = _Packed(
        numbers=np.asarray(numbers, np.int32)[cells],
        valid=_rounded(valid[:, np.arange(len(labels)), labels], np.uint16),
        test=_rounded(stored.test_log_probs[order], np.uint8),
        right=np.sum(valid.argmax(-1) == labels, axis=1).astype(np.int32),
        test_labels=np.asarray(data.test.labels, np.uint8),
    )
    fit = _Fit(stored.train_log_likelihoods[order], np.array(len(data.train.labels)))
    known = {} if np.isnan(fit.train).any() else fit._asdict()
    np.savez_compressed(content, unclipped=np.array(True), **packed._asdict(), **known)
    with writing(f"table {path}"):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, content.getvalue())


class _Packed(NamedTuple):
    """What is in the file of a table: rounded log-probabilities, and how many are right.

    There is a row for each cell, or one for each of its seeds.
    """

    numbers: Int32[np.ndarray, " cells"]
    valid: UInt16[np.ndarray, "size n"]
    test: UInt8[np.ndarray, "size m classes"]
    right: Int32[np.ndarray, " size"]
    test_labels: UInt8[np.ndarray, " m"]


class _Mark(NamedTuple):
    """What tells a table from those whose log-probabilities were clipped at −20."""

    unclipped: Bool[np.ndarray, ""]


class _Fit(NamedTuple):
    """What tables of networks that were trained with this in mind have besides."""

    train: Float[np.ndarray, " size"]
    train_points: Int[np.ndarray, ""]


def _check_packed(packed: _Packed) -> None:
    """Refuse numbers that are not of cells, counts beyond the points, labels without a class."""
    numbers, valid, test, right, labels = packed
    sound = (
        np.all((numbers >= 0) & (numbers < NATS.size))
        and np.all(np.diff(numbers) > 0)
        and np.all((right >= 0) & (right <= valid.shape[1]))
        and np.all(labels < test.shape[2])
    )
    if not (valid.size and test.size and numbers.size and sound) or len(valid) % len(numbers):
        raise ValueError("its numbers are out of range")


# Log-probabilities are kept as s = r / (1 + r), r = √(−log p / middle), in whole steps: finest
# where p is near 1, and without an end. In 8 bits a step is 0.04 at 1 nat and 4 % at 30, and the
# last number is 320,000 nats; after it there is probability 0.
_MIDDLE = 5.0
# Files that are not marked as `unclipped` are older: √(−log p / 20), clipped at 20 nats.
_CLIPPED_AT = 20.0


def _rounded(log_probs: np.ndarray, dtype: type) -> np.ndarray:
    root = np.sqrt(np.maximum(-log_probs.astype(float), 0) / _MIDDLE)
    last = np.iinfo(dtype).max  # probability 0, and nothing else
    steps = np.round(last * (1 - 1 / (1 + root)))
    return np.where(np.isinf(root), last, np.minimum(steps, last - 1)).astype(dtype)


def _expanded(steps: np.ndarray) -> np.ndarray:
    last = np.iinfo(steps.dtype).max
    with np.errstate(divide="ignore"):
        root = steps / (last - steps.astype(float))
    return (-_MIDDLE * root**2).astype(np.float32)


def _expanded_from_clipped(steps: np.ndarray) -> np.ndarray:
    share = steps.astype(np.float32) / np.iinfo(steps.dtype).max
    return -np.float32(_CLIPPED_AT) * share**2
