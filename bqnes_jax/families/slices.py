"""Parts of a supernet as a family: one network is trained, and architectures are parts of it."""

import dataclasses
import functools
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from time import perf_counter

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh
from jax.typing import ArrayLike
from jaxtyping import Float, Int, Int32

from bqnes_jax.data import Split, check_images
from bqnes_jax.errors import BQNESError
from bqnes_jax.families.base import Evaluation, Setting, Trainer, Variables
from bqnes_jax.families.images import as_images, moments_of
from bqnes_jax.files import Remote
from bqnes_jax.identity import identity
from bqnes_jax.parallel import (
    agree,
    chunk_of,
    in_chunks,
    is_first,
    make_mesh,
    mesh_for,
    place,
    spread,
)
from bqnes_jax.spaces import Space
from bqnes_jax.training import (
    SharedCellsConfig,
    SupernetConfig,
    count_steps,
    make_supernet,
    predict_slices,
    train_supernet,
    unravel_params,
)
from bqnes_jax.training.blueprints import blueprint_of

_SLICES = 16  # evaluated at once by an accelerator; a CPU is as fast one by one


@dataclasses.dataclass(frozen=True)
class SliceFamily:
    """The slices of one MobileNetV2, or cells that share their weights; it is trained first.

    Attributes:
        config: how the supernet is trained. It has as many classes as the data, whatever is said
            there.
    """

    config: SupernetConfig = dataclasses.field(default_factory=SupernetConfig)

    @property
    def name(self) -> str:
        """What kind of supernet it is."""
        return "shared" if isinstance(self.config, SharedCellsConfig) else "slimmable"

    @property
    def space(self) -> Space:
        """All slices, or all cells."""
        return blueprint_of(self.config.network).space

    def check(self, data: Split) -> None:
        """Refuse what are no images, and a batch larger than the training set."""
        check_images(data, data.classes)
        count_steps(self.config, len(data.train.labels))

    def manifest(self, classes: int) -> Mapping[str, object]:
        """Describe the training of the supernet."""
        return identity(self._config(classes))

    def prepare(self, data: Split, setting: Setting) -> Trainer:
        """Train the supernet, or read it, and make the program that evaluates slices."""
        config = self._config(data.classes)
        params = _train_supernet(data, config, setting)
        evaluate = make_supernet(config).evaluate
        mesh = mesh_for(setting.asked, setting.mesh)
        program = spread(lambda archs, params, data: evaluate(params, archs, data), mesh)
        chunk = chunk_of(1 if jax.default_backend() == "cpu" else _SLICES, setting.asked, mesh)
        placed = place((params, data), mesh)

        def train(archs: Int32[np.ndarray, "K length"]) -> Iterator[list[Evaluation]]:
            started = perf_counter()
            for slices in in_chunks(program, mesh, chunk, (archs,), *placed):
                seconds = (perf_counter() - started) / len(slices.failed)
                yield [_evaluation(slices, i, seconds) for i in range(len(slices.failed))]
                started = perf_counter()

        shared = {
            "classes": np.array(data.classes),
            "moments": moments_of(data),
            "params": np.asarray(ravel_pytree(params)[0], np.float32),
        }
        return Trainer(train, shared, together=True)

    def predict(
        self,
        shared: Variables,
        variables: Sequence[Variables],
        archs: Int32[np.ndarray, "M length"],
        inputs: ArrayLike,
    ) -> Float[np.ndarray, "M n classes"]:
        """Return what slices say about images, from their batch-norm statistics."""
        images = as_images(inputs, shared["moments"])
        config = self._config(int(shared["classes"]))
        program = _program(config, make_mesh(jax.local_devices()))  # hosts may ask for others
        said = program(images, shared["params"], np.stack(variables), archs, shared["moments"])
        return np.moveaxis(said, 1, 0)

    def count_parameters(
        self, archs: Int32[np.ndarray, "M length"], classes: int, input_shape: tuple[int, ...]
    ) -> Int[np.ndarray, " M"]:
        """Count the parameters of the supernet that each slice uses."""
        network = self._config(classes).network
        return np.asarray(network.count_parameters(jnp.asarray(archs), input_shape[-1]))

    def _config(self, classes: int) -> SupernetConfig:
        network = dataclasses.replace(self.config.network, classes=classes)
        return dataclasses.replace(self.config, network=network)


def _evaluation(slices, i: int, seconds: float) -> Evaluation:
    """Return what became of one slice of a chunk; what is kept of it is its statistics."""
    if slices.failed[i]:
        return Evaluation(seconds=seconds)
    return Evaluation(
        slices.valid_log_probs[i],
        slices.test_log_probs[i],
        seconds=seconds,
        variables=slices.batch_stats[i],
        train_log_likelihood=float(slices.train_log_likelihood[i]),
    )


def _train_supernet(data: Split, config: SupernetConfig, setting: Setting) -> dict:
    """Train on the first host; the others wait and are given the parameters."""
    key = jax.random.key(setting.seed)
    if not is_first():
        shapes = jax.eval_shape(make_supernet(config).init, key, data).params
        return agree(jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes))
    total, _ = count_steps(config, len(data.train.labels))

    def report(step: int, loss: float) -> None:
        if setting.progress is not None:
            setting.progress(step, total, "training the supernet")

    if isinstance(setting.directory, Remote) and config.pretrained is None:
        raise BQNESError(
            f"the checkpoints of a supernet cannot be kept in {setting.directory}; train it in a "
            "local directory (--out), or give one that is trained (--train.pretrained)."
        )
    with tempfile.TemporaryDirectory(prefix="bqnes-") as scratch:
        directory = Path(config.pretrained or Path(setting.directory or scratch) / "supernet")
        state = train_supernet(key, data, config, directory, progress=report)
    if not bool(state.healthy):
        raise BQNESError(
            f"the supernet's loss is not finite at step {int(state.step)}; lower "
            f"train.learning_rate (it is {config.learning_rate}) and remove {directory}."
        )
    return agree(state.params)


@functools.cache
def _program(config: SupernetConfig, mesh: Mesh):
    def predict(images, shared, statistics, archs, moments):
        params = unravel_params(shared, config.network, images.shape[1:])
        said = predict_slices(config, params, statistics, archs, images, tuple(moments))
        return jnp.moveaxis(said, 0, 1)

    return spread(predict, mesh)
