"""Cells as families: each trained on its own, many of them in one program."""

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jax.typing import ArrayLike
from jaxtyping import Float, Int, Int32

from bqnes_jax.data import Split, check_images, normalise
from bqnes_jax.errors import BQNESError
from bqnes_jax.families.base import Evaluation, Setting, Trainer, Variables
from bqnes_jax.families.images import as_images, moments_of
from bqnes_jax.identity import identity
from bqnes_jax.models import NetworkConfig, parameter_count
from bqnes_jax.parallel import make_mesh, of_each, spread
from bqnes_jax.spaces import Space
from bqnes_jax.training import (
    SharedCellsConfig,
    TrainConfig,
    count_steps,
    in_batches,
    population_trainer,
    unravel_weights,
)

_BATCH = 256  # images predicted at a time
_SHARED_BY = 12  # how many times longer cells that share their weights are trained than one alone


@dataclasses.dataclass(frozen=True)
class TrainedCells:
    """The networks of all cells of a space, trained by one program.

    Attributes:
        config: how each is trained. It has as many classes as the data, whatever is said there.
        keep: whether to keep what was trained, to predict anew.
    """

    config: TrainConfig = dataclasses.field(default_factory=TrainConfig)
    keep: bool = True

    @property
    def space(self) -> Space:
        """All cells."""
        return self.config.network.space

    def check(self, data: Split) -> None:
        """Refuse what are no images, and a batch larger than the training set."""
        if self.config.seeds != 1:
            raise BQNESError(
                f"train.seeds is {self.config.seeds}; it is for `train_population`: leave it "
                "at 1, and give seeds (--seeds) to train from several weights."
            )
        check_images(data, data.classes)
        count_steps(self.config, len(data.train.labels))

    def manifest(self, classes: int) -> Mapping[str, object]:
        """Describe the training."""
        return identity(self._config(classes))

    def prepare(self, data: Split, setting: Setting) -> Trainer:
        """Make the one program that trains cells."""
        config = self._config(data.classes)
        train_population = population_trainer(data, config, mesh=setting.mesh, asked=setting.asked)

        def train(archs: Int32[np.ndarray, "K length"]) -> Iterator[list[Evaluation]]:
            for trained, seconds in train_population(jax.random.key(setting.seed), archs):
                yield [_evaluation(trained, i, seconds) for i in range(len(trained.failed))]

        shared = {"classes": np.array(data.classes), "moments": moments_of(data)}
        return Trainer(train, shared, together=True)

    def predict(
        self,
        shared: Variables,
        variables: Sequence[Variables],
        archs: Int32[np.ndarray, "M length"],
        inputs: ArrayLike,
    ) -> Float[np.ndarray, "M n classes"]:
        """Return what cells say about images."""
        images = as_images(inputs, shared["moments"])
        network = self._config(int(shared["classes"])).network
        mesh = make_mesh(jax.local_devices())  # each host may ask for other images
        return predict_cells(
            network, np.stack(variables), archs, images, shared["moments"], mesh=mesh
        )

    def count_parameters(
        self, archs: Int32[np.ndarray, "M length"], classes: int, input_shape: tuple[int, ...]
    ) -> Int[np.ndarray, " M"]:
        """Count the parameters of the operations that each cell has."""
        network = self._config(classes).network
        return np.asarray(parameter_count(archs, network, input_channels=input_shape[-1]))

    def _config(self, classes: int) -> TrainConfig:
        network = dataclasses.replace(self.config.network, classes=classes)
        return dataclasses.replace(self.config, network=network, keep_weights=self.keep)


@dataclasses.dataclass(frozen=True)
class CellFamily(TrainedCells):
    """The networks of the 15,625 cells of NATS-Bench."""

    name = "nats"

    def shared_family(self) -> tuple[str, SharedCellsConfig]:
        """Return how all cells are trained as one network: by the same recipe, for longer."""
        config = self.config
        same = ("network", "batch", "learning_rate", "momentum", "weight_decay", "augment")
        return "shared", SharedCellsConfig(
            epochs=_SHARED_BY * config.epochs,
            steps=None if config.steps is None else _SHARED_BY * config.steps,
            **{name: getattr(config, name) for name in same},
        )


def _evaluation(trained, i: int, seconds: float) -> Evaluation:
    """Return what became of one member of a chunk."""
    each = seconds / len(trained.failed)
    if trained.failed[i]:
        return Evaluation(seconds=each)
    weights = None if trained.weights is None else trained.weights[i]
    return Evaluation(
        trained.valid_log_probs[i],
        trained.test_log_probs[i],
        float(trained.train_losses[i, -1]),
        each,
        weights,
        float(trained.train_log_likelihood[i]),
    )


def predict_cells(
    config: NetworkConfig,
    weights: Float[ArrayLike, "M w"],
    archs: Int32[ArrayLike, "M length"],
    images: ArrayLike,
    moments: Float[ArrayLike, "2 channels"],
    *,
    mesh: Mesh | None = None,
) -> Float[np.ndarray, "M n classes"]:
    """Return what M cells say, from their weights as vectors.

    Images are divided among the devices of a mesh; by default all.
    """
    return np.moveaxis(_program(config, mesh)(images, weights, archs, moments), 1, 0)


@functools.cache
def _program(config: NetworkConfig, mesh: Mesh | None):
    network = config.build()

    def predict(images, weights, archs, moments):
        variables = unravel_weights(weights, config, images.shape[1:])

        def of_batch(batch):
            normalised = normalise(batch, *moments)
            logits = of_each(lambda own: network.apply(*own, normalised), (variables, archs))
            return jnp.moveaxis(jax.nn.log_softmax(logits), 0, 1)

        return in_batches(of_batch, images, _BATCH)

    return spread(predict, mesh)
