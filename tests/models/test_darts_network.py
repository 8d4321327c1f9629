"""The network of DARTS against the plain sub-network, built operation by operation."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from bqnes_jax.compiling import call_apart
from bqnes_jax.errors import BQNESError
from bqnes_jax.models import DARTSNetwork, DARTSNetworkConfig, parameter_count
from bqnes_jax.models.taps import PLACES, Taps, convolve_taps, in_phases, max_taps
from bqnes_jax.spaces import DARTS
from tests.spaces.test_darts import DARTS_V2

CONFIG = DARTSNetworkConfig(channels=2, cells=5, classes=3)
DEEP = DARTSNetworkConfig(channels=2, cells=8, classes=3)  # two cells by the same instructions


def architectures():
    """Return architectures that use every operation, in both cells."""
    drawn = np.array(DARTS.sample(jax.random.key(3), 1))
    turned = drawn[0].reshape(2, 4, 2, 2).copy()
    turned[..., 1] = np.arange(16).reshape(2, 4, 2) % 7
    other = turned.copy()
    other[..., 1] = np.arange(16).reshape(2, 4, 2)[:, ::-1] * 3 % 7
    return np.stack([turned.ravel(), other.ravel(), *drawn]).astype(np.int32)


ARCHS = architectures()


def convolve(x, kernel, stride=1, dilation=1, groups=1):
    around = (kernel.shape[-1] // 2 * dilation,) * 2
    return lax.conv_general_dilated(
        x,
        kernel,
        (stride, stride),
        (around, around),
        rhs_dilation=(dilation, dilation),
        dimension_numbers=("NHWC", "OIHW", "NHWC"),
        feature_group_count=groups,
    )


def pool(x, operation, stride):
    window = (1, 3, 3, 1), (1, stride, stride, 1), ((0, 0), (1, 1), (1, 1), (0, 0))
    if operation == "max_pool_3x3":
        return lax.reduce_window(x, -jnp.inf, lax.max, *window)
    total, count = (lax.reduce_window(a, 0.0, lax.add, *window) for a in (x, jnp.ones_like(x)))
    return total / count


def halve(x, kernels):
    """Convolve even pixels with one kernel, odd ones with the other."""
    odd = jnp.pad(x, ((0, 0), (0, 1), (0, 1), (0, 0)))[:, 1:, 1:]
    parts = (convolve(part, kernel, 2) for part, kernel in zip((x, odd), kernels, strict=True))
    return jnp.concatenate(list(parts), axis=-1)


def plain(config, variables, arch, x, train):
    """Return logits, updated statistics and which parameters were used, of one architecture."""
    params, stats = variables["params"], variables["batch_stats"]
    updated = jax.tree.map(lambda leaf: leaf, stats)
    used = jax.tree.map(lambda leaf: np.zeros(leaf.shape, bool), params)

    def inside(tree, path):
        return functools.reduce(lambda tree, part: tree[part], path, tree)

    def own(path, leaf, place=()):
        inside(used, path)[leaf][place] = True
        return inside(params, path)[leaf][place]

    def norm(x, path, place=()):
        old, new = inside(stats, path), inside(updated, path)
        mean, var = old["running_mean"][place], old["running_var"][place]
        if train:
            mean, var = x.mean((0, 1, 2)), x.var((0, 1, 2))
            count = x.size // x.shape[-1]
            for key, value in (("mean", mean), ("var", var * count / (count - 1))):
                moved = 0.9 * old[f"running_{key}"][place] + 0.1 * value
                new[f"running_{key}"] = new[f"running_{key}"].at[place].set(moved)
        scale = own(path, "weight", place) / jnp.sqrt(var + 1e-5)
        return (x - mean) * scale + own(path, "bias", place)

    def preprocess(x, path, place, halves):
        x, kernel = jax.nn.relu(x), own(path, "conv", place)
        return norm(halve(x, kernel) if halves else convolve(x, kernel), path, place)

    def edge(x, path, lead, number, operation, stride):
        at = (*lead, number)
        if "pool" in operation:
            return pool(x, operation, stride)
        if operation == "skip_connect":
            if stride == 1:
                return x
            return norm(halve(jax.nn.relu(x), own(path, "halving", at)), path, (*at, 6))
        size, dilated = int(operation[-1]), operation.startswith("dil")
        for i in (2,) if dilated else (0, 1):
            kernel = own(path, f"conv_{size}x{size}", (*at, i))
            x = convolve(jax.nn.relu(x), kernel, stride, 1 + dilated, x.shape[-1])
            place = (*at, i + 3 * (size == 5))
            x = norm(convolve(x, own(path, "pointwise", place)), path, place)
            stride = 1
        return x

    def cell(states, path, lead, kind, halves):
        nodes = [
            preprocess(state, (*path, f"preprocess{i}"), lead, halves and i == 0)
            for i, state in enumerate(states)
        ]
        edges = call_apart(lambda: DARTS.decode(arch))[kind]
        for node in range(4):
            ends = [
                edge(nodes[source], path, lead, number, operation, stride_of(kind, source))
                for number, (operation, source) in enumerate(edges)
                if number // 2 == node
            ]
            nodes.append(ends[0] + ends[1])
        return jnp.concatenate(nodes[2:], axis=-1)

    x = norm(convolve(x, own(("stem",), "conv")), ("stem",))
    states, reduced = (x, x), False
    for number in range(config.cells):
        reduces = number in (config.cells // 3, 2 * config.cells // 3)
        path, lead = place_of(params, number)
        out = cell(states, path, lead, "reduce" if reduces else "normal", reduced)
        states, reduced = (states[1], out), reduces
    features = states[1].mean((1, 2))
    logits = features @ own((), "classifier_weight").T + own((), "classifier_bias")
    return logits, updated, used


def stride_of(kind, source):
    return 2 if kind == "reduce" and source < 2 else 1


def place_of(params, number):
    """Return where the variables of a cell are: a group that begins with it, or before it."""
    starts = sorted(int(name[6:]) for name in params if name.startswith("cells_"))
    first = max(start for start in starts if start <= number)
    stacked = params[f"cells_{first}"]["weight"].ndim == 4
    return (f"cells_{first}",), (number - first,) if stacked else ()


@functools.cache
def setting(config, dtype, size=8):
    """Return images, labels and variables none of which is at its initial value."""
    draw = np.random.default_rng(2)
    images = draw.normal(size=(4, size, size, 1)).astype(dtype)
    network = DARTSNetwork(config)
    shapes = jax.eval_shape(network.init, jax.random.key(1), ARCHS[0], images)
    variables = {
        "params": jax.tree.map(lambda s: draw.normal(0, 0.4, s.shape), shapes["params"]),
        "batch_stats": jax.tree.map(lambda s: draw.uniform(0.5, 1, s.shape), shapes["batch_stats"]),
    }
    variables = jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), variables)
    return images, np.arange(4) % config.classes, variables


def loss_of(forward, params, stats, arch, images, labels):
    logits, updated = forward({"params": params, "batch_stats": stats}, arch, images)
    return -jnp.mean(jax.nn.log_softmax(logits)[jnp.arange(len(labels)), labels]), updated


@functools.cache
def everything(config, precision):
    """Compile loss, statistics and gradient of an architecture, and logits of evaluation."""
    del precision  # only to compile once for each
    network = DARTSNetwork(config)

    def forward(variables, arch, images):
        logits, updated = network.apply(variables, arch, images, True, mutable=["batch_stats"])
        return logits, updated["batch_stats"]

    def of_one(variables, arch, images, labels):
        trained = jax.value_and_grad(functools.partial(loss_of, forward), has_aux=True)(
            variables["params"], variables["batch_stats"], arch, images, labels
        )
        return trained, network.apply(variables, arch, images)

    return jax.jit(of_one)


def close(ours, theirs, tolerance):
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance), ours, theirs
    )


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float64"], indirect=True)
@pytest.mark.parametrize("config", [CONFIG, DEEP], ids=["cells", "deep"])
def test_equals_the_plain_sub_network(config, precision):
    images, labels, variables = setting(config, precision)
    for arch in ARCHS[: 3 if config is CONFIG else 1]:
        ((loss, stats), gradient), logits = everything(config, precision)(
            variables, arch, images, labels
        )
        marks = {}

        def forward(variables, arch, images, train=True, marks=marks):
            logits, updated, marks["used"] = plain(config, variables, arch, images, train)
            return logits, updated

        theirs = jax.jit(
            lambda params, arch=arch, forward=forward: jax.value_and_grad(
                functools.partial(loss_of, forward), has_aux=True
            )(params, variables["batch_stats"], arch, images, labels)
        )(variables["params"])
        close(((loss, stats), gradient), theirs, 1e-8)
        close(logits, forward(variables, arch, images, False)[0], 1e-9)
        assert logits.dtype == precision

        used = marks["used"]
        jax.tree.map(lambda g, u: np.testing.assert_array_equal(g[~u], 0), gradient, used)
        counted = sum(int(leaf.sum()) for leaf in jax.tree.leaves(used))
        assert counted == parameter_count(arch, config, input_channels=1)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float64"], indirect=True)
@pytest.mark.parametrize("size", [1, 5])
def test_small_and_odd_images(size, precision):
    images, _, variables = setting(CONFIG, precision, size)
    ours = jax.jit(DARTSNetwork(CONFIG).apply)
    for arch in ARCHS:
        theirs = plain(CONFIG, variables, arch, images, False)[0]
        close(ours(variables, arch, images), theirs, 1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_what_is_not_used_has_no_influence_whatever_its_value(precision):
    images, labels, variables = setting(CONFIG, precision)
    run, arch = everything(CONFIG, precision), ARCHS[0]
    used = plain(CONFIG, variables, arch, images, False)[2]
    spoilt = jax.tree.map(lambda leaf, u: jnp.where(u, leaf, np.nan), variables["params"], used)
    before, after = (
        run({**variables, "params": params}, arch, images, labels)
        for params in (variables["params"], spoilt)
    )
    jax.tree.map(np.testing.assert_array_equal, before, after)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_architectures_at_once_are_those_in_turn(precision):
    images, _, variables = setting(CONFIG, precision)
    apply = DARTSNetwork(CONFIG).apply
    at_once = jax.jit(jax.vmap(apply, (None, 0, None)))(variables, ARCHS, images)
    in_turn = jax.jit(apply)
    close(at_once, np.stack([in_turn(variables, arch, images) for arch in ARCHS]), 1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_paths_are_dropped_in_training_alone(precision):
    config = DARTSNetworkConfig(channels=2, cells=3, classes=3, drop_path=0.5)
    images, _, variables = setting(config, precision)

    @jax.jit
    def trained(key):
        return DARTSNetwork(config).apply(
            variables,
            jnp.asarray(ARCHS[0]),
            jnp.asarray(images),
            True,
            rngs={"drop_path": key},
            mutable=["batch_stats"],
        )[0]

    one, same, other = (trained(jax.random.key(seed)) for seed in (0, 0, 1))
    np.testing.assert_array_equal(one, same)
    assert np.abs(one - other).max() > 1e-3
    without = DARTSNetworkConfig(channels=2, cells=3, classes=3)
    ours, plainly = (
        jax.jit(DARTSNetwork(c).apply)(variables, ARCHS[0], images) for c in (config, without)
    )
    np.testing.assert_array_equal(ours, plainly)


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_the_published_network_is_of_its_published_size(precision):
    """3.3 M with 36 channels and 20 cells on CIFAR-10, without the auxiliary head."""
    arch = DARTS.from_string(DARTS_V2)
    assert parameter_count(arch, DARTSNetworkConfig()) == 3_349_342
    both = parameter_count(jnp.stack([arch, ARCHS[0]]), DARTSNetworkConfig())
    assert both.shape == (2,) and both[0] == 3_349_342


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
@pytest.mark.parametrize(("size", "dilation"), [(3, 1), (5, 1), (3, 2), (5, 2)])
def test_taps_are_convolutions_at_either_stride(size, dilation, precision):
    draw = np.random.default_rng(size + dilation)
    image = draw.normal(size=(3, 5, 6, 2))
    kernel = draw.normal(size=(3, 1, size, size))
    places = jnp.zeros((PLACES, 3)).at[: size**2].set(kernel.reshape(3, -1).T)
    for stride in (1, 2):
        taps = Taps(jnp.int32(size), jnp.int32(dilation), jnp.array(stride == 2))
        phases = in_phases(jnp.asarray(image)) if stride == 2 else jnp.asarray(image)[None]
        ours = convolve_taps(phases, places, taps)
        theirs = convolve(jnp.transpose(image, (3, 1, 2, 0)), kernel, stride, dilation, 3)
        close(ours, jnp.transpose(theirs, (3, 1, 2, 0)), 1e-5)


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_of_equal_pixels_the_first_is_the_largest(precision):
    taps = Taps(jnp.int32(3), jnp.int32(1), jnp.array(False))
    best, where = max_taps(jnp.full((1, 1, 3, 3, 1), -2.0), np.ones((1, 1, 3, 3, 1), bool), taps)
    np.testing.assert_array_equal(best, -2.0)
    expected = [3 * (i == 0) + (j == 0) for i, j in itertools.product(range(3), repeat=2)]
    np.testing.assert_array_equal(where.ravel(), expected)


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
@pytest.mark.parametrize(
    "wrong",
    [{"channels": 3}, {"channels": 0}, {"cells": 2}, {"classes": 1}, {"drop_path": 1.0}],
)
def test_bad_configs_are_refused(wrong, precision):
    with pytest.raises(BQNESError, match=next(iter(wrong))):
        DARTSNetworkConfig(**wrong)
