"""Families: the protocol that all of them keep, and those that are made of a user's functions."""

import dataclasses
import json
import os
import subprocess
import sys

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from sklearn.linear_model import LogisticRegression

import bqnes_jax
from bqnes_jax import families
from bqnes_jax.data import NO_AUGMENTATION, from_arrays
from bqnes_jax.errors import BQNESError
from bqnes_jax.families import (
    CellFamily,
    DARTSFamily,
    NetworkFamily,
    Setting,
    SliceFamily,
    from_flax,
    from_functions,
)
from bqnes_jax.models import DARTSNetworkConfig, MobileNet, MobileNetConfig, NATSNetworkConfig
from bqnes_jax.spaces import ChoiceSpace, Product, SlimmableSpace
from bqnes_jax.storage.entries import manifest_of
from bqnes_jax.training import (
    DARTSTrainConfig,
    Recipe,
    SharedCellsConfig,
    SupernetConfig,
    TrainConfig,
)
from tests.conftest import all_but_slow
from tests.helpers import mlp

pytestmark = pytest.mark.parametrize("precision", ["float32"], indirect=True)

RNG = np.random.default_rng(0)
LABELS = np.arange(90) % 3
POINTS = from_arrays(RNG.normal(size=(90, 4)) + 3 * np.eye(3, 4)[LABELS], LABELS)
IMAGES = from_arrays(
    np.clip(RNG.integers(0, 80, (90, 8, 8, 1)) + 80 * LABELS[:, None, None, None], 0, 255).astype(
        np.uint8
    ),
    LABELS,
)
SPACE = Product(strength=(0.1, 1.0, 10.0), intercept=(False, True))


def train_linear(key, choices, data):
    """Solve ridge regression on one-hot labels; a pure function of JAX arrays."""
    x, y = data.train.inputs, jax.nn.one_hot(data.train.labels, data.classes)
    noise = 1e-3 * jax.random.normal(key, (*x.shape[1:], data.classes))
    w = jnp.linalg.solve(x.T @ x + choices["strength"] * jnp.eye(x.shape[1]), x.T @ y)
    return {"w": w + noise, "b": y.mean(0) if choices["intercept"] else None}


def predict_linear(variables, choices, inputs):
    offset = variables["b"] if choices["intercept"] else 0
    return jax.nn.log_softmax(inputs @ variables["w"] + offset)


def train_sklearn(key, choices, data):
    model = LogisticRegression(C=choices["strength"], fit_intercept=choices["intercept"])
    return model.fit(data.train.inputs, data.train.labels)


def predict_sklearn(model, choices, inputs):
    return model.predict_log_proba(inputs)


def train_coefficients(key, choices, data):
    model = train_sklearn(key, choices, data)
    return {"coef": model.coef_, "intercept": model.intercept_}


def predict_coefficients(variables, choices, inputs):
    assert isinstance(variables["coef"], np.ndarray)
    logits = inputs @ variables["coef"].T + variables["intercept"]
    return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))


def tiny_modules(choices):
    return nn.Sequential([nn.Dense(8), nn.relu, nn.Dense(3)])


FAMILIES = {
    "cells": (
        CellFamily(
            TrainConfig(
                NATSNetworkConfig(channels=1, cells=1), steps=2, batch=8, augment=NO_AUGMENTATION
            )
        ),
        IMAGES,
    ),
    "slices": (
        SliceFamily(
            SupernetConfig(
                MobileNetConfig(
                    SlimmableSpace(blocks=1, layers=2, widths=2),
                    channels=(3,),
                    strides=(2,),
                    expansion=2,
                    stem=3,
                    head=4,
                ),
                steps=2,
                batch=16,
                save_every=2,
                augment=NO_AUGMENTATION,
            )
        ),
        IMAGES,
    ),
    "shared": (
        SliceFamily(
            SharedCellsConfig(
                NATSNetworkConfig(channels=1, cells=1),
                steps=2,
                batch=16,
                save_every=2,
                augment=NO_AUGMENTATION,
            )
        ),
        IMAGES,
    ),
    "darts": (
        DARTSFamily(
            DARTSTrainConfig(
                DARTSNetworkConfig(channels=2, cells=3), steps=2, batch=8, augment=NO_AUGMENTATION
            )
        ),
        IMAGES,
    ),
    "functions": (from_functions(SPACE, train_linear, predict_linear), POINTS),
    "host": (from_functions(SPACE, train_coefficients, predict_coefficients, jit=False), POINTS),
    "flax": (from_flax(SPACE, tiny_modules, Recipe(epochs=2, batch=16)), POINTS),
}


def evaluate(family, data, archs, **setting):
    trainer = family.prepare(data, Setting(**setting))
    return trainer, [one for some in trainer.train(np.asarray(archs)) for one in some]


@pytest.mark.parametrize("name", all_but_slow(FAMILIES, *set(FAMILIES) - {"shared", "slices"}))
def test_every_family_keeps_the_protocol(name, tmp_path):
    """What was trained predicts again what it predicted then, whatever it was trained with."""
    family, data = FAMILIES[name]
    assert isinstance(family, NetworkFamily) and family.name
    family.check(data)
    assert family.manifest(data.classes) == family.manifest(data.classes)
    archs = np.asarray(family.space.sample(jax.random.key(1), 3))
    trainer, found = evaluate(family, data, archs, seed=1, directory=tmp_path, asked=3)
    assert len(found) == 3 and not any(one.failed for one in found)
    for one in found:
        assert one.valid_log_probs.shape == (len(data.valid.labels), data.classes)
        np.testing.assert_allclose(np.exp(one.test_log_probs).sum(axis=1), 1, rtol=1e-4)
    variables = [one.variables for one in found]
    again = family.predict(trainer.shared, variables, archs, data.test.inputs)
    said = np.stack([one.test_log_probs for one in found])
    np.testing.assert_allclose(again, said, rtol=1e-4, atol=1e-4)

    _, (alone,) = evaluate(family, data, archs[2:], seed=1, directory=tmp_path, asked=1)
    np.testing.assert_allclose(alone.test_log_probs, said[2], rtol=1e-3, atol=1e-3)
    if name not in ("host", "slices", "shared"):  # whose training is not random, or not of its own
        _, (other,) = evaluate(family, data, archs[2:], seed=2, directory=tmp_path)
        assert np.abs(other.test_log_probs - said[2]).max() > 1e-6


def test_parameters_are_those_that_a_slice_uses():
    """The largest slice uses all of the supernet; a narrower layer, or none, uses less."""
    family, _ = FAMILIES["slices"]
    network, space = family.config.network, family.space
    images = jnp.zeros((1, 8, 8, 1))
    shapes = jax.eval_shape(MobileNet(network).init, jax.random.key(0), space.largest, images)
    whole = sum(leaf.size for leaf in jax.tree.leaves(shapes["params"]))
    archs = np.array([space.largest, [1, 2], [2, 0]], np.int32)
    counted = family.count_parameters(archs, network.classes, (8, 8, 1))
    # Half of 6 channels inside the first layer; the second has 6 inside, and 3 around it.
    narrower, absent = 3 * (3 + 2 + 9 + 2 + 3), 6 * (3 + 2 + 9 + 2 + 3) + 2 * 3
    assert counted.tolist() == [whole, whole - narrower, whole - absent]


def test_parameters_of_other_families_are_counted():
    def count(family, data, archs, variables):
        shape = data.train.inputs.shape[1:]
        return families.count_parameters(
            family, archs, variables, classes=data.classes, input_shape=shape
        ).tolist()

    functions, _ = FAMILIES["functions"]
    kept = [{"w": np.ones((4, 3)), "b": None}, {"w": np.ones((4, 3)), "b": np.ones(3)}]
    assert count(functions, POINTS, np.array([[0, 0], [0, 1]], np.int32), kept) == [12, 15]
    for name in ("cells", "shared", "darts"):
        family, _ = FAMILIES[name]
        archs = np.asarray(family.space.sample(jax.random.key(1), 3))
        network = dataclasses.replace(family.config.network, classes=IMAGES.classes)
        expected = np.asarray(network.count_parameters(jnp.asarray(archs), 1)).tolist()
        assert count(family, IMAGES, archs, [None] * 3) == expected
        seeded = families.with_seeds(family, 2)
        both = np.concatenate([archs, [[0], [1], [1]]], axis=1, dtype=np.int32)
        assert count(seeded, IMAGES, both, [None] * 3) == expected


def test_an_estimator_that_cannot_be_kept_predicts_once():
    family = from_functions(SPACE, train_sklearn, predict_sklearn, jit=False)
    _, (one,) = evaluate(family, POINTS, SPACE.from_index(np.array([3])))
    assert one.variables is None and not one.failed
    model = LogisticRegression(C=1.0, fit_intercept=True)
    model.fit(POINTS.train.inputs, POINTS.train.labels)
    np.testing.assert_allclose(
        one.test_log_probs, model.predict_log_proba(POINTS.test.inputs), rtol=1e-6
    )


def test_trainings_that_fail_are_told_from_mistakes():
    def diverge(key, choices, data):
        if choices["intercept"]:
            raise np.linalg.LinAlgError("singular")
        return {"w": np.full((4, 3), np.nan)}

    family = from_functions(SPACE, diverge, lambda v, c, x: x @ v["w"], jit=False)
    _, found = evaluate(family, POINTS, SPACE.from_index(np.arange(2)))
    assert [one.failed for one in found] == [True, True]

    def mistaken(key, choices, data):
        return data.train.pixels

    for jit in (False, True):
        family = from_functions(SPACE, mistaken, predict_linear, jit=jit)
        with pytest.raises(BQNESError, match=r"training strength=0\.1.* raised AttributeError: "):
            evaluate(family, POINTS, SPACE.from_index(np.arange(2)))


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize(
    ("predict", "says"),
    [
        (lambda v, c, x: jax.nn.log_softmax(x @ v["w"])[:, :2], r"shape \(36, 2\).*\(36, 3\)"),
        (lambda v, c, x: (x @ v["w"])[:, 0], r"shape \(36,\).*\(36, 3\)"),
        (lambda v, c, x: x @ v["w"] * 100, "log-probabilities: apply jax.nn.log_softmax"),
        (lambda v, c, x: jax.nn.softmax(x @ v["w"]), "exponentials sum to"),
    ],
)
def test_predictions_that_are_none_are_refused_at_once(predict, says, jit, tmp_path):
    trained = []

    def train(key, choices, data):
        trained.append(choices)
        return {"w": jnp.ones((4, 3))}

    family = from_functions(SPACE, train, predict, jit=jit)
    with pytest.raises(BQNESError, match=says):
        bqnes_jax.search(family=family, data=POINTS, initial=4, budget=6, out=tmp_path / "run")
    assert len(trained) == 1, "before the budget is spent"


class Normalised(nn.Module):
    @nn.compact
    def __call__(self, x, deterministic):
        x = nn.BatchNorm(use_running_average=deterministic)(nn.Dense(8)(x))
        return nn.Dense(3)(nn.Dropout(0.1, deterministic=deterministic)(nn.relu(x)))


class OfNNX(nnx.Module):
    def __init__(self, width, *, rngs):
        self.first, self.last = nnx.Linear(4, width, rngs=rngs), nnx.Linear(width, 3, rngs=rngs)

    def __call__(self, x):
        return self.last(nnx.relu(self.first(x)))


def running_statistics(choices):
    return Normalised()


def of_nnx(choices):
    return nnx.bridge.to_linen(OfNNX, 4 if choices["intercept"] else 8)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("build", "optimiser"),
    [
        (running_statistics, "adam"),
        (running_statistics, "sgd"),
        (of_nnx, "adam"),
        (of_nnx, lambda steps: optax.rmsprop(3e-3)),
    ],
)
def test_flax_modules_learn(build, optimiser):
    recipe = Recipe(epochs=30, batch=16, learning_rate=1e-2, optimiser=optimiser)
    family = from_flax(SPACE, build, recipe)
    arch = np.asarray(SPACE.from_index(np.array([1])))
    trainer, (one,) = evaluate(family, POINTS, arch)
    right = one.test_log_probs.argmax(axis=1) == POINTS.test.labels
    assert right.mean() > 0.8
    again = family.predict(trainer.shared, [one.variables], arch, POINTS.test.inputs[:5])
    np.testing.assert_allclose(again[0], one.test_log_probs[:5], rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_devices_share_a_batch():
    """On two devices each trains some, and all becomes what it becomes on one."""
    code = """
import numpy as np, jax
from bqnes_jax.families import Setting
from bqnes_jax.parallel import make_mesh
from tests.families.test_families import FAMILIES, SPACE
family, data = FAMILIES["functions"]
archs = np.asarray(SPACE.from_index(np.arange(5)))
for devices in (1, 2):
    mesh = make_mesh(jax.devices()[:devices])
    trainer = family.prepare(data, Setting(asked=5, mesh=mesh))
    sizes, found = [], []
    for some in trainer.train(archs):
        sizes.append(len(some)); found += some
    print([sizes, float(sum(one.test_log_probs.sum() for one in found))])
"""
    flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=2"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "XLA_FLAGS": flags},
    )
    assert done.returncode == 0, done.stderr
    (in_turn, of_one), (side_by_side, of_two) = map(json.loads, done.stdout.splitlines())
    assert in_turn == [1] * 5 and side_by_side == [1, 2, 2]
    np.testing.assert_allclose(of_one, of_two, rtol=1e-5)


@pytest.mark.slow
def test_a_manifest_is_the_same_in_every_process():
    code = "from tests.helpers import mlp; import json; print(json.dumps([\
mlp.family.manifest(2), mlp.flax_family.manifest(2)]))"
    said = {
        subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    }
    assert len(said) == 1


@pytest.mark.parametrize("name", FAMILIES)
def test_a_store_knows_the_choices_of_a_space_that_has_them(name):
    """Whatever the manifest of the family says: another space of the same name is noticed."""
    family, data = FAMILIES[name]
    expected = repr(family.space) if isinstance(family.space, ChoiceSpace) else None
    assert "choices" not in family.manifest(data.classes)
    assert manifest_of(family, data).config.get("choices") == expected
    assert manifest_of(families.with_seeds(family, 2), data) == manifest_of(family, data)


def test_another_recipe_or_function_is_another_family():
    classes, recipe = POINTS.classes, Recipe()
    ours = from_flax(SPACE, tiny_modules, recipe).manifest(classes)
    longer = from_flax(SPACE, tiny_modules, dataclasses.replace(recipe, epochs=9))
    assert ours != longer.manifest(classes)
    one = from_functions(SPACE, train_linear, predict_linear).manifest(classes)
    other = from_functions(SPACE, train_linear, lambda v, c, x: x).manifest(classes)
    added = from_functions(SPACE, train_linear, predict_linear, manifest={"version": 2})
    assert one != other and one != added.manifest(classes)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (
            lambda: families.find("moon"),
            "family is 'moon'; allowed are 'nats', 'slimmable', 'shared', 'darts', or",
        ),
        (lambda: made("no.such.module:family"), "there is no module 'no'"),
        (lambda: made("tests.helpers.mlp:nothing"), "the module has no such name"),
        (
            lambda: made("tests.helpers.mlp:SPACE"),
            "holds a Product there; it must be a NetworkFamily",
        ),
        (lambda: made(":family"), "it must be package.module:family"),
        (lambda: Recipe(optimiser="lion"), "optimiser is 'lion'; allowed are 'adam', 'sgd'"),
    ],
)
def test_bad_families_are_refused(make, says):
    with pytest.raises(BQNESError, match=says):
        make()


def made(name):
    return families.find(name).make(None)


def test_a_family_of_a_module_is_found():
    assert made("tests.helpers.mlp:family") is mlp.family


@pytest.mark.usefixtures("own_names")
def test_families_can_be_registered():
    kind = families.Kind("lines", families.NoOptions(), lambda _: FAMILIES["functions"][0])
    families.register("lines", kind)
    assert "lines" in families.families() and families.find("lines") is kind
    with pytest.raises(BQNESError, match="built in"):
        families.register("nats", kind)
