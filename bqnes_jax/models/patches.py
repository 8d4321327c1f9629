"""Convolutions as products of matrices: what a kernel sees within a row is put side by side.

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

    As many come after it as keep its size. Pixels that a kernel sees within a row are put side by
    side; the product gives what each row adds to the rows around it, and these are summed. So no
    more than k times the image is written before the product, and as much after it. Both
    gradients are written out likewise: JAX's own would be sums of shifted arrays, slow to compile
    and to run.
    """
    if kernel.shape[-1] == 1:
        return (kernel[:, :, 0, 0] @ x.reshape(len(x), -1)).reshape(-1, *x.shape[1:])
    return _sum_rows(kernel, _side_by_side(x, 2, kernel.shape[-1], before), before)


def _product_forward(x, kernel, before):
    return _product(x, kernel, before), (x, kernel)


def _product_backward(before, residuals, gradient):
    x, kernel = residuals
    outputs, inputs, size, _ = kernel.shape
    if size == 1:
        flat, back = x.reshape(inputs, -1), gradient.reshape(outputs, -1)
        by_x = kernel[:, :, 0, 0].T @ back
        return by_x.reshape(x.shape), (back @ flat.T).reshape(kernel.shape)
    after = size - 1 - before
    seen = _side_by_side(gradient, 2, size, after)
    by_x = _sum_rows(jnp.flip(kernel, (2, 3)).swapaxes(0, 1), seen, after)
    rows = _side_by_side(x, 1, size, before)
    products = seen.reshape(size * outputs, -1) @ rows.reshape(size * inputs, -1).T
    by_kernel = jnp.flip(products.reshape(size, outputs, size, inputs), 0).transpose(1, 3, 2, 0)
    return by_x, by_kernel


_product.defvjp(_product_forward, _product_backward)


def _side_by_side(x: Activations, axis: int, size: int, before: int) -> OtherActivations:
    """Put what lies at `size` places along an axis at one place, channel after channel.

    The first of them are `before` places before, with zeros around the image.
    """
    length = x.shape[axis]
    around = [(before, size - 1 - before) if i == axis else (0, 0) for i in range(x.ndim)]
    padded = jnp.pad(x, around)
    shifted = [lax.slice_in_dim(padded, j, j + length, axis=axis) for j in range(size)]
    return lax.optimization_barrier(jnp.concatenate(shifted))  # computed once for all products


def _sum_rows(
    kernel: Float[Array, "out in k k"], seen: Activations, before: int
) -> OtherActivations:
    """Multiply what is side by side, and add to each row what those around it give it."""
    outputs, inputs, size, _ = kernel.shape
    matrix = kernel.transpose(2, 0, 3, 1).reshape(size * outputs, size * inputs)
    wide = jnp.promote_types(seen.dtype, jnp.float32)  # what is summed after it is rounded once
    flat = seen.reshape(size * inputs, -1)
    products = jnp.matmul(matrix, flat, preferred_element_type=wide)
    products = lax.optimization_barrier(products.reshape(size, outputs, *seen.shape[1:]))
    rows = seen.shape[1]
    around = ((0, 0), (before, size - 1 - before), (0, 0), (0, 0))
    padded = [jnp.pad(given, around) for given in products]
    shifted = [lax.slice_in_dim(given, i, i + rows, axis=1) for i, given in enumerate(padded)]
    return functools.reduce(jnp.add, shifted).astype(seen.dtype)
