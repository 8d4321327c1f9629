"""Recombination: exact moments from few points, whatever the points and the weights."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from bqnes_jax.errors import BQNESError
from bqnes_jax.quadrature.recombination import recombine
from bqnes_jax.types import Status

SHAPES = ((150, 9), (23, 4))  # N points, T functions; neither N is (T + 1) times a power of two
BATCH = 250
batched = jax.jit(jax.vmap(recombine))


def assert_recombines(functions, weights, found):
    """Check every promise, in double precision; the arguments carry a leading batch axis."""
    relative = 1e-3 if found.weights.dtype == np.float32 else 1e-8
    indices, chosen = np.asarray(found.indices), np.asarray(found.weights)
    slots = min(functions.shape[1], functions.shape[2] + 1)
    assert indices.shape == chosen.shape == (len(functions), slots)
    assert (np.asarray(found.status) == Status.OK).all()
    assert (np.asarray(found.error) <= relative).all()
    assert (chosen >= 0).all()
    assert abs(chosen.sum(1) - 1).max() < 10 * np.finfo(chosen.dtype).eps

    batch = np.arange(len(functions))[:, None]
    heaviest = np.take_along_axis(indices, chosen.argmax(1)[:, None], axis=1)
    assert ((chosen > 0) | (indices == heaviest)).all()
    dense = np.zeros(np.shape(weights))
    np.add.at(dense, (batch, indices), chosen)
    assert ((dense > 0).sum(1) == (chosen > 0).sum(1)).all()  # distinct indices

    mass = np.asarray(weights, float)
    assert (mass[batch, indices] > 0).all()
    assert moment_error(functions, mass / mass.sum(1, keepdims=True), dense).max() <= relative


def moment_error(functions, mass, dense):
    functions = np.where(mass[:, :, None] > 0, np.asarray(functions, float), 0)
    means = np.einsum("bn,bnt->bt", mass, functions)[:, None]
    centred = np.where(mass[:, :, None] > 0, functions - means, 0)
    # A function that varies only by rounding has no spread to compare with.
    scale = np.maximum(abs(centred).max(1), 1e-6 * abs(functions).max(1) + 1e-300)
    return abs(np.einsum("bn,bnt->bt", dense, centred)) / scale


def normalised(weights):
    return weights / weights.sum(-1, keepdims=True)


def even_weights(rng, batch, points):
    return rng.dirichlet(np.ones(points), size=batch)


def with_duplicates(rng, functions):
    batch, points, _ = functions.shape
    source = rng.integers(points // 4, size=(batch, points, 1))
    return np.take_along_axis(functions, source, axis=1)


def with_zeros(rng, weights):
    batch, points = weights.shape
    kept = rng.random((batch, points)) < rng.uniform(0.05, 0.95, size=(batch, 1))
    kept[np.arange(batch), weights.argmax(1)] = True
    return normalised(weights * kept)


def uneven_weights(rng, batch, points):
    nats = rng.uniform(0, rng.choice([5, 50, 500], size=(batch, 1)), size=(batch, points))
    return normalised(np.exp(nats - nats.max(1, keepdims=True)))


def integers(rng, shape):
    high = rng.choice([1, 3, 100], size=(shape[0], 1, 1))
    return rng.integers(-high, high + 1, size=shape).astype(float)


CASES = {
    "duplicate points": lambda rng, b, n, t: (
        with_duplicates(rng, rng.normal(size=(b, n, t))),
        even_weights(rng, b, n),
    ),
    "zero weights": lambda rng, b, n, t: (
        rng.normal(size=(b, n, t)),
        with_zeros(rng, even_weights(rng, b, n)),
    ),
    "uneven weights": lambda rng, b, n, t: (
        rng.normal(size=(b, n, t)),
        uneven_weights(rng, b, n),
    ),
    "integer functions": lambda rng, b, n, t: (
        integers(rng, (b, n, t)),
        even_weights(rng, b, n),
    ),
    "all of these": lambda rng, b, n, t: (
        with_duplicates(rng, integers(rng, (b, n, t))),
        with_zeros(rng, uneven_weights(rng, b, n)),
    ),
}


def as_arrays(functions, weights):
    return jnp.asarray(functions, float), jnp.asarray(weights, float)


@pytest.mark.slow("float64")
@pytest.mark.parametrize("case", CASES)
@settings(max_examples=8)
@given(seed=st.integers(0, 2**32 - 1))
def test_cases_that_break_a_naive_version(case, seed):
    rng = np.random.default_rng(seed)
    for points, count in SHAPES:
        functions, weights = as_arrays(*CASES[case](rng, BATCH, points, count))
        assert_recombines(functions, weights, batched(functions, weights))


@pytest.mark.slow
@pytest.mark.parametrize(
    "points, count",
    [
        (1, 3),  # one point
        (5, 4),  # nothing to remove
        (9, 4),  # a single level, not full
        (407, 2),  # two rounds, the last block not full
    ],
)
def test_sizes(points, count):
    rng = np.random.default_rng(points)
    functions, weights = as_arrays(
        rng.normal(size=(1, points, count)), even_weights(rng, 1, points)
    )
    found = recombine(functions[0], weights[0])
    assert_recombines(functions, weights, jax.tree.map(lambda leaf: leaf[None], found))


@pytest.mark.slow("float64")
def test_twenty_thousand_points():
    rng = np.random.default_rng(0)
    functions, weights = as_arrays(rng.normal(size=(1, 20_000, 99)), even_weights(rng, 1, 20_000))
    found = recombine(functions[0], weights[0])
    assert_recombines(functions, weights, jax.tree.map(lambda leaf: leaf[None], found))
    assert found.error < 1e3 * jnp.finfo(found.error.dtype).eps


@pytest.mark.slow("float64")
def test_rounding_does_not_accumulate():
    rng = np.random.default_rng(0)
    for case in CASES.values():
        for points, count in SHAPES:
            functions, weights = as_arrays(*case(rng, BATCH, points, count))
            error = batched(functions, weights).error
            assert error.max() < 100 * jnp.finfo(error.dtype).eps


def test_an_lp_vertex_meets_the_same_conditions(tolerance):
    rng = np.random.default_rng(5)
    points, count = SHAPES[1]
    functions, weights = as_arrays(*CASES["zero weights"](rng, BATCH, points, count))
    found = batched(functions, weights)
    for n in range(20):
        conditions = np.vstack([np.ones(points), np.asarray(functions[n], float).T])
        mass = normalised(np.asarray(weights[n], float))
        vertex = linprog(
            rng.normal(size=points),
            A_eq=conditions,
            b_eq=conditions @ mass,
            bounds=[(0, None if has_mass else 0) for has_mass in mass > 0],
            method="highs-ds",
        )
        assert vertex.success
        ours = np.bincount(found.indices[n], found.weights[n], minlength=points)
        for solution, atol in ((vertex.x, 1e-6), (ours, tolerance(1e-5, 1e-12))):
            assert (solution > 0).sum() <= count + 1
            assert (solution >= 0).all() and (solution[mass == 0] == 0).all()
            np.testing.assert_allclose(conditions @ solution, conditions @ mass, atol=atol)


POINTS, COUNT = SHAPES[1]


@pytest.fixture
def problem():
    rng = np.random.default_rng(1)
    return as_arrays(rng.normal(size=(POINTS, COUNT)), even_weights(rng, 1, POINTS)[0])


def test_no_functions_leave_the_heaviest_point():
    found = recombine(np.zeros((5, 0)), np.array([0.1, 0.2, 0.4, 0.2, 0.1]))
    assert found.indices.tolist() == [2] and found.weights.tolist() == [1]
    assert found.status == Status.OK and found.error == 0


@pytest.mark.slow("float64")
def test_all_mass_on_one_point(problem):
    found = recombine(problem[0], jnp.zeros(POINTS).at[3].set(1))
    assert found.indices.tolist() == [3] * (COUNT + 1)
    assert found.weights.tolist() == [1] + [0] * COUNT
    assert found.status == Status.OK and found.error == 0


@pytest.mark.parametrize("value", [0.0, 3.7, -1e6, 1e-30])
def test_constant_functions(value, problem):
    functions = problem[0].at[:, :2].set(value)
    found = recombine(functions, problem[1])
    batch = jax.tree.map(lambda leaf: leaf[None], found)
    assert_recombines(functions[None], problem[1][None], batch)


def test_offset_and_scale_of_the_functions_do_not_matter(problem, tolerance):
    functions, weights = problem
    found = recombine(functions, weights)
    scales = jnp.array([1e-20, 1e-3, 1.0, 1e15])
    scaled = recombine(functions * scales, weights)
    assert (scaled.indices == found.indices).all()
    np.testing.assert_allclose(scaled.weights, found.weights, rtol=tolerance(1e-3, 1e-10))
    shifted = recombine(functions + 1000, weights)
    assert shifted.status == Status.OK
    assert shifted.error < tolerance(1e-5, 1e-13)


def test_points_without_mass_may_have_any_value(problem):
    functions, weights = problem
    without = weights.at[2].set(0) / (1 - weights[2])
    found = recombine(functions.at[2].set(jnp.nan), without)
    plain = recombine(functions, without)
    assert found.status == Status.OK and 2 not in found.indices
    for one, other in zip(found, plain, strict=True):
        np.testing.assert_array_equal(one, other)


INVALID = {
    "NaN weight": lambda f, w: (f, w.at[2].set(jnp.nan)),
    "infinite weight": lambda f, w: (f, w.at[2].set(jnp.inf)),
    "negative weight": lambda f, w: (f, w.at[2].set(-0.1)),
    "not summing to 1": lambda f, w: (f, w * 2),
    "no weight": lambda f, w: (f, w * 0),
    "NaN weights": lambda f, w: (f, w * jnp.nan),
    "NaN function": lambda f, w: (f.at[2, 1].set(jnp.nan), w),
    "infinite function": lambda f, w: (f.at[2, 1].set(-jnp.inf), w),
    "NaN functions": lambda f, w: (f * jnp.nan, w),
}


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
@pytest.mark.parametrize("how", INVALID)
def test_invalid_input_is_refused(how, problem):
    with pytest.raises(BQNESError, match=r"(weights|functions).* (holds|sums)"):
        recombine(*INVALID[how](*problem))


def assert_reported(found):
    assert Status(int(found.status)) & Status.INFEASIBLE
    assert found.error == jnp.inf
    assert (found.weights >= 0).all()
    np.testing.assert_allclose(found.weights.sum(), 1, rtol=1e-6)
    assert ((found.indices >= 0) & (found.indices < POINTS)).all()


@pytest.mark.slow("float64")
def test_invalid_input_is_reported_by_compiled_code(problem):
    rows = [invalid(*problem) for invalid in INVALID.values()]
    rows += [problem] * (BATCH - len(rows))
    found = batched(*map(jnp.stack, zip(*rows, strict=True)))
    for n, how in enumerate(INVALID):
        row = jax.tree.map(lambda leaf: leaf[n], found)  # noqa: B023
        assert_reported(row)
        nothing = how in ("no weight", "NaN weights", "NaN functions")
        assert bool(Status(int(row.status)) & Status.EMPTY) == nothing
        if nothing:
            assert row.indices.tolist() == [0] * (COUNT + 1)
        elif how != "not summing to 1":
            assert 2 not in row.indices
    assert (found.status[len(INVALID) :] == Status.OK).all()  # the rest of the batch is untouched


def test_functions_beyond_the_number_range_are_reported(problem):
    functions, weights = problem
    largest = jnp.finfo(functions.dtype).max
    assert_reported(recombine(functions.at[0, 0].set(largest).at[1, 0].set(-largest), weights))


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
@pytest.mark.parametrize(
    "functions, weights, message",
    [
        (np.zeros(3), np.ones(3) / 3, "functions has shape"),
        (np.zeros((3, 2)), np.ones(4) / 4, "weights has shape"),
        (np.zeros((3, 2)), np.ones((3, 1)) / 3, "weights has shape"),
        (np.zeros((0, 2)), np.zeros(0), "at least one point"),
    ],
)
def test_wrong_shapes_are_refused(functions, weights, message):
    with pytest.raises(BQNESError, match=message):
        recombine(functions, weights)


def test_one_by_one_equals_batched(tolerance):
    rng = np.random.default_rng(2)
    functions, weights = as_arrays(*CASES["zero weights"](rng, BATCH, POINTS, COUNT))
    found = batched(functions, weights)
    for n in range(5):
        alone = recombine(functions[n], weights[n])
        np.testing.assert_array_equal(alone.indices, found.indices[n])
        np.testing.assert_allclose(alone.weights, found.weights[n], atol=tolerance(1e-5, 1e-13))
        assert alone.status == found.status[n]


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_other_data_do_not_compile_again(problem, compilations):
    functions, weights = problem
    other = functions[::-1] * 2, weights[::-1]
    jax.block_until_ready(recombine(functions, weights))
    compilations()
    jax.block_until_ready(recombine(*other))
    assert compilations() == 0


def test_the_type_follows_the_input(problem):
    functions, weights = problem
    found = jax.eval_shape(recombine, functions, weights)
    assert found.weights.dtype == found.error.dtype == functions.dtype
    assert found.indices.dtype == found.status.dtype == jnp.int32
    assert jax.eval_shape(recombine, functions.astype(int), weights).weights.dtype == weights.dtype
    half = jax.eval_shape(recombine, *(array.astype(jnp.float16) for array in problem))
    assert half.weights.dtype == jnp.float32
