"""Noise in each value of each pixel: gaussian, shot, impulse, speckle."""

import jax
import jax.numpy as jnp

from bqnes_jax.data.corruptions.common import Pixels, Setting, corruption, look_up, normal, uniform
from bqnes_jax.types import PRNGKey


@corruption
def gaussian_noise(key, images, severity):
    """Add normal noise, as poor light does."""
    return add_noise(key, images, look_up(severity, (0.04, 0.06, 0.08, 0.09, 0.10)))


@corruption
def shot_noise(key, images, severity):
    """Count photons instead of measuring light: Poisson noise."""
    return count_photons(key, images, look_up(severity, (500, 250, 100, 75, 50)))


@corruption
def impulse_noise(key, images, severity):
    """Set values to black or white here and there."""
    return add_impulses(key, images, look_up(severity, (0.01, 0.02, 0.03, 0.05, 0.07)))


@corruption
def speckle_noise(key, images, severity):
    """Add normal noise that grows with the light."""
    return add_speckles(key, images, look_up(severity, (0.06, 0.10, 0.12, 0.16, 0.20)))


def add_noise(key: PRNGKey, images: Pixels, sigma: Setting) -> Pixels:
    """Return x + σε with ε standard normal."""
    return images + sigma * normal(key, images.shape)


def add_speckles(key: PRNGKey, images: Pixels, sigma: Setting) -> Pixels:
    """Return x + xσε with ε standard normal."""
    return images + images * sigma * normal(key, images.shape)


def add_impulses(key: PRNGKey, images: Pixels, amount: Setting) -> Pixels:
    """Set a fraction of all values to 0 or to 1, as often to the one as to the other."""
    drawn = uniform(key, images.shape)
    images = jnp.where(drawn < amount / 2, 0, images)
    return jnp.where(drawn >= 1 - amount / 2, 1, images)


def count_photons(key: PRNGKey, images: Pixels, photons: Setting) -> Pixels:
    """Draw k ~ Poisson(x · photons) and return k / photons, for at most 511 photons.

    The values are 256 bytes, so one table has all distributions, and a binary search in it turns a
    uniform number into a count; a Poisson sampler takes twenty times longer.
    """
    photons = jnp.asarray(photons, jnp.float32)
    counts, values = (jnp.arange(length, dtype=jnp.float32) for length in (512, 256))
    means = values[:, None] * photons / 255
    logs = jax.scipy.special.xlogy(counts, means) - jax.scipy.special.gammaln(counts + 1)
    cumulative = jnp.cumsum(jnp.exp(logs - means), axis=1)
    # Rounding errors leave a gap below 1, in which the largest count would be drawn. Where means
    # are near that count it stands for all that are larger, which are white as well.
    complete = means[:, :1] < 400
    cumulative = (cumulative / jnp.where(complete, cumulative[:, -1:], 1)).ravel()
    row = 512 * jnp.round(images * 255).astype(jnp.int32)
    drawn = uniform(key, images.shape)
    count = jnp.zeros(images.shape, jnp.int32)
    for step in (256, 128, 64, 32, 16, 8, 4, 2, 1):
        count += step * (cumulative[row + count + step - 1] <= drawn)
    return count / photons
