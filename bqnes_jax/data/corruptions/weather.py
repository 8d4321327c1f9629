"""Weather: snow, frost, fog, bright light, and spatter of water or mud."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float32

from bqnes_jax.data.corruptions.blur import blur_by_gaussian, blur_by_motion
from bqnes_jax.data.corruptions.common import (
    Layer,
    Pixels,
    Setting,
    along_columns,
    along_rows,
    corruption,
    cut_to_whole,
    look_up,
    luminance,
    neighbours,
    normal,
    tint,
    uniform,
    zoom_map,
)
from bqnes_jax.types import PRNGKey

# Colour, contrast within a piece of 32 × 32 pixels, and spread of such pieces' brightness, measured
# on the five photographs of frost that CIFAR-10-C draws from, shrunk as it shrinks them.
PANES = (
    ((78, 149, 165), 14.6, 10.7),
    ((198, 202, 212), 18.2, 8.6),
    ((198, 203, 212), 18.1, 9.0),
    ((142, 157, 170), 25.9, 10.6),
    ((104, 115, 127), 33.9, 16.8),
)
WATER = (175, 238, 238)  # pale turquoise
MUD = (63, 42, 20)
NEEDLE = 3  # half the length of a crystal's needles, in pixels
FURTHEST = 20  # distances from the edge of a drop, in pixels


@corruption
def snow(key, images, severity):
    """Whiten the image, and let flakes fall at an angle of each image's own."""
    table = (
        (0.10, 0.2, 1.00, 0.60, 8, 3, 0.95),
        (0.10, 0.2, 1.00, 0.50, 10, 4, 0.90),
        (0.15, 0.3, 1.75, 0.55, 10, 4, 0.90),
        (0.25, 0.3, 2.25, 0.60, 12, 6, 0.85),
        (0.30, 0.3, 1.25, 0.65, 14, 12, 0.80),
    )
    return let_snow(key, images, *look_up(severity, table))


@corruption
def frost(key, images, severity):
    """Cover the image with frost.

    CIFAR-10-C lays pieces of photographs over it. Here crystals are drawn at random, with the
    colours and contrasts of those photographs: moments agree, shapes do not.
    """
    table = (1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45)
    return cover_with_frost(key, images, *look_up(severity, table))


@corruption
def fog(key, images, severity):
    """Add fog of a fractal shape, and darken all so that the brightest is no brighter."""
    table = (0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75)
    return add_fog(key, images, *look_up(severity, table))


@corruption
def brightness(key, images, severity):
    """Make the image brighter, with the colours it has; the same whatever the key."""
    return brighten(images, look_up(severity, (0.05, 0.10, 0.15, 0.20, 0.30)))


@corruption
def spatter(key, images, severity):
    """Splash water (severities 1 to 3) or mud (4 and 5) over the image.

    An image with one channel gets the luminance of their colours.
    """
    table = (
        (0.62, 0.1, 0.7, 0.70, 0.5, 0),
        (0.65, 0.1, 0.8, 0.70, 0.5, 0),
        (0.65, 0.3, 1.0, 0.69, 0.5, 0),
        (0.65, 0.1, 0.7, 0.69, 0.6, 1),
        (0.65, 0.1, 0.5, 0.68, 0.6, 1),
    )
    return splash(key, images, *look_up(severity, table), reach=4)


def let_snow(
    key: PRNGKey,
    images: Pixels,
    mean: Setting,
    sigma: Setting,
    size: Setting,
    threshold: Setting,
    radius: Setting,
    smoothness: Setting,
    clearness: Setting,
) -> Pixels:
    """Draw normal numbers, enlarge them by `size`, keep those above the threshold, blur by motion.

    The layer is added twice, the second time upside down, to an image that has become whiter.
    """
    n, height, width, _ = images.shape
    noise_key, angle_key = jax.random.split(key)
    flakes = mean + sigma * normal(noise_key, (n, height, width, 1))
    flakes = along_rows(zoom_map(width, size), along_columns(zoom_map(height, size), flakes))
    flakes = jnp.where(flakes < threshold, 0, jnp.clip(flakes, 0, 1))
    angles = jnp.pi / 4 * (-3 + 2 * uniform(angle_key, (n,)))  # from −135° to −45°
    flakes = blur_by_motion(cut_to_whole(flakes * 255) / 255, angles, radius, smoothness)
    flakes = jnp.round(flakes * 255) / 255
    white = jnp.maximum(images, luminance(images) * 1.5 + 0.5)
    return clearness * images + (1 - clearness) * white + flakes + flakes[:, ::-1, ::-1]


def cover_with_frost(key: PRNGKey, images: Pixels, clearness: Setting, amount: Setting) -> Pixels:
    """Return clearness · x + amount · frost."""
    n, height, width, channels = images.shape
    pane_key, light_key, crystal_key = jax.random.split(key, 3)
    colours, contrasts, spreads = (
        jnp.asarray(values, jnp.float32) / 255 for values in zip(*PANES, strict=True)
    )
    pane = jnp.floor(uniform(pane_key, (n,)) * len(PANES)).astype(jnp.int32)
    light = spreads[pane] * normal(light_key, (n,))
    pattern = contrasts[pane][:, None, None] * crystals(crystal_key, (n, height, width))
    layer = (light[:, None, None] + pattern)[..., None]
    layer += tint(colours[pane], channels)[:, None, None]
    return clearness * images + amount * jnp.clip(layer, 0, 1)


def crystals(key: PRNGKey, shape: tuple[int, int, int]) -> Layer:
    """Draw stars of three needles on a cloudy ground; each layer has mean 0 and deviation 1."""
    n, height, width = shape
    ground_key, star_key, angle_key = jax.random.split(key, 3)
    reach = 2 * NEEDLE
    seeds = normal(star_key, (n, height + 2 * reach, width + 2 * reach, 1))
    angle = 2 * jnp.pi * uniform(angle_key, (n,))
    needles = [
        blur_by_motion(seeds, angle + 2 * jnp.pi / 3 * i, NEEDLE, NEEDLE / 1.5) for i in range(3)
    ]
    stars = functools.reduce(jnp.maximum, needles)[:, reach:-reach, reach:-reach, 0]
    ground = plasma(ground_key, n, max(height, width), 1.5)[:, :height, :width]
    return _standardise(_standardise(stars) + _standardise(ground))


def _standardise(layer):
    centred = layer - layer.mean((1, 2), keepdims=True)
    return centred / jnp.sqrt((centred**2).mean((1, 2), keepdims=True))


def add_fog(key: PRNGKey, images: Pixels, amount: Setting, decay: Setting) -> Pixels:
    """Return (x + amount · fog) · m / (m + amount), where m is the largest value of the image."""
    n, height, width, _ = images.shape
    shape = plasma(key, n, max(height, width), decay)[:, :height, :width, None]
    largest = images.max((1, 2, 3), keepdims=True)
    return (images + amount * shape) * largest / (largest + amount)


def plasma(key: PRNGKey, n: int, size: int, decay: Setting) -> Float32[Array, "n side side"]:
    """Draw fractal landscapes by midpoints of squares and diamonds, on a torus, from 0 to 1.

    The side is the power of two that is `size` or more. With each halving of the grid the noise
    gets smaller by decay²: the published program uses its amplitude twice.
    """
    levels = (size - 1).bit_length()
    drawn = 2 * uniform(key, (4**levels, n)) - 1
    grid = jnp.zeros((n, 1, 1), jnp.float32)
    for level in range(levels):
        side = 2**level
        noise = drawn[side**2 : 4 * side**2].reshape(3, n, side, side)
        noise /= jnp.asarray(decay, jnp.float32) ** (2 * level)
        below, beside = jnp.roll(grid, -1, 1), jnp.roll(grid, -1, 2)
        centre = (grid + below + beside + jnp.roll(below, -1, 2)) / 4 + noise[0]
        # The barriers keep XLA from writing each level out in terms of all earlier ones.
        centre = lax.optimization_barrier(centre)
        right = (grid + beside + centre + jnp.roll(centre, 1, 1)) / 4 + noise[1]
        down = (grid + below + centre + jnp.roll(centre, 1, 2)) / 4 + noise[2]
        upper, lower = jnp.stack([grid, right], -1), jnp.stack([down, centre], -1)
        grid = jnp.stack([upper, lower], 2).reshape(n, 2 * side, 2 * side)
        grid = lax.optimization_barrier(grid)
    grid -= grid.min((1, 2), keepdims=True)
    return grid / grid.max((1, 2), keepdims=True)


def brighten(images: Pixels, amount: Setting) -> Pixels:
    """Raise the value of hue, saturation and value; black becomes grey."""
    value = images.max(-1, keepdims=True)
    raised = jnp.minimum(value + amount, 1)
    return jnp.where(value > 0, images * raised / jnp.where(value > 0, value, 1), raised)


def splash(
    key: PRNGKey,
    images: Pixels,
    mean: Setting,
    sigma: Setting,
    smoothness: Setting,
    threshold: Setting,
    strength: Setting,
    muddy: Setting,
    reach: int,
) -> Pixels:
    """Add water, or mud if `muddy` is 1, where smoothed noise is above the threshold."""
    noise = mean + sigma * normal(key, (*images.shape[:3], 1))
    liquid = blur_by_gaussian(noise, smoothness, reach)
    return lax.cond(
        muddy > 0,
        lambda: _with_mud(images, liquid > threshold, strength, reach),
        lambda: _with_water(images, jnp.where(liquid < threshold, 0, liquid), strength),
    )


def _with_mud(images, wet, smoothness, reach: int) -> Pixels:
    cover = blur_by_gaussian(wet.astype(jnp.float32), smoothness, reach)
    cover = jnp.where(cover < 0.8, 0, cover)  # thin parts run off
    mud = tint(jnp.asarray(MUD, jnp.float32) / 255, images.shape[-1])
    return images * (1 - cover) + mud * cover


def _with_water(images, liquid, strength) -> Pixels:
    liquid = cut_to_whole(jnp.clip(liquid[..., 0], 0, 1) * 255)
    drops = liquid * relief(liquid)
    most = drops.max((1, 2), keepdims=True)
    # An image without any drop stays as it is; the published program divides 0 by 0 there.
    drops = strength * drops / jnp.where(most > 0, most, 1)
    water = tint(jnp.asarray(WATER, jnp.float32) / 255, images.shape[-1])
    return images + water * drops[..., None]


def relief(liquid: Layer) -> Layer:
    """Return how drops lit from one side look, by distances from their edges; all in bytes."""
    distance = jnp.floor(_average(distances(edges(liquid, 50, 150))) + 1e-5)
    there = neighbours(equalise(distance), 1, "reflect")
    slope = np.array([[-2, -1, 0], [-1, 1, 1], [0, 1, 2]])
    lit = sum(float(slope[1 + i, 1 + j]) * there(i, j) for i in (-1, 0, 1) for j in (-1, 0, 1))
    return jnp.round(_average(jnp.clip(lit, 0, 255)))


def _average(layer):
    there = neighbours(layer, 1, "reflect")
    return sum(there(i, j) for i in (-1, 0, 1) for j in (-1, 0, 1)) / 9


def edges(layer: Layer, low: Setting, high: Setting) -> Bool[Array, "n h w"]:
    """Find edges as Canny does: ridges of the gradient above `low` that touch some above `high`."""
    there = neighbours(layer, 1, "edge")
    ahead = (-1, 1), (0, 2), (1, 1)
    across = sum(w * (there(i, 1) - there(i, -1)) for i, w in ahead)
    down = sum(w * (there(1, i) - there(-1, i)) for i, w in ahead)
    size = jnp.abs(across) + jnp.abs(down)
    near = neighbours(size, 1, "constant")
    steep, flat = 1 + np.sqrt(2, dtype=np.float32), np.sqrt(2, dtype=np.float32) - 1
    horizontal = jnp.abs(down) < flat * jnp.abs(across)
    vertical = jnp.abs(down) > steep * jnp.abs(across)
    opposed = jnp.signbit(across) != jnp.signbit(down)
    falling = (size > near(-1, -1)) & (size > near(1, 1))
    rising = (size > near(-1, 1)) & (size > near(1, -1))
    ridge = jnp.where(
        horizontal,
        (size > near(0, -1)) & (size >= near(0, 1)),
        jnp.where(
            vertical,
            (size > near(-1, 0)) & (size >= near(1, 0)),
            jnp.where(opposed, rising, falling),
        ),
    )
    weak, strong = ridge & (size > low), ridge & (size > high)

    def spread(state):
        found, _ = state
        near = neighbours(found, 1, "constant")
        wider = weak & (sum(near(i, j) for i in (-1, 0, 1) for j in (-1, 0, 1)) > 0)
        wider = wider.astype(jnp.float32)
        return wider, (wider != found).any()

    found, _ = lax.while_loop(
        lambda state: state[1], spread, (strong.astype(jnp.float32), jnp.array(True))
    )
    return found > 0


def distances(marked: Bool[Array, "n h w"]) -> Layer:
    """Return each pixel's distance from the nearest marked one, at most 20.

    A distance is the shortest path of steps to the eight neighbours (1 and 1.4 long) and by
    knights' moves (2.1969), as OpenCV measures it on 5 × 5 pixels.
    """
    lengths = {1: 1.0, 2: 1.4, 5: 2.1969}
    steps = [
        (i, j, lengths[i * i + j * j])
        for i in range(-2, 3)
        for j in range(-2, 3)
        if i * i + j * j in lengths
    ]

    def relax(state):
        found, _ = state
        padded = jnp.pad(found, ((0, 0), (2, 2), (2, 2)), constant_values=FURTHEST)
        height, width = found.shape[1:]
        nearer = found
        for i, j, length in steps:
            there = padded[:, 2 + i : 2 + i + height, 2 + j : 2 + j + width]
            nearer = jnp.minimum(nearer, there + length)
        return nearer, (nearer < found).any()

    first = jnp.where(marked, 0, jnp.float32(FURTHEST))
    return lax.while_loop(lambda state: state[1], relax, (first, jnp.array(True)))[0]


def equalise(distance: Layer) -> Layer:
    """Stretch whole distances from 0 to 20 so that all bytes are about as frequent."""
    values = jnp.arange(FURTHEST + 1, dtype=jnp.float32)
    counts = (distance[..., None] == values).sum((1, 2)).astype(jnp.float32)
    below = jnp.cumsum(counts, axis=1)
    lowest = jnp.take_along_axis(counts, jnp.argmax(counts > 0, axis=1)[:, None], axis=1)
    rest = below[:, -1:] - lowest
    table = jnp.round(jnp.clip(255 * (below - lowest) / jnp.where(rest > 0, rest, 1), 0, 255))
    table = jnp.where(rest > 0, table, values)  # what is the same everywhere stays as it is
    index = distance.astype(jnp.int32).reshape(len(distance), -1)
    return jnp.take_along_axis(table, index, axis=1).reshape(distance.shape)
