"""The product space: properties of any, brute force over small ones."""

import itertools
import math
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bqnes_jax.candidates import Outcome, SearchConfig, make
from bqnes_jax.errors import BQNESError
from bqnes_jax.kernels import RBF, make_kernel
from bqnes_jax.spaces import (
    CoordinateSpace,
    EnumerableSpace,
    GraphSpace,
    Product,
    Space,
    enumerate_space,
)
from bqnes_jax.spaces.product import MAX_LISTED

SMALL = Product(depth=(1, 2, 4), seed=(7,), activation=("relu", "tanh", None), dropout=(0.0, 0.2))
LARGE = Product(
    width=range(16, 80),
    bias=(False, True),
    rate=(0.001, 0.01, 0.1),
    kind=("a", "b", "c", "d"),
    norm=("batch",),
    layers=range(1, 20),
)
single = pytest.mark.parametrize("precision", ["float32"], indirect=True)  # no floats

names = st.text(st.characters(exclude_characters=",=", codec="utf-8"), min_size=1, max_size=6)
names = names.filter(lambda text: text == text.strip())
numbers = st.integers(-1000, 1000) | st.floats(-10, 10)
scales = st.lists(numbers, min_size=1, max_size=5, unique=True).map(sorted)
categories = st.lists(names | st.booleans() | st.none(), min_size=1, max_size=4, unique_by=str)


# Products are made in the tests: beartype draws random numbers, which strategies must not.
choices = st.dictionaries(names, scales | categories, min_size=1, max_size=4)
choices = choices.filter(lambda named: max(map(len, named.values())) > 1)


def rows(archs):
    return [tuple(arch) for arch in np.asarray(archs).tolist()]


def everything(space):
    return list(itertools.product(*map(range, space.options)))


def neighbours(arch, space):
    return {b for b in everything(space) if sum(x != y for x, y in zip(arch, b, strict=True)) == 1}


@single
def test_protocols_and_counts():
    assert SMALL.options == (3, 1, 3, 2) and SMALL.size == SMALL.count == 18
    assert LARGE.size is None and LARGE.count == 64 * 2 * 3 * 4 * 19 == 29_184
    for space in (SMALL, LARGE):
        assert space.name == "product"
        assert isinstance(space, Space) and isinstance(space, CoordinateSpace)
        assert not isinstance(space, GraphSpace)
    assert isinstance(SMALL, EnumerableSpace)
    assert Product(a=range(MAX_LISTED)).size == MAX_LISTED
    assert Product(a=range(MAX_LISTED + 1)).size is None
    assert Product(**{f"x{i}": (0, 1) for i in range(100)}).count == 2**100


@single
@settings(max_examples=25)
@given(choices, st.data())
def test_texts_and_choices_round_trip(choices, data):
    space = Product(**choices)
    arch = [data.draw(st.integers(0, options - 1)) for options in space.options]
    assert space.from_string(space.to_string(np.array(arch))).tolist() == arch
    assert space.from_string(f" {space.to_string(np.array(arch))}\n").tolist() == arch
    chosen = space.decode(np.array(arch))
    assert list(chosen) == [name for name, _ in space.choices]
    for (_, options), place, value in zip(space.choices, arch, chosen.values(), strict=True):
        assert value is options[place]
    assert space.encode(chosen).tolist() == arch
    assert space.encode(dict(reversed(chosen.items()))).tolist() == arch


@single
@settings(max_examples=10)
@given(choices)
def test_numbers_round_trip(choices):
    space = Product(**choices)
    archs = enumerate_space(space)
    assert archs.dtype == jnp.int32 and rows(archs) == everything(space)
    np.testing.assert_array_equal(space.index(archs), np.arange(space.count))
    assert len(set(map(space.to_string, np.asarray(archs)[:50]))) == min(space.count, 50)


@single
@settings(max_examples=25)
@given(choices, choices)
def test_spaces_are_equal_if_all_that_was_given_is(choices, others):
    space, other = Product(**choices), Product(**others)
    copy = pickle.loads(pickle.dumps(space))
    assert copy == space and hash(copy) == hash(space) and copy.choices == space.choices
    assert Product(**{name: tuple(options) for name, options in choices.items()}) == space
    assert (other == space) == (repr(other) == repr(space))


@single
def test_equality_knows_types_and_order():
    alike = [
        Product(a=(0, 1)),
        Product(a=(0.0, 1)),
        Product(a=(0.0, 1.0)),
        Product(a=(False, True)),
        Product(a=("0", "1")),
        Product(a=("False", "True")),
        Product(a=(0, 1), b=(0, 1)),
        Product(b=(0, 1), a=(0, 1)),
        Product(a=(True, False)),
    ]
    assert len(set(alike)) == len(alike)
    assert all((a == b) == (a is b) for a in alike for b in alike)
    assert Product(a=range(2)) == Product(a=[0, 1]) == Product(a=np.arange(2)) == alike[0]
    assert Product(a=(i for i in (0, 1))) == alike[0] and alike[0] != "Product(a=(0, 1))"
    assert repr(SMALL) == (
        "Product(depth=(1, 2, 4), seed=(7,), activation=('relu', 'tanh', None), dropout=(0.0, 0.2))"
    )
    first = jax.jit(lambda space: jnp.asarray(space.choices[0][1][1]), static_argnums=0)
    assert [first(space).dtype for space in alike[:4]] == ["int32", "int32", "float32", "bool"]
    with pytest.raises(AttributeError):
        SMALL.choices = ()


@single
def test_values_stay_as_they_were_given():
    space = Product(n=np.array([1, 2]), x=np.linspace(0, 1, 3), b=np.array([True, False]), s=[2, 3])
    chosen = space.decode(np.array([1, 1, 0, 0]))
    assert chosen == {"n": 2, "x": 0.5, "b": True, "s": 2}
    assert list(map(type, chosen.values())) == [int, float, bool, int]
    alike = {"n": np.int64(2), "x": np.float32(0.5), "b": np.True_, "s": 2.0}
    assert space.encode(alike).tolist() == [1, 1, 0, 0]
    assert (
        SMALL.to_string(np.array([1, 0, 2, 1])) == "depth=2, seed=7, activation=None, dropout=0.2"
    )


@single
def test_sampling_is_uniform(key):
    draws = rows(SMALL.sample(key, 18_000))
    counts = np.array([draws.count(arch) for arch in everything(SMALL)])
    assert counts.sum() == 18_000
    assert ((counts - 1000) ** 2 / 1000).sum() < 40.8  # chi-square, 17 degrees, p = 0.001
    assert SMALL.sample(key, 0).shape == (0, 4)
    draws = LARGE.sample(key, 20_000)
    assert draws.dtype == jnp.int32
    for column, options in zip(np.asarray(draws).T, LARGE.options, strict=True):
        counts, mean = np.bincount(column, minlength=options), 20_000 / options
        assert len(counts) == options and np.abs(counts - mean).max() <= 5 * math.sqrt(mean)


@single
def test_mutation_reaches_every_neighbour(key):
    archs = jnp.array(everything(SMALL), jnp.int32)
    mutate = jax.jit(jax.vmap(jax.vmap(SMALL.mutate, (0, None)), (None, 0)))
    mutants = mutate(jax.random.split(key, 900), archs)
    for arch, found in zip(everything(SMALL), mutants, strict=True):
        places, counts = np.unique(np.asarray(found), axis=0, return_counts=True)
        assert set(rows(places)) == neighbours(arch, SMALL)
        changed = np.argmax(places != np.array(arch), axis=1)
        mean = 900 / 3 / (np.array(SMALL.options)[changed] - 1)  # three are not constant
        assert (np.abs(counts - mean) < 5 * np.sqrt(mean)).all()


@pytest.mark.slow
@single
@settings(max_examples=5)
@given(choices, st.integers(0, 2**32 - 1))
def test_mutation_changes_one_choice(choices, seed):
    space, key = Product(**choices), jax.random.key(seed)
    archs = space.sample(key, 32)
    mutants = jax.jit(jax.vmap(space.mutate))(jax.random.split(key, 32), archs)
    assert mutants.dtype == jnp.int32
    assert ((mutants >= 0) & (mutants < np.array(space.options))).all()
    assert ((mutants != archs).sum(axis=1) == 1).all()


@pytest.mark.slow("float64")
@settings(max_examples=5)
@given(choices, st.integers(0, 2**32 - 1))
def test_coordinates_are_in_the_unit_cube(choices, seed):
    space = Product(**choices)
    archs = np.random.default_rng(seed).integers(space.options, size=(2, 3, len(space.options)))
    coordinates = np.asarray(space.coordinates(archs))
    assert coordinates.min() >= 0 and coordinates.max() <= 1
    expected = []
    for options, places in zip(choices.values(), np.moveaxis(archs, -1, 0), strict=True):
        if len(options) == 1 or type(options[0]) in (int, float):
            expected.append(places[..., None] / max(len(options) - 1, 1))
        else:
            expected.append(np.eye(len(options))[places])
    np.testing.assert_allclose(coordinates, np.concatenate(expected, axis=-1), rtol=1e-6)


def test_coordinates_of_a_space(precision):
    archs = np.array([[0, 0, 0, 0], [1, 0, 1, 0], [2, 0, 2, 1]])
    coordinates = SMALL.coordinates(archs)
    assert coordinates.dtype == precision
    assert coordinates.tolist() == [
        [0, 0, 1, 0, 0, 0],
        [0.5, 0, 0, 1, 0, 0],
        [1, 0, 0, 0, 1, 1],
    ]
    each = np.asarray(Product(a=("x", "y", True, None)).coordinates(np.arange(4)[:, None]))
    distances = np.linalg.norm(each[:, None] - each, axis=-1)
    np.testing.assert_allclose(distances, math.sqrt(2) * (1 - np.eye(4)), rtol=1e-6)
    constant = Product(a=("only",), b=(3,), c=(0, 1))
    assert constant.coordinates(np.array([0, 0, 1])).tolist() == [0, 0, 1]


@pytest.mark.slow
@pytest.mark.parametrize("space", [SMALL, LARGE], ids=["listed", "drawn"])
def test_compiled_functions_do_the_same(space, key, precision):
    kernel = make_kernel(space)
    dimension = space.coordinates(np.zeros(len(space.options), int)).shape[-1]
    assert isinstance(kernel, RBF) and kernel.length_scales.shape == (dimension,)
    keys, archs = jax.random.split(key, 5), space.sample(key, 5)
    assert rows(jax.jit(space.sample, static_argnums=1)(key, 5)) == rows(archs)
    mutants = [space.mutate(one, arch) for one, arch in zip(keys, archs, strict=True)]
    assert rows(jax.jit(jax.vmap(space.mutate))(keys, archs)) == rows(mutants)
    coordinates = space.coordinates(archs)
    np.testing.assert_array_equal(jax.jit(jax.vmap(space.coordinates))(archs), coordinates)
    if space.size is not None:
        numbers = space.index(archs)
        np.testing.assert_array_equal(jax.jit(jax.vmap(space.index))(archs), numbers)
        np.testing.assert_array_equal(jax.jit(jax.vmap(space.from_index))(numbers), archs)
        np.testing.assert_array_equal(space.from_index(numbers.reshape(5, 1))[:, 0], archs)


@pytest.mark.slow
@single
@pytest.mark.parametrize("space", [SMALL, LARGE], ids=["listed", "drawn"])
def test_it_is_searched(space, key):
    config = SearchConfig(
        initial=4, budget=8, batch=2, pool=16, mutated=8, climbs=2, samples=16, parents=3
    )
    strategy = make("us", space, config=config)
    state, info = strategy.init(key)
    asked = [info.archs]
    for count in (4, 6):
        outcome = Outcome(info.archs, 50.0 * space.coordinates(info.archs).sum(axis=1))
        state, info = strategy.step(key, state, outcome)
        asked.append(info.archs)
        assert info.count == count and not jnp.isnan(info.scores).any()
        assert jnp.isfinite(info.evidence.log_evidence)
        assert jnp.isfinite(info.kernel.length_scales).all()
    assert len(set(rows(jnp.concatenate(asked)))) == 8
    assert all(space.from_string(space.to_string(arch)).shape == arch.shape for arch in asked[-1])


@single
@pytest.mark.parametrize(
    ("choices", "says"),
    [
        ({}, "there are no choices; name at least one"),
        ({"a": (1,), "b": ("x",)}, "every choice has one option; there is nothing to choose"),
        ({"a": ()}, "a has no options; give it at least one"),
        ({"a": 3}, "a is 3; it must be a tuple or a list of options"),
        ({"a": None}, "a is None; it must be a tuple"),
        ({"a": "relu"}, "a is 'relu'; it must be a tuple"),
        ({"a": b"relu"}, "a is b'relu'; it must be a tuple"),
        ({"a": {1, 2}}, "a is {1, 2}; it must be a tuple"),
        ({"a": {1: 2}}, "a is {1: 2}; it must be a tuple"),
        ({"a": np.array(3)}, r"a is array\(3\); it must be a tuple"),
        ({"a": ((1, 2), (3, 4))}, "a has an option of type tuple; options must be numbers, texts"),
        ({"a": np.eye(2)}, "option of type ndarray"),
        ({"a": (1j, 2)}, "option of type complex"),
        ({"a": (max, min)}, "option of type builtin_function_or_method; .* give it a name"),
        ({"a": (1, math.nan)}, "a has the option nan; numbers must be finite: drop it"),
        ({"a": (-math.inf, 1)}, "a has the option -inf; numbers must be finite"),
        ({"a": (1, "two")}, "a has the options 1 and 'two'; all must be numbers or none"),
        ({"a": (None, 0.1)}, "a has the options 0.1 and None; .* a number for what is none"),
        ({"a": (True, 2)}, "a has the options 2 and True; all must be numbers or none"),
        ({"a": (1, 3, 2)}, "a has the option 2 after 3; numbers must increase: sort them"),
        ({"a": (1, 2, 2)}, "a has the options 2 and 2, which cannot be told apart"),
        ({"a": (1, 1.0)}, "a has the options 1 and 1.0, which cannot be told apart"),
        ({"a": ("x", "y", "x")}, "a has the options 'x' and 'x', .* drop or rename one"),
        ({"a": ("None", None)}, "a has the options 'None' and None, which cannot be told apart"),
        ({"a": ("x,y", "z")}, "a has the option 'x,y'; a text must have neither"),
        ({"a": ("x=y", "z")}, "a has the option 'x=y'; a text must have neither"),
        ({"a": (" x", "z")}, "a has the option ' x'; .* nor blanks around it"),
        ({"a": ("x\n", "z")}, r"a has the option 'x\\n'; .* nor blanks around it"),
        ({"a": ("", "z")}, "a has the option ''; .* nor be empty: rename it"),
        ({"a,b": (1, 2)}, "the name of a choice is 'a,b'; it must have neither ',' nor '='"),
        ({"a=": (1, 2)}, "the name of a choice is 'a='"),
        ({" a": (1, 2)}, "the name of a choice is ' a'"),
        ({"": (1, 2)}, "the name of a choice is ''; .* rename it"),
    ],
)
def test_bad_choices_are_refused(choices, says):
    with pytest.raises(BQNESError, match=says) as error:
        Product(**choices)
    assert str(error.value).endswith(".") and "\n" not in str(error.value)


@single
@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "'' is not an architecture; the form is 'a=1, b=x'"),
        ("a=1", "is not an architecture"),
        ("a=1, b=x, c=2", "is not an architecture"),
        ("b=x, a=1", "is not an architecture"),
        ("a=1,b=x", "is not an architecture"),
        ("a=1,  b=x", "is not an architecture"),
        ("a = 1, b = x", "is not an architecture"),
        ("a=1, b", "is not an architecture"),
        ("a=1, b=x=y", "is not an architecture"),
        ("a=3, b=x", "a in 'a=3, b=x' is 3; allowed are 1, 2"),
        ("a=1.0, b=x", "a in 'a=1.0, b=x' is 1.0; allowed are 1, 2"),
        ("a=1, b=X", "b in 'a=1, b=X' is X; allowed are x, None"),
        ("a=1, b=", "b in 'a=1, b=' is ; allowed are x, None"),
    ],
)
def test_malformed_texts_are_refused(text, says):
    with pytest.raises(BQNESError, match=says):
        Product(a=(1, 2), b=("x", None)).from_string(text)


@single
@pytest.mark.parametrize(
    ("chosen", "says"),
    [
        ({"a": 1, "b": True, "c": 3}, "choices have 'c'; the names are a, b, n: leave it out"),
        ({"a": 1, "n": 0}, "choices lack b; each of a, b, n must be there"),
        ({}, "choices lack a, b, n; .* add an option of it"),
        ({"a": 3, "b": True, "n": 0}, "a is 3; allowed are 1, 2: choose one of them"),
        ({"a": True, "b": True, "n": 0}, "a is True; allowed are 1, 2"),
        ({"a": "1", "b": True, "n": 0}, "a is '1'; allowed are 1, 2"),
        ({"a": 1, "b": 1, "n": 0}, "b is 1; allowed are 'x', True, None"),
        ({"a": 1, "b": np.ones(2), "n": 0}, "b is array.*; allowed are 'x', True, None"),
        ({"a": 1, "b": "x", "n": 99}, "n is 99; allowed are 0, 1, 2, 3, 4, 5, …, 49: choose"),
    ],
)
def test_what_is_not_a_choice_is_refused(chosen, says):
    with pytest.raises(BQNESError, match=says):
        Product(a=(1, 2), b=("x", True, None), n=range(50)).encode(chosen)


@single
def test_what_is_not_an_architecture_is_refused(key):
    with pytest.raises(BQNESError, match=r"entry 1 .* is 1; it must be from 0 to 0"):
        SMALL.decode(np.array([0, 1, 0, 0]))
    with pytest.raises(BQNESError, match=r"shape \(2,\)"):
        SMALL.coordinates(np.array([0, 1]))
    for function in (SMALL.to_string, SMALL.decode, lambda archs: SMALL.mutate(key, archs)):
        with pytest.raises(BQNESError, match=r"architecture has shape \(2, 4\)"):
            function(np.zeros((2, 4), int))
    for index in (-1, 18):
        with pytest.raises(BQNESError, match=f"index {index} is outside .* from 0 to 17"):
            SMALL.from_index(index)
    with pytest.raises(BQNESError, match="index is of type float"):
        SMALL.from_index(0.5)


@single
def test_a_large_space_has_no_numbers():
    says = "has 29184 architectures, which have no numbers; at most 20000 can be listed: draw"
    with pytest.raises(BQNESError, match=says):
        LARGE.index(np.zeros(6, int))
    with pytest.raises(BQNESError, match=says):
        LARGE.from_index(0)
    with pytest.raises(BQNESError, match="'product' cannot be listed"):
        enumerate_space(LARGE)
