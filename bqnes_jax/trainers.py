"""What turns architectures into predictions, for each kind of network, as a store keeps them."""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Float

from bqnes_jax.config import TaskConfig, supernet_config, train_config
from bqnes_jax.data import Dataset, Split, check_images, fingerprint
from bqnes_jax.errors import BQNESError
from bqnes_jax.spaces import NATS
from bqnes_jax.spaces.base import Space
from bqnes_jax.store import Entry, Manifest
from bqnes_jax.training import (
    SupernetConfig,
    TrainConfig,
    chunk_size,
    count_steps,
    make_supernet,
    train_population,
    train_supernet,
    weight_count,
)

_SLICES = 4  # evaluated at once

# What changes how fast a network is trained, but not what it becomes.
_ONLY_SPEED = ("seeds", "keep_weights", "chunk", "memory", "save_every")


class Trainer(NamedTuple):
    """How architectures of a space become predictions.

    Attributes:
        space: of the architectures.
        manifest: of the store that predictions belong into.
        valid_labels: the classes of the validation points.
        chunk: how many architectures are trained at once; it is always called with so many.
        train: a function (architectures, seed) -> entries.
        shared: weights that all networks have in common, as one vector; None where there are none.
    """

    space: Space
    manifest: Manifest
    valid_labels: np.ndarray
    chunk: int
    train: Callable[[np.ndarray, int], list[Entry]]
    shared: Float[np.ndarray, " w"] | None = None


def check_task(task: TaskConfig, dataset: Dataset, data: Split) -> None:
    """Refuse what cannot be trained, before anything is written."""
    if task.space == "slimmable":
        config = supernet_config(task, dataset.classes)
    else:
        config = train_config(task, dataset.classes)
    check_images(data, dataset.classes)
    count_steps(config, len(data.train.labels))


def make_trainer(
    task: TaskConfig,
    dataset: Dataset,
    data: Split,
    supernet_directory: Path,
    dtype: str = "float16",
    keep_weights: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Trainer:
    """Make the trainer of a task; a supernet is trained first, or read from its directory."""
    if task.space == "slimmable":
        supernet = supernet_config(task, dataset.classes)
        params = _trained_supernet(task.seed, data, supernet, supernet_directory, progress)
        return slice_trainer(task.dataset, data, supernet, params, dtype)
    config = dataclasses.replace(train_config(task, dataset.classes), keep_weights=keep_weights)
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


def _trained_supernet(
    seed: int, data: Split, config: SupernetConfig, directory: Path, progress
) -> dict:
    total, _ = count_steps(config, len(data.train.labels))

    def report(step: int, loss: float) -> None:
        if progress is not None:
            progress(step, total)

    state = train_supernet(jax.random.key(seed), data, config, directory, report)
    if not bool(state.healthy):
        raise BQNESError(
            f"the supernet's loss is not finite at step {int(state.step)}; lower "
            f"supernet.learning_rate (it is {config.learning_rate}) and remove {directory}."
        )
    return state.params


def slice_trainer(
    dataset: str, data: Split, config: SupernetConfig, params: dict, dtype: str = "float16"
) -> Trainer:
    """Evaluate slices of a trained supernet; what is kept of each is its batch-norm statistics."""
    space, evaluate = config.network.space, jax.jit(make_supernet(config).evaluate)
    on_device = jax.device_put(data)
    one = jnp.asarray(space.largest)[None]
    statistics = jax.eval_shape(make_supernet(config).evaluate, params, one, on_device).batch_stats
    manifest = manifest_of(space.name, dataset, data, config, dtype, statistics.shape[1])

    def train(archs: np.ndarray, seed: int) -> list[Entry]:
        started = perf_counter()
        slices = jax.device_get(evaluate(params, jnp.asarray(archs), on_device))
        seconds = (perf_counter() - started) / len(archs)
        return [
            Entry(
                space.to_string(arch),
                seed,
                "failed" if slices.failed[i] else "ok",
                slices.valid_log_probs[i],
                slices.test_log_probs[i],
                valid_loss=float(slices.valid_loss[i]),
                test_loss=mean_loss(slices.test_log_probs[i], data.test.labels),
                seconds=seconds,
                weights=slices.batch_stats[i],
            )
            for i, arch in enumerate(archs)
        ]

    shared = np.asarray(ravel_pytree(params)[0], np.float32)
    labels = np.asarray(data.valid.labels)
    return Trainer(space, manifest, labels, _SLICES, train, shared)


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
