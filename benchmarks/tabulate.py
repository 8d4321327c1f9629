"""Train a thousand networks, and put what they predict into one small table.

A thousand cells of NATS-Bench and more, each different to the WL kernel, the best of NAS-Bench-201
among them, are trained on 300 images of 8×8 digits; what they predict for 600 validation and 600
test images goes into a store, and from there, rounded, into one file (`tables.read`). Stop it
whenever you like: the same command goes on where it was.

    python benchmarks/tabulate.py
"""

from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np
import tyro
from rich.progress import track
from shared import console, show

from bqnes_jax.candidates.landscape import Listed
from bqnes_jax.data import load, split
from bqnes_jax.kernels import WL
from bqnes_jax.live import manifest_of, train_into
from bqnes_jax.models import NATSNetworkConfig
from bqnes_jax.spaces import NATS
from bqnes_jax.store import Store
from bqnes_jax.tables import nb201_proxy, pack
from bqnes_jax.training import TrainConfig

TRAIN = TrainConfig(
    NATSNetworkConfig(channels=4, cells=1, classes=10), steps=150, batch=64, augment=None
)


@dataclass(frozen=True)
class Options:
    """Train, store, and write the table."""

    count: int = 1024
    """How many architectures."""
    best: int = 64
    """How many of them are the best of NAS-Bench-201 on CIFAR-10."""
    store: Path = Path("digits-store")
    """Where predictions are kept."""
    out: Path = Path("digits.npz")
    """Where the table goes."""


def choose(count: int, best: int) -> np.ndarray:
    """Return numbers of architectures: the best, then uniform draws, no WL vector twice."""
    ranking = np.argsort(-np.asarray(nb201_proxy("cifar10").accuracies))
    draws = np.asarray(jax.random.permutation(jax.random.key(0), NATS.size))
    row_of = Listed(NATS, WL(NATS)).row_of
    chosen, seen = [], set()
    for limit, numbers in ((best, ranking), (count, draws)):
        for number in numbers:
            if len(chosen) < limit and row_of[number] not in seen:
                seen.add(row_of[number])
                chosen.append(int(number))
    return np.array(chosen)


def main(options: Options) -> None:
    data = split(load("digits"), sizes=(300, 600, 600))
    store = Store.open(options.store, manifest_of("digits", data, TRAIN, "float32"))
    numbers = choose(options.count, options.best)
    archs = np.asarray(NATS.from_index(numbers))
    chunks = [archs[i : i + 16] for i in range(0, len(archs), 16)]
    for chunk in track(chunks, "training", console=console):
        train_into(store, chunk, data, TRAIN)
    stored = store.load([NATS.to_string(arch) for arch in np.asarray(archs)], seed=0)
    pack(options.out, numbers, stored, data)
    accuracy = (stored.test_log_probs.argmax(-1) == data.test.labels).mean(axis=1)[stored.ok]
    show(
        "test accuracy",
        ["networks", "worst", "median", "best", "failed", "MB"],
        [
            [
                str(len(archs)),
                f"{accuracy.min():.3f}",
                f"{np.median(accuracy):.3f}",
                f"{accuracy.max():.3f}",
                str((~stored.ok).sum()),
                f"{options.out.stat().st_size / 1e6:.1f}",
            ]
        ],
    )


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
