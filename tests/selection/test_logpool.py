"""Log-linear pools against SciPy, their certificate, their search, and inputs at the edge."""

import functools
import itertools
import os
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from scipy.optimize import minimize, minimize_scalar
from scipy.special import log_softmax, logsumexp

from bqnes_jax.errors import BQNESError
from bqnes_jax.metrics import ece
from bqnes_jax.pooling import LOG_FLOOR, Pool, ensemble_log_probabilities
from bqnes_jax.selection import Choice, log_pool_weights, logpool, pool_of, register, select
from bqnes_jax.selection.loglinear import LEAST, Problem, best_pool, evaluate
from bqnes_jax.selection.logpool import STRENGTHS
from bqnes_jax.types import Status

COUNT, POINTS, CLASSES, SIZE = 7, 60, 4, 3


def problem(seed=0, count=COUNT, sharpness=1.0, points=POINTS):
    """Draw what candidates of unlike skill and sharpness say, and the true classes."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, CLASSES, points)
    skill = rng.uniform(0.5, 2.0, (count, 1, 1))
    logits = skill * np.eye(CLASSES)[labels] + rng.normal(size=(count, points, CLASSES))
    classes = log_softmax(sharpness * rng.uniform(0.3, 3.0, (count, 1, 1)) * logits, axis=-1)
    classes = classes.astype(jnp.result_type(float))
    return classes[:, np.arange(points), labels], classes


def value_of(weights, log_probs, classes, strength):
    """The value and its gradient, in float64."""
    weights = np.asarray(weights, float)
    ours, true = (np.maximum(np.asarray(x, float), LOG_FLOOR) for x in (classes, log_probs))
    margins = ours - true[..., None]
    scores = np.einsum("m,mic->ic", weights, margins)
    normaliser = logsumexp(scores, axis=1)
    shares = np.exp(scores - normaliser[:, None]) / len(scores)
    total, rho = weights.sum(), max(strength / len(scores), LEAST)
    value = normaliser.mean() + rho * (total - 1 - np.log(total))
    return value, np.einsum("ic,mic->m", shares, margins) + rho * (1 - 1 / total)


def by_scipy(log_probs, classes, strength):
    count = len(log_probs)
    found = minimize(
        value_of,
        np.full(count, 1 / count),
        (log_probs, classes, strength),
        jac=True,
        method="L-BFGS-B",
        bounds=[(0, None)] * count,
        options={"ftol": 1e-15, "gtol": 1e-10, "maxiter": 5000},
    )
    return found


@pytest.mark.slow("float64")
@pytest.mark.parametrize("sharpness", [0.3, 1.0, 10.0])
@pytest.mark.parametrize("strength", [0.0, 1.0, 100.0])
def test_weights_are_optimal(strength, sharpness, tolerance):
    log_probs, classes = problem(1, sharpness=sharpness)
    found = log_pool_weights(log_probs, classes, strengths=(strength,))
    best = by_scipy(log_probs, classes, strength).fun
    reached, slope = value_of(found.weights, log_probs, classes, strength)
    assert abs(reached - best) < tolerance(1e-5, 1e-9)
    assert found.status == Status.OK and found.gap < tolerance(1e-5, 1e-9)
    assert np.all(found.weights >= 0) and np.all(slope[found.weights == 0] > -tolerance(1e-4, 1e-8))
    pooled = ensemble_log_probabilities(found.weights, classes, pool="log")
    labels = np.argmax(classes[0] == log_probs[0][:, None], axis=1)
    loss = -np.mean(np.asarray(pooled)[np.arange(POINTS), labels])
    np.testing.assert_allclose(found.loss, loss, rtol=tolerance(1e-4, 1e-10))


def test_some_weights_are_exactly_zero():
    zeros = [
        np.sum(log_pool_weights(*problem(seed), strengths=(0.0,)).weights == 0) for seed in range(5)
    ]
    assert max(zeros) > 0 and min(zeros) < COUNT


@jax.jit
def solve(margins, filled, strength):
    """Solve for the weights of each row of members, [k, M], from the same candidates."""
    counts = jnp.ones(margins.shape[1], margins.dtype)
    return lax.map(lambda row: best_pool(Problem(margins, row, counts, strength)), filled)


@jax.jit
def evaluate_all(margins, strength, weights):
    everything, counts = jnp.ones(len(margins), bool), jnp.ones(margins.shape[1], margins.dtype)
    problem = Problem(margins, everything, counts, strength)
    return lax.map(lambda row: evaluate(problem, row), weights)


@pytest.mark.slow("float64")
def test_the_gap_bounds_how_far_the_optimum_is(precision, tolerance):
    """Not only at the optimum: everywhere."""
    log_probs, classes = problem(2)
    margins = classes - log_probs[..., None]
    rng, finite = np.random.default_rng(0), 0
    for strength in np.array([1.0, 20.0, 100.0], precision):
        best = by_scipy(log_probs, classes, strength).fun
        optimum = np.asarray(solve(margins, np.ones((1, COUNT), bool), strength).weights)
        scales = np.array([0.0, 1e-3, 0.01, 0.1, 1.0], precision)[:, None]
        near = optimum + scales * rng.uniform(size=(5, COUNT)).astype(precision)
        there = evaluate_all(margins, strength, near)
        gaps = np.asarray(there.gap)
        assert (np.asarray(there.value) - best <= gaps + tolerance(1e-6, 1e-12)).all()
        finite += np.isfinite(gaps[1:]).sum()
    assert finite >= 5


def test_the_penalty_is_convex_where_the_square_of_the_logarithm_is_not():
    sums = np.linspace(0.05, 20, 400)
    assert np.all(np.diff(sums - 1 - np.log(sums), 2) > 0)
    assert np.any(np.diff(np.log(sums) ** 2, 2) < 0)
    near = np.exp(np.linspace(-0.1, 0.1, 5))
    np.testing.assert_allclose(near - 1 - np.log(near), np.log(near) ** 2 / 2, rtol=0.05, atol=1e-9)


@pytest.mark.slow("float64")
def test_one_member_is_temperature_scaling(tolerance):
    log_probs, classes = problem(3, count=1, sharpness=3.0)
    found = log_pool_weights(log_probs, classes, strengths=(0.0,))
    search = minimize_scalar(
        lambda w: value_of([w], log_probs, classes, 0)[0],
        bounds=(1e-3, 20),
        method="bounded",
        options={"xatol": 1e-10},
    )
    np.testing.assert_allclose(found.weights, [search.x], rtol=tolerance(1e-3, 1e-6))


@pytest.mark.slow("float64")
def test_of_many_the_one_with_the_best_temperature_is_taken():
    log_probs, classes = problem(4)
    values = [by_scipy(log_probs[[n]], classes[[n]], 30.0).fun for n in range(COUNT)]
    assert select("logpool", log_probs, 1, classes=classes).members[0] == np.argmin(values)


# The strength.


@pytest.mark.slow("float64")
def test_the_strength_is_the_best_on_points_left_out():
    """So it is never worse there than next to no prior."""
    log_probs, classes = problem(5)
    found = log_pool_weights(log_probs, classes)
    assert found.cross_fitted.shape == (len(STRENGTHS),)
    assert found.strength == STRENGTHS[int(np.argmin(found.cross_fitted))]
    assert np.min(found.cross_fitted) <= found.cross_fitted[-1]
    assert STRENGTHS[-1] == 0


def test_cross_fitting_by_hand(tolerance):
    log_probs, classes = (np.maximum(each, LOG_FLOOR) for each in problem(6))
    fold_of = np.asarray(jax.random.permutation(jax.random.key(0), POINTS)) % 5
    total = 0.0
    for fold in range(5):
        kept, left = fold_of != fold, fold_of == fold
        weights = by_scipy(log_probs[:, kept], classes[:, kept], 10.0).x
        scores = np.einsum("m,mic->ic", weights, classes[:, left])
        true = weights @ log_probs[:, left]
        total += (logsumexp(scores, axis=1) - true).sum()
    found = log_pool_weights(log_probs, classes, strengths=(10.0,)).cross_fitted[0]
    np.testing.assert_allclose(found, total / POINTS, rtol=tolerance(1e-4, 1e-7))


def test_separable_points_get_finite_weights():
    """All right, with room: without a prior the weights would grow for ever."""
    labels = np.arange(POINTS) % CLASSES
    sharpness = np.linspace(1, 2, COUNT)[:, None, None]
    classes = log_softmax(np.eye(CLASSES)[labels] * sharpness, axis=-1)
    log_probs = classes[:, np.arange(POINTS), labels]
    found = log_pool_weights(log_probs, classes, strengths=(0.0,))
    assert np.all(np.isfinite(found.weights)) and found.weights.sum() > 5
    assert found.loss < 1e-3 and found.status == Status.OK


# The search.


@functools.cache
def mapped():
    return jax.jit(jax.vmap(lambda p, c, m: select("logpool", p, SIZE, classes=c, mask=m)))


@pytest.mark.slow
def test_an_ensemble_comes_out(precision):
    log_probs, classes = problem()
    found = select("logpool", log_probs, SIZE, classes=classes)
    assert found.pool == Pool.LOG == "log"
    assert found.weights.dtype == precision and found.info.status == Status.OK
    assert len(set(found.members.tolist())) == found.info.used <= SIZE
    assert np.all(np.diff(found.weights) <= 0)
    members = np.asarray(found.members)
    value, _ = value_of(found.weights, log_probs[members], classes[members], 0)
    pooled = value - max(LEAST, 0) * (found.weights.sum() - 1 - np.log(found.weights.sum()))
    np.testing.assert_allclose(found.info.loss, pooled, rtol=1e-4)
    assert pool_of("logpool") == found.pool and pool_of("top") == "mixture"


@pytest.mark.slow("float64")
@pytest.mark.parametrize("seed", range(4))
def test_the_search_finds_nearly_the_best_subset(seed, precision):
    log_probs, classes = problem(seed, sharpness=3.0)
    found = select("logpool", log_probs, SIZE, classes=classes)
    among = np.isin(np.arange(COUNT), found.members)
    strength = np.asarray(log_pool_weights(log_probs, classes, mask=among).strength)
    subsets = [
        np.isin(np.arange(COUNT), subset) for subset in itertools.combinations(range(COUNT), SIZE)
    ]
    solved = solve(classes - log_probs[..., None], np.stack(subsets), strength)
    best = min(value_of(row, log_probs, classes, strength)[0] for row in solved.weights)
    members, weights = (np.asarray(each) for each in (found.members, found.weights))
    members, weights = members[weights > 0], weights[weights > 0]
    assert value_of(weights, log_probs[members], classes[members], strength)[0] < best * 1.01


@pytest.mark.slow
def test_mapped_is_row_by_row_and_empty_is_said(tolerance):
    problems = [problem(seed) for seed in range(4)]
    log_probs, classes = (np.stack(each) for each in zip(*problems, strict=True))
    masks = np.ones((4, COUNT), bool)
    masks[1, :3], masks[2] = False, False
    together = mapped()(log_probs, classes, masks)
    for row in 0, 1, 3:
        alone = select("logpool", log_probs[row], SIZE, classes=classes[row], mask=masks[row])
        assert together.members[row].tolist() == alone.members.tolist()
        np.testing.assert_allclose(together.weights[row], alone.weights, atol=tolerance(1e-3, 1e-6))
    assert together.info.status[2] & Status.EMPTY and together.info.loss[2] == np.inf
    assert together.weights[2].tolist() == [0] * SIZE
    with pytest.raises(BQNESError, match="no usable row"):
        select("logpool", log_probs[2], SIZE, classes=classes[2], mask=masks[2])


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float64"], indirect=True)
def test_failures_and_padding_change_nothing():
    log_probs, classes = problem(1)
    alone = select("logpool", log_probs, SIZE, classes=classes)
    failed = np.concatenate([classes, np.zeros_like(classes[:2])])
    failed[-1, 3, 1] = np.nan
    true = np.concatenate([log_probs, np.zeros_like(log_probs[:2])])
    mask = np.arange(COUNT + 2) != COUNT
    found = select("logpool", true, SIZE, classes=failed, mask=mask)
    assert found.members.tolist() == alone.members.tolist()
    np.testing.assert_allclose(found.weights, alone.weights, rtol=1e-6)


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_more_members_than_usable_candidates():
    log_probs, classes = problem(count=2)
    found = select("logpool", log_probs, 4, classes=classes)
    assert found.info.used <= 2 and found.weights[2:].tolist() == [0, 0]
    log_probs, classes = (each[[0] * COUNT] for each in problem())
    few = select("logpool", log_probs, SIZE, classes=classes, mask=np.arange(COUNT) == 1)
    assert few.members.tolist() == [1, 1, 1] and few.info.used == 1


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float64"], indirect=True)
def test_a_limit_is_as_good_as_a_size():
    log_probs, classes = problem(2)
    limited = select("logpool", log_probs, SIZE, classes=classes, limit=2)
    alone = select("logpool", log_probs, 2, classes=classes)
    assert limited.info.used == alone.info.used == 2
    assert limited.members[:2].tolist() == alone.members.tolist()
    np.testing.assert_allclose(limited.weights[:2], alone.weights, rtol=1e-6)
    assert limited.weights[2:].tolist() == [0]


@pytest.mark.slow("float64")
def test_identical_members_share_one_weight(tolerance):
    log_probs, classes = (each[[0] * COUNT] for each in problem(count=1))
    same = log_pool_weights(log_probs[:3], classes[:3])
    once = log_pool_weights(log_probs, classes, mask=np.arange(COUNT) == 0)
    np.testing.assert_allclose(same.weights.sum(), once.weights.sum(), rtol=tolerance(1e-3, 1e-6))
    np.testing.assert_allclose(same.loss, once.loss, rtol=tolerance(1e-5, 1e-9))
    found = select("logpool", log_probs, SIZE, classes=classes)
    np.testing.assert_allclose(found.info.loss, once.loss, rtol=tolerance(1e-4, 1e-6))


@pytest.mark.slow("float64")
def test_one_class_is_certain():
    found = select("logpool", np.zeros((3, 5)), 2, classes=np.zeros((3, 5, 1)))
    assert found.info.loss == 0 and found.info.status == Status.OK
    np.testing.assert_allclose(found.weights.sum(), 1, rtol=1e-5)


@pytest.mark.slow("float64")
def test_one_point():
    log_probs, classes = problem(points=1)
    found = select("logpool", log_probs, 2, classes=classes)
    assert np.all(np.isfinite(found.weights)) and np.isfinite(found.info.loss)


def test_zero_probabilities_and_hundreds_of_nats_are_defined():
    log_probs, classes = problem()
    classes, log_probs = classes.copy(), log_probs.copy()
    classes[:, 0] = -np.inf
    classes[:, 0, 0], log_probs[:, 0] = 0, -np.inf  # all are sure of a wrong class
    found = select("logpool", log_probs, SIZE, classes=classes)
    assert np.isfinite(found.info.loss) and found.info.status == Status.OK
    far = select("logpool", log_probs * 500, SIZE, classes=classes * 500)
    assert np.isfinite(far.info.loss) and np.all(np.isfinite(far.weights))


def test_members_worse_than_guessing_get_a_small_weight():
    log_probs, classes = problem()
    wrong = log_softmax(-3 * classes, axis=-1).astype(classes.dtype)
    labels = np.argmax(classes[0] == log_probs[0][:, None], axis=1)
    found = log_pool_weights(wrong[:, np.arange(POINTS), labels], wrong, strengths=(0.0,))
    assert 0 < found.weights.sum() < 0.05
    np.testing.assert_allclose(found.loss, np.log(CLASSES), rtol=1e-2)


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_half_precision_is_enough():
    log_probs, classes = problem()
    half = select("logpool", log_probs, SIZE, classes=classes.astype(np.float16))
    full = select("logpool", log_probs, SIZE, classes=classes)
    assert half.weights.dtype == full.weights.dtype
    np.testing.assert_allclose(half.info.loss, full.info.loss, rtol=1e-2)


@pytest.mark.parametrize("precision", ["float64"], indirect=True)
@pytest.mark.usefixtures("own_names")
def test_very_many_points_are_thinned_for_the_search_alone(monkeypatch):
    """The weights are those of all points, and the members nearly as good."""
    log_probs, classes = problem(3)
    whole = select("logpool", log_probs, SIZE, classes=classes)
    monkeypatch.setattr(logpool, "_ENOUGH", 20 * CLASSES)
    # Under another name, as a program remembers how many points are enough.
    register("thin", lambda *given: logpool.logpool(*given), pool="log")
    thin = select("thin", log_probs, SIZE, classes=classes)
    weights = np.zeros(COUNT)
    weights[np.asarray(thin.members)] = thin.weights
    margins, among = classes - log_probs[..., None], np.isin(np.arange(COUNT), thin.members)
    exact = [
        solve(margins, among[None], np.asarray(strength, margins.dtype)).weights[0]
        for strength in STRENGTHS
    ]
    assert min(np.abs(weights - one).max() for one in exact) < 1e-5
    assert abs(thin.info.loss - whole.info.loss) < 0.05


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_thinning_sees_every_class(monkeypatch):
    """Labels come in turn; one candidate knows the first class only, the other all of them."""
    monkeypatch.setattr(logpool, "_ENOUGH", 40 * CLASSES)
    labels = np.arange(160) % CLASSES
    knows_one = np.where(labels[:, None] == 0, np.eye(CLASSES)[labels] * 6, 0.0)
    logits = np.stack([knows_one, np.eye(CLASSES)[labels] * 3])
    classes = log_softmax(logits, axis=-1).astype(jnp.result_type(float))
    found = select("logpool", classes[:, np.arange(160), labels], 1, classes=classes)
    assert found.members.tolist() == [1]


# The contract.


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"classes": None}, "'logpool' needs what the candidates say about every class"),
        ({"classes": np.zeros((COUNT, POINTS))}, "classes has shape"),
        ({"classes": np.zeros((COUNT, POINTS, 0))}, "at least one class"),
        ({"classes": np.ones((COUNT, POINTS, CLASSES))}, "classes holds 1; the logarithm"),
        ({"classes": np.full((COUNT, POINTS, CLASSES), np.nan)}, "classes has no usable row"),
    ],
)
def test_bad_input_is_refused(change, message):
    log_probs, classes = problem()
    with pytest.raises(BQNESError, match=message):
        select("logpool", log_probs, SIZE, **({"classes": classes} | change))


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
@pytest.mark.usefixtures("own_names")
def test_a_log_pool_of_ones_own():
    def first_two(candidates, size):
        assert candidates.classes is not None
        return Choice(jnp.arange(2, dtype=jnp.int32), jnp.array([2.0, 1.0]), jnp.int32(0))

    register("first two", first_two, pool="log")
    log_probs, classes = problem()
    found = select("first two", log_probs, 2, classes=classes)
    assert found.weights.tolist() == [2, 1] and found.pool is Pool.LOG
    with pytest.raises(BQNESError, match="pool is 'sum'; allowed are"):
        register("third", first_two, pool="sum")


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_other_data_do_not_compile_again(compilations):
    first, second = problem(0), problem(1)
    select("logpool", first[0], SIZE, classes=first[1])
    log_pool_weights(*first)
    compilations()
    select("logpool", second[0], SIZE, classes=second[1])
    log_pool_weights(*second)
    assert compilations() == 0


DATA = Path(os.environ.get("BQNES_DATA_DIR", "")) / "predictions_cifar10n.npz"


@pytest.mark.slow
@pytest.mark.skipif(not DATA.is_file(), reason="no predictions_cifar10n.npz in BQNES_DATA_DIR")
@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_real_networks():
    """Ten networks on CIFAR-10: a quarter of the loss of the best mixture, and calibrated."""
    with np.load(DATA) as file:
        log_probs, labels = file["log_probs"].astype(np.float32), file["labels"].astype(int)
    log_probs = log_softmax(log_probs, axis=-1)
    losses, errors, mixtures = [], [], []
    for seed in range(3):
        order = np.random.default_rng(seed).permutation(len(labels))
        valid, test = order[:2000], order[2000:]
        true = log_probs[:, valid, labels[valid]]
        for name, kept in (("logpool", losses), ("corrective", mixtures)):
            found = select(name, true, 3, classes=log_probs[:, valid])
            members = log_probs[np.asarray(found.members)][:, test]
            said = ensemble_log_probabilities(found.weights, members, pool=found.pool)
            kept.append(-np.mean(np.asarray(said)[np.arange(len(test)), labels[test]]))
            if name == "logpool":
                errors.append(float(ece(jnp.exp(said), labels[test])))
    assert np.mean(losses) < 0.056 and np.mean(errors) < 0.005
    assert np.mean(losses) < 0.35 * np.mean(mixtures)
