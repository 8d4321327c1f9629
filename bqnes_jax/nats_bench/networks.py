"""Published networks at work: from PyTorch's weights to entries of a store."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Int

from bqnes_jax.data import Dataset, Split
from bqnes_jax.errors import BQNESError
from bqnes_jax.families.cells import CellFamily, predict_cells
from bqnes_jax.models import NATSNetworkConfig
from bqnes_jax.models.torch_weights import convert_published
from bqnes_jax.nats_bench.archive import DATASETS, Training
from bqnes_jax.spaces import NATS
from bqnes_jax.storage import FAILED, OK, Entry, Manifest
from bqnes_jax.storage.entries import manifest_of, mean_loss
from bqnes_jax.training import TrainConfig

_TOLERANCE = 0.02  # of a mean loss; a wrong image, channel or weight shows in tenths


class Task(NamedTuple):
    """What networks predict.

    Attributes:
        dataset: its name here.
        data: its images, as they are split.
        network: the macro-skeleton.
    """

    dataset: str
    data: Split
    network: NATSNetworkConfig


def make_task(dataset: Dataset, data: Split, network: NATSNetworkConfig) -> Task:
    """Refuse images that published losses are not of, before anything is read."""
    cut_from_test = DATASETS[dataset.name].test == "x-test"
    train, valid, test = (len(part.labels) for part in data.parts.values())
    used = (train, valid + test) if cut_from_test else (train + valid, test)
    whole = (len(dataset.train.labels), len(dataset.test.labels))
    if used != whole:
        raise BQNESError(
            f"the split uses {used[0]:,} of {whole[0]:,} training and {used[1]:,} of {whole[1]:,} "
            "test images, and the benchmark all of them; use its own split file."
        )
    return Task(dataset.name, data, network)


def store_manifest(task: Task) -> Manifest:
    """Describe the store of published networks.

    It is that of networks which are trained here by the benchmark's recipe, the default one, on the
    same images: what was imported counts as trained.
    """
    return manifest_of(CellFamily(TrainConfig(task.network)), task.data)


class Network(NamedTuple):
    """A published network: its architecture, its weights as they were published, its scores."""

    arch: Int[np.ndarray, "6"]
    weights: Mapping[str, np.ndarray]
    training: Training


def predict_published(task: Task, networks: Sequence[Network], seed: int) -> list[Entry]:
    """Return the entries of M published networks, as many at a time as there are.

    One whose mean loss is not what was published of it is marked as failed, so that none uses it.
    """
    published, valid, test = DATASETS[task.dataset], task.data.valid, task.data.test
    archs = np.stack([network.arch for network in networks])
    vectors = np.stack(
        [
            ravel_pytree(convert_published(network.weights, network.arch, task.network))[0]
            for network in networks
        ]
    )
    moments = jnp.asarray([published.mean, published.deviation], jnp.float32) / 255
    images = np.concatenate([valid.inputs, test.inputs])
    log_probs = jax.device_get(
        predict_cells(task.network, vectors, jnp.asarray(archs), images, moments)
    )
    entries = []
    for (arch, _, training), said in zip(networks, log_probs, strict=True):
        text = NATS.to_string(arch)
        valid_log_probs, test_log_probs = np.split(said, [len(valid.labels)])
        losses = mean_loss(valid_log_probs, valid.labels), mean_loss(test_log_probs, test.labels)
        if _as_published(task, training, *losses):
            entry = Entry(
                text, seed, OK, valid_log_probs, test_log_probs, training.train_loss, *losses
            )
        else:
            entry = Entry(text, seed, FAILED, valid_loss=losses[0], test_loss=losses[1])
        entries.append(entry)
    return entries


def _as_published(task: Task, training: Training, valid_loss: float, test_loss: float) -> bool:
    """Compare the loss on validation and test images together, which no split changes."""
    published, data = DATASETS[task.dataset], task.data
    counts = (published.valid_points, published.test_points)
    expected = np.average([training.valid_loss, training.test_loss], weights=counts)
    counts = (len(data.valid.labels), len(data.test.labels))
    found = np.average([valid_loss, test_loss], weights=counts)
    return bool(abs(found - expected) <= _TOLERANCE * max(1, expected))
