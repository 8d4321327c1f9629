"""What turns architectures into predictions, for each kind of network, as a store keeps them."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax
import numpy as np

from bqnes_jax.config import TaskConfig, train_config
from bqnes_jax.data import Dataset, Split, fingerprint
from bqnes_jax.spaces import NATS
from bqnes_jax.spaces.base import Space
from bqnes_jax.store import Entry, Manifest
from bqnes_jax.training import TrainConfig, chunk_size, train_population, weight_count

# What changes how fast a network is trained, but not what it becomes.
_ONLY_SPEED = ("seeds", "keep_weights", "chunk", "memory")


class Trainer(NamedTuple):
    """How architectures of a space become predictions.

    Attributes:
        space: of the architectures.
        manifest: of the store that predictions belong into.
        valid_labels: the classes of the validation points.
        chunk: how many architectures are trained at once; it is always called with so many.
        train: a function (architectures, seed) -> entries.
    """

    space: Space
    manifest: Manifest
    valid_labels: np.ndarray
    chunk: int
    train: Callable[[np.ndarray, int], list[Entry]]


def make_trainer(
    task: TaskConfig,
    dataset: Dataset,
    data: Split,
    dtype: str = "float16",
    keep_weights: bool = False,
) -> Trainer:
    """Make the trainer of a task."""
    config = dataclasses.replace(train_config(task, dataset), keep_weights=keep_weights)
    return cell_trainer(task.dataset, data, config, dtype)


def cell_trainer(dataset: str, data: Split, config: TrainConfig, dtype: str = "float16") -> Trainer:
    """Train cells of NATS-Bench, each on its own."""
    shape = data.train.images.shape[1:]
    config = dataclasses.replace(config, seeds=1)
    weights = weight_count(config.network, shape) if config.keep_weights else 0
    manifest = manifest_of(NATS.name, dataset, data, config, dtype, weights)

    def train(archs: np.ndarray, seed: int) -> list[Entry]:
        population = train_population(jax.random.key(seed), archs, data, config)
        trained = jax.tree.map(lambda leaf: np.asarray(leaf)[:, 0], population.trained)
        seconds = float(population.seconds.sum()) / len(archs)
        return [
            Entry(
                NATS.to_string(arch),
                seed,
                "failed" if trained.failed[i] else "ok",
                trained.valid_log_probs[i],
                trained.test_log_probs[i],
                float(trained.train_losses[i, -1]),
                float(trained.valid_loss[i]),
                mean_loss(trained.test_log_probs[i], data.test.labels),
                seconds,
                trained.weights[i] if config.keep_weights else None,
            )
            for i, arch in enumerate(archs)
        ]

    chunk = chunk_size(config, data, NATS.size)
    return Trainer(NATS, manifest, np.asarray(data.valid.labels), chunk, train)


def manifest_of(
    space: str, dataset: str, data: Split, config: object, dtype: str, weights: int
) -> Manifest:
    """Describe the store of networks that are trained on these images in this way."""
    recipe = config if isinstance(config, Mapping) else dataclasses.asdict(config)
    recipe = {name: value for name, value in recipe.items() if name not in _ONLY_SPEED}
    recipe["train_points"] = len(data.train.labels)
    recipe["images"] = fingerprint(data)
    return Manifest(
        space,
        dataset,
        recipe,
        len(data.valid.labels),
        len(data.test.labels),
        config.network.classes,
        dtype,
        weights,
    )


def mean_loss(log_probs: np.ndarray, labels: np.ndarray) -> float:
    """Return the mean negative log-likelihood of the labels."""
    return float(-np.mean(log_probs[np.arange(len(log_probs)), np.asarray(labels)]))
