"""Batch norms, and convolutions by products: gradients that are written out are JAX's own."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from bqnes_jax.models.norms import find_moments, normalise, normalise_batch
from bqnes_jax.models.patches import convolve_by_products


def numbers(seed, shape):
    return jax.random.normal(jax.random.key(seed), shape)


def pulled(function, *arguments):
    """Return what a function gives, and what one gradient becomes by each argument."""
    out, pull = jax.vjp(function, *arguments)
    return out, *pull(numbers(9, out.shape))


def close(found, expected, tolerance):
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)


@pytest.mark.slow("float64")
def test_the_gradient_of_a_batch_norm(tolerance):
    arguments = 3 * numbers(0, (4, 3, 5, 6)) + 2, numbers(1, (4,)), numbers(2, (4,))
    ours = jax.jit(lambda *given: pulled(lambda *x: normalise_batch(*x)[0], *given))
    plain = jax.jit(
        lambda *given: pulled(lambda x, *own: normalise(x, *find_moments(x), *own), *given)
    )
    close(ours(*arguments), plain(*arguments), tolerance(2e-5, 1e-12))
    _, mean, var = normalise_batch(*arguments)
    np.testing.assert_allclose(mean, np.mean(arguments[0], axis=(1, 2, 3)), rtol=1e-5)
    np.testing.assert_allclose(var, np.var(arguments[0], axis=(1, 2, 3)), rtol=1e-5)


@pytest.mark.slow("float64")
def test_a_channel_that_is_constant_has_a_finite_gradient():
    x = jnp.ones((2, 3, 3, 4)).at[1].set(numbers(0, (3, 3, 4)))
    one = jnp.ones(2)
    found = pulled(lambda *given: normalise_batch(*given)[0], x, one, one)
    assert all(bool(jnp.all(jnp.isfinite(values))) for values in found)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("inputs", "outputs", "side", "size", "stride"),
    [(3, 8, 5, 3, 1), (8, 3, 4, 3, 1), (4, 4, 2, 3, 1), (4, 6, 4, 1, 1), (4, 8, 6, 3, 2)],
)
def test_products_are_convolutions(inputs, outputs, side, size, stride, tolerance):
    x, kernel = numbers(0, (inputs, side, side, 7)), numbers(1, (outputs, inputs, size, size))
    around = [(size // 2, size // 2)] * 2

    def plain(x, kernel):
        return lax.conv_general_dilated(
            x, kernel, (stride, stride), around, dimension_numbers=("CHWN", "OIHW", "CHWN")
        )

    ours = jax.jit(lambda *given: pulled(lambda *x: convolve_by_products(*x, stride), *given))
    close(
        ours(x, kernel),
        jax.jit(lambda *given: pulled(plain, *given))(x, kernel),
        tolerance(2e-4, 1e-11),
    )
