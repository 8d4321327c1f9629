"""The paper's supernet table: BQ-S against NES-RE on slices of a slimmable MobileNetV2.

A supernet is trained on real images (8×8 digits; CIFAR-10 and CIFAR-100 shrunk to 8×8, from
BQNES_DATA_DIR), slices are evaluated as the searches ask for them, into a store that all searches
share, and ensembles of 3, 5 and 10 are judged on test images. Stop it whenever you like: the same
command goes on. The paper's rows are printed beside: its supernet is full-size, trained on all of
CIFAR at 32×32; here everything but the space and the searches is scaled down, and errors are over
searches on one supernet.

    python benchmarks/slimmable.py --datasets digits
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import gates
import jax
import jax.numpy as jnp
import numpy as np
import tyro
from against_paper import from_rows, keep, show_beside
from shared import RESULTS, console, one_sentence

from bqnes_jax.algorithms import find
from bqnes_jax.candidates import SearchConfig
from bqnes_jax.candidates.landscape import Drawn
from bqnes_jax.cli.shell import progress_bar
from bqnes_jax.kernels import make_kernel
from bqnes_jax.metrics import accuracy, ece, log_likelihood
from bqnes_jax.models import MobileNetConfig
from bqnes_jax.quadrature import effective_size, scale_temperature
from bqnes_jax.runs import (
    RunConfig,
    Workbench,
    load_data,
    make_family,
    open_workbench,
    preset_config,
)
from bqnes_jax.runs.fields import replace_fields
from bqnes_jax.spaces.base import Architectures, Space
from bqnes_jax.studies.comparison import compare_live
from bqnes_jax.studies.rows import Row

_SHRUNK = {
    "image_size": 8,
    "split": [6000, 1200, 1200],
    "train": {
        "network": {"channels": [16, 16, 24, 24, 32, 32, 48], "stem": 16, "head": 128},
        "steps": 10_000,
        "learning_rate": 0.2,
        "weight_decay": 1e-4,
        "augment": {"flip": True, "padding": 0},
        "recalibration_batches": 8,
    },
}
TASKS: dict[str, RunConfig] = {
    "digits": replace_fields(preset_config("tiny", "slimmable"), {"split": [600, 500, 697]}),
    **{
        name: replace_fields(preset_config("tiny", "slimmable", data=name), _SHRUNK)
        for name in ("cifar10_subset", "cifar100_subset")
    },
}

SEARCH = SearchConfig(batch=2)  # 10 slices to begin with, 150 in all

_DRAWS, _DRAWS_KEY = 120, 1000  # uniform draws, for the gates; searches have the keys 0, 1, …

LIKE = {"cifar100_subset": "CIFAR-100"}  # whose numbers in the paper stand beside; else CIFAR-10's


@dataclass(frozen=True)
class Options:
    """Train, search, compare."""

    datasets: tuple[Literal["digits", "cifar10_subset", "cifar100_subset"], ...] = tuple(TASKS)
    """Which data sets; those of CIFAR are in BQNES_DATA_DIR."""
    algorithms: tuple[str, ...] = ("NES-RE", "BQ-R", "BQ-S", "BQ-L", "evolution+logpool")
    """Which algorithms; the paper's table has NES-RE and BQ-S. They share two strategies."""
    sizes: tuple[int, ...] = (3, 5, 10)
    """Numbers of members."""
    seeds: int = 10
    """Searches of each algorithm, on one supernet."""
    stores: Path = Path("stores")
    """Where supernets and predictions are kept."""
    out: Path = RESULTS
    """Where to write the results, a file table5-live-<dataset>.json for each data set."""


def open_slices(name: str, stores: Path, *, seed: int = 0) -> Workbench:
    """Train the supernet, or read it, and open the store of its slices."""
    family, data = make_family(TASKS[name]), load_data(TASKS[name])
    folder = stores / (f"slimmable-{name}" + (f"-{seed}" if seed else ""))
    with progress_bar(f"supernet on {name}") as progress:
        return open_workbench(family, data, folder, seed=seed, progress=progress)


def open_twice(name: str, stores: Path) -> list[Workbench]:
    """Open the slices of two supernets, whose weights differ from the beginning."""
    return [open_slices(name, stores, seed=seed) for seed in (0, 1)]


def compare(name: str, options: Options, *, seed: int = 0) -> list[Row]:
    """Compare algorithms on the slices of one supernet, beside the whole of it."""
    bench = open_slices(name, options.stores, seed=seed)
    largest = jnp.asarray(bench.space.largest)[None]
    bench.evaluator()(largest)
    alone = bench.test_log_probs(largest)[0], jnp.asarray(bench.data.test.labels)
    metrics = [[metric(*alone, log=True)] for metric in (accuracy, ece, log_likelihood)]
    rows = compare_slices(bench, options.algorithms, options.sizes, options.seeds, SEARCH)
    return [Row("Largest network", 1, *np.array(metrics)), *rows]


def compare_slices(
    bench: Workbench,
    names: Sequence[str],
    sizes: Sequence[int],
    seeds: int,
    config: SearchConfig,
    *,
    calibrated: bool = False,
) -> list[Row]:
    """Compare algorithms on slices, which are evaluated where they are not stored."""
    searches = len({find(name).strategy for name in names})
    done, total = 0, searches * seeds * config.budget

    def count(more: int) -> None:
        nonlocal done
        done += more
        progress(min(done, total), total)

    with progress_bar(f"slices of {bench.data.name}") as progress:
        return compare_live(
            bench.space,
            bench.evaluator(count),
            bench.test_log_probs,
            jnp.asarray(bench.data.test.labels),
            names,
            sizes,
            seeds,
            config=config,
            calibrated=calibrated,
        )


def measure_gates(benches: Sequence[Workbench], config: SearchConfig) -> list[gates.Gate]:
    """Measure on uniform draws whether slices of two supernets can answer anything.

    Noise is how differently two supernets rank the same slices. What one of them is better at
    throughout no search sees, so that each one's mean is taken off first.
    """
    bench, other = benches
    archs = draw_archs(bench.space)
    values = draw(bench, archs)
    points = len(bench.data.train.labels), len(bench.data.valid.labels)
    texts = [bench.space.to_string(arch) for arch in np.asarray(archs)]
    train = bench.store.predictions(texts, bench.seed).train_log_likelihoods
    twice = np.stack([values, draw(other, archs)], axis=1)
    twice -= twice.mean(axis=0)
    temperature = scale_temperature(points[1], observations=config.observations)
    return [
        gates.Gate(
            "training loss / validation loss",
            float(train.mean() / points[0] / (values.mean() / points[1])),
            0.5,
        ),
        gates.Gate(
            "sd between supernets / sd between slices",
            gates.noise_of(twice),
            0.5,
        ),
        gates.Gate(
            "effective sample size / uniform draws",
            float(effective_size(values / temperature)) / _DRAWS,
            0.2,
        ),
        gates.Gate(
            "RMSE of the surrogate / of a constant",
            measure_misfit(bench, archs, values, temperature, config),
            1.0,
        ),
        gates.Gate("candidates / slices", config.budget / bench.space.count, 0.3),
    ]


def draw_archs(space: Space) -> Architectures:
    """Return the uniform draws that gates are measured on."""
    return space.sample(jax.random.key(_DRAWS_KEY), _DRAWS)


def draw(bench: Workbench, archs: Architectures) -> np.ndarray:
    """Return the validation log-likelihoods of slices, evaluated where they are not stored."""
    with progress_bar("uniform draws") as progress:
        evaluate = bench.evaluator(lambda count: progress(count, len(archs)))
        return np.asarray(evaluate(archs).log_likelihoods, float)


def measure_misfit(
    bench: Workbench,
    archs: Architectures,
    values: np.ndarray,
    temperature: float,
    config: SearchConfig,
) -> float:
    """Return the surrogate's misfit at the last third of some draws, from the others."""
    landscape = Drawn(bench.space, make_kernel(bench.space), config)
    rows, known = landscape.rows(archs), len(archs) * 2 // 3
    targets = jnp.asarray(values)
    given, others = (rows[:known], targets[:known]), (rows[known:], targets[known:])
    everywhere = jnp.ones(len(archs) - known, bool)
    found = gates.misfit_of(landscape.kernel, given, others, everywhere, temperature, config)
    return float(found)


def what_was_scaled_down(name: str) -> str:
    task = TASKS[name]
    train, valid, test = task.split
    network, steps, batch = task.train.network, task.train.steps, task.train.batch
    return (
        f"{name}: 8×8 pixels instead of 32×32; {train} images to train on, {valid} to validate, "
        f"{test} to test; {network.channels} channels with expansion {network.expansion} instead "
        f"of {MobileNetConfig().channels} with {MobileNetConfig().expansion}; {steps} steps of "
        f"{batch} images; two slices are asked for at a time."
    )


def setting_of(name: str, options: Options) -> dict:
    """Describe all that results depend on."""
    return {
        "seeds": options.seeds,
        "algorithms": list(options.algorithms),
        "sizes": list(options.sizes),
        "scaled down": what_was_scaled_down(name),
    }


def main(options: Options) -> None:
    for name in options.datasets:
        results = from_rows(compare(name, options))
        title = f"{name}: {options.seeds} searches on one supernet"
        show_beside(title, "table5", LIKE.get(name, "CIFAR-10"), results)
        console.print(what_was_scaled_down(name))
        keep(options.out / f"table5-live-{name}.json", setting_of(name, options), results)


if __name__ == "__main__":
    one_sentence(main, tyro.cli(Options, description=__doc__))
