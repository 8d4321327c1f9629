"""What turns architectures into predictions, for each kind of network, as a store keeps them."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh
from jaxtyping import Float

from bqnes_jax.config import TaskConfig, supernet_config, train_config
from bqnes_jax.data import Dataset, Split, check_images, fingerprint
from bqnes_jax.devices import (
    agree,
    chunk_of,
    in_chunks,
    is_first,
    mesh_for,
    place,
    spread,
)
from bqnes_jax.errors import BQNESError
from bqnes_jax.spaces import NATS
from bqnes_jax.spaces.base import Space
from bqnes_jax.store import Entry, Manifest
from bqnes_jax.training import (
    SupernetConfig,
    TrainConfig,
    count_steps,
    make_supernet,
    population_trainer,
    train_supernet,
    weight_count,
)

_SLICES = 16  # evaluated at once by an accelerator; a CPU is as fast one by one

# What changes how fast a network is trained, but not what it becomes.
_ONLY_SPEED = ("seeds", "keep_weights", "chunk", "memory", "save_every")


class Trainer(NamedTuple):
    """How architectures of a space become predictions.

    Attributes:
        space: of the architectures.
        manifest: of the store that predictions belong into.
        valid_labels: the classes of the validation points.
        train: a function (architectures, seed) that yields entries, in the same order, as they are
            done.
        shared: weights that all networks have in common, as one vector; None where there are none.
    """

    space: Space
    manifest: Manifest
    valid_labels: np.ndarray
    train: Callable[[np.ndarray, int], Iterator[list[Entry]]]
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
    asked: int | None = None,
    mesh: Mesh | None = None,
) -> Trainer:
    """Make the trainer of a task; a supernet is trained first, or read from its directory.

    `asked` is how many architectures will be asked for at a time, `mesh` the devices that they are
    divided among: by default all.
    """
    if task.space == "slimmable":
        supernet = supernet_config(task, dataset.classes)
        params = _trained_supernet(task.seed, data, supernet, supernet_directory, progress)
        return slice_trainer(task.dataset, data, supernet, params, dtype, asked, mesh)
    config = dataclasses.replace(train_config(task, dataset.classes), keep_weights=keep_weights)
    return cell_trainer(task.dataset, data, config, dtype, asked, mesh)


def cell_trainer(
    dataset: str,
    data: Split,
    config: TrainConfig,
    dtype: str = "float16",
    asked: int | None = None,
    mesh: Mesh | None = None,
) -> Trainer:
    """Train cells of NATS-Bench, each on its own."""
    shape = data.train.images.shape[1:]
    config = dataclasses.replace(config, seeds=1)
    weights = weight_count(config.network, shape) if config.keep_weights else 0
    manifest = manifest_of(NATS.name, dataset, data, config, dtype, weights)
    train_population = population_trainer(data, config, mesh, asked)

    def train(archs: np.ndarray, seed: int) -> Iterator[list[Entry]]:
        done = 0
        for trained, seconds in train_population(jax.random.key(seed), archs):
            count = len(trained.failed)
            yield [
                Entry(
                    NATS.to_string(archs[done + i]),
                    seed,
                    "failed" if trained.failed[i] else "ok",
                    trained.valid_log_probs[i],
                    trained.test_log_probs[i],
                    float(trained.train_losses[i, -1]),
                    float(trained.valid_loss[i]),
                    mean_loss(trained.test_log_probs[i], data.test.labels),
                    seconds / count,
                    trained.weights[i] if config.keep_weights else None,
                )
                for i in range(count)
            ]
            done += count

    return Trainer(NATS, manifest, np.asarray(data.valid.labels), train)


def _trained_supernet(
    seed: int, data: Split, config: SupernetConfig, directory: Path, progress
) -> dict:
    """Train on the first host; the others wait and are given the parameters."""
    total, _ = count_steps(config, len(data.train.labels))

    def report(step: int, loss: float) -> None:
        if progress is not None:
            progress(step, total)

    key = jax.random.key(seed)
    if not is_first():
        shapes = jax.eval_shape(make_supernet(config).init, key, data).params
        return agree(jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes))
    state = train_supernet(key, data, config, directory, report)
    if not bool(state.healthy):
        raise BQNESError(
            f"the supernet's loss is not finite at step {int(state.step)}; lower "
            f"supernet.learning_rate (it is {config.learning_rate}) and remove {directory}."
        )
    return agree(state.params)


def slice_trainer(
    dataset: str,
    data: Split,
    config: SupernetConfig,
    params: dict,
    dtype: str = "float16",
    asked: int | None = None,
    mesh: Mesh | None = None,
) -> Trainer:
    """Evaluate slices of a trained supernet; what is kept of each is its batch-norm statistics."""
    space, evaluate = config.network.space, make_supernet(config).evaluate
    mesh = mesh_for(asked, mesh)
    one = jnp.asarray(space.largest)[None]
    statistics = jax.eval_shape(evaluate, params, one, data).batch_stats
    manifest = manifest_of(space.name, dataset, data, config, dtype, statistics.shape[1])
    program = spread(lambda archs, params, data: evaluate(params, archs, data), mesh)
    chunk = chunk_of(1 if jax.default_backend() == "cpu" else _SLICES, asked, mesh)
    shared = place((params, data), mesh)

    def train(archs: np.ndarray, seed: int) -> Iterator[list[Entry]]:
        done, started = 0, perf_counter()
        for slices in in_chunks(program, mesh, chunk, (archs,), *shared):
            count = len(slices.failed)
            seconds = (perf_counter() - started) / count
            yield [
                Entry(
                    space.to_string(archs[done + i]),
                    seed,
                    "failed" if slices.failed[i] else "ok",
                    slices.valid_log_probs[i],
                    slices.test_log_probs[i],
                    valid_loss=float(slices.valid_loss[i]),
                    test_loss=mean_loss(slices.test_log_probs[i], data.test.labels),
                    seconds=seconds,
                    weights=slices.batch_stats[i],
                )
                for i in range(count)
            ]
            done, started = done + count, perf_counter()

    vector = np.asarray(ravel_pytree(params)[0], np.float32)
    return Trainer(space, manifest, np.asarray(data.valid.labels), train, vector)


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
