"""How fast slices of one supernet are evaluated, by how many are evaluated at once.

A small supernet is trained on 8×8 digits for a few steps; then random slices of it get batch-norm
statistics of their own and predict the validation and test images. Compilation is reported apart.
With `--steps 800` the supernet is trained to the end, and the accuracies mean something.

    python benchmarks/slices.py --chunks 1 4 16
"""

from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from shared import RESULTS, console, show, timed, write

from bqnes_jax.data import NO_AUGMENTATION, Split, load, split
from bqnes_jax.models import MobileNetConfig
from bqnes_jax.spaces import SLIMMABLE
from bqnes_jax.training import SupernetConfig, make_supernet


@dataclass(frozen=True)
class Options:
    """Train a supernet, evaluate slices."""

    steps: int = 20
    """Steps that the supernet is trained for."""
    batch: int = 64
    """Images in a step, and at once in evaluation."""
    channels: tuple[int, ...] = (8, 8, 12, 12, 16, 16, 24)
    """Channels of the seven blocks."""
    expansion: int = 2
    """How many times more channels a layer has inside."""
    learning_rate: float = 0.1
    """At the start."""
    recalibration: int = 4
    """Training batches for the statistics of a slice."""
    slices: int = 64
    """How many slices are evaluated."""
    chunks: tuple[int, ...] = (1, 4, 16, 64)
    """How many at once."""
    out: Path = RESULTS / "slices.json"
    """Where to write the results."""


def make_config(options: Options) -> SupernetConfig:
    network = MobileNetConfig(
        channels=options.channels,
        strides=(1, 2, 1, 2, 1, 1, 1),  # 8×8 pixels are 2×2 in the end
        expansion=options.expansion,
        stem=8,
        head=64,
    )
    return SupernetConfig(
        network,
        steps=options.steps,
        batch=options.batch,
        learning_rate=options.learning_rate,
        augment=NO_AUGMENTATION,
        recalibration_batches=options.recalibration,
    )


def compiled(function, *arguments):
    start = perf_counter()
    program = function.lower(*arguments).compile()
    return program, perf_counter() - start


def accuracies(log_probs, labels) -> np.ndarray:
    return np.asarray((log_probs.argmax(-1) == labels).mean(1))


def evaluate(supernet, params, archs, data: Split, chunk: int) -> tuple[dict, np.ndarray]:
    """Evaluate all, a chunk at a time; the first is not timed."""
    program, compiling = compiled(jax.jit(supernet.evaluate), params, archs[:chunk], data)
    jax.block_until_ready(program(params, archs[:chunk], data))
    seconds, right, failed = 0.0, [], 0
    for start in range(0, len(archs) - chunk + 1, chunk):
        slices, took = timed(program, params, archs[start : start + chunk], data)
        seconds += took
        right.append(accuracies(slices.test_log_probs, data.test.labels))
        failed += int(slices.failed.sum())
    right = np.concatenate(right)
    result = {
        "per second": len(right) / seconds,
        "compiling": compiling,
        "slices": len(right),
        "failed": failed,
    }
    return result, right


def main(options: Options) -> None:
    data = jax.device_put(split(load("digits"), sizes=(600, 500, 697)))
    config = make_config(options)
    supernet = make_supernet(config)
    state = jax.jit(supernet.init)(jax.random.key(0), data)
    train = jax.jit(supernet.train, static_argnums=3)
    train, compiling = compiled(train, jax.random.key(1), state, data, options.steps)
    (state, losses), seconds = timed(train, jax.random.key(1), state, data)
    console.print(
        f"supernet: {options.steps} steps in {seconds:.1f} s, {compiling:.1f} s of compiling; "
        f"loss {losses[0]:.2f} → {losses[-1]:.2f}"
    )
    drawn = SLIMMABLE.sample(jax.random.key(2), max(options.slices - 2, 0))
    archs = jnp.concatenate([SLIMMABLE.largest[None], SLIMMABLE.smallest[None], drawn])
    result = {
        "options": vars(options) | {"out": ""},
        "training": {"seconds": seconds, "compiling": compiling, "healthy": bool(state.healthy)},
        "chunks": {},
    }
    rows = []
    for chunk in (chunk for chunk in options.chunks if chunk <= len(archs)):
        one, right = evaluate(supernet, state.params, archs, data, chunk)
        result["chunks"][chunk] = one
        result["test accuracy"] = {
            "largest": right[0],
            "smallest": right[1] if len(right) > 1 else np.nan,
            "random": right[2:],
        }
        rows.append([str(chunk), f"{one['per second']:.1f}", f"{one['compiling']:.1f} s"])
    show("evaluating slices", ["at once", "slices per second", "compiling"], rows)
    console.print(
        f"test accuracy: largest {right[0]:.3f}, smallest {right[1]:.3f}, random "
        f"{right[2:].min():.3f} to {right[2:].max():.3f}"
    )
    write(options.out, result)


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
