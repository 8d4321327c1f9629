"""Tables in files: what many networks predict, rounded into one `.npz`."""

import io
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Int32, UInt8, UInt16

from bqnes_jax.candidates.landscape import Listed
from bqnes_jax.data import Split
from bqnes_jax.errors import BQNESError, check_choice, check_whole
from bqnes_jax.files import explain_writing, refuse_damaged, write_whole
from bqnes_jax.files.arrays import open_npz, read_arrays
from bqnes_jax.kernels import WL
from bqnes_jax.spaces import NATS, Seeded, Subset
from bqnes_jax.spaces.base import as_listed, enumerate_space
from bqnes_jax.storage import Predictions
from bqnes_jax.tables.base import Table, Tabulated
from bqnes_jax.tables.published import nb201_proxy

_NEIGHBOURS = 7  # for each cell that may be anywhere, in a table for evolution


_WEIGHT_SEEDS = {"digits": (1, 3), "cifar10": (1,)}  # of each table in the package


def names() -> tuple[str, ...]:
    """Return the names of the tables that come with the package."""
    return tuple(_WEIGHT_SEEDS)


def weight_seeds(name: str) -> tuple[int, ...]:
    """Return with how many weight seeds a table in the package can be loaded."""
    check_choice("table", name, names())
    return _WEIGHT_SEEDS[name]


def find(name: str, *, seeds: int = 1) -> Tabulated:
    """Load the table of that name, or read it from the file with that path."""
    if name in names():
        return load(name, seeds=seeds)
    if not name.endswith(".npz"):
        known = ", ".join(map(repr, names()))
        raise BQNESError(
            f"table is {name!r}; allowed are {known}, or the path of an .npz that `bqnes tabulate` "
            "wrote."
        )
    if seeds != 1:
        raise BQNESError("weight seeds are those of the table; leave --weight-seeds out.")
    return read(Path(name))


def load(name: str, *, seeds: int = 1) -> Tabulated:
    """Load a table that comes with the package.

    "digits": 1,024 cells of NATS-Bench, all different to the WL kernel, the best 64 of
    NAS-Bench-201 among them, trained on 300 images of 8×8 digits (the preset "tiny"), and what each
    says about 600 validation and 600 test images. `bqnes tabulate --table FILE` makes it again.

    "cifar10": 520 such cells, the best 160 among them and most of the others one edge away from
    another, trained on 5,000 images of CIFAR-10 at 12×12 for 2,000 steps, with three cells in each
    stage, and what each says about 1,800 validation and 1,800 test images.

    "digits" with seeds=3: the best 64 and 192 others of its cells, each trained from three seeds,
    the first of which are those of the table without seeds. `bqnes tabulate --count 256 --seeds 3
    --table FILE` makes it again.

    Example:
        >>> digits = load("digits")
        >>> digits.table.test_log_probs.shape
        (1024, 600, 10)
        >>> load("digits", seeds=3).space.size
        768
    """
    check_choice("seeds", seeds, weight_seeds(name))
    file = f"{name}.npz" if seeds == 1 else f"{name}-seeds.npz"
    return read(Path(__file__).parent / file)


def read(path: Path) -> Tabulated:
    """Read a table that `pack` has written."""
    packed = _read_packed(path)
    space = Subset(NATS, tuple(packed.numbers.tolist()))
    log_probs, fitted = _expand(packed.valid, _FINE), not np.isnan(packed.train).any()
    classes = _all_classes(log_probs, packed.valid_others, packed.valid_labels)
    test = _expand(packed.test, _FINE)
    return Tabulated(
        space if packed.seeds == 1 else as_listed(Seeded(space, packed.seeds)),
        Table(
            log_likelihoods=jnp.asarray(log_probs.sum(axis=1, dtype=float)),
            accuracies=jnp.asarray(packed.right / log_probs.shape[1]),
            log_probs=jnp.asarray(log_probs, jnp.float32),
            test_log_probs=_all_classes(test, packed.test_others, packed.test_labels),
            classes=classes,
            train_log_likelihoods=jnp.asarray(packed.train, float) if fitted else None,
            train_points=int(packed.train_points) if fitted else None,
        ),
        jnp.asarray(packed.test_labels, jnp.int32),
    )


def choose_different(count: int, best: int, *, neighbours: bool = False) -> Int[np.ndarray, " n"]:
    """Return numbers of cells of NATS-Bench, no two of them the same to the WL kernel.

    First the `best` of NAS-Bench-201 on CIFAR-10, then draws, `count` in all: uniform ones, or with
    `neighbours` one in eight uniform and the others one edge away from one that was chosen before.
    The first cells are the same whatever the count.
    """
    row_of = np.asarray(Listed(NATS, WL(NATS)).row_of)
    check_whole("count", count, 1, int(row_of.max()) + 1)
    check_whole("best", best, 0, count)
    ranking = _best_first(row_of) if best else np.arange(0)
    chosen: list[int] = []
    seen: set[int] = set()
    draws = _walk(chosen) if neighbours else _draws()
    for limit, numbers in ((best, ranking.tolist()), (count, draws)):
        for number in numbers if len(chosen) < limit else ():
            if row_of[number] not in seen:
                seen.add(int(row_of[number]))
                chosen.append(number)
            if len(chosen) == limit:
                break
    return np.array(chosen)


def _best_first(row_of: Int[np.ndarray, " size"]) -> Int[np.ndarray, " size"]:
    """Rank the cells of NAS-Bench-201 by their accuracy on CIFAR-10.

    Of those that are as good the one with the smaller row comes first, so that the order does not
    depend on how a machine sorts.
    """
    accuracies = np.asarray(nb201_proxy("cifar10").accuracies)
    return np.lexsort((np.arange(len(row_of)), row_of, -accuracies))


def _draws() -> list[int]:
    """Return all cells of NATS-Bench in an order that is always the same."""
    return np.asarray(jax.random.permutation(jax.random.key(0), NATS.size)).tolist()


def _walk(chosen: list[int]) -> Iterator[int]:
    """Yield neighbours of cells that have been chosen, and now and then any cell."""
    draw = np.random.default_rng(0)
    archs = np.asarray(enumerate_space(NATS))
    for anywhere in itertools.cycle(_draws()):
        yield anywhere
        for _ in range(_NEIGHBOURS):
            arch = archs[chosen[draw.integers(len(chosen))]].copy()
            edge = draw.integers(len(arch))
            arch[edge] = (arch[edge] + draw.integers(1, NATS.options[edge])) % NATS.options[edge]
            yield int(NATS.index(arch))


def choose_again(path: Path, count: int) -> Int[np.ndarray, " n"]:
    """Draw numbers of `count` cells of a table; the first are the same whatever the count."""
    numbers = numbers_of(path)
    check_whole("count", count, 1, len(numbers))
    return np.random.default_rng(0).permutation(numbers)[:count]


def numbers_of(path: Path) -> Int32[np.ndarray, " cells"]:
    """Return the numbers of the cells in a table, in their order."""
    return _read_packed(path).numbers


def pack(
    path: Path,
    numbers: np.ndarray,
    stored: Predictions,
    data: Split,
    *,
    points: int | None = None,
    known: Sequence[Path] = (),
) -> None:
    """Write the predictions of networks that were all trained into one file, rounded.

    With several seeds a cell has as many rows one after the other, and its number once.

    Args:
        path: the file.
        numbers: the cells.
        stored: what their networks predict.
        data: what they were trained on.
        points: how many validation points and how many test points are kept, the first ones; by
            default all.
        known: tables of other cells that were trained on the same data, which are put into it, too.
    """
    stored = stored._replace(
        valid_log_probs=stored.valid_log_probs[:, :points],
        test_log_probs=stored.test_log_probs[:, :points],
    )
    parts = [_pack(numbers, stored, data), *map(_read_packed, known)]
    content = io.BytesIO()
    np.savez_compressed(content, **_join(parts, known)._asdict())
    with explain_writing(f"table {path}"):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, content.getvalue())


def _pack(numbers: np.ndarray, stored: Predictions, data: Split) -> "_Packed":
    """Return the table of some cells, in the order of their numbers."""
    if not stored.ok.all():
        raise BQNESError(f"{(~stored.ok).sum()} trainings failed; leave those architectures out.")
    seeds, rest = divmod(len(stored.ok), len(numbers))
    if rest:
        raise BQNESError(
            f"{len(stored.ok)} networks are not equally many of each of {len(numbers)} cells; give "
            "all seeds of each."
        )
    cells = np.argsort(numbers)
    order = _rows_of(cells, seeds)
    valid, test = stored.valid_log_probs[order], stored.test_log_probs[order]
    labels = np.asarray(data.valid.labels)[: valid.shape[1]]
    test_labels = np.asarray(data.test.labels)[: test.shape[1]]
    return _Packed(
        numbers=np.asarray(numbers, np.int32)[cells],
        valid=_round(valid[:, np.arange(len(labels)), labels], _FINE).astype(np.uint16),
        valid_others=_round_others(valid, labels),
        valid_labels=labels.astype(np.uint8),
        test=_round(test[:, np.arange(len(test_labels)), test_labels], _FINE).astype(np.uint16),
        test_others=_round_others(test, test_labels),
        test_labels=test_labels.astype(np.uint8),
        right=np.sum(valid.argmax(-1) == labels, axis=1).astype(np.int32),
        train=np.asarray(stored.train_log_likelihoods[order], float),
        train_points=np.array(len(data.train.labels)),
    )


def _join(parts: "Sequence[_Packed]", known: Sequence[Path]) -> "_Packed":
    """Return one table of new cells and those of known tables, all about the same points."""
    new = parts[0]
    for path, part in zip(known, parts[1:], strict=True):
        for field in (*_ABOUT_POINTS, "seeds"):
            if not np.array_equal(getattr(part, field), getattr(new, field)):
                raise BQNESError(
                    f"{path} has other {field} than the cells that were trained; a table holds "
                    "cells of one data set, one split and as many weight seeds: leave it out."
                )
    numbers = np.concatenate([part.numbers for part in parts])
    if len(np.unique(numbers)) < len(numbers):
        raise BQNESError("a cell is in two of the tables; give each cell once.")
    cells = np.argsort(numbers)
    rows = _rows_of(cells, new.seeds)
    joined = {
        field: np.concatenate([getattr(part, field) for part in parts])[rows]
        for field in _Packed._fields
        if field not in ("numbers", *_ABOUT_POINTS)
    }
    return new._replace(numbers=numbers[cells], **joined)


def _rows_of(cells: Int[np.ndarray, " cells"], seeds: int) -> Int[np.ndarray, " size"]:
    """Return the rows of some cells, one for each of their seeds."""
    return (cells[:, None] * seeds + np.arange(seeds)).ravel()


class _Packed(NamedTuple):
    """What is in the file of a table: rounded log-probabilities, and how many are right.

    There is a row for each cell, or one for each of its seeds. Those of the true class are fine;
    those of the others are coarse, and 0 stands in the place of the true one.
    """

    numbers: Int32[np.ndarray, " cells"]
    valid: UInt16[np.ndarray, "size n"]
    valid_others: UInt8[np.ndarray, "size n classes"]
    valid_labels: UInt8[np.ndarray, " n"]
    test: UInt16[np.ndarray, "size m"]
    test_others: UInt8[np.ndarray, "size m classes"]
    test_labels: UInt8[np.ndarray, " m"]
    right: Int32[np.ndarray, " size"]
    train: Float[np.ndarray, " size"]  # NaN where it is not known
    train_points: Int[np.ndarray, ""]

    @property
    def seeds(self) -> int:
        """How many rows a cell has."""
        return len(self.valid) // len(self.numbers)


_ABOUT_POINTS = ("valid_labels", "test_labels", "train_points")  # and not about cells


def _read_packed(path: Path) -> _Packed:
    with refuse_damaged(
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
        packed = read_arrays(path, _Packed)
        _check_packed(packed)
    return packed


def _check_packed(packed: _Packed) -> None:
    """Refuse numbers that are not of cells, counts beyond the points, labels without a class."""
    numbers, right, (_, points, classes) = packed.numbers, packed.right, packed.valid_others.shape
    sound = (
        numbers.size
        and packed.valid_others.size
        and packed.test_others.size
        and len(packed.valid) % len(numbers) == 0
        and np.all((numbers >= 0) & (numbers < NATS.size))
        and np.all(np.diff(numbers) > 0)
        and np.all((right >= 0) & (right <= points))
        and np.all(packed.valid_labels < classes)
        and np.all(packed.test_labels < classes)
        and all(np.all(each <= _FINE) for each in (packed.valid, packed.test))
        and all(np.all(each <= _COARSE) for each in (packed.valid_others, packed.test_others))
        and packed.train_points > 0
        and np.all(np.isnan(packed.train) | ((packed.train <= 0) & (packed.train > -1e30)))
    )
    if not sound:
        raise ValueError("its numbers are out of range")


# Log-probabilities are kept as s = r / (1 + r), r = √(−log p / 3), in whole steps: finest where p
# is near 1, and without an end. The last step is probability 0, and nothing else.
_MIDDLE = 3.0
_FINE = 4095  # steps for the true class: 0.001 at 0.5 nats, 0.2 % at 30
_COARSE = 47  # for the others, of which only the likeliest matter: 0.15 at 1 nat
_SURE = 1e-3  # where the others have less in all, they are left as they were rounded


def _round(log_probs: np.ndarray, last: int) -> np.ndarray:
    root = np.sqrt(np.maximum(-log_probs.astype(float), 0) / _MIDDLE)
    steps = np.round(last * (1 - 1 / (1 + root)))
    return np.where(np.isinf(root), last, np.minimum(steps, last - 1))


def _round_others(log_probs: np.ndarray, labels: np.ndarray) -> UInt8[np.ndarray, "size n C"]:
    steps = _round(log_probs, _COARSE).astype(np.uint8)
    steps[:, np.arange(len(labels)), labels] = 0
    return steps


def _expand(steps: np.ndarray, last: int) -> np.ndarray:
    with np.errstate(divide="ignore"):
        root = steps / (last - steps.astype(float))
    return -_MIDDLE * root**2


def _all_classes(
    true: np.ndarray, others: np.ndarray, labels: np.ndarray
) -> Float[Array, "size points classes"]:
    """Return log-probabilities: of the true class as given; the others share what it leaves."""
    log_probs = _expand(others, _COARSE)
    own = np.arange(len(labels)), labels
    log_probs[:, own[0], own[1]] = -np.inf
    left, shared = -np.expm1(true), np.exp(log_probs).sum(axis=-1)
    with np.errstate(divide="ignore", invalid="ignore"):
        scale = np.where((left >= _SURE) & (shared > 0), np.log(left / shared), 0)
    log_probs += scale[..., None]
    log_probs[:, own[0], own[1]] = true
    return jax.nn.log_softmax(jnp.asarray(log_probs, jnp.float32))
