"""Trained networks at work: from images as they come to log-probabilities, in one program."""

import functools
import warnings
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh
from jax.typing import ArrayLike
from jaxtyping import Float, Int32

from bqnes_jax.data import downsample, normalise
from bqnes_jax.devices import spread
from bqnes_jax.errors import BQNESError
from bqnes_jax.models import NATSNetwork, NATSNetworkConfig
from bqnes_jax.training import (
    SupernetConfig,
    in_batches,
    predict_slices,
    unravel_params,
    unravel_weights,
)

_BATCH = 256  # images predicted at a time


def predict_cells(
    config: NATSNetworkConfig,
    weights: Float[ArrayLike, "M w"],
    archs: Int32[ArrayLike, "M length"],
    images: ArrayLike,
    moments: Float[ArrayLike, "2 channels"],
    mesh: Mesh | None = None,
) -> Float[np.ndarray, "M n classes"]:
    """Return what M cells of NATS-Bench say, from their weights as vectors.

    Images are divided among the devices of a mesh; by default all.
    """
    return np.moveaxis(_cells(config, mesh)(images, weights, archs, moments), 1, 0)


def predict_slices_of(
    config: SupernetConfig,
    shared: Float[ArrayLike, " w"],
    statistics: Float[ArrayLike, "M s"],
    archs: Int32[ArrayLike, "M length"],
    images: ArrayLike,
    moments: Float[ArrayLike, "2 channels"],
    mesh: Mesh | None = None,
) -> Float[np.ndarray, "M n classes"]:
    """Return what M slices of one supernet say, from its weights and their statistics.

    Images are divided among the devices of a mesh; by default all.
    """
    predict = _slices(config, mesh)
    return np.moveaxis(predict(images, shared, statistics, archs, moments), 1, 0)


@functools.cache
def _cells(config: NATSNetworkConfig, mesh: Mesh | None):
    network = NATSNetwork(config)

    def predict(images, weights, archs, moments):
        variables = unravel_weights(weights, config, images.shape[1:])

        def of_batch(batch):
            normalised = normalise(batch, *moments)
            logits = _of_each(lambda own: network.apply(*own, normalised), (variables, archs))
            return jnp.moveaxis(jax.nn.log_softmax(logits), 0, 1)

        return in_batches(of_batch, images, _BATCH)

    return spread(predict, mesh)


@functools.cache
def _slices(config: SupernetConfig, mesh: Mesh | None):
    def predict(images, shared, statistics, archs, moments):
        params = unravel_params(shared, config.network, images.shape[1:])
        said = predict_slices(config, params, statistics, archs, images, tuple(moments))
        return jnp.moveaxis(said, 0, 1)

    return spread(predict, mesh)


def _of_each(function: Callable, members: tuple):
    """Apply a function to each member: on CPUs in turn, so that what it works on stays in cache."""
    in_turn = jax.default_backend() == "cpu"
    return lax.map(function, members) if in_turn else jax.vmap(function)(members)


def as_images(
    images: ArrayLike, shape: np.ndarray, size: int | None, brightness: float
) -> np.ndarray:
    """Check images, from 0 to 255, and shrink those that are larger to the size of a run."""
    height, width, channels = map(int, shape)
    images = np.asarray(images)
    if images.ndim == 3 and channels == 1:
        images = images[..., None]
    given = images.shape
    larger = images.ndim == 4 and size is not None and min(given[1:3]) > size
    same = images.ndim == 4 and given[1:] == (height, width, channels)
    if not images.size or not (same or (larger and given[3] == channels)):
        raise BQNESError(
            f"images have shape {given}; it must be (n, {height}, {width}, {channels})."
        )
    if images.dtype.kind not in "buif" or not np.isfinite(images).all():
        raise BQNESError("images hold what is not a real number; they must be from 0 to 255.")
    low, high = float(images.min()), float(images.max())
    if low < 0 or high > 255:
        raise BQNESError(
            f"images are from {low:g} to {high:g}; they must be from 0 to 255, as the networks saw "
            "them."
        )
    if high < 255 * brightness:
        warnings.warn(
            f"images are at most {high:g}, darker than the training images are on average "
            f"({255 * brightness:.0f}); were they scaled to 0 … 255?",
            stacklevel=3,
        )
    if larger:
        images = downsample(np.rint(images).astype(np.uint8), size)
    return images if images.dtype == np.uint8 else images.astype(np.float32)
