"""Training a population: against a loop of plain steps, and what must not matter does not."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bqnes_jax.data import (
    NO_AUGMENTATION,
    AugmentConfig,
    Examples,
    Split,
    augment,
    channel_moments,
    normalise,
)
from bqnes_jax.errors import BQNESError
from bqnes_jax.models import NATSNetwork, NATSNetworkConfig
from bqnes_jax.parallel import make_mesh
from bqnes_jax.training import (
    TrainConfig,
    choose_chunk,
    draw_variables,
    make_train,
    train_population,
    unravel_weights,
    weight_count,
)

NETWORK = NATSNetworkConfig(channels=1, cells=1, classes=3)
CONFIG = TrainConfig(NETWORK, seeds=2, steps=5, batch=8, augment=AugmentConfig(), chunk=3)
ARCHS = np.array([[3, 2, 4, 1, 3, 2], [1, 0, 4, 2, 3, 1], [0] * 6, [3, 3, 1, 0, 2, 4]])


def make_data(seed=0):
    draw = np.random.default_rng(seed)

    def part(n):
        labels = draw.integers(0, 3, n)
        images = draw.integers(0, 80, (n, 4, 4, 1)) + 80 * labels[:, None, None, None]
        return Examples(images.astype(np.uint8), labels.astype(np.int32))

    return Split(part(20), part(9), part(11), classes=3)


def with_labels(data, labels):
    return dataclasses.replace(data, train=data.train._replace(labels=labels))


def equal(ours, theirs):
    jax.tree.map(np.testing.assert_array_equal, ours, theirs)


def close(ours, theirs, tolerance):
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance), ours, theirs
    )


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32"], indirect=True)  # a minute to compile
def test_one_compilation_and_the_company_does_not_matter(compilations, key, tolerance):
    data, archs = make_data(), jnp.asarray(ARCHS, jnp.int32)
    other_key = jax.random.key(7)
    compilations()
    everything = train_population(key, archs, data, CONFIG)
    assert compilations() == 1, "8 members in 3 chunks of 3, the last one padded"
    trained = everything.trained
    assert everything.seconds.shape == (3,) and not trained.failed.any()
    assert trained.valid_log_probs.shape == (4, 2, 9, 3)
    assert trained.test_log_probs.shape == (4, 2, 11, 3)
    assert trained.train_losses.shape == (4, 2, 5)
    np.testing.assert_allclose(np.exp(trained.valid_log_probs).sum(-1), 1, rtol=1e-5)

    compilations()
    again = train_population(key, archs, make_data(), CONFIG).trained
    equal(again, trained)
    order = np.array([2, 0, 3, 1])
    turned = train_population(key, jnp.asarray(ARCHS[order], jnp.int32), data, CONFIG).trained
    other = train_population(other_key, archs, make_data(3), CONFIG).trained
    assert compilations() == 0
    close(turned, jax.tree.map(lambda leaf: leaf[order], trained), tolerance(1e-4, 1e-9))
    assert (other.valid_loss != trained.valid_loss).all()
    assert (trained.train_losses[:, 0] != trained.train_losses[:, 1]).all(), "seeds are alike"


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_one_draw_begins_as_the_network_does(key):
    """Of each parameter: the same shape, the same bound, and nearly all of it used."""
    network = NATSNetworkConfig(channels=4, cells=1, classes=10)
    image = jnp.zeros((1, 8, 8, 3))
    theirs = jax.jit(NATSNetwork(network).init)(key, jnp.zeros(6, jnp.int32), image)
    ours = draw_variables(key, network, image.shape[1:])

    def alike(ours, theirs):
        assert ours.shape == theirs.shape
        size, other = np.abs(ours).max(), np.abs(theirs).max()
        np.testing.assert_allclose(size, other, rtol=0.02 if ours.size > 400 else 0.5)
        np.testing.assert_allclose(np.mean(ours), np.mean(theirs), atol=5 * size / ours.size**0.5)

    jax.tree.map(alike, ours, theirs)


@pytest.mark.parametrize("precision", ["float64"], indirect=True)
def test_follows_the_recipe_of_pytorch(key, tolerance):
    """Against SGD written out: decay into the gradient, Nesterov momentum, cosine rate."""
    config = dataclasses.replace(CONFIG, augment=NO_AUGMENTATION, batch=20, steps=4)
    data, arch = jax.device_put(make_data()), jnp.array(ARCHS[0], jnp.int32)
    trained = jax.jit(make_train(config))(key, arch, data)

    network, moments = NATSNetwork(NETWORK), channel_moments(data.train.inputs)
    images, labels = normalise(data.train.inputs, *moments), data.train.labels
    variables = draw_variables(jax.random.split(key, 3)[0], NETWORK, images.shape[1:])
    params, stats = variables["params"], variables["batch_stats"]

    @jax.jit
    def step(params, stats, buffer, rate):
        def loss_of(params):
            logits, new = network.apply(
                {"params": params, "batch_stats": stats}, arch, images, True, mutable="batch_stats"
            )
            picked = jax.nn.log_softmax(logits)[jnp.arange(20), labels]
            return -picked.mean(), new["batch_stats"]

        (loss, new), gradient = jax.value_and_grad(loss_of, has_aux=True)(params)
        gradient = jax.tree.map(lambda g, p: g + 5e-4 * p, gradient, params)
        buffer = jax.tree.map(lambda b, g: 0.9 * b + g, buffer, gradient)
        params = jax.tree.map(lambda p, g, b: p - rate * (g + 0.9 * b), params, gradient, buffer)
        return params, new, buffer, loss

    buffer, losses = jax.tree.map(jnp.zeros_like, params), []
    for t in range(4):
        # All images are in every batch, so that their order does not matter.
        rate = 0.1 * 0.5 * (1 + np.cos(np.pi * t / 4))
        params, stats, buffer, loss = step(params, stats, buffer, rate)
        losses.append(loss)
    close(trained.train_losses, jnp.stack(losses), tolerance(1e-3, 1e-8))


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_a_failed_member_is_marked_and_disturbs_no_other(key):
    """A label that does not exist has a loss of NaN: one member sees it, from some step on."""
    data = jax.device_put(make_data())
    keys = jax.random.split(key, 3)
    labels = jnp.tile(data.train.labels, (3, 1))
    train_one = make_train(dataclasses.replace(CONFIG, augment=NO_AUGMENTATION))
    train = jax.jit(
        jax.vmap(
            lambda key, arch, labels: train_one(key, arch, with_labels(data, labels)), (0, 0, 0)
        )
    )
    archs = jnp.asarray(ARCHS[:3], jnp.int32)
    healthy = train(keys, archs, labels)
    mixed = train(keys, archs, labels.at[1, 0].set(99))
    assert healthy.failed.tolist() == [False] * 3
    assert mixed.failed.tolist() == [False, True, False]
    others = np.array([0, 2])
    equal(*(jax.tree.map(lambda leaf: leaf[others], trained) for trained in (mixed, healthy)))
    for leaf in (mixed.valid_log_probs, mixed.test_log_probs, mixed.valid_loss):
        assert np.isnan(leaf[1]).all()
    lost = np.isnan(mixed.train_losses[1])
    assert lost.any() and (np.diff(lost.astype(int)) >= 0).all(), "frozen from then on"


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_bfloat16_trains_and_the_weights_that_are_kept_predict_the_same(key):
    network = dataclasses.replace(NETWORK, bfloat16=True)
    config = dataclasses.replace(CONFIG, network=network, seeds=1, keep_weights=True, steps=20)
    data, archs = make_data(), jnp.asarray(ARCHS[:3], jnp.int32)
    trained = train_population(key, archs, data, config).trained
    losses = np.asarray(trained.train_losses[:2, 0])
    assert not trained.failed.any() and (losses[:, -3:].mean(1) < losses[:, :3].mean(1)).all()

    assert trained.weights.shape == (3, 1, weight_count(network, (4, 4, 1)))
    assert trained.weights.dtype == jnp.float32
    variables = unravel_weights(trained.weights[:, 0], network, (4, 4, 1))
    images = normalise(
        jnp.asarray(data.test.inputs), *channel_moments(jnp.asarray(data.train.inputs))
    )
    apply = jax.jit(jax.vmap(NATSNetwork(network).apply, (0, 0, None)))
    log_probs = jax.nn.log_softmax(apply(variables, archs, images))
    close(log_probs, trained.test_log_probs[:, 0], 2e-2)  # other batches round otherwise


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_augmentation_flips_and_shifts(key):
    images = jnp.arange(1, 1 + 64 * 16, dtype=jnp.int32).reshape(64, 4, 4, 1)
    out = np.asarray(augment(key, images, AugmentConfig(padding=1)))
    seen = set()
    for before, after in zip(np.asarray(images), out, strict=True):
        padded = np.pad(before, ((1, 1), (1, 1), (0, 0)))
        windows = {
            (flip, i, j): (padded[:, ::-1] if flip else padded)[i : i + 4, j : j + 4]
            for flip in (False, True)
            for i in range(3)
            for j in range(3)
        }
        matching = [which for which, window in windows.items() if (window == after).all()]
        assert len(matching) == 1
        seen.update(matching)
    assert len(seen) > 12, "of 18 combinations"
    same = augment(key, images, AugmentConfig(flip=False, padding=0))
    np.testing.assert_array_equal(same, images)
    small = augment(key, images, AugmentConfig(flip=False))  # 4 // 8 = 0: no crop
    np.testing.assert_array_equal(small, images)


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_chunks_fit_the_memory(precision):
    config = TrainConfig(chunk=None, memory=1.0)
    mesh = make_mesh(jax.devices()[:1])

    def each(asked=None, **changed):
        return choose_chunk(
            dataclasses.replace(config, **changed), make_data(), mesh, asked=asked
        ).each

    assert each() == each(10) == 1
    assert each(3, memory=1e15) == 3
    assert each(3, chunk=7) == 3
    assert each(chunk=7) == 7
    assert 1 <= each(memory=None) <= each(memory=1e15)


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_bad_input_is_refused(precision, key):
    data = make_data()
    for wrong in ({"steps": 0}, {"batch": 0}, {"momentum": 1.0}, {"learning_rate": -1.0}):
        with pytest.raises(BQNESError, match=next(iter(wrong))):
            TrainConfig(**wrong)
    for changed, message in (
        (with_labels(data, data.train.labels + 1), "train.labels are from 1 to 3"),
        (dataclasses.replace(data, valid=Examples(*(part[:0] for part in data.valid))), "none"),
    ):
        with pytest.raises(BQNESError, match=message):
            train_population(key, ARCHS, changed, CONFIG)
    with pytest.raises(BQNESError, match="batch is 99"):
        train_population(key, ARCHS, data, dataclasses.replace(CONFIG, batch=99))
