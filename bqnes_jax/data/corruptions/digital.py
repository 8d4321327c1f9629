"""What cameras and programs do: contrast, saturation, elastic distortion, large pixels, JPEG."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float32

from bqnes_jax.data.corruptions.common import (
    Layer,
    Pixels,
    Setting,
    along_columns,
    along_rows,
    corruption,
    gaussian_map,
    look_up,
    luminance,
    reflect,
    uniform,
)
from bqnes_jax.types import PRNGKey

# Annex K of the JPEG standard (ITU-T T.81): quantisation at quality 50.
_LUMINANCE_STEPS = """
    16 11 10 16  24  40  51  61   12 12 14 19  26  58  60  55
    14 13 16 24  40  57  69  56   14 17 22 29  51  87  80  62
    18 22 37 56  68 109 103  77   24 35 55 64  81 104 113  92
    49 64 78 87 103 121 120 101   72 92 95 98 112 100 103  99
"""
_COLOUR_STEPS = """
    17 18 24 47 99 99 99 99   18 21 26 66 99 99 99 99
    24 26 56 99 99 99 99 99   47 66 99 99 99 99 99 99
    99 99 99 99 99 99 99 99   99 99 99 99 99 99 99 99
    99 99 99 99 99 99 99 99   99 99 99 99 99 99 99 99
"""
# Red, green, blue to luminance and what blue and red have more than it; and back.
_TO_LUMA_AND_CHROMA = np.array(
    [
        [0.299, 0.587, 0.114],
        [-0.168735892, -0.331264108, 0.5],
        [0.5, -0.418687589, -0.081312411],
    ]
)
_FROM_CHROMA = np.array([[0, 1.402], [-0.344136286, -0.714136286], [1.772, 0]])


@corruption
def contrast(key, images, severity):
    """Lower the contrast; the same whatever the key."""
    return lower_contrast(images, look_up(severity, (0.75, 0.5, 0.4, 0.3, 0.15)))


@corruption
def saturate(key, images, severity):
    """Wash colours out (severities 1 and 2) or strengthen them; the same whatever the key.

    The published program takes grey for a pale red, which severities 4 and 5 strengthen. An image
    with one channel becomes the luminance of what it makes of the grey colours: unchanged up to
    severity 3, then darker.
    """
    table = (0.3, 0), (0.1, 0), (1.5, 0), (2, 0.1), (2.5, 0.2)
    return change_saturation(images, *look_up(severity, table))


@corruption
def elastic_transform(key, images, severity):
    """Stretch and shear the image a little, and pull its pixels to and fro.

    The published constants are fractions of the side of a square image; here of the shorter side.
    """
    table = (
        (0, 0, 0.08),
        (0.05, 0.2, 0.07),
        (0.08, 0.06, 0.06),
        (0.1, 0.04, 0.05),
        (0.1, 0.03, 0.03),
    )
    side = min(images.shape[1:3])
    return distort(key, images, *(side * look_up(severity, table)), reach=round(0.6 * side))


@corruption
def pixelate(key, images, severity):
    """Shrink the image and enlarge it again; the same whatever the key."""
    return coarsen(images, look_up(severity, (0.95, 0.9, 0.85, 0.75, 0.65)))


@corruption
def jpeg_compression(key, images, severity):
    """Compress the image as a JPEG file, and read it back; the same whatever the key."""
    return compress(images, look_up(severity, (80, 65, 58, 50, 40)))


def lower_contrast(images: Pixels, factor: Setting) -> Pixels:
    """Bring all values nearer to the mean of their channel."""
    mean = images.mean((1, 2), keepdims=True)
    return (images - mean) * factor + mean


def change_saturation(images: Pixels, factor: Setting, more: Setting) -> Pixels:
    """Make saturation s into factor · s + more, with the hue and value of before.

    A colour lacks v·s·f in a channel, where v is its value and f depends on its hue alone. The hue
    of grey counts as red.
    """
    channels = images.shape[-1]
    if channels == 1:
        images = jnp.repeat(images, 3, axis=-1)
    value = images.max(-1, keepdims=True)
    lack = value - images
    most = lack.max(-1, keepdims=True)
    grey = most < 1e-3  # half a byte is more, rounding errors are less
    saturation = jnp.where(grey, 0, most / jnp.where(value > 0, value, 1))
    changed = jnp.clip(saturation * factor + more, 0, 1)
    red = jnp.array([0, 1, 1], jnp.float32)
    images = value * (1 - changed * jnp.where(grey, red, lack / jnp.where(grey, 1, most)))
    return images if channels == 3 else luminance(images)


def distort(
    key: PRNGKey,
    images: Pixels,
    strength: Setting,
    smoothness: Setting,
    jitter: Setting,
    reach: int,
) -> Pixels:
    """Apply a random affine map, then random displacements smoothed by a Gaussian.

    The affine map moves three corners of a square in the middle by up to `jitter` pixels along each
    axis. Displacements are uniform, up to `strength` pixels, before they are smoothed.
    """
    n, height, width, _ = images.shape
    corner_key, pull_key = jax.random.split(key)
    half = min(height, width) // 3
    corners = np.array([[1, 1], [-1, 1], [-1, -1]]) * half + [height // 2, width // 2]
    moved = jitter * (2 * uniform(corner_key, (n, 3, 2)) - 1) + corners
    radius = jnp.floor(3 * jnp.asarray(smoothness, jnp.float32) + 0.5)
    border = functools.partial(reflect, twice=1)
    down, across = (
        gaussian_map(length, smoothness, radius, reach, border) for length in (height, width)
    )
    pulls = 2 * uniform(pull_key, (n, height, width, 2)) - 1
    pulls = strength * along_rows(across, along_columns(down, pulls))
    pulled = np.arange(height)[:, None] + pulls[..., 0], np.arange(width) + pulls[..., 1]
    mapped = unmap(corners, moved, images)
    rows, columns = (jnp.stack(both) for both in zip(mapped, pulled, strict=True))
    # As a loop, because XLA would compute the first anew for each of the pixels of the second.
    ways = (rows, columns, jnp.arange(2))
    return lax.scan(lambda x, way: (sample(x, *way), None), images, ways)[0]


def unmap(
    corners: np.ndarray, moved: Float32[Array, "n 3 2"], images: Pixels
) -> tuple[Layer, Layer]:
    """Return the rows and columns from which an affine map of three corners takes its pixels.

    Corners are (row, column): one, that above it, and that to the left of the second.
    """
    _, height, width, _ = images.shape
    side = corners[0, 0] - corners[1, 0]
    # The columns of the map are what it makes of one step down and of one step to the right.
    a, c = ((moved[:, 0] - moved[:, 1]) / side).T[:, :, None, None]
    b, d = ((moved[:, 1] - moved[:, 2]) / side).T[:, :, None, None]
    down = np.arange(height)[:, None] - moved[:, 2, 0, None, None]
    right = np.arange(width) - moved[:, 2, 1, None, None]
    determinant = a * d - b * c
    return (
        corners[2, 0] + (d * down - b * right) / determinant,
        corners[2, 1] + (a * right - c * down) / determinant,
    )


def sample(images: Pixels, rows: Layer, columns: Layer, twice: Setting) -> Pixels:
    """Interpolate linearly between the four pixels around each place.

    Examples are reflected at the border, with the border pixels `twice` or once.
    """
    _, height, width, _ = images.shape
    each = jnp.arange(len(images))[:, None, None]
    top, left = jnp.floor(rows), jnp.floor(columns)
    result = jnp.zeros_like(images)
    for i, row_weight in enumerate((1 - (rows - top), rows - top)):
        for j, column_weight in enumerate((1 - (columns - left), columns - left)):
            row = reflect((top + i).astype(jnp.int32), height, twice)
            column = reflect((left + j).astype(jnp.int32), width, twice)
            result += (row_weight * column_weight)[..., None] * images[each, row, column]
    return result


def coarsen(images: Pixels, scale: Setting) -> Pixels:
    """Shrink to a fraction of the size by averages of whole pixels, then enlarge by repeating.

    As Pillow's box filter does it: columns first, with results rounded to bytes each time.
    """
    _, height, width, _ = images.shape
    levels = jnp.round(images * 255)
    levels = _nearest(along_rows(_boxes(width, scale), levels))
    levels = _nearest(along_columns(_boxes(height, scale), levels))
    return levels / 255


def _boxes(length: int, scale) -> Float32[Array, "length length"]:
    small = jnp.floor(length * jnp.asarray(scale, jnp.float32) + 1e-4)
    places = np.arange(length)
    box = jnp.floor((places + 0.5) * small / length + 1e-4)
    centre, reach = (box + 0.5) * length / small, length / small / 2
    first = jnp.floor(centre - reach + 0.5 + 1e-4)[:, None]
    last = jnp.floor(centre + reach + 0.5 + 1e-4)[:, None]
    inside = ((places >= first) & (places < last)).astype(jnp.float32)
    return inside / inside.sum(1, keepdims=True)


def compress(images: Pixels, quality: Setting) -> Pixels:
    """Lose what a JPEG file of this quality loses, with chroma at half the resolution (4:2:0).

    The steps and roundings are those of libjpeg, which Pillow uses, apart from its cosine transform
    in integers. An image with one channel is compressed as grey.
    """
    _, height, width, channels = images.shape
    levels = jnp.round(images * 255)
    luminance_steps, colour_steps = (
        _steps(table, quality) for table in (_LUMINANCE_STEPS, _COLOUR_STEPS)
    )
    if channels == 1:
        return _quantise(levels, luminance_steps) / 255
    levels = _fixed_point(levels, _TO_LUMA_AND_CHROMA, (0.5, 0.49999, 0.49999))
    luma = _quantise(levels[..., :1], luminance_steps)
    chroma = levels[..., 1:] + 128
    # Beyond the border, columns are repeated before averages are taken and rows after it.
    down, across = _halve(height, height), _halve(width, 16 * -(-width // 16))
    chroma = along_rows(across, along_columns(down, chroma))
    chroma = jnp.floor(chroma + _alternate(len(across), 0.25, 0.5))
    chroma = _quantise(chroma, colour_steps)[:, : -(-height // 2), : -(-width // 2)]
    chroma = along_rows(_double(width), along_columns(_double(height), chroma))
    chroma = jnp.floor(chroma + _alternate(width, 8 / 16, 7 / 16)) - 128
    return (luma + _fixed_point(chroma, _FROM_CHROMA, (0.5, 0.5, 0.5))) / 255


def _fixed_point(levels, matrix: np.ndarray, halves: tuple[float, ...]) -> Pixels:
    """Multiply whole numbers by a matrix and round, in integers of 16 binary places."""
    weights, rounding = (
        jnp.asarray(np.round(np.asarray(values) * 2**16), jnp.int32) for values in (matrix, halves)
    )
    products = jnp.einsum("kc,nhwc->nhwk", weights, levels.astype(jnp.int32))
    return ((products + rounding) >> 16).astype(jnp.float32)


def _steps(table: str, quality) -> jax.Array:
    quality = jnp.asarray(quality).astype(jnp.int32)
    percent = jnp.where(quality < 50, 5000 // quality, 200 - 2 * quality)
    steps = jnp.array(table.split(), jnp.int32).reshape(8, 8)
    return jnp.clip((steps * percent + 50) // 100, 1, 255).astype(jnp.float32)


def _quantise(levels: Pixels, steps: Float32[Array, "8 8"]) -> Pixels:
    """Round the cosine coefficients of blocks of 8 × 8 to multiples of the steps."""
    _, height, width, _ = levels.shape
    down, right = -height % 8, -width % 8
    padded = jnp.pad(levels, ((0, 0), (0, down), (0, right), (0, 0)), mode="edge") - 128
    places = np.arange(8)
    cosines = np.cos(np.pi * places[:, None] * (2 * places + 1) / 16) * np.sqrt(2)
    cosines[0] = 1
    blocks = (height + down) // 8, (width + right) // 8
    down, across = (np.kron(np.eye(count), cosines) for count in blocks)
    steps = jnp.tile(steps, blocks)[..., None]
    # libjpeg keeps intermediate results as multiples of ¼, coefficients as multiples of ⅛.
    coefficients = _nearest(along_rows(4 * across, padded))
    coefficients = _nearest(along_columns(down / 4, coefficients)) / 8 / steps
    # Halves go away from zero.
    coefficients = jnp.sign(coefficients) * jnp.floor(jnp.abs(coefficients) + 0.5) * steps
    decoded = _nearest(along_columns(4 * down.T, coefficients))
    decoded = _nearest(along_rows(across.T / 32, decoded)) + 128
    return jnp.clip(decoded[:, :height, :width], 0, 255)


def _nearest(values):
    return jnp.floor(values + 0.5)  # halves go up


def _alternate(length: int, even: float, odd: float) -> jax.Array:
    return jnp.where(np.arange(length)[:, None] % 2, jnp.float32(odd), even)


def _halve(length: int, wanted: int) -> np.ndarray:
    """Average pairs along a row that is repeated at its end up to the wanted length."""
    pairs = np.minimum(np.arange(wanted + wanted % 2), length - 1).reshape(-1, 2)
    return (pairs[:, :, None] == np.arange(length)).mean(1)


def _double(length: int) -> np.ndarray:
    """Interpolate half a row's worth of samples at ¼ and ¾ between them."""
    half = -(-length // 2)
    places = np.arange(length)
    near, other = places // 2, np.clip(places // 2 + np.where(places % 2, 1, -1), 0, half - 1)
    eye = np.eye(half)
    return 0.75 * eye[near] + 0.25 * eye[other]
