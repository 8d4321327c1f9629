"""3×3 convolutions of each channel on its own, as XLA does them or as sums of shifted products.

XLA's grouped convolutions are slow on CPUs; a sum of nine shifted products is not.
"""

import functools
import operator

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

# Inside a network axes are (channel, row, column, image): on a CPU shifts and sums then move whole
# rows of images, twice as fast with few channels. Where XLA chooses the memory order itself (GPU,
# TPU), their order is free.
AXES = ("CHWN", "HWIO", "CHWN")
Activations = Float[Array, "channels height width n"]
OtherActivations = Float[Array, "out h w n"]  # of other channels or another size


def column(values: Float[Array, " channels"]) -> Float[Array, "channels 1 1 1"]:
    """Give a value for each channel the axes of activations."""
    return values[:, None, None, None]


def convolve_channels(
    x: Activations, kernel: Float[Array, "3 3 channels"], stride: int, by_shifts: bool
) -> OtherActivations:
    """Convolve each channel with a kernel of its own, with zeros around the image."""
    if by_shifts:
        return _shifted_products(x, kernel, stride)
    return lax.conv_general_dilated(
        x,
        kernel[:, :, None],
        (stride, stride),
        ((1, 1), (1, 1)),
        dimension_numbers=AXES,
        feature_group_count=len(x),
    )


def shift(x: Activations, stride: int) -> dict[tuple[int, int], Activations | OtherActivations]:
    """Return what each place of a 3×3 kernel sees, except for those that see only the border."""
    padded = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    places = [_places(length, stride) for length in x.shape[1:3]]
    rows, columns = (-(-length // stride) for length in x.shape[1:3])
    return {
        (i, j): padded[:, i : i + stride * rows : stride, j : j + stride * columns : stride]
        for i in places[0]
        for j in places[1]
    }


def _places(length: int, stride: int) -> list[int]:
    seen = np.arange(0, length, stride)
    return [i for i in range(3) if np.any((seen + i >= 1) & (seen + i <= length))]


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _shifted_products(
    x: Activations, kernel: Float[Array, "3 3 channels"], stride: int
) -> OtherActivations:
    """Sum the image, shifted by each place of the kernel, times its value there.

    The gradient by x is such a sum again, and written as one: the transpose of shifting would be a
    sum of nine padded arrays.
    """
    products = (seen * column(kernel[place]) for place, seen in shift(x, stride).items())
    return functools.reduce(operator.add, products)


def _forward(x, kernel, stride):
    return _shifted_products(x, kernel, stride), (x, kernel)


def _backward(stride, residuals, gradient):
    x, kernel = residuals
    by_place = {
        place: jnp.sum(seen * gradient, axis=(1, 2, 3)) for place, seen in shift(x, stride).items()
    }
    nothing = jnp.zeros_like(kernel[0, 0])
    rows = [jnp.stack([by_place.get((i, j), nothing) for j in range(3)]) for i in range(3)]
    # Zeros between the rows and columns that a stride leaves out.
    ends = [
        (0, length - (have - 1) * stride - 1, stride - 1)
        for have, length in zip(gradient.shape[1:3], x.shape[1:3], strict=True)
    ]
    spread = lax.pad(gradient, jnp.zeros((), gradient.dtype), [(0, 0, 0), *ends, (0, 0, 0)])
    return _shifted_products(spread, jnp.flip(kernel, (0, 1)), 1), jnp.stack(rows)


_shifted_products.defvjp(_forward, _backward)
