"""Corruptions against imagecorruptions, OpenCV and Pillow.

The peer has the settings of ImageNet-C, so what is compared are the functions that take settings.
Limits are in grey levels, and near what is measured.
"""

import functools
import importlib.resources
import io
import os

import jax
import jax.numpy as jnp
import numpy as np
import PIL.Image
import pytest
import scipy.stats

from bqnes_jax.data import corrupt, load
from bqnes_jax.data.corruptions import blur, digital, noise, weather
from bqnes_jax.data.corruptions.common import look_up, to_bytes, to_pixels, uniform

pytestmark = pytest.mark.parametrize("precision", ["float32"], indirect=True)


@functools.cache
def photographs():
    """Images of 32 × 32: CIFAR's where they are, otherwise three digits as the three channels."""
    if "BQNES_DATA_DIR" in os.environ:
        return load("cifar10_subset").test.inputs[:64]
    return enlarged(np.moveaxis(digits()[:192].reshape(64, 3, 8, 8), 1, -1), 32, 32)


@functools.cache
def digits():
    return load("digits").train.inputs[:256]


def enlarged(images, height, width):
    return np.stack(
        [np.asarray(PIL.Image.fromarray(image).resize((width, height))) for image in images]
    )


def distance(images, others):
    return np.abs(np.asarray(images, float) - np.asarray(others, float)).mean()


def by_peer(name, images, severity, seed=0):
    reason = "imagecorruptions-imaug is not installed: pip install 'bqnes-jax[test]'"
    peer = pytest.importorskip("imagecorruptions", reason=reason, exc_type=ImportError)
    np.random.seed(seed)
    seeds = {"seed": seed} if name in ("impulse_noise", "glass_blur") else {}
    return np.stack([peer.corrupt(image, severity, name, **seeds) for image in images])


def cv2():
    return pytest.importorskip("cv2", reason="OpenCV is not installed: it comes with the peer")


# Settings of ImageNet-C, as the peer has them, and a limit. Where a result is a whole number,
# rounding errors of the peer may put it one level lower: often with brightness + 51, saturation · 2
# and a disk of 29 equal pixels.
AS_IMAGENET = {
    "defocus_blur": (
        functools.partial(blur.blur_by_disk, reach=8),
        ((3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5)),
        0.05,
    ),
    "zoom_blur": (
        blur.average_zooms,
        ((0.01, 12), (0.01, 16), (0.02, 11), (0.02, 13), (0.03, 11)),
        0.005,
    ),
    "gaussian_blur": (
        functools.partial(blur.blur_by_gaussian, reach=24),
        ((1,), (2,), (3,), (4,), (6,)),
        0.005,
    ),
    "brightness": (weather.brighten, ((0.1,), (0.2,), (0.3,), (0.4,), (0.5,)), 0.05),
    "contrast": (digital.lower_contrast, ((0.4,), (0.3,), (0.2,), (0.1,), (0.05,)), 0.01),
    "pixelate": (digital.coarsen, ((0.6,), (0.5,), (0.4,), (0.3,), (0.25,)), 0),
    "saturate": (
        digital.change_saturation,
        ((0.3, 0), (0.1, 0), (2, 0), (5, 0.1), (20, 0.2)),
        0.2,
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", AS_IMAGENET)
def test_deterministic_ones_agree_with_the_peer(name):
    # Sizes at which nothing ends exactly between pixels: rounding errors would decide.
    images = enlarged(photographs()[:16], *((32, 32) if name == "pixelate" else (37, 45)))
    function, table, limit = AS_IMAGENET[name]
    ours = jax.jit(lambda x, s: to_bytes(function(to_pixels(x), *look_up(s, table))))
    for severity in range(1, len(table) + 1):
        error = distance(ours(images, severity), by_peer(name, images, severity))
        assert error <= limit, severity


def as_jpeg(image, quality):
    file = io.BytesIO()
    PIL.Image.fromarray(image.squeeze()).save(file, "JPEG", quality=quality)
    return np.asarray(PIL.Image.open(file)).reshape(image.shape)


def pieces(images, height, width):
    """Cut as many pieces of the given size out of images as there are."""
    down, right = images.shape[1] // height, images.shape[2] // width
    images = images[:, : down * height, : right * width]
    rows = images.reshape(len(images), down, height, right, width, -1)
    return rows.swapaxes(2, 3).reshape(-1, height, width, images.shape[-1])


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(32, 32, 3), (37, 45, 3), (8, 8, 3), (9, 13, 3), (34, 38, 1)])
def test_jpeg_agrees_with_pillow(shape):
    """Few coefficients are rounded differently: Pillow's cosine transform is one of integers."""
    height, width, channels = shape
    large = enlarged(photographs()[:32], 2 * 37, 2 * 45)[..., :channels]
    images = pieces(large, height, width)[:256]
    ours = jax.jit(lambda x, quality: to_bytes(digital.compress(to_pixels(x), quality)))
    for quality in (1, 10, 25, 40, 50, 58, 65, 80, 95, 100):
        expected = np.stack([as_jpeg(image, quality) for image in images])
        result = np.asarray(ours(images, quality))
        assert distance(result, expected) < 0.03, quality
        assert (result == expected).mean() > 0.97, quality


@pytest.mark.parametrize("size", [(32, 32), (8, 8), (24, 40)])
def test_large_pixels_agree_with_pillow(size):
    images = enlarged(photographs()[:8], *size)
    ours = jax.jit(lambda x, scale: to_bytes(digital.coarsen(to_pixels(x), scale)))
    for scale in (0.95, 0.9, 0.85, 0.75, 0.65, 0.3):
        small = [int(length * scale) for length in reversed(size)]
        expected = [
            PIL.Image.fromarray(image)
            .resize(small, PIL.Image.Resampling.BOX)
            .resize(size[::-1], PIL.Image.Resampling.BOX)
            for image in images
        ]
        np.testing.assert_array_equal(ours(images, scale), np.stack(expected))


def blur_somewhere(key, images, radius, sigma):
    angles = jnp.pi / 4 * (2 * uniform(key, images.shape[:1]) - 1)
    return blur.blur_by_motion(images, angles, radius, sigma)


def distort_only(key, images, strength):
    """Without an affine map, which the peer leaves out; lengths are for 36 × 36 pixels."""
    return digital.distort(key, images, 0.005 * 36 * 250 * strength, 0.36, 0.0, reach=2)


# Settings of severities 2 and 4. (With that of 1 the peer divides 0 by 0 in spatter, with those of
# 5 its motions and flakes end at borders that are not there in CIFAR-10-C.)
RANDOM_AS_IMAGENET = {
    "gaussian_noise": (noise.add_noise, (0.12,), (0.26,)),
    "shot_noise": (noise.count_photons, (25,), (5,)),
    "impulse_noise": (noise.add_impulses, (0.06,), (0.17,)),
    "speckle_noise": (noise.add_speckles, (0.2,), (0.45,)),
    "glass_blur": (
        functools.partial(blur.look_through_glass, reach=5),
        (0.9, 2, 1),
        (1.1, 3, 2),
    ),
    "motion_blur": (blur_somewhere, (15, 5), (15, 12)),
    "snow": (
        weather.let_snow,
        (0.2, 0.3, 2, 0.5, 12, 4, 0.7),
        (0.55, 0.3, 4.5, 0.85, 12, 8, 0.65),
    ),
    "fog": (weather.add_fog, (2.0, 2), (2.5, 1.5)),
    "spatter": (
        functools.partial(weather.splash, reach=16),
        (0.65, 0.3, 3, 0.68, 0.6, 0),
        (0.65, 0.3, 1, 0.65, 1.5, 1),
    ),
    "elastic_transform": (distort_only, (0.065,), (0.1,)),
}


def moments(corrupted, clean):
    """Per repeat: mean, deviation of all pixels, deviation within an image, mean distance."""
    corrupted = np.asarray(corrupted, float)
    return np.stack(
        [
            corrupted.mean((1, 2, 3, 4)),
            corrupted.std((1, 2, 3, 4)),
            corrupted.std((2, 3)).mean((1, 2)),
            np.abs(corrupted - clean).mean((1, 2, 3, 4)),
        ]
    )


def same_in_distribution(ours, theirs, slack):
    """Means over repeats differ by no more than five standard errors, and the slack."""
    error = np.sqrt(ours.var(1, ddof=1) / ours.shape[1] + theirs.var(1, ddof=1) / theirs.shape[1])
    np.testing.assert_array_less(np.abs(ours.mean(1) - theirs.mean(1)), 5 * error + slack)


@pytest.mark.slow
@pytest.mark.parametrize("name", RANDOM_AS_IMAGENET)
def test_random_ones_agree_with_the_peer_in_distribution(name, key):
    images, repeats = enlarged(photographs()[:16], 36, 36), 10
    function, *table = RANDOM_AS_IMAGENET[name]

    @jax.jit
    @functools.partial(jax.vmap, in_axes=(0, None, None))
    def ours(key, images, row):
        return to_bytes(function(key, to_pixels(images), *look_up(row, tuple(table))))

    for row, severity in enumerate((2, 4), 1):
        theirs = np.stack([by_peer(name, images, severity, seed) for seed in range(repeats)])
        result = ours(jax.random.split(key, repeats), images, row)
        same_in_distribution(moments(result, images), moments(theirs, images), 0.05)


@pytest.mark.slow
def test_frost_has_the_moments_of_the_published_one(key):
    """Mean, contrast and distance agree with photographs laid over as CIFAR-10-C does it."""
    by_peer("contrast", photographs()[:1], 1)
    folder = importlib.resources.files("imagecorruptions") / "frost"
    panes = []
    for file in ("frost1.png", "frost2.png", "frost3.png", "frost4.jpg", "frost5.jpg"):
        pane = cv2().imread(str(folder / file))
        panes.append(cv2().resize(pane, (0, 0), fx=0.2, fy=0.2)[..., ::-1])
    draw, repeats = np.random.default_rng(0), 10
    table = (1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45)

    def cover(image, severity):
        pane = panes[draw.integers(5)]
        row, column = draw.integers(0, np.subtract(pane.shape[:2], 32))
        clearness, amount = table[severity - 1]
        frost = pane[row : row + 32, column : column + 32]
        return np.clip(clearness * image + amount * frost, 0, 255).astype(np.uint8)

    images = photographs()
    for severity in (1, 5):
        theirs = np.stack([[cover(image, severity) for image in images] for _ in range(repeats)])
        ours = corrupt("frost", key, np.concatenate([images] * repeats), severity)
        ours = np.asarray(ours).reshape(theirs.shape)
        same_in_distribution(moments(ours, images), moments(theirs, images), 0.5)


def test_photons_are_those_of_poisson(key):
    for value, photons in ((3, 500), (200, 500), (100, 60), (255, 3)):
        images = jnp.full((40, 32, 32, 1), value / 255, jnp.float32)
        counts = np.asarray(jax.jit(noise.count_photons)(key, images, photons)) * photons
        seen = np.arange(photons)
        below = (counts.ravel()[:, None] < seen + 0.5).mean(0)
        expected = scipy.stats.poisson.cdf(seen, value / 255 * photons)
        np.testing.assert_allclose(below, expected, atol=0.012)


def test_no_photons_come_from_rounding_errors(key):
    for value, photons in ((100, 500), (150, 250), (230, 50)):
        images = jnp.full((600, 32, 32, 1), value / 255, jnp.float32)
        counts = np.asarray(jax.jit(noise.count_photons)(key, images, photons)) * photons
        assert counts.max() < scipy.stats.poisson.isf(1e-9, value / 255 * photons), value


def test_glass_moves_one_pixel_after_the_other(key):
    """Without blurs, against a loop over pixels."""
    distance, rounds, (height, width) = 2, 3, (11, 13)
    images = photographs()[:3, :height, :width]
    look = functools.partial(blur.look_through_glass, reach=1)
    ours = to_bytes(jax.jit(look)(key, to_pixels(jnp.asarray(images)), 0.0, distance, rounds))
    expected = images.copy()
    for i in range(rounds):
        drawn = uniform(jax.random.fold_in(key, i), (2, 3, height * width))
        steps = np.floor(np.asarray(drawn) * 2 * distance).astype(int) - distance
        for row in range(height - distance, distance, -1):
            for column in range(width - distance, distance, -1):
                for image, (down, right) in zip(
                    expected, steps[:, :, row * width + column].T, strict=True
                ):
                    image[row, column] = image[row + down, column + right]
    np.testing.assert_array_equal(ours, expected)
    assert (expected != images).mean() > 0.2


def test_relief_of_drops_agrees_with_opencv(key):
    """Edges exactly; then distances, equalised distances and the light on drops nearly so."""
    layers = jax.random.normal(key, (40, 29, 37, 1)) * 0.3 + 0.65
    for smoothness in (0.8, 1.0, 3.0):
        blurred = np.asarray(blur.blur_by_gaussian(layers, smoothness, 12))[..., 0]
        liquid = (np.where(blurred < 0.69, 0, np.clip(blurred, 0, 1)) * 255).astype(np.uint8)
        edges = [cv2().Canny(layer, 50, 150) for layer in liquid]
        pixels = jnp.asarray(liquid, jnp.float32)
        ours = np.asarray(jax.jit(weather.edges)(pixels, 50, 150))
        np.testing.assert_array_equal(ours, np.stack(edges) > 0)
        far = np.stack([cv2().distanceTransform(255 - edge, 2, 5) for edge in edges])
        ours = np.asarray(jax.jit(weather.distances)(jnp.asarray(ours)))
        np.testing.assert_allclose(ours, np.minimum(far, 20), atol=2e-3)
        expected = []
        for layer in np.minimum(far, 20):
            layer = cv2().equalizeHist(cv2().blur(layer, (3, 3)).astype(np.uint8))
            layer = cv2().filter2D(layer, 0, np.array([[-2, -1, 0], [-1, 1, 1], [0, 1, 2]]))
            expected.append(cv2().blur(layer, (3, 3)))
        ours = jax.jit(weather.relief)(pixels)
        assert distance(ours, np.stack(expected)) < 0.5


def test_affine_maps_agree_with_opencv():
    """OpenCV rounds coordinates to 1/32 of a pixel."""
    images = photographs()[:8]
    corners = np.array([[26, 26], [6, 26], [6, 6]])
    moved = corners + np.random.default_rng(0).uniform(-2.5, 2.5, (8, 3, 2))
    expected = []
    for image, three in zip(images, moved, strict=True):
        matrix = cv2().getAffineTransform(
            corners[:, ::-1].astype(np.float32), three[:, ::-1].astype(np.float32)
        )
        expected.append(
            cv2().warpAffine(image, matrix, (32, 32), borderMode=cv2().BORDER_REFLECT_101)
        )

    @jax.jit
    def ours(images, moved):
        pixels = to_pixels(images)
        return digital.sample(pixels, *digital.unmap(corners, moved, pixels), 0)

    result = 255 * ours(images, jnp.asarray(moved, jnp.float32))
    assert distance(result, np.stack(expected)) < 0.6
