"""What every training has in common: SGD with Nesterov momentum, and a cosine to a rate of 0."""

from typing import Protocol, runtime_checkable

import numpy as np
import optax

from bqnes_jax.errors import BQNESError, check_positive, check_whole


@runtime_checkable
class Recipe(Protocol):
    """The fields that a config of training has."""

    epochs: int
    steps: int | None
    batch: int
    learning_rate: float
    momentum: float
    weight_decay: float


def check_recipe(config: Recipe) -> None:
    """Refuse numbers that make no sense."""
    check_whole("epochs", config.epochs, 1)
    check_whole("batch", config.batch, 1)
    if config.steps is not None:
        check_whole("steps", config.steps, 1)
    check_positive("learning_rate", config.learning_rate)
    if not 0 <= config.momentum < 1:
        raise BQNESError(f"momentum is {config.momentum!r}; it must be from 0 to below 1.")
    if not 0 <= config.weight_decay < np.inf:
        raise BQNESError(
            f"weight_decay is {config.weight_decay!r}; it must be finite and at least 0."
        )


def count_steps(config: Recipe, images: int) -> tuple[int, int]:
    """Return how many steps there are in all, and in an epoch."""
    if config.batch > images:
        raise BQNESError(
            f"batch is {config.batch} but there are {images} training images; make it smaller."
        )
    per_epoch = images // config.batch
    return config.steps or config.epochs * per_epoch, per_epoch


def make_optimiser(config: Recipe, steps: int) -> optax.GradientTransformation:
    """Return the optimiser of a training of so many steps."""
    rate = optax.cosine_decay_schedule(config.learning_rate, steps)
    return optax.chain(
        optax.add_decayed_weights(config.weight_decay),
        optax.sgd(rate, config.momentum, nesterov=True),
    )
