"""Cells of NATS-Bench that share their weights, in one supernet."""

import functools
import tempfile

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bqnes_jax.data import NO_AUGMENTATION, channel_moments, normalise
from bqnes_jax.errors import BQNESError
from bqnes_jax.models import NATSNetwork, NATSNetworkConfig
from bqnes_jax.training import SharedCellsConfig, make_supernet, predict_slices, train_supernet
from bqnes_jax.training.population import weight_shapes
from tests.training.test_supernet import equal, make_data

pytestmark = pytest.mark.parametrize("precision", ["float32"], indirect=True)

NETWORK = NATSNetworkConfig(channels=2, cells=1, classes=3)
CONFIG = SharedCellsConfig(
    NETWORK,
    steps=60,
    batch=8,
    augment=NO_AUGMENTATION,
    recalibration_batches=3,
    save_every=40,
)
ARCHS = np.array([[3, 2, 4, 1, 3, 2], [1, 1, 1, 1, 1, 1], [0] * 6], np.int32)


@functools.cache
def trained():
    """The undisturbed training, and its mean losses up to each checkpoint."""
    losses = []
    with tempfile.TemporaryDirectory() as folder:
        state = train_supernet(
            jax.random.key(0),
            make_data(),
            CONFIG,
            folder,
            progress=lambda step, loss: losses.append(loss),
        )
    return state, losses


@functools.cache
def evaluated():
    evaluate = jax.jit(make_supernet(CONFIG).evaluate)
    return evaluate(trained()[0].params, jnp.asarray(ARCHS), jax.device_put(make_data()))


@pytest.mark.slow
def test_random_cells_learn():
    state, losses = trained()
    assert int(state.step) == 60 and bool(state.healthy) and losses[-1] < losses[0]
    cells = evaluated()
    assert cells.failed.tolist() == [False] * 3
    assert (cells.valid_loss[:2] < 0.9 * np.log(3)).all(), "they predict better than by chance"
    assert abs(cells.valid_loss[2] - np.log(3)) < 0.2, "a cell without edges cannot"


@pytest.mark.slow
def test_the_statistics_of_a_cell_are_those_of_its_batches():
    """Written out: the moments of each batch by a network that is told to remember nothing else."""
    params, data = trained()[0].params, make_data()
    moments = channel_moments(jnp.asarray(data.train.inputs))
    shapes = weight_shapes(NETWORK, (8, 8, 1))["batch_stats"]
    places = np.arange(24) * 30 // 24
    run = jax.jit(functools.partial(NATSNetwork(NETWORK).apply, train=True, mutable="batch_stats"))
    found = []
    for i in range(3):
        images = normalise(jnp.asarray(data.train.inputs[places[i::3]]), *moments)
        variables = {"params": params, "batch_stats": jax.tree.map(jnp.zeros_like, shapes)}
        found.append(run(variables, ARCHS[0], images)[1]["batch_stats"]["stem"])
    means = np.stack([one["running_mean"] for one in found]) / 0.1
    variances = np.stack([one["running_var"] for one in found]) / 0.1
    expected = np.concatenate([means.mean(0), variances.mean(0) + means.var(0)])
    np.testing.assert_allclose(evaluated().batch_stats[0, -4:], expected, rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_cells_predict_again_what_they_predicted():
    params, data, cells = trained()[0].params, make_data(), evaluated()
    moments = channel_moments(jnp.asarray(data.train.inputs))
    said = predict_slices(
        CONFIG,
        params,
        cells.batch_stats,
        jnp.asarray(ARCHS),
        jnp.asarray(data.test.inputs),
        moments,
    )
    np.testing.assert_allclose(said, cells.test_log_probs, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_a_training_that_was_stopped_goes_on(tmp_path):
    def stop(step, loss):
        raise KeyboardInterrupt

    arguments = jax.random.key(0), make_data(), CONFIG, tmp_path
    with pytest.raises(KeyboardInterrupt):
        train_supernet(*arguments, progress=stop)
    equal(train_supernet(*arguments).params, trained()[0].params)


def test_a_step_trains_at_least_one_cell():
    with pytest.raises(BQNESError, match="random_slices is 0"):
        SharedCellsConfig(random_slices=0)
