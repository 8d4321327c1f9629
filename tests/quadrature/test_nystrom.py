"""Nyström test functions and the landmarks they stand on."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bqnes_jax.errors import BQNESError
from bqnes_jax.quadrature.nystrom import choose_landmarks, nystrom_test_functions
from bqnes_jax.quadrature.recombination import recombine
from bqnes_jax.types import Status

POINTS, COUNT = 30, 6


def rbf(points, others):
    return np.exp(-((points[:, None] - others) ** 2).sum(-1))


def draw(seed, distinct=POINTS):
    """Return a Gram matrix of points of which only some are distinct, and weights."""
    rng = np.random.default_rng(seed)
    source = np.concatenate([np.arange(distinct), rng.integers(distinct, size=POINTS - distinct)])
    points = 2 * rng.normal(size=(distinct, 3))[rng.permutation(source)]
    return jnp.asarray(rbf(points, points)), jnp.asarray(rng.dirichlet(np.ones(POINTS)))


def residual(gram, landmarks):
    """Return k(n, n) − k(n, S) k(S, S)⁺ k(S, n)."""
    gram, landmarks = np.asarray(gram, float), np.unique(landmarks)
    to_landmarks = gram[:, landmarks]
    solved = np.linalg.lstsq(to_landmarks[landmarks], to_landmarks.T, rcond=1e-10)[0]
    return np.diag(gram) - (to_landmarks.T * solved).sum(0)


def test_functions_are_orthogonal_with_the_eigenvalues_as_norms(tolerance):
    gram, _ = draw(0)
    landmarks = jnp.arange(COUNT) * 4
    functions = nystrom_test_functions(gram, landmarks)
    small = np.asarray(gram)[landmarks][:, landmarks]
    eigenvalues = np.linalg.eigvalsh(small)[::-1]
    # On the landmarks φ = k(S, S) U = U Λ, so φᵀ k(S, S)⁻¹ φ = Λ.
    inner = functions[landmarks].T @ np.linalg.solve(small, functions[landmarks])
    np.testing.assert_allclose(inner, np.diag(eigenvalues), atol=tolerance(1e-4, 1e-12))


def test_functions_span_the_kernel_at_the_landmarks(tolerance):
    gram, _ = draw(1)
    landmarks = jnp.array([3, 7, 11])
    functions = nystrom_test_functions(gram, landmarks)
    wanted = gram[:, landmarks]
    fitted = functions @ np.linalg.lstsq(functions, wanted, rcond=None)[0]
    np.testing.assert_allclose(fitted, wanted, atol=tolerance(1e-5, 1e-12))


def test_duplicate_landmarks_give_functions_that_are_exactly_zero():
    gram, _ = draw(2, distinct=10)
    for landmarks in ([0, 0, 0, 5], [4, 4, 4, 4]):
        functions = nystrom_test_functions(gram, jnp.array(landmarks))
        alone = nystrom_test_functions(gram, jnp.array(sorted(set(landmarks))))
        kept = (functions != 0).any(0)
        assert kept.tolist() == [n < len(set(landmarks)) for n in range(4)]
        assert jnp.linalg.matrix_rank(functions) == alone.shape[1]


def test_a_singular_gram_matrix_gives_no_nan():
    features = np.random.default_rng(3).integers(0, 2, size=(POINTS, 3)).astype(float)
    gram = jnp.asarray(features @ features.T)  # rank 3, an empty point included
    functions = nystrom_test_functions(gram, jnp.arange(10))
    assert jnp.isfinite(functions).all()
    assert ((functions != 0).any(0)).sum() == np.linalg.matrix_rank(features[:10])


@given(seed=st.integers(0, 2**31))
@settings(max_examples=20)
def test_landmarks_are_the_greedy_choice(seed):
    gram, weights = draw(seed)
    landmarks = np.asarray(choose_landmarks(gram, weights, COUNT))
    slack = 1e-4 if gram.dtype == jnp.float32 else 1e-9
    for n in range(COUNT):
        left = residual(gram, landmarks[:n]) if n else np.diag(gram)
        score = np.asarray(weights) * left
        assert score[landmarks[n]] >= score.max() - slack


@given(seed=st.integers(0, 2**31), distinct=st.integers(1, COUNT - 1))
@settings(max_examples=20)
def test_landmarks_are_never_spent_on_duplicates(seed, distinct):
    gram, weights = draw(seed, distinct)
    landmarks = np.asarray(choose_landmarks(gram, weights, COUNT))
    rows = np.asarray(gram)[landmarks]
    assert len(np.unique(rows[:distinct].round(4), axis=0)) == distinct
    assert (landmarks[distinct:] == landmarks[0]).all()
    functions = nystrom_test_functions(gram, landmarks)
    assert jnp.isfinite(functions).all() and (functions[:, distinct:] == 0).all()


def test_landmarks_leave_less_unexplained_than_random_ones():
    gram, weights = draw(4)
    chosen = weights @ residual(gram, choose_landmarks(gram, weights, COUNT))
    rng = np.random.default_rng(4)
    others = [weights @ residual(gram, rng.choice(POINTS, COUNT, replace=False)) for _ in range(50)]
    assert chosen < min(others)


def test_points_without_weight_are_no_landmarks():
    gram, weights = draw(5)
    weights = jnp.zeros(POINTS).at[jnp.array([4, 9])].set(0.5)
    landmarks = choose_landmarks(gram, weights, COUNT).tolist()
    assert set(landmarks) == {4, 9} and landmarks[2:] == landmarks[:1] * (COUNT - 2)


def test_a_point_mass_in_float_range():
    gram, _ = draw(6)
    weights = jax.nn.softmax(-500 * jnp.linspace(0, 1, POINTS) ** 0.1)
    landmarks = choose_landmarks(gram, weights, COUNT)
    functions = nystrom_test_functions(gram, landmarks)
    assert landmarks[0] == 0 and jnp.isfinite(functions).all()


@pytest.mark.slow("float64")
def test_more_landmarks_than_points(tolerance):
    gram, weights = jnp.eye(3), jnp.array([0.2, 0.5, 0.3])
    landmarks = choose_landmarks(gram, weights, 5)
    assert landmarks.tolist() == [1, 2, 0, 1, 1]
    found = recombine(nystrom_test_functions(gram, landmarks), weights)
    np.testing.assert_allclose(found.weights, [0.5, 0.3, 0.2], rtol=tolerance(1e-6, 1e-12))


def test_no_landmarks():
    gram, weights = draw(7)
    landmarks = choose_landmarks(gram, weights, 0)
    assert landmarks.shape == (0,) and landmarks.dtype == jnp.int32
    assert nystrom_test_functions(gram, landmarks).shape == (POINTS, 0)


@pytest.mark.slow("float64")
def test_recombination_keeps_the_kernel_mean(tolerance):
    gram, weights = draw(8, distinct=20)
    landmarks = choose_landmarks(gram, weights, COUNT)
    found = recombine(nystrom_test_functions(gram, landmarks), weights)
    assert found.status == Status.OK
    mean = gram[landmarks] @ weights
    np.testing.assert_allclose(
        gram[landmarks][:, found.indices] @ found.weights, mean, atol=tolerance(1e-5, 1e-13)
    )


@pytest.mark.slow("float64")
def test_nan_under_tracing_reaches_the_status():
    gram, weights = draw(9)

    @jax.jit
    def select(gram, weights):
        landmarks = choose_landmarks(gram, weights, COUNT)
        return landmarks, recombine(nystrom_test_functions(gram, landmarks), weights)

    one_row = gram.at[2].set(jnp.nan).at[:, 2].set(jnp.nan)
    for bad in ((one_row, weights), (gram, weights.at[2].set(jnp.nan)), (gram * jnp.nan, weights)):
        landmarks, found = select(*bad)
        assert ((landmarks >= 0) & (landmarks < POINTS)).all() and 2 not in landmarks
        assert Status(int(found.status)) & Status.INFEASIBLE
        assert jnp.isfinite(found.weights).all()


def test_eager_compiled_and_batched_agree(tolerance):
    gram, weights = draw(10)
    landmarks = choose_landmarks(gram, weights, COUNT)
    rows = jax.jit(jax.vmap(lambda g, w: choose_landmarks(g, w, COUNT)))(gram[None], weights[None])
    assert (rows[0] == landmarks).all()
    functions = nystrom_test_functions(gram, landmarks)
    mapped = jax.jit(jax.vmap(nystrom_test_functions))(gram[None], rows)[0]
    np.testing.assert_allclose(abs(mapped), abs(functions), atol=tolerance(1e-4, 1e-11))


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
@pytest.mark.parametrize(
    "call, message",
    [
        (lambda g, w: nystrom_test_functions(g[:3], jnp.array([0])), "gram has shape"),
        (lambda g, w: nystrom_test_functions(g[:0, :0], jnp.array([0])), "at least one point"),
        (lambda g, w: nystrom_test_functions(g * jnp.nan, jnp.array([0])), "gram holds nan"),
        (lambda g, w: nystrom_test_functions(g, jnp.array([0, POINTS])), "from 0 to 29"),
        (lambda g, w: nystrom_test_functions(g, jnp.array([-1])), "from 0 to 29"),
        (lambda g, w: nystrom_test_functions(g, jnp.array([0.5])), "integer"),
        (lambda g, w: nystrom_test_functions(g, jnp.array([[0]])), "landmarks has shape"),
        (lambda g, w: choose_landmarks(g, w[:3], 2), "weights has shape"),
        (lambda g, w: choose_landmarks(g, 2 * w, 2), "sums to"),
        (lambda g, w: choose_landmarks(g, w, -1), "count is -1"),
    ],
)
def test_bad_input_is_refused(call, message):
    with pytest.raises(BQNESError, match=message):
        call(*draw(11))
