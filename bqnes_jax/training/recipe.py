"""What every training has in common: batches, steps, and a cosine to a learning rate of 0."""

import dataclasses
from collections.abc import Callable
from typing import Protocol, runtime_checkable

import jax
import numpy as np
import optax
from jax import lax
from jaxtyping import Array, Int

from bqnes_jax.errors import BQNESError, check_choice, check_positive, check_whole
from bqnes_jax.types import PRNGKey


@runtime_checkable
class Schedule(Protocol):
    """The fields that a config of training has."""

    @property
    def epochs(self) -> int:
        """Passes over the training examples."""
        ...

    @property
    def steps(self) -> int | None:
        """How many steps instead of how many epochs."""
        ...

    @property
    def batch(self) -> int:
        """Examples in a step."""
        ...

    @property
    def learning_rate(self) -> float:
        """The rate at the start."""
        ...

    @property
    def momentum(self) -> float:
        """The momentum of gradient descent, of Nesterov's kind."""
        ...

    @property
    def weight_decay(self) -> float:
        """The share of the weights that is added to the gradient."""
        ...


def check_recipe(config: Schedule) -> None:
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


def count_steps(config: Schedule, count: int) -> tuple[int, int]:
    """Return how many steps there are in all, and in an epoch."""
    if config.batch > count:
        raise BQNESError(
            f"batch is {config.batch} but there are {count} training examples; make it smaller."
        )
    per_epoch = count // config.batch
    return config.steps or config.epochs * per_epoch, per_epoch


def draw_batch(
    key: PRNGKey, order: Int[Array, " n"], t: Int[Array, ""], per_epoch: int, batch: int
) -> tuple[Int[Array, " n"], Int[Array, " batch"]]:
    """Return the order of the examples in the epoch of step t, and the places of its batch."""
    place = t % per_epoch
    order = lax.cond(
        place == 0,
        lambda: jax.random.permutation(jax.random.fold_in(key, t), len(order)),
        lambda: order,
    )
    return order, lax.dynamic_slice_in_dim(order, place * batch, batch)


def make_optimiser(config: Schedule, steps: int) -> optax.GradientTransformation:
    """Return the optimiser of a training of so many steps."""
    rate = optax.cosine_decay_schedule(config.learning_rate, steps)
    return optax.chain(
        optax.add_decayed_weights(config.weight_decay),
        optax.sgd(rate, config.momentum, nesterov=True),
    )


@dataclasses.dataclass(frozen=True)
class Recipe:
    """How a module of your own is trained: mini-batches, with a cosine to a learning rate of 0.

    Attributes:
        epochs: passes over the training examples; each leaves out what does not fill a batch.
        steps: how many steps instead of how many epochs.
        batch: examples in a step.
        learning_rate: at the start.
        optimiser: "adam", "sgd" (with Nesterov momentum), or a function from the number of steps
            to an `optax.GradientTransformation`, which then decides rate, momentum and decay.
        momentum: of "sgd".
        weight_decay: of both.
        standardise: whether inputs are scaled to mean 0 and deviation 1 along their last axis, by
            the training inputs.
    """

    epochs: int = 50
    steps: int | None = None
    _: dataclasses.KW_ONLY
    batch: int = 32
    learning_rate: float = 1e-3
    optimiser: str | Callable[[int], optax.GradientTransformation] = "adam"
    momentum: float = 0.9
    weight_decay: float = 0.0
    standardise: bool = True

    def __post_init__(self) -> None:
        check_recipe(self)
        if not callable(self.optimiser):
            check_choice("optimiser", self.optimiser, ("adam", "sgd"))
        check_choice("standardise", self.standardise, (False, True))

    def make_optimiser(self, steps: int) -> optax.GradientTransformation:
        """Return the optimiser of a training of so many steps."""
        if callable(self.optimiser):
            return self.optimiser(steps)
        if self.optimiser == "sgd":
            return make_optimiser(self, steps)
        rate = optax.cosine_decay_schedule(self.learning_rate, steps)
        return optax.adamw(rate, weight_decay=self.weight_decay)
