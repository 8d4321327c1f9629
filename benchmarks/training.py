"""How fast cells are trained, beside a loop over plain PyTorch networks, and how that compiles.

Random cells of NATS-Bench are trained by the recipe of the benchmark on random images: by one
program here, and one after another with only their own operations in PyTorch, where it is
installed. Both are timed in the same run, PyTorch with the better number of threads. Ours evaluates
every network as well. Compiling is reported apart, with one cell in a stage and with five, and as
the share of it that a step has in a table of 200 networks of 150 steps.

    python benchmarks/training.py
"""

from dataclasses import dataclass, replace
from pathlib import Path

import jax
import numpy as np
import peers
import tyro
from shared import RESULTS, show, timed, write

from bqnes_jax.data import NO_AUGMENTATION, Examples, Split
from bqnes_jax.models import NATSNetworkConfig
from bqnes_jax.spaces import NATS
from bqnes_jax.training import TrainConfig, train_population

STEPS_OF_A_TABLE = 200 * 150


@dataclass(frozen=True)
class Options:
    """Train the same architectures in both."""

    archs: int = 16
    """How many architectures."""
    steps: int = 100
    """How many steps each."""
    batch: int = 64
    """Images in a step."""
    channels: int = 8
    """Channels of the first stage."""
    sides: tuple[int, ...] = (8, 16)
    """Sizes of the images."""
    cells: tuple[int, ...] = (1, 5)
    """Cells in a stage, for compiling; networks have the first number."""
    repeats: int = 3
    """How often each is timed; the fastest counts."""
    out: Path = RESULTS / "training.json"
    """Where to write the results."""


def draw_images(side: int) -> Split:
    draw = np.random.default_rng(0)

    def part(count: int) -> Examples:
        pixels = draw.integers(0, 256, (count, side, side, 3), np.uint8)
        return Examples(pixels, draw.integers(0, 10, count, np.int32))

    return Split(part(640), part(64), part(64), classes=10)


def fastest(function, repeats: int) -> float:
    return min(timed(function)[1] for _ in range(repeats))


def ours(options: Options, archs, data: Split) -> dict:
    """Return milliseconds of a step of one network, and seconds of compiling by number of cells."""
    network = NATSNetworkConfig(options.channels, options.cells[0], classes=10)
    config = TrainConfig(network, steps=options.steps, batch=options.batch, augment=NO_AUGMENTATION)

    def train(config, archs):
        return lambda: train_population(jax.random.key(0), archs, data, config)

    compiling = {}
    for cells in options.cells:
        short = replace(config, network=replace(network, cells=cells), steps=1)
        first = timed(train(short, archs[:2]))[1]
        compiling[cells] = first - timed(train(short, archs[:2]))[1]
    train(config, archs[:2])()
    seconds = fastest(train(config, archs), options.repeats)
    return {"step": 1e3 * seconds / options.steps / len(archs), "compiling": compiling}


def theirs(options: Options, archs, data: Split) -> dict | None:
    """Return the same of PyTorch, without evaluation."""
    try:
        import torch
    except ImportError:
        return None
    train = peers.torch_training(
        archs, data, options.steps, options.batch, options.channels, options.cells[0]
    )
    times = {}
    for threads in sorted({1, torch.get_num_threads()}):
        torch.set_num_threads(threads)
        times[threads] = 1e3 * fastest(train, options.repeats) / options.steps / len(archs)
    threads = min(times, key=times.__getitem__)
    return {"step": times[threads], "threads": threads, "version": torch.__version__}


def main(options: Options) -> None:
    archs = np.asarray(NATS.sample(jax.random.key(1), options.archs))
    result, rows = {"options": vars(options) | {"out": ""}}, []
    for side in options.sides:
        data = draw_images(side)
        here, there = ours(options, archs, data), theirs(options, archs, data)
        result[f"{side}×{side}"] = {"ours": here, "pytorch": there}
        share = 1e3 * here["compiling"][options.cells[0]] / STEPS_OF_A_TABLE
        rows.append(
            [
                f"{side}×{side}",
                f"{here['step']:.1f} + {share:.1f} ms",
                "–" if there is None else f"{there['step']:.1f} ms",
                "–" if there is None else f"{there['step'] / (here['step'] + share):.2f}",
                *(f"{seconds:.1f} s" for seconds in here["compiling"].values()),
            ]
        )
    columns = ["images", "a step + its share of compiling", "PyTorch", "PyTorch / ours"]
    show("training", [*columns, *(f"compiling, {n} cells" for n in options.cells)], rows)
    write(options.out, result)


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
