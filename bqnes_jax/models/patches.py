"""Convolutions as products of matrices: what a kernel sees at each position is a column.

On CPUs that is faster than XLA's convolutions where images are small, and the same for all sizes.
"""

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from bqnes_jax.models.shifts import Activations, OtherActivations


def convolve_by_products(
    x: Activations, kernel: Float[Array, "out in k k"], stride: int
) -> OtherActivations:
    """Convolve with a kernel of size 1, or of size 3 with zeros around the image, at stride 1 or 2.

    A stride of 2 needs the size 3.
    """
    if stride == 1:
        return _product(x, kernel, kernel.shape[-1] // 2)
    return _product(_quarter(x), _quarter_kernel(kernel), 1)


def _quarter(x: Activations) -> OtherActivations:
    """Make of every 2×2 pixels one with four times the channels; an odd size gets zeros."""
    c, rows, columns, n = x.shape
    x = jnp.pad(x, ((0, 0), (0, rows % 2), (0, columns % 2), (0, 0)))
    x = x.reshape(c, -(-rows // 2), 2, -(-columns // 2), 2, n)
    return x.transpose(2, 4, 0, 1, 3, 5).reshape(4 * c, *x.shape[1:4:2], n)


def _quarter_kernel(kernel: Float[Array, "out in 3 3"]) -> Float[Array, "out in4 2 2"]:
    """Make of a 3×3 kernel at stride 2 one of 2×2 at stride 1, for a quartered image.

    With a zero before its first row and column, it sees two of the new pixels each way.
    """
    outputs, inputs, *_ = kernel.shape
    kernel = jnp.pad(kernel, ((0, 0), (0, 0), (1, 0), (1, 0)))
    kernel = kernel.reshape(outputs, inputs, 2, 2, 2, 2)
    return kernel.transpose(0, 3, 5, 1, 2, 4).reshape(outputs, 4 * inputs, 2, 2)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _product(x: Activations, kernel: Float[Array, "out in k k"], before: int) -> OtherActivations:
    """Convolve by one product of matrices, with so many zeros before the image.

    As many come after it as keep its size. Both gradients are written as products with the patches
    of what comes back: the transpose of cutting patches would be a sum of nine shifted arrays, slow
    to compile and to run.
    """
    out = _flatten(kernel) @ _patches(x, kernel.shape[-1], before)
    return out.reshape(-1, *x.shape[1:])


def _product_forward(x, kernel, before):
    return _product(x, kernel, before), (x, kernel)


def _product_backward(before, residuals, gradient):
    x, kernel = residuals
    outputs, inputs, size, _ = kernel.shape
    patches = _patches(gradient, size, size - 1 - before)
    by_x = _flatten(jnp.flip(kernel, (2, 3)).swapaxes(0, 1)) @ patches
    if inputs < outputs:  # its patches are smaller
        seen = gradient.reshape(outputs, -1) @ _patches(x, size, before).T
        by_kernel = seen.reshape(outputs, size, size, inputs).transpose(0, 3, 1, 2)
    else:
        flipped = (patches @ x.reshape(inputs, -1).T).reshape(size, size, outputs, inputs)
        by_kernel = jnp.flip(flipped.transpose(2, 3, 0, 1), (2, 3))
    return by_x.reshape(x.shape), by_kernel


_product.defvjp(_product_forward, _product_backward)


def _flatten(kernel: Float[Array, "out in k k"]) -> Float[Array, "out seen"]:
    """Make a kernel the matrix that patches are multiplied with."""
    return kernel.transpose(0, 2, 3, 1).reshape(len(kernel), -1)


def _patches(x: Activations, size: int, before: int) -> Float[Array, "seen positions"]:
    """Cut what each position sees of the image, with zeros around it, into columns.

    Columns are put side by side first, then rows: that is less to compile than k×k slices.
    """
    if size == 1:
        return x.reshape(len(x), -1)
    (c, rows, columns, _), around = x.shape, (before, size - 1 - before)
    padded = jnp.pad(x, ((0, 0), around, around, (0, 0)))
    beside = jnp.concatenate([padded[:, :, j : j + columns] for j in range(size)])
    beside = lax.optimization_barrier(beside)  # computed once, and not again for each row
    return jnp.concatenate([beside[:, i : i + rows].reshape(size * c, -1) for i in range(size)])
