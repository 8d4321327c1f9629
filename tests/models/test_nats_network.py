"""The network against the plain sub-network, built operation by operation."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from bqnes_jax.errors import BQNESError
from bqnes_jax.models import NATSNetwork, NATSNetworkConfig, parameter_count
from bqnes_jax.spaces import NATS

CONFIG = NATSNetworkConfig(channels=2, cells=2, classes=3, layout="patches")
ARCHS = np.array(
    [
        [3, 2, 4, 1, 3, 2],
        [2, 3, 0, 4, 1, 3],
        [4, 1, 1, 0, 2, 0],
        [0, 0, 0, 0, 0, 0],
        [3, 3, 3, 3, 3, 3],
    ],
    np.int32,
)
EDGES = ((0, 1), (0, 2), (1, 2), (0, 3), (1, 3), (2, 3))


def convolve(x, kernel, stride=1):
    around = (kernel.shape[-1] // 2,) * 2
    return lax.conv_general_dilated(
        x, kernel, (stride, stride), (around, around), dimension_numbers=("NHWC", "OIHW", "NHWC")
    )


def pool(x, size, stride, padding):
    window = (1, size, size, 1), (1, stride, stride, 1), ((0, 0), padding, padding, (0, 0))
    total, count = (lax.reduce_window(a, 0.0, lax.add, *window) for a in (x, jnp.ones_like(x)))
    return total / count


def plain(variables, arch, x, train):
    """Return logits and updated statistics; only what the architecture names is computed."""
    params, stats = variables["params"], variables["batch_stats"]
    updated = jax.tree.map(lambda leaf: leaf, stats)

    def norm(x, name, place=()):
        *path, leaf = name
        own, old, new = params, stats, updated
        for part in (*path, leaf):
            own, old, new = own[part], old[part], new[part]
        mean, var = old["running_mean"][place], old["running_var"][place]
        if train:
            mean, var = x.mean((0, 1, 2)), x.var((0, 1, 2))
            count = x.size // x.shape[-1]
            for key, value in (("mean", mean), ("var", var * count / (count - 1))):
                moved = 0.9 * old[f"running_{key}"][place] + 0.1 * value
                new[f"running_{key}"] = new[f"running_{key}"].at[place].set(moved)
        return (x - mean) / jnp.sqrt(var + 1e-5) * own["weight"][place] + own["bias"][place]

    def stage(x, name):
        for which in range(params[name]["weight"].shape[0]):
            x = cell(x, name, which)
        return x

    def cell(x, name, which):
        own, nodes = params[name], [x, 0, 0, 0]
        for edge, (source, target) in enumerate(EDGES):
            x, operation = nodes[source], int(arch[edge])
            if operation == 1:
                out = x
            elif operation in (2, 3):
                kernel = own["conv_1x1" if operation == 2 else "conv_3x3"][which, edge]
                place = (which, edge, operation - 2)
                out = norm(convolve(jax.nn.relu(x), kernel), (name,), place)
            elif operation == 4:
                out = pool(x, 3, 1, (1, 1))
            else:
                out = jnp.zeros_like(x)
            nodes[target] += out
        return nodes[3]

    def reduce(x, name):
        own = params[name]
        y = norm(convolve(jax.nn.relu(x), own["conv_a"]["conv"], 2), (name, "conv_a"))
        y = norm(convolve(jax.nn.relu(y), own["conv_b"]["conv"]), (name, "conv_b"))
        shortcut = pool(x, 2, 2, (0, x.shape[1] % 2))
        return y + convolve(shortcut, own["downsample"])

    x = norm(convolve(x, params["stem"]["conv"]), ("stem",))
    x = reduce(stage(x, "cells_0"), "reduction_1")
    x = stage(reduce(stage(x, "cells_1"), "reduction_2"), "cells_2")
    x = jax.nn.relu(norm(x, ("lastact",))).mean((1, 2))
    return x @ params["classifier_weight"].T + params["classifier_bias"], updated


def setting(size=6):
    """Return images, labels and variables none of which is at its initial value."""
    return made_setting(size, jnp.result_type(float))


@functools.cache
def made_setting(size, dtype):
    draw = np.random.default_rng(2)
    images = draw.normal(size=(5, size, size, 1)).astype(dtype)
    variables = jax.jit(NATSNetwork(CONFIG).init)(jax.random.key(1), ARCHS[0], images)
    moved = jax.tree.map(
        lambda leaf: np.asarray(leaf) + draw.uniform(0.1, 0.4, leaf.shape).astype(leaf.dtype),
        variables,
    )
    return images, np.arange(5) % CONFIG.classes, moved


def loss_of(forward, params, stats, arch, images, labels):
    logits, updated = forward({"params": params, "batch_stats": stats}, arch, images)
    return -jnp.mean(jax.nn.log_softmax(logits)[jnp.arange(len(labels)), labels]), updated


def mixed(config):
    def forward(variables, arch, images):
        network = NATSNetwork(config)
        logits, updated = network.apply(variables, arch, images, True, mutable=["batch_stats"])
        return logits, updated["batch_stats"]

    return forward


@functools.cache
def everything(config, at_once=True):
    """Compile loss, statistics and gradient of all architectures, and logits of evaluation.

    At once every operation is computed and one is chosen; in turn only that one is computed.
    """

    def of_one(variables, arch, images, labels):
        function = functools.partial(loss_of, mixed(config))
        trained = jax.value_and_grad(function, has_aux=True)(
            variables["params"], variables["batch_stats"], arch, images, labels
        )
        return trained, NATSNetwork(config).apply(variables, arch, images)

    def in_turn(variables, archs, images, labels):
        return lax.map(lambda arch: of_one(variables, arch, images, labels), archs)

    return jax.jit(jax.vmap(of_one, (None, 0, None, None)) if at_once else in_turn)


def close(ours, theirs, tolerance):
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance), ours, theirs
    )


def used(arch, params):
    """Mark the parameters that an architecture names."""
    marks = jax.tree.map(lambda leaf: np.ones(leaf.shape, bool), params)
    for name in ("cells_0", "cells_1", "cells_2"):
        one, three = (np.asarray(arch) == operation for operation in (2, 3))
        marks[name]["conv_1x1"][:, ~one] = marks[name]["conv_3x3"][:, ~three] = False
        for leaf in ("weight", "bias"):
            marks[name][leaf][:, ~one, 0] = marks[name][leaf][:, ~three, 1] = False
    return marks


@functools.cache
def of_plain(number, precision):
    """Return loss, statistics, gradient and logits of the plain network of an architecture."""
    del precision  # only to compute once for each
    images, labels, variables = setting()

    @jax.jit
    def compute(variables):
        of_loss = functools.partial(loss_of, functools.partial(plain, train=True))
        trained = jax.value_and_grad(of_loss, has_aux=True)(
            variables["params"], variables["batch_stats"], ARCHS[number], images, labels
        )
        return trained, plain(variables, ARCHS[number], images, False)[0]

    return jax.tree.map(np.asarray, compute(variables))


# One layout in each precision: they take long to compile.
@pytest.mark.parametrize(
    ("layout", "at_once", "precision"),
    [
        pytest.param("convolution", True, "float32", marks=pytest.mark.slow),
        pytest.param("patches", True, "float64", marks=pytest.mark.slow),
        ("patches", False, "float64"),
    ],
    indirect=["precision"],
)
def test_equals_the_plain_sub_network(layout, at_once, tolerance, precision):
    config = CONFIG if layout == "patches" else dataclasses.replace(CONFIG, layout=layout)
    images, labels, variables = setting()
    run = everything(config, at_once)
    results = jax.tree.map(np.asarray, run(variables, ARCHS, images, labels))

    # Each plain network is a program to compile: the slow part.
    chosen = ARCHS if layout == "patches" else ARCHS[:2]
    for i, arch in enumerate(chosen):
        ((loss, stats), gradient), logits = jax.tree.map(lambda leaf, i=i: leaf[i], results)
        expected = of_plain(i, precision)
        close((((loss, stats), gradient), logits), expected, tolerance(2e-4, 1e-9))
        assert logits.dtype == precision

        marks = used(arch, gradient)
        jax.tree.map(lambda g, mark: np.testing.assert_array_equal(g[~mark], 0), gradient, marks)
        assert sum(mark.sum() for mark in jax.tree.leaves(marks)) == parameter_count(
            arch, config, input_channels=1
        )


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32"], indirect=True)
@pytest.mark.parametrize("size", [1, 5])
def test_small_and_odd_images(size, tolerance):
    images, _, variables = setting(size=size)
    ours = jax.jit(NATSNetwork(CONFIG).apply)(variables, ARCHS[0], images)
    theirs = jax.jit(lambda variables: plain(variables, ARCHS[0], images, False)[0])(variables)
    close(ours, theirs, tolerance(1e-4, 1e-10))


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float64"], indirect=True)
def test_evaluation_has_a_gradient_by_the_images(tolerance):
    images, _, variables = setting()

    def ours(images, variables, arch):
        return NATSNetwork(CONFIG).apply(variables, arch, images)[:, 0].sum()

    def theirs(images, variables):
        return plain(variables, ARCHS[0], images, False)[0][:, 0].sum()

    expected = jax.jit(jax.grad(theirs))(images, variables)
    assert np.abs(expected).max() > 0
    close(jax.jit(jax.grad(ours))(images, variables, ARCHS[0]), expected, tolerance(1e-4, 1e-9))


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float64"], indirect=True)
def test_what_is_not_used_has_no_influence_whatever_its_value():
    images, labels, variables = setting()
    run = everything(CONFIG)
    before = jax.tree.map(np.asarray, run(variables, ARCHS, images, labels))
    for i, arch in enumerate(ARCHS[:3]):
        spoilt = jax.tree.map(
            lambda leaf, mark: np.where(mark, leaf, np.nan),
            variables["params"],
            used(arch, variables["params"]),
        )
        after = jax.tree.map(
            np.asarray, run({**variables, "params": spoilt}, ARCHS, images, labels)
        )
        jax.tree.map(lambda a, b, i=i: np.testing.assert_array_equal(a[i], b[i]), before, after)


@pytest.mark.parametrize("precision", ["float64"], indirect=True)
def test_cells_of_none_are_a_constant_predictor(tolerance):
    images, labels, variables = setting()
    run = everything(CONFIG)
    archs = np.array([[0] * 6, [3, 3, 3, 0, 0, 0], [1, 0, 0, 0, 0, 0]] + [[0] * 6] * 2, np.int32)
    ((losses, stats), gradient), logits = run(variables, archs, images, labels)
    logits = np.asarray(logits)
    close(logits, np.broadcast_to(logits[:1, :1], logits.shape), tolerance(1e-5, 1e-12))
    for leaf in jax.tree.leaves((losses, stats, gradient, logits)):
        assert np.isfinite(leaf).all()


@pytest.mark.slow
def test_bfloat16_is_near_and_keeps_the_type_of_the_logits(precision):
    images, _, variables = setting()
    config = dataclasses.replace(CONFIG, bfloat16=True)
    exact, rough = (
        jax.jit(NATSNetwork(c).apply)(variables, ARCHS[0], images) for c in (CONFIG, config)
    )
    assert rough.dtype == precision
    assert 0 < np.abs(exact - rough).max() < 0.1 * np.abs(exact).max()


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_parameter_counts_of_the_benchmark(precision):
    config = NATSNetworkConfig(classes=100)
    mixed_arch = NATS.from_string(
        "|nor_conv_3x3~0|+|nor_conv_3x3~0|avg_pool_3x3~1|+|skip_connect~0|nor_conv_3x3~1|skip_connect~2|"
    )
    archs = jnp.stack([*jnp.array([[0] * 6, [2] * 6, [3] * 6], jnp.int32), mixed_arch])
    counts = parameter_count(archs, config)
    assert counts.tolist() == [79_156, 247_156, 1_537_396, 808_276]


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
@pytest.mark.parametrize(
    "wrong",
    [{"channels": 0}, {"cells": 0}, {"classes": 1}],
)
def test_bad_configs_are_refused(wrong, precision):
    with pytest.raises(BQNESError, match=next(iter(wrong))):
        NATSNetworkConfig(**wrong)
