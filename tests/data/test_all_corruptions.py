"""What holds for all nineteen corruptions."""

import functools
import itertools
import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bqnes_jax.data import CORRUPTIONS, FAMILIES, SEVERITIES, corrupt
from bqnes_jax.errors import BQNESError
from tests.data.test_corruptions import digits, distance, photographs

pytestmark = pytest.mark.parametrize("precision", ["float32"], indirect=True)
DETERMINISTIC = (
    "defocus_blur",
    "zoom_blur",
    "gaussian_blur",
    "brightness",
    "contrast",
    "pixelate",
    "jpeg_compression",
    "saturate",
)
KEEP_CONSTANTS = (*FAMILIES["blur"], "contrast", "elastic_transform", "pixelate")
needs_cifar = pytest.mark.skipif(
    "BQNES_DATA_DIR" not in os.environ,
    reason="BQNES_DATA_DIR is not set: it names the directory with cifar10_subset.npz",
)


def test_names_and_families():
    assert len(CORRUPTIONS) == 19
    assert tuple(CORRUPTIONS) == sum(FAMILIES.values(), ())
    assert list(FAMILIES) == ["noise", "blur", "weather", "digital"]
    assert all(function.__name__ == name for name, function in CORRUPTIONS.items())


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_what_holds_for_all(name, key, compilations):
    """One program for all severities, the same for the same key, each image on its own."""
    images = np.repeat(photographs()[:1], len(photographs()), axis=0)
    first = np.asarray(corrupt(name, key, images, 1))
    compilations()
    all_severities = [np.asarray(corrupt(name, key, images, severity)) for severity in SEVERITIES]
    assert compilations() == 0
    np.testing.assert_array_equal(all_severities[0], first)
    for result in all_severities:
        assert result.dtype == np.uint8 and result.shape == images.shape
        assert (result != images).any()
    other = np.asarray(corrupt(name, jax.random.key(1), images, 5))
    chosen = all_severities[-1]
    if name in DETERMINISTIC:
        np.testing.assert_array_equal(other, chosen)
        np.testing.assert_array_equal(chosen[1], chosen[0])
    else:
        assert (other != chosen).any() and (chosen[0] != chosen[1]).any()
        assert (chosen[1] != chosen[2]).any()


@pytest.mark.slow
@pytest.mark.parametrize("name", CORRUPTIONS)
def test_images_of_one_value(name, key):
    """Black and white; blurs and the like leave them as they are, nothing divides by zero."""
    images = np.zeros_like(digits())
    images[::2] = 255
    for severity in SEVERITIES:
        result = np.asarray(corrupt(name, key, images, severity), float)
        black, white = result[1::2], result[::2]
        if name in KEEP_CONSTANTS:
            assert (black == 0).all() and (white == 255).all()
        assert black.mean() < 128 < white.mean()


@pytest.mark.slow
@pytest.mark.parametrize("name", CORRUPTIONS)
def test_jit_and_vmap_change_nothing(name, key):
    """Over keys and severities at once, for a single image that is not square."""
    images = jnp.asarray(photographs()[:1, :9, :13])
    keys, severities = jax.random.split(key, 5), jnp.arange(1, 6)
    together = jax.jit(jax.vmap(functools.partial(corrupt, name), (0, None, 0)))
    together = np.asarray(together(keys, images, severities))
    for i, severity in enumerate(SEVERITIES):
        alone = np.asarray(corrupt(name, keys[i], images, severity))
        # Programs may round differently, and what is just at a whole number is then one less.
        np.testing.assert_allclose(together[i].astype(int), alone, atol=1)
        assert (together[i] == alone).mean() > 0.99


@pytest.mark.slow
@pytest.mark.parametrize("name", CORRUPTIONS)
def test_both_precisions_give_the_same_bytes(name):
    images = photographs()[:1, :9, :13]
    results = []
    for double in (False, True):
        jax.config.update("jax_enable_x64", double)
        results.append(np.asarray(corrupt(name, jax.random.key(0), images, 4)))
    np.testing.assert_array_equal(*results)


def not_growing(name, images):
    """Severities after which the mean distance from the clean images is not larger."""
    away = [
        np.mean([distance(corrupt(name, jax.random.key(i), images, s), images) for i in range(2)])
        for s in SEVERITIES
    ]
    return [s for s, (now, then) in enumerate(itertools.pairwise(away), 1) if then <= now]


# The published settings do not always move images further from the clean ones: a motion of radius 8
# is that of radius 6 with weights below 1e-8 more; frost gets denser, but the image below darker;
# water becomes mud; colours are washed out first and strengthened later; the affine maps of the
# elastic transform get weaker.
@pytest.mark.slow
@needs_cifar
@pytest.mark.parametrize("name", CORRUPTIONS)
def test_distances_grow_with_severity(name):
    exceptions = {
        "glass_blur": [2, 4],
        "motion_blur": [3],
        "frost": [3, 4],
        "spatter": [3],
        "elastic_transform": [1, 2, 3, 4],
        "saturate": [2],
    }
    assert not_growing(name, photographs()) == exceptions.get(name, [])


@pytest.mark.slow
@pytest.mark.parametrize("name", CORRUPTIONS)
def test_distances_grow_with_severity_on_digits(name):
    """8 × 8 pixels are 7, 7, 6, 6 and 5 large ones; grey has no colours to wash out."""
    exceptions = {
        "motion_blur": [3],
        "frost": [3],
        "spatter": [3],
        "elastic_transform": [1, 4],
        "pixelate": [1, 3, 4],
        "saturate": [1, 2],
    }
    assert not_growing(name, digits()) == exceptions.get(name, [])


@pytest.mark.parametrize("severity", [0, 6, 2.5, True, np.int64(-1), np.arange(1, 6)])
def test_other_severities_are_refused(severity, key):
    with pytest.raises(BQNESError, match=r"severity is .*; it must be a whole number, from 1 to 5"):
        corrupt("fog", key, photographs()[:1], severity)


@pytest.mark.parametrize(
    ("images", "says"),
    [
        (np.zeros((1, 8, 8, 3)), "type float64 and shape .* must be uint8"),
        (np.zeros((8, 8, 3), np.uint8), r"shape \(n, height, width, channels\)"),
        (np.zeros((1, 7, 8, 3), np.uint8), "at least 8 × 8"),
        (np.zeros((1, 8, 8, 2), np.uint8), "one channel or three"),
    ],
)
def test_other_images_are_refused(images, says, key):
    with pytest.raises(BQNESError, match=says):
        corrupt("fog", key, images, 1)


def test_other_names_are_refused(key):
    with pytest.raises(BQNESError, match="name is 'mist'; allowed are 'gaussian_noise', "):
        corrupt("mist", key, photographs()[:1], 1)
