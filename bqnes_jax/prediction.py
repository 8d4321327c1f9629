"""Trained networks at work: from images as they come to log-probabilities, in one program."""

import functools
import warnings

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int32

from bqnes_jax.data import downsample, normalise
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


@functools.partial(jax.jit, static_argnums=0)
def predict_cells(
    config: NATSNetworkConfig,
    weights: Float[Array, "M w"],
    archs: Int32[Array, "M length"],
    images: Array,
    moments: Float[Array, "2 channels"],
) -> Float[Array, "M n classes"]:
    """Return what M cells of NATS-Bench say, from their weights as vectors."""
    network = NATSNetwork(config)
    variables = unravel_weights(weights, config, images.shape[1:])

    def of_batch(batch):
        normalised = normalise(batch, *moments)
        logits = jax.vmap(network.apply, (0, 0, None))(variables, archs, normalised)
        return jnp.moveaxis(jax.nn.log_softmax(logits), 0, 1)

    return jnp.moveaxis(in_batches(of_batch, images, _BATCH), 1, 0)


@functools.partial(jax.jit, static_argnums=0)
def predict_slices_of(
    config: SupernetConfig,
    shared: Float[Array, " w"],
    statistics: Float[Array, "M s"],
    archs: Int32[Array, "M length"],
    images: Array,
    moments: Float[Array, "2 channels"],
) -> Float[Array, "M n classes"]:
    """Return what M slices of one supernet say, from its weights and their statistics."""
    params = unravel_params(shared, config.network, images.shape[1:])
    return predict_slices(config, params, statistics, archs, images, tuple(moments))


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
    if not len(images) or not (same or (larger and given[3] == channels)):
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
