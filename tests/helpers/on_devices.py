"""What `tests/parallel/test_devices.py` runs in processes with other devices than its own.

python -m tests.helpers.on_devices OUT            # as many devices as XLA_FLAGS says
python -m tests.helpers.on_devices OUT 0 ADDRESS  # the first of two processes
"""

import sys
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from bqnes_jax import tables
from bqnes_jax.candidates import SearchConfig
from bqnes_jax.data import NO_AUGMENTATION
from bqnes_jax.families import Setting, SliceFamily
from bqnes_jax.families import slices as slices_of
from bqnes_jax.families.cells import predict_cells
from bqnes_jax.models import MobileNetConfig, NATSNetworkConfig
from bqnes_jax.parallel import Chunk, in_chunks, is_first, make_mesh, mesh_for, spread
from bqnes_jax.spaces import NATS, SlimmableSpace
from bqnes_jax.studies.comparison import compare_on_table
from bqnes_jax.surrogates import FitConfig
from bqnes_jax.training import SupernetConfig, TrainConfig, train_population
from tests.training.test_population import make_data

NETWORK = NATSNetworkConfig(channels=1, cells=1, classes=3)
TRAIN = TrainConfig(
    NETWORK, seeds=2, steps=3, batch=8, augment=NO_AUGMENTATION, keep_weights=True, chunk=1
)
SUPERNET = SupernetConfig(
    MobileNetConfig(
        SlimmableSpace(blocks=1, layers=2, widths=2),
        channels=(2,),
        strides=(1,),
        expansion=2,
        stem=2,
        head=3,
        classes=3,
    ),
    batch=8,
    steps=2,
    augment=NO_AUGMENTATION,
)


def population(mesh) -> dict:
    """Train five architectures with two seeds: ten members, on two or eight devices."""
    archs = np.asarray(NATS.sample(jax.random.key(1), 5))
    trained = train_population(jax.random.key(0), archs, make_data(), TRAIN, mesh=mesh).trained
    moments = np.array([[0.4], [0.3]], np.float32)
    images = np.asarray(make_data().test.inputs)
    weights = np.asarray(trained.weights[:, 0])
    said = predict_cells(NETWORK, weights, archs, images, moments, mesh=mesh)
    return {"losses": trained.train_losses, "said": trained.test_log_probs, "predicted": said}


def slices(mesh) -> dict:
    """Evaluate three slices, and let them predict from what is kept of them."""
    data, family = make_data(), SliceFamily(SUPERNET)
    trainer = family.prepare(data, Setting(mesh=mesh))
    archs = np.asarray(family.space.sample(jax.random.key(2), 3))
    evaluations = [one for some in trainer.train(archs) for one in some]
    statistics = np.stack([one.variables for one in evaluations])
    params, moments = trainer.shared["params"], trainer.shared["moments"]
    program = slices_of._program(SUPERNET, mesh)
    said = program(np.asarray(data.test.inputs), params, statistics, archs, moments)
    found = np.stack([one.valid_log_probs for one in evaluations])
    return {"slices": found, "of slices": np.moveaxis(said, 1, 0)}


def repeats(mesh) -> dict:
    """Repeat a search on a table with three seeds."""
    digits = tables.load("digits")
    fit = FitConfig(kernel_steps=0)  # half of the program
    config = SearchConfig(initial=5, budget=8, batch=3, population=6, fit=fit)
    rows = compare_on_table(digits, ["NES-RE", "NES-BS"], [2], 3, config=config, mesh=mesh)
    return {f"repeats of {row.algorithm}": row.log_likelihood for row in rows}


def halved(mesh) -> dict:
    """Let the second of two hosts run out of memory with more than one member at once."""

    def hungry(x):
        size = 2**42 if len(x) > 1 and not is_first() else 4
        return x + 0 * jnp.sort(jax.random.uniform(jax.random.key(0), (size,)))[0]

    chunk = Chunk(2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = list(in_chunks(spread(hungry, mesh), mesh, chunk, (np.arange(9.0),)))
    return {"halved": np.concatenate(results), "chunk": np.array(chunk.each)}


def main(out: str, process: str | None = None, address: str | None = None) -> None:
    """Write the results of all devices, and of one."""
    if process is not None:
        jax.distributed.initialize(address, 2, int(process))
    many = make_mesh()
    one = make_mesh(jax.local_devices()[:1])
    kinds = (population, slices, repeats) if process is None else (population, halved)
    content = {"devices": np.array(many.size), "for three": np.array(mesh_for(3).size)}
    for measure in kinds:
        for name, mesh in (("many", many), ("one", one)):
            if process is None or mesh is many:
                results = measure(mesh)
                content |= {f"{name}/{key}": np.asarray(value) for key, value in results.items()}
    if process is None or not is_first():  # the second process has everything, too
        np.savez(Path(out), **content)


if __name__ == "__main__":
    main(*sys.argv[1:])
