import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bqnes_jax.errors import BQNESError
from bqnes_jax.selection import (
    Choice,
    methods,
    pool_of,
    register,
    select,
    stacking_weights,
    takes_limit,
)
from bqnes_jax.types import Status
from tests.selection.test_stacking import changed, loss_of, realistic

COUNT, POINTS, SIZE, REPEATS = 12, 60, 4, 16
# Pools in log space are in test_logpool. The eigenvectors of an eigenvalue that occurs often, as 0
# does here, are no one's choice: the method of the published code that rests on them has its own
# test.
BUILT_IN = tuple(
    name for name in methods() if pool_of(name) == "mixture" and name != "recombine_smallest"
)


def problem(seed=0, count=COUNT, points=POINTS, overconfidence=1.0):
    """Draw log-probabilities, and a kernel of low rank with values in [0, 1]."""
    features = np.abs(np.random.default_rng(seed).normal(size=(count, 3)))
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    kernel = (features @ features.T).astype(jnp.result_type(float))
    return realistic(seed, count, points, overconfidence), kernel


def chosen(name, log_probs, kernel, mask=None, size=SIZE, **options):
    if name == "quadrature":
        options = {"rule": np.ones(len(log_probs)), **options}
    found = select(name, log_probs, size, kernel=kernel, mask=mask, **options)
    return found if isinstance(found.weights, jax.core.Tracer) else jax.tree.map(np.asarray, found)


@functools.cache
def mapped(name):
    return jax.jit(jax.vmap(functools.partial(chosen, name)))


def assert_same(one, other, tolerance):
    assert one.members.tolist() == other.members.tolist()
    np.testing.assert_allclose(one.weights, other.weights, atol=tolerance(1e-4, 1e-8))
    np.testing.assert_allclose(one.info.loss, other.info.loss, rtol=tolerance(1e-5, 1e-9))
    assert one.info.used == other.info.used
    assert one.info.status == other.info.status


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_the_names():
    assert set(BUILT_IN) == {
        "beam", "stack", "restack", "recombine", "quadrature", "top", "corrective", "caruana"
    }  # fmt: skip


# The protocol, for every method.


@pytest.mark.slow("float64")
@pytest.mark.parametrize("name", BUILT_IN)
def test_an_ensemble_comes_out(name, precision):
    log_probs, kernel = problem()
    found = chosen(name, log_probs, kernel)
    assert found.members.shape == found.weights.shape == (SIZE,)
    assert found.members.dtype == jnp.int32 and found.weights.dtype == precision
    assert len(set(found.members.tolist())) == found.info.used <= SIZE
    assert np.all(found.weights >= 0)
    np.testing.assert_allclose(found.weights.sum(), 1, rtol=1e-6)
    by_numpy = loss_of(found.weights, log_probs[found.members])
    np.testing.assert_allclose(found.info.loss, by_numpy, rtol=1e-5)
    assert found.info.status == Status.OK


@pytest.mark.slow
@pytest.mark.parametrize("name", BUILT_IN)
def test_mapped_is_row_by_row(name, tolerance):
    problems = [problem(seed) for seed in range(REPEATS)]
    log_probs, kernels = (np.stack(each) for each in zip(*problems, strict=True))
    masks = changed(np.ones((REPEATS, COUNT), bool), (1, [0, 1, 2]), False)
    masks[2] = False
    together = jax.tree.map(np.asarray, mapped(name)(log_probs, kernels, masks))
    for row in 0, 1, 3, 4:
        alone = chosen(name, log_probs[row], kernels[row], masks[row])
        assert_same(jax.tree.map(lambda each, row=row: each[row], together), alone, tolerance)
    nobody = jax.tree.map(lambda each: each[2], together)
    assert nobody.info.status & Status.EMPTY
    assert nobody.weights.tolist() == [0] * SIZE
    assert nobody.info.used == 0 and nobody.info.loss == np.inf
    with pytest.raises(BQNESError, match="no usable row"):
        chosen(name, log_probs[2], kernels[2], masks[2])


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float64"], indirect=True)
@pytest.mark.parametrize("name", BUILT_IN)
def test_padding_and_failures_change_nothing(name, tolerance):
    log_probs, kernel = problem(1, COUNT - 3)
    alone = chosen(name, log_probs, kernel)
    kept = np.arange(COUNT) < COUNT - 3
    log_probs = np.pad(log_probs, ((0, 3), (0, 0)), constant_values=-1e-4)  # they would win
    kernel = np.pad(kernel, (0, 3), constant_values=np.nan)
    masked = chosen(name, log_probs, kernel, kept)
    failed = chosen(name, changed(log_probs, np.s_[COUNT - 3 :, 5], np.nan), kernel)
    assert_same(masked, alone, tolerance)
    assert_same(failed, masked, tolerance)


@pytest.mark.slow
@pytest.mark.parametrize("name", BUILT_IN)
def test_more_members_than_usable_candidates(name):
    log_probs, kernel = problem()
    two = np.arange(COUNT) % 6 == 3
    found = chosen(name, log_probs, kernel, two)
    assert set(found.members.tolist()) <= {3, 9}
    assert found.info.used <= 2
    unused = found.weights == 0
    assert unused.sum() == SIZE - found.info.used
    heaviest = found.members[np.argmax(found.weights)]
    assert np.all(found.members[unused] == heaviest)
    np.testing.assert_allclose(found.weights.sum(), 1, rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32"], indirect=True)
@pytest.mark.parametrize("name", BUILT_IN)
def test_more_members_than_candidates(name):
    log_probs, kernel = problem(count=2)
    found = chosen(name, log_probs, kernel)
    assert found.members.shape == (SIZE,) and found.weights[2:].tolist() == [0, 0]
    np.testing.assert_allclose(found.weights.sum(), 1, rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32"], indirect=True)
@pytest.mark.parametrize("name", BUILT_IN)
def test_one_member(name):
    log_probs, kernel = problem()
    found = chosen(name, log_probs, kernel, size=1)
    assert found.weights.tolist() == [1]
    if name in ("stack", "restack"):
        assert found.members[0] == chosen("stack", log_probs, kernel).members[0]
    else:
        assert found.members[0] == np.argmax(log_probs.mean(1))


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float64"], indirect=True)
@pytest.mark.parametrize("name", list(filter(takes_limit, BUILT_IN)))
def test_a_limit_is_as_good_as_a_size(name, tolerance):
    log_probs, kernel = problem(1)
    for limit in 2, SIZE:
        limited = chosen(name, log_probs, kernel, limit=limit)
        alone = chosen(name, log_probs, kernel, size=limit)
        assert limited.info.used == alone.info.used <= limit
        slots = slice(len(alone.members))
        first = limited._replace(members=limited.members[slots], weights=limited.weights[slots])
        assert_same(first, alone, tolerance)
        assert not np.any(limited.weights[limit:])


def test_a_method_without_a_limit_refuses_one():
    log_probs, kernel = problem()
    with pytest.raises(BQNESError, match="'recombine' fills every slot"):
        select("recombine", log_probs, SIZE, kernel=kernel, limit=2)


@pytest.mark.parametrize("name", BUILT_IN)
def test_identical_candidates(name, tolerance):
    log_probs = np.tile(problem()[0][:1], (COUNT, 1))
    found = chosen(name, log_probs, np.ones((COUNT, COUNT)))
    np.testing.assert_allclose(found.weights.sum(), 1, rtol=1e-6)
    np.testing.assert_allclose(found.info.loss, -log_probs[0].mean(), rtol=tolerance(1e-5, 1e-9))
    assert found.info.status == Status.OK


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
@pytest.mark.parametrize("name", BUILT_IN)
def test_compiles_once(name, compilations):
    first, second = problem(0), problem(1)
    chosen(name, *first)
    compilations()
    chosen(name, *second)
    assert compilations() == 0


@pytest.mark.parametrize("name", BUILT_IN)
def test_zero_probabilities(name):
    """Points that nobody explains are left out; those that only some explain must not be missed."""
    log_probs, kernel = problem()
    log_probs = changed(changed(log_probs, np.s_[:, 0], -np.inf), np.s_[2:, 1], -np.inf)
    found = chosen(name, log_probs, kernel, temperature=1e6)
    assert found.info.status & Status.MASKED_TARGETS
    assert not np.isnan(found.weights).any()
    np.testing.assert_allclose(found.weights.sum(), 1, rtol=1e-6)
    missed = not {0, 1} & set(found.members[found.weights > 0].tolist())
    assert bool(found.info.loss == np.inf) == missed
    if name in ("beam", "corrective", "top"):
        assert not missed


@pytest.mark.parametrize("name", BUILT_IN)
def test_ranges_of_hundreds_of_nats(name):
    log_probs, kernel = problem()
    found = chosen(name, log_probs * 100, kernel)
    np.testing.assert_allclose(found.weights.sum(), 1, rtol=1e-6)
    by_numpy = loss_of(found.weights, log_probs[found.members] * 100)
    np.testing.assert_allclose(found.info.loss, by_numpy, rtol=1e-5)


# Each method against its definition.


@pytest.mark.slow("float64")
@pytest.mark.parametrize("name", ["top", "beam", "recombine", "corrective"])
def test_one_impossible_point_outweighs_every_good_one(name):
    """Nearly perfect but for one zero among 50,000: an infinite loss, however small its mean."""
    log_probs = np.full((2, 50_000), -0.1)
    log_probs[0, 17] = -np.inf
    log_probs[1] = -2.5
    found = chosen(name, log_probs, np.eye(2), size=1)
    assert found.members.tolist() == [1]
    np.testing.assert_allclose(found.info.loss, 2.5, rtol=1e-5)


@pytest.mark.slow("float64")
def test_corrective_avoids_an_infinite_loss():
    log_probs = np.full((2, 50_000), -2.0)
    log_probs[0, 0] = -np.inf
    log_probs[1] = -3.0
    corrective, stack = (
        chosen(name, log_probs, np.eye(2), size=1) for name in ("corrective", "stack")
    )
    assert corrective.info.loss <= stack.info.loss
    assert np.isfinite(corrective.info.loss)


def test_top():
    log_probs, kernel = problem()
    found = chosen("top", log_probs, kernel)
    assert found.members.tolist() == np.argsort(-log_probs.mean(1))[:SIZE].tolist()
    assert found.weights.tolist() == [1 / SIZE] * SIZE


@pytest.mark.parametrize("seed", range(5))
def test_beam_is_greedy(seed):
    log_probs, kernel = problem(seed, overconfidence=1.0 + 2 * seed)
    members = []
    for _ in range(SIZE):
        losses = {
            n: loss_of(np.full(len(members) + 1, 1 / (len(members) + 1)), log_probs[[*members, n]])
            for n in range(COUNT)
            if n not in members
        }
        members.append(min(losses, key=losses.get))
    found = chosen("beam", log_probs, kernel)
    assert found.members.tolist() == members
    assert found.weights.tolist() == [1 / SIZE] * SIZE


@pytest.mark.slow("float64")
@pytest.mark.parametrize("size", [1, SIZE, COUNT])
@pytest.mark.parametrize("seed", range(4))
def test_caruana_is_a_loop_with_replacement(seed, size):
    log_probs, kernel = problem(seed, overconfidence=1.0 + 2 * seed)
    bag, prefixes = [], []
    for _ in range(50):
        open_to = range(COUNT) if len(set(bag)) < size else sorted(set(bag))
        losses = {
            n: loss_of(np.full(len(bag) + 1, 1 / (len(bag) + 1)), log_probs[[*bag, n]])
            for n in open_to
        }
        bag.append(min(losses, key=losses.get))
        prefixes.append(losses[bag[-1]])
    kept = bag[: int(np.argmin(prefixes)) + 1]
    found = chosen("caruana", log_probs, kernel, size=size)
    np.testing.assert_allclose(found.info.loss, min(prefixes), rtol=1e-5)
    shares = np.bincount(kept, minlength=COUNT) / len(kept)
    ours = np.zeros(COUNT)
    np.add.at(ours, found.members, found.weights)
    if log_probs.dtype == np.float64:  # in float32 rounding may decide between prefixes
        np.testing.assert_allclose(ours, shares, atol=1e-6)


def test_stack(tolerance):
    log_probs, kernel = problem()
    weights = np.asarray(stacking_weights(log_probs).weights)
    members = np.argsort(-weights, kind="stable")[:SIZE]
    found = chosen("stack", log_probs, kernel)
    assert found.members.tolist() == members.tolist()
    expected = weights[members] / weights[members].sum()
    np.testing.assert_allclose(found.weights, expected, rtol=tolerance(1e-4, 1e-8))


@pytest.mark.parametrize("unrelated", [False, True])
def test_restack_is_the_published_equation(unrelated, tolerance):
    log_probs, kernel = problem(overconfidence=10.0)
    omega = np.asarray(stacking_weights(log_probs).weights, np.float64)
    members = np.argsort(-omega, kind="stable")[:SIZE].tolist()
    excluded = [n for n in range(COUNT) if n not in members and omega[n] > 0]
    assert len(excluded) >= 2
    if unrelated:
        kernel = changed(changed(kernel, excluded[0], 0), np.s_[:, excluded[0]], 0)
    expected = []
    for m in members:
        weight = omega[m]
        for l in excluded:  # noqa: E741
            total = sum(kernel[k, l] for k in members)
            share = kernel[m, l] / total if total > 0 else omega[m] / sum(omega[members])
            weight += float(share) * omega[l]
        expected.append(weight)
    found = chosen("restack", log_probs, kernel)
    assert found.members.tolist() == members
    np.testing.assert_allclose(found.weights, expected, rtol=tolerance(1e-4, 1e-8))


@pytest.mark.parametrize("with_prior", [False, True])
def test_recombine_keeps_the_moments_of_the_posterior(with_prior, tolerance):
    """With as many test functions as the kernel has rank, every feature is integrated exactly."""
    log_probs, kernel = problem()
    prior = np.linspace(0, 1, COUNT) if with_prior else None
    found = chosen("recombine", log_probs, kernel, log_prior=prior, temperature=20.0)
    scores = np.asarray(log_probs, np.float64).sum(1) / 20 + (0 if prior is None else prior)
    posterior = np.exp(scores - scores.max())
    posterior /= posterior.sum()
    np.testing.assert_allclose(
        found.weights @ kernel[found.members],
        posterior @ kernel,
        rtol=tolerance(1e-3, 1e-7),
    )


def test_recombine_without_prior_mass():
    log_probs, kernel = problem()
    prior = np.full(COUNT, -np.inf)
    assert chosen("recombine", log_probs, kernel, log_prior=prior).info.status & Status.EMPTY
    only = chosen("recombine", log_probs, kernel, log_prior=changed(prior, 5, 0))
    assert only.members.tolist() == [5] * SIZE and only.weights.tolist() == [1, 0, 0, 0]


@pytest.mark.slow("float64")
@pytest.mark.parametrize("overconfidence", [0.3, 1.0, 3.0, 10.0])
@pytest.mark.parametrize("seed", range(4))
def test_corrective_is_never_worse(seed, overconfidence, tolerance):
    log_probs, kernel = problem(seed, overconfidence=overconfidence)
    losses = {name: chosen(name, log_probs, kernel).info.loss for name in BUILT_IN}
    for rival in "beam", "stack", "restack", "top":
        assert losses["corrective"] <= losses[rival] * (1 + tolerance(1e-6, 1e-9))


@pytest.mark.slow
def test_corrective_is_never_worse_on_random_numbers(tolerance):
    draw = np.random.default_rng(0).gamma
    log_probs = -draw(0.5, 3.0, size=(REPEATS, COUNT, POINTS))
    kernels = np.tile(problem()[1], (REPEATS, 1, 1))
    masks = np.ones((REPEATS, COUNT), bool)
    losses = {
        name: np.asarray(mapped(name)(log_probs, kernels, masks).info.loss) for name in BUILT_IN
    }
    for rival in "beam", "stack", "restack", "top":
        assert np.all(losses["corrective"] <= losses[rival] * (1 + tolerance(1e-6, 1e-9)))
    assert np.mean(losses["corrective"] < losses["stack"] * (1 - 1e-5)) > 0.5


@pytest.mark.slow("float64")
def test_corrective_finds_the_best_subset(tolerance):
    """On most problems; the search is greedy with swaps, and so may miss it."""
    stack_each = jax.jit(jax.vmap(stacking_weights))
    hits = 0
    for seed in range(6):
        log_probs, kernel = problem(seed, overconfidence=3.0)
        subsets = np.array(list(itertools.combinations(range(COUNT), SIZE)))
        best = np.min(stack_each(log_probs[subsets]).loss)
        found = chosen("corrective", log_probs, kernel).info.loss
        assert found > best * (1 - tolerance(1e-5, 1e-9))
        assert found < best * 1.02
        hits += bool(found < best * (1 + tolerance(1e-5, 1e-9)))
    assert hits >= 4


def test_corrective_with_room_for_all_is_stacking(tolerance):
    log_probs, kernel = problem(0)
    few = np.arange(COUNT) < SIZE
    found, expected = chosen("corrective", log_probs, kernel, few), stacking_weights(log_probs, few)
    np.testing.assert_allclose(found.info.loss, expected.loss, rtol=tolerance(1e-5, 1e-9))


# The registry.


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
@pytest.mark.usefixtures("own_names")
def test_a_method_of_ones_own():
    def careless(candidates, size):
        members = jnp.arange(size, dtype=jnp.int32)
        return Choice(members, 2.0 * jnp.ones(size).at[1].set(jnp.nan), jnp.int32(0))

    register("careless", careless)
    log_probs, _ = problem()
    found = select("careless", changed(log_probs, 0, np.nan), SIZE)
    assert "careless" in methods()
    assert found.members.tolist() == [2, 2, 2, 3]
    assert found.weights.tolist() == [0, 0, 0.5, 0.5]
    with pytest.raises(BQNESError, match="selection method 'beam' is built in"):
        register("beam", careless)


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "best"}, "selection method is 'best'; allowed are 'beam', 'stack', 'restack'"),
        ({"size": 0}, "size is 0; it must be a whole number, at least 1"),
        ({"kernel": None}, "'restack' needs the Gram matrix"),
        ({"kernel": np.eye(3)}, "kernel has shape"),
        ({"kernel": np.full((COUNT, COUNT), np.nan)}, "kernel holds nan"),
        ({"mask": np.ones(3, bool)}, "mask has shape"),
        ({"log_prior": np.zeros(3)}, "log_prior has shape"),
        ({"log_prior": np.full(COUNT, np.nan)}, "log_prior holds nan"),
        ({"temperature": 0.0}, "temperature is 0.0; it must be positive"),
        ({"log_probs": np.full((COUNT, POINTS), 0.5)}, "pass log-probabilities"),
    ],
)
def test_bad_input_is_refused(change, message):
    log_probs, kernel = problem()
    good = {"name": "restack", "log_probs": log_probs, "size": SIZE, "kernel": kernel}
    with pytest.raises(BQNESError, match=message):
        select(**(good | change))
