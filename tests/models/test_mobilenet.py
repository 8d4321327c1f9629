"""A slice of the slimmable network against the small network built with the sliced weights."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from bqnes_jax.errors import BQNESError
from bqnes_jax.models import MobileNet, MobileNetConfig, NormStatistics
from bqnes_jax.spaces import SlimmableSpace

SPACE = SlimmableSpace(blocks=2, layers=3)
CONFIG = MobileNetConfig(
    SPACE,
    channels=(3, 5),
    strides=(1, 2),
    expansion=3,
    stem=3,
    head=7,
    classes=3,
    layout="shifts",
)
TEXTS = ("333-333", "100-100", "210-321", "320-100")
FRACTIONS = {1: 0.5, 2: 0.75, 3: 1.0}


def archs_of(texts=TEXTS):
    return np.stack([SPACE.from_string(text) for text in texts])


def setting(size=8, channels=1):
    """Return images, labels and variables none of which is at its initial value."""
    return made_setting(size, channels, jnp.result_type(float))


@functools.cache
def made_setting(size, channels, dtype):
    draw = np.random.default_rng(2)
    images = draw.normal(size=(5, size, size, channels)).astype(dtype)
    labels = np.arange(5) % CONFIG.classes
    variables = jax.jit(MobileNet(CONFIG).init)(jax.random.key(1), SPACE.largest, images)
    moved = jax.tree.map(
        lambda leaf: np.asarray(leaf) + draw.uniform(0.1, 0.4, leaf.shape).astype(leaf.dtype),
        variables,
    )
    return images, labels, moved


def used_channels(expanded, option):
    return math.ceil(expanded * FRACTIONS[option])


def layers_of(arch):
    """Yield (module, place in it, block, option) of the layers that are there."""
    for block, options in enumerate(np.asarray(arch).reshape(SPACE.blocks, -1)):
        for i, option in enumerate(options):
            if option:
                name = f"blocks_{block}_{'rest' if i else 'first'}"
                yield name, max(i - 1, 0), block, int(option)


def cut(leaf, place, start, channels):
    """What one layer uses of a leaf whose expanded channels are along the axis from `start`."""
    index = [place, *[slice(None)] * (leaf.ndim - 1)]
    if start is not None:
        index[start] = slice(channels)
    return leaf[tuple(index)]


# Along which axis of each leaf the expanded channels are, after that of the layers.
EXPANDED = {"expand": 2, "depthwise": 3, "project": 1, "project_weight": None, "project_bias": None}


def sliced(variables, arch):
    """Cut the weights of a slice out: a list of layers with arrays of their own small shapes."""
    layers = []
    for name, place, block, option in layers_of(arch):
        weights = variables["params"][name]
        channels = used_channels(weights["expand"].shape[2], option)
        own = {
            leaf: cut(values, place, EXPANDED.get(leaf, 1), channels)
            for leaf, values in weights.items()
        }
        statistics = {
            norm: [
                cut(values, place, None if norm == "project" else 1, channels)
                for values in variables["batch_stats"][name][norm]
            ]
            for norm in ("expand", "depthwise", "project")
        }
        stride = CONFIG.strides[block] if name.endswith("first") else 1
        layers.append((own, statistics, stride))
    rest = {k: v for k, v in variables["params"].items() if not k.startswith("blocks")}
    return rest, variables["batch_stats"], layers


def plain(small, images, train):
    """A MobileNetV2 of the usual kind: images first, channels last, XLA's convolutions."""
    rest, statistics, layers = small

    def convolve(x, kernel, stride=1, groups=1):
        around = (kernel.shape[0] // 2,) * 2
        return lax.conv_general_dilated(
            x,
            kernel,
            (stride, stride),
            (around, around),
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
            feature_group_count=groups,
        )

    def norm(x, weights, name, given):
        mean, var = (x.mean((0, 1, 2)), x.var((0, 1, 2))) if train else given
        x = (x - mean) / jnp.sqrt(var + 1e-5)
        return x * weights[f"{name}_weight"] + weights[f"{name}_bias"]

    def end(x, name):
        x = convolve(x, rest[name]["conv"])
        return jnp.clip(norm(x, rest[name], "norm", statistics[name]["norm"]), 0, 6)

    x = end(images, "stem")
    for weights, given, stride in layers:
        y = convolve(x, weights["expand"][None, None])
        y = jnp.clip(norm(y, weights, "expand", given["expand"]), 0, 6)
        y = convolve(y, weights["depthwise"][:, :, None], stride, groups=y.shape[-1])
        y = jnp.clip(norm(y, weights, "depthwise", given["depthwise"]), 0, 6)
        y = convolve(y, weights["project"][None, None])
        y = norm(y, weights, "project", given["project"])
        x = x + y if stride == 1 and x.shape == y.shape else y
    features = end(x, "head").mean((1, 2))
    return features @ rest["classifier_weight"] + rest["classifier_bias"]


def plainly(variables, arch, images, train):
    return jax.jit(lambda variables: plain(sliced(variables, arch), images, train))(variables)


def loss_of(logits, labels):
    return -jnp.mean(jax.nn.log_softmax(logits)[jnp.arange(len(labels)), labels])


@functools.cache
def everything(config, train):
    """Compile logits and gradients of several architectures."""

    def of_one(params, statistics, arch, images, labels):
        variables = {"params": params, "batch_stats": statistics}
        logits = MobileNet(config).apply(variables, arch, images, train=train)
        return loss_of(logits, labels), logits

    gradient = jax.value_and_grad(of_one, has_aux=True)
    return jax.jit(jax.vmap(gradient, (None, None, 0, None, None)))


def marks(params, arch):
    """Mark the parameters that an architecture uses."""
    used = jax.tree.map(lambda leaf: np.ones(leaf.shape, bool), params)
    for name in used:
        if name.startswith("blocks"):
            used[name] = jax.tree.map(np.zeros_like, used[name])
    for name, place, _, option in layers_of(arch):
        channels = used_channels(params[name]["expand"].shape[2], option)
        for leaf, values in used[name].items():
            cut(values, place, EXPANDED.get(leaf, 1), channels)[...] = True
    return used


def close(ours, theirs, tolerance):
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance), ours, theirs
    )


@pytest.mark.slow("float64")
@pytest.mark.parametrize(
    ("train", "precision"),
    [
        pytest.param(False, "float32", marks=pytest.mark.slow),
        (True, "float32"),
        (True, "float64"),
    ],
    indirect=["precision"],
)
def test_a_slice_equals_the_small_network(train, tolerance, precision):
    """Logits, and gradients: those of what is used agree, all others are exactly zero."""
    images, labels, variables = setting()
    params, statistics = variables["params"], variables["batch_stats"]
    (losses, logits), gradients = jax.tree.map(
        np.asarray, everything(CONFIG, train)(params, statistics, archs_of(), images, labels)
    )
    assert logits.dtype == precision
    within = tolerance(1e-5, 1e-9)

    def reference(params, arch):
        small = sliced({"params": params, "batch_stats": statistics}, arch)
        logits = plain(small, images, train)
        return loss_of(logits, labels), logits

    for i in (2, 3) if precision == "float64" else (2,):  # each is a program to compile
        arch, gradient = archs_of()[i], jax.tree.map(lambda leaf, i=i: leaf[i], gradients)
        of_small = jax.jit(
            lambda p, arch=arch: jax.value_and_grad(reference, has_aux=True)(p, arch)
        )
        (loss, expected), by_params = of_small(params)
        close((losses[i], logits[i], gradient), (loss, expected, by_params), within)
        jax.tree.map(
            lambda g, mark: np.testing.assert_array_equal(np.asarray(g)[~mark], 0),
            gradient,
            marks(params, arch),
        )


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float64"], indirect=True)
@pytest.mark.parametrize("train", [False, True])
def test_what_is_not_used_has_no_influence_whatever_its_value(train):
    images, labels, variables = setting()
    params, statistics = variables["params"], variables["batch_stats"]
    run, archs = everything(CONFIG, train), archs_of()
    before = jax.tree.map(np.asarray, run(params, statistics, archs, images, labels))
    for i in (1, 2):
        used = marks(params, archs[i])
        spoilt = jax.tree.map(lambda leaf, mark: np.where(mark, leaf, np.nan), params, used)
        # Statistics are used where the weights of their batch norm are.
        marked = {
            name: {norm: NormStatistics(*[used[name][f"{norm}_weight"]] * 2) for norm in of_module}
            for name, of_module in statistics.items()
        }
        given = jax.tree.map(lambda leaf, mark: np.where(mark, leaf, np.nan), statistics, marked)
        after = jax.tree.map(np.asarray, run(spoilt, given, archs, images, labels))
        jax.tree.map(lambda a, b, i=i: np.testing.assert_array_equal(a[i], b[i]), before, after)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_both_layouts_agree_at_odd_sizes(tolerance):
    images, labels, variables = setting(size=9, channels=3)
    other = dataclasses.replace(CONFIG, layout="convolution")
    ours, theirs = (
        everything(config, True)(
            variables["params"], variables["batch_stats"], archs_of(), images, labels
        )
        for config in (CONFIG, other)
    )
    close(ours, theirs, tolerance(2e-4, 1e-9))
    expected = plainly(variables, archs_of()[2], images, True)
    close(ours[0][1][2], expected, tolerance(1e-4, 1e-9))


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float64"], indirect=True)
@pytest.mark.parametrize("size", [1, 2, 10])
def test_other_sizes(size, tolerance):
    images, _, variables = setting(size=size)
    ours = jax.jit(MobileNet(CONFIG).apply)(variables, archs_of()[2], images)
    close(ours, plainly(variables, archs_of()[2], images, False), tolerance(1e-5, 1e-9))


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_one_compilation_for_all_architectures(compilations, tolerance):
    images, _, variables = setting()
    archs, network = archs_of(), MobileNet(CONFIG)
    together = jax.jit(jax.vmap(network.apply, (None, 0, None)))(variables, archs, images)
    apply = jax.jit(network.apply)
    first = apply(variables, archs[0], images)
    compilations()
    others = [apply(variables, arch, images) for arch in archs[1:]]
    assert compilations() == 0
    close(np.stack([first, *others]), together, tolerance(1e-5, 1e-12))
    assert np.unique(np.asarray(together)[:, 0, 0]).size == len(TEXTS)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float64"], indirect=True)
def test_statistics_of_a_batch_normalise_it_again(tolerance):
    """What training returns, evaluation with it repeats; the given ones play no part."""
    images, _, variables = setting()
    network, arch = MobileNet(CONFIG), archs_of()[2]
    train = functools.partial(network.apply, train=True, mutable=["batch_stats"])
    logits, updated = jax.jit(train)({"params": variables["params"]}, arch, images)
    again = jax.jit(network.apply)({**variables, **updated}, arch, images)
    close(again, logits, tolerance(1e-5, 1e-10))
    shapes = jax.tree.map(jnp.shape, updated["batch_stats"])
    assert shapes == jax.tree.map(jnp.shape, variables["batch_stats"])
    for leaf in jax.tree.leaves(updated):
        assert jnp.isfinite(leaf).all()
    assert (updated["batch_stats"]["blocks_0_rest"]["project"].mean[1] == 0).all(), "absent"


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_bfloat16_is_near_and_keeps_the_type_of_the_logits(precision):
    images, _, variables = setting()
    config = dataclasses.replace(CONFIG, bfloat16=True)
    exact, rough = (
        jax.jit(MobileNet(c).apply)(variables, archs_of()[0], images) for c in (CONFIG, config)
    )
    assert rough.dtype == precision
    assert 0 < np.abs(exact - rough).max() < 0.1 * np.abs(exact).max()


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_initial_weights_have_their_scale(key):
    """All of the numbers that are drawn are used, each once."""
    config = dataclasses.replace(CONFIG, channels=(40, 50), stem=60, head=70)
    params = jax.jit(MobileNet(config).init)(key, SPACE.largest, jnp.zeros((1, 8, 8, 3)))["params"]
    drawn = [leaf for leaf in jax.tree.leaves(params) if np.ptp(leaf) > 0]
    values = np.concatenate([np.ravel(leaf) for leaf in drawn])
    assert np.unique(values).size > 0.99 * values.size
    for name, inputs in (("expand", 50), ("depthwise", 9), ("project", 150)):
        leaf = params["blocks_1_rest"][name]
        np.testing.assert_allclose(leaf.var(), 2 / inputs, rtol=0.15)
        np.testing.assert_allclose(leaf.mean(), 0, atol=0.1 * np.sqrt(2 / inputs))
    assert (params["blocks_1_rest"]["project_weight"] == 0).all(), "what is added begins as 0"
    assert (params["blocks_1_first"]["project_weight"] == 1).all(), "nothing to add to"


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_channels_of_each_option():
    assert MobileNetConfig().count_channels(96) == (0, 48, 72, 96)
    assert MobileNetConfig().count_channels(9) == (0, 5, 7, 9)
    one, five = (
        dataclasses.replace(CONFIG, space=dataclasses.replace(SPACE, widths=n)) for n in (1, 5)
    )
    assert one.count_channels(7) == (0, 7)
    assert five.count_channels(16) == (0, 8, 10, 12, 14, 16)


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"channels": (3,)}, r"channels are \(3,\); .* each of the 2 blocks"),
        ({"strides": (1, 3)}, r"strides\[1\] is 3"),
        ({"channels": (3, 0)}, r"channels\[1\] is 0"),
        ({"expansion": 0}, "expansion"),
        ({"classes": 1}, "classes"),
    ],
)
def test_bad_configs_are_refused(wrong, says):
    with pytest.raises(BQNESError, match=says):
        dataclasses.replace(CONFIG, **wrong)
