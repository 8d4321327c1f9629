"""Random flips and crops on the device, inside compiled code."""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Shaped

from bqnes_jax.errors import check_choice, check_whole
from bqnes_jax.types import PRNGKey


@dataclasses.dataclass(frozen=True)
class AugmentConfig:
    """What is done to each training image, anew at each step.

    Attributes:
        flip: mirror left to right with probability ½.
        padding: width of the zeros around an image before a window of its own size is cut out at
            random; 0 for no crops. None is an eighth of the height: 4 at 32×32, 2 at 16×16.
    """

    flip: bool = True
    padding: int | None = None

    def __post_init__(self):
        check_choice("flip", self.flip, (False, True))
        if self.padding is not None:
            check_whole("padding", self.padding, 0)


NO_AUGMENTATION = AugmentConfig(flip=False, padding=0)


def augment(
    key: PRNGKey, images: Shaped[Array, "n h w c"], config: AugmentConfig
) -> Shaped[Array, "n h w c"]:
    """Flip and crop each image on its own.

    Example:
        >>> images = jnp.arange(2 * 8 * 8, dtype=jnp.uint8).reshape(2, 8, 8, 1)
        >>> augment(jax.random.key(0), images, AugmentConfig()).shape
        (2, 8, 8, 1)
    """
    n, height, width, _ = images.shape
    flip_key, shift_key = jax.random.split(key)
    if config.flip:
        flipped = jax.random.bernoulli(flip_key, shape=(n, 1, 1, 1))
        images = jnp.where(flipped, images[:, :, ::-1], images)
    padding = height // 8 if config.padding is None else config.padding
    if padding:
        shifts = jax.random.randint(shift_key, (2, n, 1), -padding, padding + 1)
        rows, columns = jnp.arange(height) + shifts[0], jnp.arange(width) + shifts[1]
        # One gather with fill cuts all windows, without a padded copy.
        each = jnp.arange(n)[:, None, None]
        images = _take(images, each, rows[:, :, None], columns[:, None, :])
    return images


def _take(images, each, rows, columns):
    height, width = images.shape[1:3]
    inside = (rows >= 0) & (rows < height) & (columns >= 0) & (columns < width)
    # Negative indices would count from the end: send all that lies outside beyond it.
    rows = jnp.where(inside, rows, height)
    return images.at[each, rows, columns].get(mode="fill", fill_value=0)
