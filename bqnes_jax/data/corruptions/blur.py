"""Blurs: out of focus, behind glass, in motion, zooming, gaussian."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float32

from bqnes_jax.data.corruptions.common import (
    Pixels,
    Setting,
    along_columns,
    along_rows,
    clamp,
    corruption,
    cut_to_whole,
    gaussian_map,
    look_up,
    neighbours,
    reflect,
    uniform,
    zoom_map,
)
from bqnes_jax.types import PRNGKey


@corruption
def defocus_blur(key, images, severity):
    """Blur by a disk, as a lens out of focus does; the same whatever the key."""
    table = (0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1.0, 0.2), (1.5, 0.1)
    return blur_by_disk(images, *look_up(severity, table), reach=3)


@corruption
def glass_blur(key, images, severity):
    """Blur, let pixels take those of others nearby, blur again."""
    table = (0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2)
    return look_through_glass(key, images, *look_up(severity, table), reach=2)


@corruption
def motion_blur(key, images, severity):
    """Blur along a line, at an angle from −45° to 45° of each image's own."""
    table = (6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)
    angles = jnp.pi / 4 * (2 * uniform(key, images.shape[:1]) - 1)
    return blur_by_motion(images, angles, *look_up(severity, table))


@corruption
def zoom_blur(key, images, severity):
    """Average enlargements of the middle by 1.00, 1.01, …; the same whatever the key.

    There are as many as NumPy's `arange(1, 1.06, 0.01)`, `arange(1, 1.11, 0.01)`, … have.
    """
    return average_zooms(images, 0.01, look_up(severity, (7, 12, 16, 21, 26)))


@corruption
def gaussian_blur(key, images, severity):
    """Blur by a Gaussian; the same whatever the key."""
    return blur_by_gaussian(images, look_up(severity, (0.4, 0.6, 0.7, 0.8, 1.0)), reach=4)


def blur_by_gaussian(images: Pixels, sigma: Setting, reach: int) -> Pixels:
    """Blur by a Gaussian that is cut off after 4σ; border pixels go on beyond the border."""
    radius = jnp.floor(4 * jnp.asarray(sigma, jnp.float32) + 0.5)
    down, across = (
        gaussian_map(length, sigma, radius, reach, clamp) for length in images.shape[1:3]
    )
    return along_rows(across, along_columns(down, images))


def blur_by_disk(images: Pixels, radius: Setting, softness: Setting, reach: int) -> Pixels:
    """Blur by a disk whose edge is smoothed by a Gaussian of deviation `softness`.

    The disk is drawn on pixels from −reach to reach, which must be the radius or more; the Gaussian
    has 3 × 3 of them, or 5 × 5 for radii above 8.
    """
    places = np.arange(-reach, reach + 1)
    disk = (places**2 + places[:, None] ** 2 <= radius**2).astype(jnp.float32)
    border = functools.partial(reflect, twice=0)
    smooth = gaussian_map(len(places), softness, jnp.where(radius > 8, 2, 1), 2, border)
    disk = smooth @ (disk / disk.sum()) @ smooth.T
    there = neighbours(images, reach, "reflect")

    def add(i, total):
        row, column = i // len(places), i % len(places)
        return total + disk[row, column] * there(row - reach, column - reach)

    return lax.fori_loop(0, len(places) ** 2, add, jnp.zeros_like(images))


def look_through_glass(
    key: PRNGKey,
    images: Pixels,
    sigma: Setting,
    distance: Setting,
    rounds: Setting,
    reach: int,
) -> Pixels:
    """Blur, move pixels by up to `distance`, blur again.

    From the last pixel to the first, each takes the value that another has at that moment. (The
    published program means to exchange the two, but both names there are views of one array, and
    what it does, also in CIFAR-10-C, is to copy one of them.) So it is known beforehand where each
    value comes from, and pixels need not be gone through one by one: where the other one has had
    its turn already, its own source is followed, for all pixels at once.
    """
    n, height, width, channels = images.shape
    images = cut_to_whole(blur_by_gaussian(images, sigma, reach) * 255) / 255
    distance = jnp.asarray(distance).astype(jnp.int32)
    place = jnp.arange(height * width, dtype=jnp.int32)
    row, column = place // width, place % width

    def moves(row, column):
        return (
            (row > distance)
            & (row <= height - distance)
            & (column > distance)
            & (column <= width - distance)
        )

    def follow(state):
        source, waiting = state
        again = jnp.take_along_axis(source, source, axis=1)
        still = jnp.take_along_axis(waiting, source, axis=1)
        return jnp.where(waiting, again, source), waiting & still

    def one_round(i, sources):
        drawn = uniform(jax.random.fold_in(key, i), (2, n, height * width))
        steps = jnp.floor(drawn * (2 * distance)).astype(jnp.int32) - distance
        down, right = jnp.where(moves(row, column), steps, 0)
        source = place + down * width + right
        waiting = (source > place) & moves(row + down, column + right)
        source, _ = lax.while_loop(lambda state: state[1].any(), follow, (source, waiting))
        return jnp.take_along_axis(sources, source, axis=1)

    untouched = jnp.broadcast_to(place, (n, height * width))
    rounds = jnp.asarray(rounds).astype(jnp.int32)
    sources = lax.fori_loop(0, rounds, one_round, untouched)
    flat = images.reshape(n, height * width, channels)
    moved = jnp.take_along_axis(flat, sources[:, :, None], axis=1).reshape(images.shape)
    return blur_by_gaussian(moved, sigma, reach)


def blur_by_motion(
    images: Pixels, angles: Float32[Array, " n"], radius: Setting, sigma: Setting
) -> Pixels:
    """Average pixels along a line that starts at each, with weights of half a Gaussian.

    There are 2 · radius + 1 of them. This is the motion blur of ImageMagick: steps are rounded to
    pixels, border pixels go on beyond the border. Angles are in radians.
    """
    n, height, width, _ = images.shape
    each = jnp.arange(n)[:, None, None]

    def add(i, state):
        total, weights = state
        weight = jnp.exp(-((i / sigma) ** 2) / 2)
        down, right = (
            jnp.ceil(i * along(angles) - 0.5).astype(jnp.int32) for along in (jnp.sin, jnp.cos)
        )
        rows = clamp(jnp.arange(height) + down[:, None], height)[:, :, None]
        columns = clamp(jnp.arange(width) + right[:, None], width)[:, None, :]
        return total + weight * images[each, rows, columns], weights + weight

    steps = 2 * jnp.asarray(radius).astype(jnp.int32) + 1
    total, weights = lax.fori_loop(0, steps, add, (jnp.zeros_like(images), jnp.float32(0)))
    return total / weights


def average_zooms(images: Pixels, step: Setting, count: Setting) -> Pixels:
    """Average the image and `count` enlargements of its middle, by 1, 1 + step, 1 + 2 · step, …"""

    def add(i, total):
        down, across = (zoom_map(length, 1 + i * step) for length in images.shape[1:3])
        return total + along_rows(across, along_columns(down, images))

    count = jnp.asarray(count).astype(jnp.int32)
    return lax.fori_loop(0, count, add, images) / (count + 1)
