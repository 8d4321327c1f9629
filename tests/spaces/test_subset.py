"""A part of a space as a space of its own."""

import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bqnes_jax.errors import BQNESError
from bqnes_jax.kernels import RBF, WL, make_kernel
from bqnes_jax.spaces import (
    NATS,
    CoordinateSpace,
    EnumerableSpace,
    GraphSpace,
    Product,
    Subset,
    enumerate_space,
)

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


class Bare(type(NATS)):
    """The cells, as a space of graphs only."""

    coordinates = property()


class Nothing(Bare):
    """The cells, as neither graphs nor points."""

    graph = property()


def test_it_offers_the_views_of_the_whole_space():
    product = Product(depth=(1, 2, 3), activation=("relu", "tanh"))
    part = Subset(product, (0, 2, 5))
    for space in (part, Subset(part, (1, 2))):
        assert isinstance(space, CoordinateSpace) and not isinstance(space, GraphSpace)
        assert isinstance(make_kernel(space), RBF)
        archs = enumerate_space(space)
        np.testing.assert_array_equal(space.coordinates(archs), product.coordinates(archs))
    assert isinstance(SOME, CoordinateSpace) and isinstance(SOME, GraphSpace)
    assert isinstance(make_kernel(SOME), WL)
    graphs = Subset(Bare(), NUMBERS)
    assert isinstance(graphs, GraphSpace) and not isinstance(graphs, CoordinateSpace)
    neither = Subset(Nothing(), NUMBERS)
    assert not isinstance(neither, GraphSpace | CoordinateSpace)
    with pytest.raises(BQNESError, match="neither graph nor coordinates"):
        make_kernel(neither)


def test_equal_parts_are_equal():
    for whole, numbers in ((NATS, NUMBERS), (Product(depth=(1, 2, 3)), (0, 2))):
        part = Subset(whole, numbers)
        copies = Subset(whole, tuple(numbers)), pickle.loads(pickle.dumps(part))
        assert {part, *copies} == {part} and repr(copies[1]) == repr(part)
        np.testing.assert_array_equal(enumerate_space(copies[1]), enumerate_space(part))
        assert part != Subset(whole, numbers[1:])
    assert Subset(Product(a=(0, 1)), (0, 1)) != Subset(Product(a=(False, True)), (0, 1))


def test_a_space_without_numbers_has_no_parts():
    with pytest.raises(BQNESError, match="cannot be listed, so that there are no numbers"):
        Subset(Product(width=range(30_000)), (0, 1))


def test_draws_are_uniform(key):
    counts = np.bincount(SOME.index(SOME.sample(key, 162 * 50)), minlength=162)
    assert counts.min() > 20 and counts.max() < 90


def test_mutations_are_the_nearest_others(key):
    archs = np.asarray(enumerate_space(SOME))
    distances = (archs[7] != archs).sum(axis=1)
    nearest = {tuple(a) for a in archs[distances == distances[distances > 0].min()].tolist()}
    mutate = jax.jit(jax.vmap(SOME.mutate, (0, None)))
    mutants = mutate(jax.random.split(key, 300), jnp.asarray(archs[7]))
    assert {tuple(a) for a in mutants.tolist()} == nearest


@pytest.mark.parametrize("numbers", [(), (3, 3), (4, 2), (-1, 5), (5, 15_625)])
def test_bad_numbers_are_refused(numbers):
    with pytest.raises(BQNESError, match="numbers"):
        Subset(NATS, numbers)
