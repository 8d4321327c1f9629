"""How fast a population of architectures is trained, beside a loop over plain PyTorch networks.

Random cells of NATS-Bench are trained on 8×8 digits by the recipe of the benchmark, all of them in
one program here, and one after another with only their own operations in PyTorch, where it is
installed. Both are timed in the same run; compilation is reported apart.

    python benchmarks/training.py --archs 8 --steps 50
"""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import jax
import numpy as np
import peers
import tyro
from shared import RESULTS, console, show, timed, write

from bqnes_jax.data import NO_AUGMENTATION, Split, load, split
from bqnes_jax.models import NATSNetworkConfig
from bqnes_jax.parallel import make_mesh
from bqnes_jax.spaces import NATS
from bqnes_jax.training import TrainConfig, choose_chunk, train_population


@dataclass(frozen=True)
class Options:
    """Train the same architectures in both."""

    archs: int = 8
    """How many architectures."""
    seeds: int = 1
    """How often each is trained."""
    steps: int = 50
    """How many steps each."""
    batch: int = 64
    """Images in a step."""
    channels: int = 4
    """Channels of the first stage."""
    cells: int = 1
    """Cells in each stage."""
    chunk: int | None = None
    """Members trained at once; by default what the library chooses."""
    bfloat16: bool = False
    """Compute in bfloat16 (here only)."""
    torch: bool = True
    """Compare with PyTorch where it can be imported."""
    layouts: bool = False
    """Compare how a convolution is computed, and how many networks are trained at once."""
    out: Path = RESULTS / "training.json"
    """Where to write the results."""


def digits() -> Split:
    return split(load("digits"), sizes=(300, 700, 797))


def ours(options: Options, archs, data: Split, layout: str = "auto") -> dict:
    network = NATSNetworkConfig(
        options.channels, options.cells, classes=10, layout=layout, bfloat16=options.bfloat16
    )
    config = TrainConfig(
        network,
        seeds=options.seeds,
        steps=options.steps,
        batch=options.batch,
        augment=NO_AUGMENTATION,
        chunk=options.chunk,
    )
    start = perf_counter()
    first = train_population(jax.random.key(0), archs, data, config)
    with_compilation = perf_counter() - start
    second = train_population(jax.random.key(1), archs, data, config)
    running = float(second.seconds.sum())
    right = first.trained.test_log_probs.argmax(-1) == data.test.labels
    return {
        "seconds": running,
        "compiling": with_compilation - running,
        "chunk": choose_chunk(config, data, make_mesh(), asked=len(archs) * options.seeds).each,
        "accuracy": float(right.mean()),
        "failed": int(first.trained.failed.sum()),
    }


def theirs(options: Options, archs, data: Split) -> dict | None:
    """Train one after another in PyTorch; the time includes no evaluation."""
    try:
        import torch
    except ImportError:
        return None
    members = np.repeat(archs, options.seeds, axis=0)
    train = peers.torch_training(
        members, data, options.steps, options.batch, options.channels, options.cells
    )
    return {"seconds": timed(train)[1], "version": torch.__version__}


def compare_layouts(options: Options, archs, data: Split) -> dict:
    """Train with each layout, one network after another (1) and several at once by `vmap`."""
    results = {}
    for layout in ("patches", "convolution"):
        for chunk in (1, 2, 4, 8):
            chosen = dataclasses.replace(options, chunk=chunk)
            results[f"{layout}, {chunk} at once"] = ours(chosen, archs, data, layout)
    return results


def main(options: Options) -> None:
    archs, data = np.asarray(NATS.sample(jax.random.key(1), options.archs)), digits()
    work = options.archs * options.seeds * options.steps
    result = {"options": vars(options) | {"out": ""}, "architecture-steps": work}
    result["ours"] = ours(options, archs, data)
    if options.torch:
        result["pytorch"] = theirs(options, archs, data)
    rows = []
    for name in ("ours", "pytorch"):
        if result.get(name):
            seconds = result[name]["seconds"]
            compiling = result[name].get("compiling")
            rows.append(
                [
                    name,
                    f"{work / seconds:.0f}",
                    f"{seconds / options.archs / options.seeds:.2f} s",
                    "–" if compiling is None else f"{compiling:.1f} s",
                ]
            )
    columns = ["", "architecture-steps per second", "per member", "compiling"]
    show(f"{options.archs} architectures × {options.seeds} seeds", columns, rows)
    if options.torch and result["pytorch"] is None:
        console.print("PyTorch cannot be imported: nothing to compare with")
    if options.layouts:
        result["layouts"] = compare_layouts(options, archs, data)
        rows = [
            [name, f"{work / one['seconds']:.0f}", f"{one['compiling']:.1f} s"]
            for name, one in result["layouts"].items()
        ]
        show("layouts", ["", "architecture-steps per second", "compiling"], rows)
    write(options.out, result)


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
