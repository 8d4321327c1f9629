"""Sums over the places of a kernel, whose size, dilation and stride are inputs of the program.

A place after another is passed by the same instructions. So what sees 3×3 pixels, 5×5 pixels, or
every second one of them, is one short program, of which each does as much as it needs.

At stride 2 a pixel of the result sees every pixel of the image once in two steps. So an image is
given in four phases, those of the even and odd rows and columns, each of the size of the result;
at stride 1 only the first one is looked at, which then is the image.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int32

from bqnes_jax.models.shifts import Activations, column

PHASES = 4  # of an image at stride 2: rows × columns
PLACES = 25  # of the largest kernel
_MARGIN = 4  # how far from its middle the largest kernel sees: 5×5, dilated

Phases = Float[Array, "phases channels height width n"]
_Padded = Float[Array, "phases channels rows columns n"]


class Taps(NamedTuple):
    """Where a kernel looks; its places are numbered row by row."""

    size: Int32[Array, ""]
    dilation: Int32[Array, ""]
    strided: Bool[Array, ""]


def in_phases(x: Float[Array, "*lead rows columns n"]) -> Float[Array, "4 *lead h w n"]:
    """Divide an image into its phases; an odd size gets zeros.

    Example:
        >>> in_phases(jnp.arange(4.0).reshape(1, 2, 2, 1)).ravel().tolist()
        [0.0, 1.0, 2.0, 3.0]
    """
    *lead, rows, columns, n = x.shape
    x = jnp.pad(x, [(0, 0)] * len(lead) + [(0, rows % 2), (0, columns % 2), (0, 0)])
    x = x.reshape(*lead, -(-rows // 2), 2, -(-columns // 2), 2, n)
    x = jnp.moveaxis(x, (-4, -2), (0, 1))
    return x.reshape(PHASES, *lead, *x.shape[-3:])


def convolve_taps(x: Phases, kernel: Float[Array, "places channels"], taps: Taps) -> Activations:
    """Convolve each channel with a kernel of its own, with zeros around the image."""
    padded = _pad(x)

    def add(place, total):
        return total + column(kernel[place]) * _seen(padded, place, taps)

    return lax.fori_loop(0, taps.size**2, add, jnp.zeros_like(x[0]))


def pull_taps(
    x: Phases, kernel: Float[Array, "places channels"], taps: Taps, gradient: Activations
) -> tuple[Phases, Float[Array, "places channels"]]:
    """Return the gradients of `convolve_taps` by x and by the kernel."""
    padded = _pad(x)

    def add(place, done):
        by_x, by_kernel = done
        seen = _seen(padded, place, taps)
        by_kernel = by_kernel.at[place].set(jnp.sum(seen * gradient, axis=(1, 2, 3)))
        return _add_seen(by_x, place, taps, column(kernel[place]) * gradient), by_kernel

    start = jnp.zeros_like(padded), jnp.zeros_like(kernel)
    by_x, by_kernel = lax.fori_loop(0, taps.size**2, add, start)
    return _crop(by_x), by_kernel


def average_taps(x: Phases, valid: np.ndarray, taps: Taps) -> Activations:
    """Average what a kernel sees, of what is valid: [phases, 1, height, width, 1]."""
    return convolve_taps(x, _ones(x), taps) / _count(x, valid, taps)


def pull_average(x: Phases, valid: np.ndarray, taps: Taps, gradient: Activations) -> Phases:
    """Return the gradient of `average_taps`."""
    return pull_taps(x, _ones(x), taps, gradient / _count(x, valid, taps))[0]


def max_taps(
    x: Phases, valid: np.ndarray, taps: Taps
) -> tuple[Activations, Int32[Array, "channels height width n"]]:
    """Return the largest of what a kernel sees, and the place where it sees that first."""
    padded = _pad(jnp.where(_valid(valid, taps), x, -jnp.inf), -jnp.inf)

    def compare(place, done):
        best, where = done
        seen = _seen(padded, place, taps)
        return jnp.maximum(best, seen), jnp.where(seen > best, place, where)

    start = jnp.full_like(x[0], -jnp.inf), jnp.zeros(x[0].shape, jnp.int32)
    return lax.fori_loop(0, taps.size**2, compare, start)


def pull_max(x: Phases, valid: np.ndarray, taps: Taps, gradient: Activations) -> Phases:
    """Return the gradient of the largest of what a kernel sees."""
    _, where = max_taps(x, valid, taps)

    def add(place, by_x):
        return _add_seen(by_x, place, taps, jnp.where(where == place, gradient, 0))

    return _crop(lax.fori_loop(0, taps.size**2, add, jnp.zeros_like(_pad(x))))


def _ones(x: Phases) -> Float[Array, "places channels"]:
    return jnp.ones((PLACES, x.shape[1]), x.dtype)


def _count(x: Phases, valid: np.ndarray, taps: Taps) -> Float[Array, "1 height width 1"]:
    pixels = _valid(valid, taps).astype(x.dtype)
    return convolve_taps(pixels, _ones(pixels), taps)


def _valid(valid: np.ndarray, taps: Taps) -> Bool[Array, "phases 1 height width 1"]:
    return jnp.asarray(valid) | ~taps.strided


def _pad(x: Phases, value: float = 0.0) -> _Padded:
    around = (_MARGIN, _MARGIN)
    return jnp.pad(x, ((0, 0), (0, 0), around, around, (0, 0)), constant_values=value)


def _crop(x: _Padded) -> Phases:
    return x[:, :, _MARGIN:-_MARGIN, _MARGIN:-_MARGIN]


def _seen(padded: _Padded, place: Array, taps: Taps) -> Activations:
    """Return what a place of the kernel sees, for every pixel of the result."""
    return lax.dynamic_slice(padded, _start(padded, place, taps), _window(padded))[0]


def _add_seen(padded: _Padded, place: Array, taps: Taps, values: Activations) -> _Padded:
    """Add to what a place of the kernel sees."""
    start = _start(padded, place, taps)
    old = lax.dynamic_slice(padded, start, _window(padded))
    return lax.dynamic_update_slice(padded, old + values, start)


def _window(padded: _Padded) -> tuple[int, ...]:
    _, c, rows, columns, n = padded.shape
    return 1, c, rows - 2 * _MARGIN, columns - 2 * _MARGIN, n


def _start(padded: _Padded, place: Array, taps: Taps) -> tuple[Array, ...]:
    """Return the phase that a place sees, and where its first pixel is there."""
    size = taps.size
    row, column = (taps.dilation * (i - size // 2) for i in (place // size, place % size))
    if len(padded) == 1:  # there is no stride
        phase, shifts = jnp.int32(0), (row, column)
    else:
        phase = jnp.where(taps.strided, 2 * (row & 1) + (column & 1), 0)
        shifts = (jnp.where(taps.strided, shift >> 1, shift) for shift in (row, column))
    nothing = jnp.int32(0)
    rows, columns = (_MARGIN + shift for shift in shifts)
    return tuple(jnp.asarray(i, jnp.int32) for i in (phase, nothing, rows, columns, nothing))
