"""What the corruptions share: severities, bytes, random numbers, borders and linear maps.

Inside, images are float32 from 0 to 1 whatever JAX's precision: bytes go in and come out, and with
either precision they are the same.
"""

import functools
import math
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike
from jaxtyping import Array, Float32, Int32, UInt8

from bqnes_jax.errors import BQNESError, check_shape, check_whole, concrete
from bqnes_jax.types import PRNGKey

SMALLEST = 8  # pixels along each side
LUMINANCE = (0.299, 0.587, 0.114)  # of red, green and blue

Pixels = Float32[Array, "n h w c"]
Layer = Float32[Array, "n h w"]
Bytes = UInt8[Array, "n h w c"]
Setting = int | float | Array  # one number, may be traced
Corruption = Callable[[PRNGKey, jax.Array | np.ndarray, ArrayLike], Bytes]


def corruption(
    function: Callable[[PRNGKey, Pixels, Int32[Array, ""]], Pixels],
) -> Corruption:
    """Make a function of pixels one of bytes, compiled once for all severities.

    Values are cut off to bytes, not rounded, as in the published data; a value that rounding errors
    put just below a byte counts as that byte.
    """

    @jax.jit
    def compiled(key, images, severity):
        return to_bytes(function(key, to_pixels(images), severity))

    @functools.wraps(function)
    def checked(key, images, severity):
        _check(images, severity)
        return compiled(key, images, jnp.asarray(severity, jnp.int32))

    return checked


def _check(images, severity) -> None:
    if np.ndim(images) != 4 or images.dtype != np.uint8:
        raise BQNESError(
            f"images have type {images.dtype} and shape {images.shape}; they must be uint8 of "
            "shape (n, height, width, channels)."
        )
    _, height, width, channels = images.shape
    if min(height, width) < SMALLEST or channels not in (1, 3):
        raise BQNESError(
            f"images have shape {images.shape}; they must be at least {SMALLEST} × {SMALLEST} "
            "pixels, with one channel or three."
        )
    value = concrete(severity)
    if value is None:
        check_shape("severity", severity, ())
    else:
        check_whole("severity", value.item() if value.ndim == 0 else severity, 1, 5)


def to_pixels(images: Bytes) -> Pixels:
    """Turn bytes into values from 0 to 1."""
    return jnp.asarray(images, jnp.float32) / 255


def to_bytes(pixels: Pixels) -> Bytes:
    """Cut values off at 0 and 1, and what is left of them to whole bytes."""
    return cut_to_whole(jnp.clip(pixels, 0, 1) * 255).astype(jnp.uint8)


def cut_to_whole(values: Float32[Array, "..."]) -> Float32[Array, "..."]:
    """Cut off to whole numbers; a value that rounding errors put just below one counts as it."""
    return jnp.floor(values + 1e-3)


def look_up(severity: Int32[Array, ""], table: tuple) -> Float32[Array, "*settings"]:
    """Look settings up; a traced severity that has none gets the nearest."""
    return jnp.asarray(table, jnp.float32)[jnp.clip(severity, 1, len(table)) - 1]


def uniform(key: PRNGKey, shape: Sequence[int]) -> Float32[Array, "..."]:
    """Draw from 0 to 1. Drawing flat is twice as fast as in several dimensions on CPUs."""
    return jax.random.uniform(key, (math.prod(shape),), jnp.float32).reshape(shape)


def normal(key: PRNGKey, shape: Sequence[int]) -> Float32[Array, "..."]:
    """Draw standard normal numbers."""
    return jax.random.normal(key, (math.prod(shape),), jnp.float32).reshape(shape)


def luminance(pixels: Pixels) -> Float32[Array, "n h w 1"]:
    """Weigh the channels as the eye does; one channel is its own luminance."""
    if pixels.shape[-1] == 1:
        return pixels
    red, green, blue = (w * pixels[..., i : i + 1] for i, w in enumerate(LUMINANCE))
    return red + green + blue


def tint(colour: Float32[Array, "... 3"], channels: int) -> Float32[Array, "... channels"]:
    """Give a colour as many channels as an image has: its luminance, where that is one."""
    if channels == 3:
        return colour
    return (colour * jnp.asarray(LUMINANCE, jnp.float32)).sum(-1, keepdims=True)


def clamp(index, length: int) -> jax.Array:
    """Continue a row beyond its ends as a a | a b c | c c."""
    return jnp.clip(index, 0, length - 1)


def reflect(index, length: int, twice: Setting) -> jax.Array:
    """Continue a row beyond its ends as c b | a b c | b a, or b a | a b c | c b if `twice` is 1."""
    period = 2 * length - 2 + 2 * twice
    index = index % period
    return jnp.minimum(index, period - twice - index)


def gaussian_map(
    length: int, sigma: Setting, radius: Setting, reach: int, border: Callable
) -> Float32[Array, "length length"]:
    """Write the smoothing of a row by a Gaussian as a matrix.

    Args:
        length: of the row.
        sigma: the Gaussian's standard deviation, may be traced; 0 changes nothing.
        radius: how far from its centre it is cut off, may be traced.
        reach: at least as large as any radius.
        border: how the row continues beyond its ends.
    """
    offsets = np.arange(-reach, reach + 1)
    sigma = jnp.maximum(jnp.asarray(sigma, jnp.float32), 1e-6)
    weights = jnp.where(np.abs(offsets) <= radius, jnp.exp(-((offsets / sigma) ** 2) / 2), 0)
    places = np.arange(length)[:, None]
    nothing = jnp.zeros((length, length), jnp.float32)
    return nothing.at[places, border(places + offsets, length)].add(weights / weights.sum())


def zoom_map(length: int, factor: Setting) -> Float32[Array, "length length"]:
    """Write the enlargement of the middle of a row, with linear interpolation, as a matrix."""
    factor = jnp.asarray(factor, jnp.float32)
    cut = jnp.ceil(length / factor - 1e-4)  # the number of pixels, despite rounding errors
    enlarged = jnp.round(cut * factor)
    start, trimmed = (length - cut) // 2, (enlarged - length) // 2
    seen = start + (np.arange(length) + trimmed) * (cut - 1) / (enlarged - 1)
    return jnp.maximum(1 - jnp.abs(seen[:, None] - np.arange(length)), 0)


def along_rows(
    matrix: Float32[Array, "k w"] | np.ndarray, pixels: Float32[Array, "n h w c"]
) -> Float32[Array, "n h k c"]:
    """Apply a matrix to each row."""
    matrix = jnp.asarray(matrix, jnp.float32)
    return jnp.einsum("kw,nhwc->nhkc", matrix, pixels, precision=lax.Precision.HIGHEST)


def along_columns(
    matrix: Float32[Array, "k h"] | np.ndarray, pixels: Float32[Array, "n h w c"]
) -> Float32[Array, "n k w c"]:
    """Apply a matrix to each column."""
    matrix = jnp.asarray(matrix, jnp.float32)
    return jnp.einsum("kh,nhwc->nkwc", matrix, pixels, precision=lax.Precision.HIGHEST)


def neighbours(
    layer: Float32[Array, "n h w *c"], reach: int, mode: str
) -> Callable[[int, int], Float32[Array, "n h w *c"]]:
    """Return a function (down, right) -> what each pixel has there, with a border of `mode`."""
    around = [(0, 0), (reach, reach), (reach, reach), *[(0, 0)] * (layer.ndim - 3)]
    padded = jnp.pad(layer, around, mode=mode)

    def there(down, right):
        start = (0, reach + down, reach + right, *[0] * (layer.ndim - 3))
        return lax.dynamic_slice(padded, start, layer.shape)

    return there
