import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy.optimize import Bounds, LinearConstraint, minimize

from bqnes_jax.errors import BQNESError
from bqnes_jax.selection import stacking_weights
from bqnes_jax.types import Status


def realistic(seed, count=150, points=5000, overconfidence=1.0):
    """Draw log-probabilities of candidates of unlike skill that agree on which points are hard."""
    draw = np.random.default_rng(seed).normal
    skill = np.abs(draw(size=(count, 1)))
    related = draw(size=(count, 8)) @ draw(size=(8, points)) / 2
    margin = 1 - skill - 3 * draw(size=points) + related + draw(size=(count, points))
    return -np.logaddexp(0, -overconfidence * margin).astype(jnp.result_type(float))


def changed(array, index, value):
    array = array.copy()
    array[index] = value
    return array


def specialists(shares, nats):
    """Candidates each of which knows its share of 200 points; the others get e^-nats from it."""
    expert = np.repeat(np.arange(len(shares)), shares)
    return np.where(expert == np.arange(len(shares))[:, None], -0.1, -float(nats))


def with_failures(log_probs):
    """Fill up with failed candidates to 20: a shape that is compiled already."""
    return np.pad(log_probs, ((0, 20 - len(log_probs)), (0, 0)), constant_values=np.nan)


def relative(log_probs):
    log_probs = np.asarray(log_probs, np.float64)
    return np.exp(log_probs - log_probs.max(0))


def loss_of(weights, log_probs):
    log_probs = np.asarray(log_probs, np.float64)
    weights = np.asarray(weights, np.float64)
    return -np.mean(np.log(weights @ relative(log_probs)) + log_probs.max(0))


def slope_of(weights, log_probs):
    """Return the negative gradient of the loss, by loops of nobody's but NumPy's, in float64."""
    probs = relative(log_probs)
    return (probs / (np.asarray(weights, np.float64) @ probs)).mean(1)


def gap_of(weights, log_probs):
    slope = slope_of(weights, log_probs)
    return slope.max() - np.asarray(weights, np.float64) @ slope


def by_scipy(log_probs, method):
    probs = relative(log_probs)
    count = len(probs)
    found = minimize(
        lambda w: -np.log(w @ probs).mean(),
        np.full(count, 1 / count),
        jac=lambda w: -(probs / (w @ probs)).mean(1),
        method=method,
        bounds=Bounds(np.full(count, 1e-14), 1),
        constraints=LinearConstraint(np.ones(count), 1, 1),
        options={"maxiter": 3000} | ({"ftol": 1e-14} if method == "SLSQP" else {"gtol": 1e-10}),
    )
    return loss_of(found.x / found.x.sum(), log_probs)


@pytest.mark.slow("float64")
@pytest.mark.parametrize("overconfidence", [1.0, 3.0])
def test_certified_at_full_size(overconfidence, tolerance):
    log_probs = realistic(0, overconfidence=overconfidence)
    found = stacking_weights(log_probs)
    gap = gap_of(found.weights, log_probs)
    assert gap < tolerance(1e-4, 1e-6)
    assert found.status == Status.OK
    np.testing.assert_allclose(found.gap, gap, atol=tolerance(1e-5, 1e-12))
    np.testing.assert_allclose(
        found.loss, loss_of(found.weights, log_probs), rtol=tolerance(1e-5, 1e-12)
    )
    not_needed = slope_of(found.weights, log_probs) < 1 - tolerance(1e-3, 1e-6)
    assert 100 > not_needed.sum() - 50 > 0
    assert np.all(np.asarray(found.weights)[not_needed] == 0)


@pytest.mark.slow("float64")
@pytest.mark.parametrize("method", ["SLSQP", "trust-constr"])
@pytest.mark.parametrize("seed", range(3))
def test_same_optimum_as_scipy(seed, method, tolerance):
    log_probs = realistic(seed, 20, 200, overconfidence=1 + seed)
    ours = loss_of(stacking_weights(log_probs).weights, log_probs)
    theirs = by_scipy(log_probs, method)
    assert abs(ours - theirs) < tolerance(1e-5, 1e-6)
    assert ours < theirs + tolerance(1e-5, 1e-9)


@pytest.mark.slow("float64")
def test_more_members_than_a_working_set_holds(tolerance):
    log_probs = specialists([5] * 40, 4.0) - np.abs(realistic(0, 40, 200)) / 100
    found = stacking_weights(log_probs)
    assert np.all(np.asarray(found.weights) > 0)
    assert gap_of(found.weights, log_probs) < tolerance(1e-4, 1e-8)


@pytest.mark.parametrize("share", [0.05, 0.25, 0.5, 0.8, 0.95])
def test_two_members_in_closed_form(share, tolerance):
    """Minimising −s log(.1 + .8ω) − (1 − s) log(.9 − .8ω) gives .1 + .8ω = s within [0, 1]."""
    first = np.where(np.arange(200) < 200 * share, 0.9, 0.1)
    found = stacking_weights(with_failures(np.log([first, 1 - first])))
    weights = np.asarray(found.weights)[:2]
    expected = np.clip((share - 0.1) / 0.8, 0, 1)
    np.testing.assert_allclose(weights, [expected, 1 - expected], atol=tolerance(1e-5, 1e-9))
    if expected in (0, 1):
        assert (weights == 0).tolist() == [expected == 0, expected == 1]


def test_one_member_that_is_best_everywhere_gets_everything(tolerance):
    log_probs = changed(np.minimum(realistic(0, 20, 200), -1e-2), 7, -1e-3)
    weights = np.asarray(stacking_weights(log_probs).weights)
    assert np.flatnonzero(weights).tolist() == [7]
    np.testing.assert_allclose(weights[7], 1, rtol=tolerance(1e-7, 1e-15))


def test_a_single_candidate_and_a_single_point():
    alone = stacking_weights(with_failures(realistic(0, 1, 200)))
    assert alone.weights.tolist() == [1] + [0] * 19
    one_point = stacking_weights(np.array([[-3.0], [-1.0], [-2.0]]))
    assert one_point.weights.tolist() == [0, 1, 0]


def test_duplicates_change_nothing(tolerance):
    log_probs = realistic(0, 20, 200)
    once, twice = stacking_weights(log_probs), stacking_weights(np.tile(log_probs, (2, 1)))
    assert gap_of(twice.weights, np.tile(log_probs, (2, 1))) < tolerance(1e-4, 1e-8)
    merged = np.asarray(twice.weights).reshape(2, 20).sum(0)
    np.testing.assert_allclose(merged, once.weights, atol=tolerance(2e-3, 1e-6))
    same = stacking_weights(np.tile(log_probs[:1], (20, 1)))
    np.testing.assert_allclose(np.sum(same.weights), 1, rtol=1e-6)
    np.testing.assert_allclose(same.loss, -log_probs[0].mean(), rtol=1e-5)


@pytest.mark.parametrize("nats", [30, 500, 9000, np.inf])
def test_ranges_of_hundreds_of_nats(nats, tolerance):
    """If one member knows a point and the others do not, the weights are the shares of points."""
    for shares in [5] * 40, [100, 60, 39, 1] + [0] * 16:
        found = stacking_weights(specialists(shares, nats))
        np.testing.assert_allclose(
            found.weights, np.array(shares) / 200, rtol=tolerance(1e-4, 1e-8)
        )
        assert found.status == Status.OK


def test_a_zero_in_one_member_does_not_poison_the_others(tolerance):
    log_probs = realistic(0, 20, 200)
    best = int(np.argmax(stacking_weights(log_probs).weights))
    log_probs = changed(log_probs, (best, 3), -np.inf)
    found = stacking_weights(log_probs)
    assert np.asarray(found.weights)[best] > 0
    assert gap_of(found.weights, log_probs) < tolerance(1e-4, 1e-8)


def test_points_that_nobody_explains_are_left_out(tolerance):
    log_probs = np.tile(realistic(0, 20, 100), 2)  # one half has the optimum of the whole
    whole, half = stacking_weights(log_probs), changed(log_probs, np.s_[:, :100], -np.inf)
    found = stacking_weights(half)
    assert found.status == Status.MASKED_TARGETS
    np.testing.assert_allclose(found.weights, whole.weights, atol=tolerance(1e-4, 1e-8))
    np.testing.assert_allclose(found.loss, whole.loss, rtol=tolerance(1e-5, 1e-10))
    assert gap_of(found.weights, half[:, 100:]) < tolerance(1e-4, 1e-8)
    nothing = stacking_weights(np.full((20, 200), -np.inf))
    assert nothing.loss == np.inf
    assert nothing.status == Status.MASKED_TARGETS
    np.testing.assert_allclose(np.sum(nothing.weights), 1, rtol=1e-6)


@pytest.mark.slow("float64")
@pytest.mark.parametrize("failure", [np.nan, np.inf])
def test_failed_and_masked_candidates(failure, tolerance):
    log_probs = realistic(0, 20, 200)
    kept = ~np.isin(np.arange(20), [0, 5, 19])
    log_probs = changed(log_probs, ~kept, -1e-4)  # they would win
    alone = stacking_weights(log_probs[kept])
    masked = stacking_weights(log_probs, mask=kept)
    failed = stacking_weights(changed(log_probs, (~kept, 7), failure))
    for found in masked, failed:
        found = jax.tree.map(np.asarray, found)
        assert np.all(found.weights[~kept] == 0)
        assert found.status == Status.OK
        np.testing.assert_allclose(found.weights[kept], alone.weights, atol=tolerance(1e-4, 1e-8))
        np.testing.assert_allclose(found.loss, alone.loss, rtol=tolerance(1e-6, 1e-12))


@pytest.mark.slow("float64")
@given(data=st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_matrix_is_certified(data, tolerance):
    values = st.sampled_from([-np.inf, -500.0, -50.0, -5.0, -1.0, -0.1, 0.0])
    rows = data.draw(st.lists(st.lists(values, min_size=5, max_size=5), min_size=6, max_size=6))
    log_probs = np.array(rows)
    found = stacking_weights(log_probs)
    assert np.all(np.asarray(found.weights) >= 0)
    np.testing.assert_allclose(np.sum(found.weights), 1, rtol=1e-5)
    known = log_probs.max(0) > -np.inf
    assert bool(found.status & Status.MASKED_TARGETS) == (not known.all())
    if known.any():
        assert gap_of(found.weights, log_probs[:, known]) < tolerance(1e-4, 1e-8)


@pytest.mark.slow("float64")
def test_vmap_is_row_by_row(tolerance):
    problems = np.stack([realistic(seed, 20, 200, 1.0 + seed) for seed in range(4)])
    problems = changed(problems, 2, np.nan)
    together = jax.tree.map(np.asarray, jax.jit(jax.vmap(stacking_weights))(problems))
    for row in 0, 1, 3:
        alone = stacking_weights(problems[row])
        np.testing.assert_allclose(together.weights[row], alone.weights, atol=tolerance(1e-4, 1e-8))
        assert together.gap[row] < tolerance(1e-4, 1e-8)
        assert together.status[row] == Status.OK
    assert together.status[2] & Status.EMPTY
    assert np.all(together.weights[2] == 0)
    assert together.loss[2] == np.inf and not np.isnan(together.gap[2])


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_compiles_once(compilations):
    first, second = realistic(0, 20, 200), realistic(1, 20, 200)
    stacking_weights(first)
    compilations()
    stacking_weights(second)
    assert compilations() == 0


def test_type_follows_the_input(precision):
    found = stacking_weights(np.asarray(realistic(0, 20, 200), np.float32))
    assert found.weights.dtype == found.gap.dtype == found.loss.dtype == jnp.float32
    assert stacking_weights(np.zeros((20, 200), int)).weights.dtype == precision


def test_nothing_usable():
    with pytest.raises(BQNESError, match="no usable row among 3"):
        stacking_weights(np.full((3, 4), np.nan))
    with pytest.raises(BQNESError, match="no usable row among 3"):
        stacking_weights(np.zeros((3, 4)), mask=np.zeros(3, bool))


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"log_probs": np.full((3, 4), 0.5)}, "pass log-probabilities"),
        ({"log_probs": np.zeros(3)}, r"must have shape \(any, any\)"),
        ({"log_probs": np.zeros((0, 3))}, "at least one of each"),
        ({"log_probs": np.zeros((3, 0))}, "at least one of each"),
        ({"log_probs": np.zeros((3, 4)), "mask": np.ones(4, bool)}, "mask has shape"),
    ],
)
def test_bad_input_is_refused(arguments, message):
    with pytest.raises(BQNESError, match=message):
        stacking_weights(**arguments)
