"""Nineteen ways to corrupt images, each of five severities.

Those of Hendrycks and Dietterich, "Benchmarking neural network robustness to common corruptions and
perturbations" (ICLR 2019), with the settings of CIFAR-10-C (`make_cifar_c.py` in their repository
`hendrycks/robustness`): fifteen common ones, and four extra ones (speckle noise, gaussian blur,
spatter, saturate), each in the family that it belongs to. Lengths that are numbers of pixels there
(blurs, flakes, drops) are so here, whatever the size of an image. With these settings a higher
severity is not always farther from the clean image: on CIFAR not with glass blur, motion blur,
frost, spatter, elastic transform and saturate at every step.
"""

import jax
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, UInt8

from bqnes_jax.data.corruptions.blur import (
    defocus_blur,
    gaussian_blur,
    glass_blur,
    motion_blur,
    zoom_blur,
)
from bqnes_jax.data.corruptions.common import Corruption
from bqnes_jax.data.corruptions.digital import (
    contrast,
    elastic_transform,
    jpeg_compression,
    pixelate,
    saturate,
)
from bqnes_jax.data.corruptions.noise import (
    gaussian_noise,
    impulse_noise,
    shot_noise,
    speckle_noise,
)
from bqnes_jax.data.corruptions.weather import brightness, fog, frost, snow, spatter
from bqnes_jax.errors import check_choice
from bqnes_jax.types import PRNGKey

__all__ = ["CORRUPTIONS", "FAMILIES", "SEVERITIES", "corrupt"]

_FAMILIES = {
    "noise": (gaussian_noise, shot_noise, impulse_noise, speckle_noise),
    "blur": (defocus_blur, glass_blur, motion_blur, zoom_blur, gaussian_blur),
    "weather": (snow, frost, fog, brightness, spatter),
    "digital": (contrast, elastic_transform, pixelate, jpeg_compression, saturate),
}
FAMILIES: dict[str, tuple[str, ...]] = {
    family: tuple(function.__name__ for function in functions)
    for family, functions in _FAMILIES.items()
}
CORRUPTIONS: dict[str, Corruption] = {
    function.__name__: function for functions in _FAMILIES.values() for function in functions
}
SEVERITIES = (1, 2, 3, 4, 5)


def corrupt(
    name: str, key: PRNGKey, images: jax.Array | np.ndarray, severity: ArrayLike
) -> UInt8[Array, "n h w c"]:
    """Corrupt images; each gets random numbers of its own.

    Args:
        name: one of `CORRUPTIONS`.
        key: what is random comes from it; the deterministic ones ignore it.
        images: bytes [n, height, width, channels], at least 8 × 8 pixels, one channel or three.
        severity: from 1 to 5. Under `jit` it may be traced: one program serves all of them.

    Example:
        >>> import jax.numpy as jnp
        >>> images = jnp.full((2, 8, 8, 1), 100, jnp.uint8)
        >>> corrupt("brightness", jax.random.key(0), images, 2)[0, 0, 0].tolist()
        [125]
    """
    check_choice("name", name, CORRUPTIONS)
    return CORRUPTIONS[name](key, images, severity)
