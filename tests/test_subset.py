"""A part of a space as a space of its own."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bqnes_jax.errors import BQNESError
from bqnes_jax.kernels import WL
from bqnes_jax.spaces import NATS, EnumerableSpace, Subset, enumerate_space

NUMBERS = tuple(range(3, 15_625, 97))
SOME = Subset(NATS, NUMBERS)

pytestmark = pytest.mark.parametrize("precision", ["float32"], indirect=True)


def test_it_is_a_space():
    assert isinstance(SOME, EnumerableSpace)
    archs = enumerate_space(SOME)
    assert archs.shape == (SOME.size, 6) == (162, 6)
    np.testing.assert_array_equal(jax.jit(SOME.index)(archs), np.arange(SOME.size))
    np.testing.assert_array_equal(NATS.index(archs), NUMBERS)
    np.testing.assert_array_equal(SOME.from_string(SOME.to_string(archs[5])), archs[5])
    np.testing.assert_allclose(WL(SOME).gram(archs[:9]), WL(NATS).gram(archs[:9]), atol=1e-6)
    np.testing.assert_array_equal(SOME.coordinates(archs[3]), NATS.coordinates(archs[3]))


def test_draws_are_uniform(key):
    counts = np.bincount(SOME.index(SOME.sample(key, 162 * 50)), minlength=162)
    assert counts.min() > 20 and counts.max() < 90


def test_mutations_are_the_nearest_others(key):
    archs = np.asarray(enumerate_space(SOME))
    distances = (archs[7] != archs).sum(axis=1)
    nearest = {tuple(a) for a in archs[distances == distances[distances > 0].min()].tolist()}
    mutants = jax.vmap(SOME.mutate, (0, None))(jax.random.split(key, 300), jnp.asarray(archs[7]))
    assert {tuple(a) for a in mutants.tolist()} == nearest


@pytest.mark.parametrize("numbers", [(), (3, 3), (4, 2), (-1, 5), (5, 15_625)])
def test_bad_numbers_are_refused(numbers):
    with pytest.raises(BQNESError, match="numbers"):
        Subset(NATS, numbers)
