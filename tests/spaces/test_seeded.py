"""Weights as well as architectures: the space of both, its surrogate, its searches and members."""

import functools
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bqnes_jax import algorithms, candidates
from bqnes_jax.algorithms import check_seeds, make
from bqnes_jax.candidates import Outcome, SearchConfig
from bqnes_jax.drivers import loop, scan
from bqnes_jax.errors import BQNESError
from bqnes_jax.kernels import RBF, WL, make_kernel
from bqnes_jax.quadrature import exact_evidence
from bqnes_jax.selection import methods, pool_of, select
from bqnes_jax.spaces import (
    NATS,
    CoordinateSpace,
    EnumerableSpace,
    GraphSpace,
    Product,
    Seeded,
    Subset,
    count_seeds,
    enumerate_space,
    split_seeds,
)
from bqnes_jax.surrogates import FitConfig, Hyperparameters, gp, wsabi
from bqnes_jax.tables import Table, evaluator
from tests.helpers.toy import GRID, POINTS, Endless

SEEDS = 3
SPACE = Seeded(GRID, SEEDS)
CELLS = Seeded(Subset(NATS, tuple(range(3, 15_625, 97))), SEEDS)
PRODUCT = Seeded(Product(depth=(1, 2, 3), activation=("relu", "tanh")), SEEDS)
ENDLESS = Seeded(Endless(), SEEDS)
EVERYTHING = np.stack(np.unravel_index(np.arange(SPACE.size), SPACE.options), axis=-1)
LISTED = (SPACE, CELLS, PRODUCT)
KERNEL = RBF(SPACE, 0.5)  # the same in both precisions
FIXED = FitConfig(kernel_steps=0)  # half of a program is the fit of the kernel
CONFIG = SearchConfig(initial=4, budget=22, batch=3, population=6, temperature=1.0, fit=FIXED)
SMALL = {"pool": 24, "mutated": 8, "samples": 16, "climbs": 2, "parents": 3}


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32"], indirect=True)
@pytest.mark.parametrize("space", [*LISTED, ENDLESS], ids=lambda space: space.name)
def test_it_is_a_space(space, key):
    length = len(space.options)
    assert space.options == (*space.base.options, SEEDS) and count_seeds(space) == SEEDS
    archs = np.asarray(jax.jit(lambda key: space.sample(key, 600))(key))
    assert archs.shape == (600, length) and archs.dtype == np.int32
    assert np.bincount(archs[:, -1], minlength=SEEDS).min() > 150
    mutants = np.asarray(jax.jit(jax.vmap(space.mutate))(jax.random.split(key, 600), archs))
    changed = mutants != archs
    assert changed.any(axis=1).all() and ((mutants >= 0) & (mutants < space.options)).all()
    reseeded = changed[:, -1]
    assert 0.5 / length < reseeded.mean() < 2 / length
    assert not changed[reseeded, :-1].any(), "an architecture or a seed, not both"
    np.testing.assert_array_equal(space.from_string(space.to_string(archs[0])), archs[0])
    assert space.to_string(archs[0]).endswith(f" (seed {int(archs[0, -1])})")
    for view, kind in (("graph", GraphSpace), ("coordinates", CoordinateSpace)):
        assert isinstance(space, kind) == isinstance(space.base, kind)
        if isinstance(space, kind):
            ours, theirs = getattr(space, view)(archs[1]), getattr(space.base, view)(archs[1, :-1])
            jax.tree.map(np.testing.assert_array_equal, ours, theirs)
    again = pickle.loads(pickle.dumps(space))
    assert again == space and hash(again) == hash(space) and space != Seeded(space.base, 4)


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
@pytest.mark.parametrize("space", LISTED, ids=lambda space: space.name)
def test_it_numbers_the_seeds_of_an_architecture_one_after_the_other(space):
    assert isinstance(space, EnumerableSpace) and space.size == SEEDS * space.base.size
    archs = np.asarray(enumerate_space(space))
    np.testing.assert_array_equal(jax.jit(space.index)(archs), np.arange(space.size))
    base = np.asarray(enumerate_space(space.base))
    np.testing.assert_array_equal(archs[:, :-1], np.repeat(base, SEEDS, axis=0))
    np.testing.assert_array_equal(archs[:SEEDS, -1], np.arange(SEEDS))
    apart = split_seeds(space, archs)
    assert apart.space is space.base
    np.testing.assert_array_equal(apart.archs, archs[:, :-1])
    np.testing.assert_array_equal(apart.seeds, archs[:, -1])
    assert not np.asarray(split_seeds(space.base, base).seeds).any()
    np.testing.assert_array_equal(enumerate_space(space.first), archs[::SEEDS])


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_what_is_no_candidate_is_refused():
    with pytest.raises(BQNESError, match="seeds is 0"):
        Seeded(GRID, 0)
    with pytest.raises(BQNESError, match="has weight seeds already"):
        Seeded(SPACE, 2)
    for text in ("0,1", "0,1 (seed x)", "0,1 (seed 1"):
        with pytest.raises(BQNESError, match="has no seed"):
            SPACE.from_string(text)
    with pytest.raises(BQNESError, match="seed is 3"):
        SPACE.from_string("0,1 (seed 3)")
    with pytest.raises(BQNESError, match="cannot be listed"):
        ENDLESS.index(jnp.zeros(3, jnp.int32))


@pytest.mark.slow("float64")
def test_replicates_average(tolerance):
    """To a Gaussian process S replicates are their mean, with the S-th part of the noise."""
    rng = np.random.default_rng(0)
    base = POINTS[[0, 3, 8, 21, 35]]
    archs = EVERYTHING.reshape(36, SEEDS, 3)[[0, 3, 8, 21, 35]]
    targets = rng.normal(size=(5, SEEDS))
    assert isinstance(make_kernel(SPACE), RBF) and isinstance(make_kernel(CELLS), WL)
    every = gp.condition(KERNEL, archs.reshape(-1, 3), targets.ravel(), Hyperparameters(2.0, 0.3))
    kernel, means = RBF(GRID, 0.5), targets.mean(axis=1)
    mean = gp.condition(kernel, base, means, Hyperparameters(2.0, 0.3 / SEEDS))
    close = {"rtol": tolerance(1e-3, 1e-9), "atol": tolerance(1e-4, 1e-10)}
    replicated, averaged = every.predict(EVERYTHING), mean.predict(POINTS)
    for ours, theirs in zip(replicated, averaged, strict=True):
        for seed in range(SEEDS):
            np.testing.assert_allclose(np.asarray(ours)[seed::SEEDS], theirs, **close)
    alone = gp.condition(kernel, base, targets[:, 0], Hyperparameters(2.0, 0.3)).predict(POINTS)
    least = np.asarray(alone.variance) / np.asarray(replicated.variance)[::SEEDS]
    assert least[[0, 3, 8, 21, 35]].min() > 2, "a replicate teaches"


@pytest.mark.slow
def test_the_evidence_sums_over_architectures_and_seeds(tolerance):
    archs = np.array(SPACE.sample(jax.random.key(0), 12))
    scores = -np.sum((archs[:, :2] - 2.0) ** 2, axis=1) / 4 + archs[:, 2] / 5
    options = {"temperature": 1.0, "fit_config": FIXED}
    ours = exact_evidence(wsabi.fit(KERNEL, archs, scores, **options), SPACE)
    model = wsabi.fit(RBF(GRID, 0.5), archs[:, :2], scores, **options)
    theirs, close = exact_evidence(model, GRID), tolerance(2e-3, 1e-9)
    np.testing.assert_allclose(ours.log_evidence, theirs.log_evidence, rtol=close, atol=close)
    np.testing.assert_allclose(ours.posterior_sd, theirs.posterior_sd, rtol=close, atol=close)


def table(noise=0.3, seed=0):
    """Networks that predict 20 points, better towards a corner; seeds differ by their noise."""
    rng = np.random.default_rng(seed)
    skill = POINTS.sum(axis=1) / 5
    shape = (SPACE.size, 20)
    log_probs = -np.exp(noise * rng.normal(size=shape) - np.repeat(skill, SEEDS)[:, None])
    return Table(*map(jnp.asarray, (log_probs.sum(axis=1), np.zeros(SPACE.size), log_probs)))


def index_of(archs):
    return np.asarray(archs) @ [6 * SEEDS, SEEDS, 1]


@functools.cache
def searched(name, precision, budget=CONFIG.budget, **fit):
    del precision  # only to compile once for each
    config = SearchConfig(
        initial=4,
        budget=budget,
        batch=3,
        population=6,
        temperature=1.0,
        fit=FitConfig(kernel_steps=0, **fit),
    )
    strategy = candidates.make(name, SPACE, kernel=KERNEL, config=config)
    run = jax.jit(lambda key, evaluate: scan(strategy, config, key, evaluate))
    return strategy, config, run(jax.random.key(3), evaluator(table(), SPACE))


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32"], indirect=True)
@pytest.mark.parametrize("name", candidates.strategies())
def test_both_drivers_choose_the_same_candidates(name, precision):
    strategy, config, found = searched(name, precision)
    looped = loop(strategy, config, jax.random.key(3), evaluator(table(), SPACE))
    np.testing.assert_array_equal(found.history.archs, looped.history.archs)
    index = index_of(found.history.archs).tolist()
    assert len(set(index)) == CONFIG.budget, "no (architecture, seed) twice"


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32"], indirect=True)
@pytest.mark.parametrize("name", candidates.strategies())
def test_a_space_that_cannot_be_listed_is_searched(name):
    fit = FitConfig() if name == "us" else FIXED
    config = SearchConfig(initial=4, budget=12, batch=3, population=6, fit=fit, **SMALL)
    kernel = RBF(ENDLESS, 0.5)
    strategy = candidates.make(name, ENDLESS, kernel=kernel, config=config)

    values = table().log_likelihoods

    def look_up(archs):
        return Outcome(archs, values[SPACE.index(archs)])

    found = jax.jit(lambda key: scan(strategy, config, key, look_up))(jax.random.key(1))
    assert len(set(index_of(found.history.archs).tolist())) == 12
    assert (np.asarray(found.trace.evidence.sampling_sd) > 0).all()
    if name == "replicate":
        best = np.asarray(candidates.replicates.of_the_best(found.history))
        assert sorted(np.asarray(found.history.archs)[best, -1].tolist()) == [0, 1, 2]


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_uncertainty_sampling_asks_for_replicates_where_noise_is_what_is_left(precision):
    """Never only for them: each makes the next one less uncertain."""
    replicates = []
    for bounds in ((1e-5, 2e-5), (0.5, 1.0)):
        _, config, found = searched("us", precision, 40, noise_bounds=bounds)
        asked = found.history.archs.tolist()
        done = {tuple(arch) for arch in asked[: config.initial]}
        for *arch, seed in asked[config.initial :]:
            assert all((*arch, lower) in done for lower in range(seed)), "the next seed"
            done.add((*arch, seed))
        replicates.append(len(done) - len({arch[:-1] for arch in done}))
    exact, noisy = replicates
    assert exact < noisy < 27, "of 40, which are 14 architectures at least"


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_with_one_seed_a_search_is_what_it_was():
    ours = Table(*(jnp.asarray(np.asarray(leaf)[::SEEDS]) for leaf in table()[:3]))

    def search(name, space):
        strategy = candidates.make(name, space, kernel=RBF(space, 0.5), config=CONFIG)
        run = jax.jit(lambda key: scan(strategy, CONFIG, key, evaluator(ours, space)))
        return np.asarray(run(jax.random.key(0)).history.archs)

    for name in ("us", "evolution", "replicate"):
        found = search(name, SPACE.first)
        np.testing.assert_array_equal(found[:, :-1], search(name, GRID))
        assert not found[:, -1].any()


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32"], indirect=True)
@pytest.mark.parametrize("method", methods())
def test_several_seeds_of_one_architecture_may_be_members(method):
    """Replicates are exactly alike to the kernel; two that err elsewhere are the best pair."""
    rng = np.random.default_rng(1)
    log_probs = -1 - 0.1 * rng.random((9, 40))
    log_probs[0, :20] = log_probs[1, 20:] = -0.01
    gram = np.asarray(RBF(SPACE, 0.5).gram(EVERYTHING[:9]))
    assert np.linalg.matrix_rank(gram) == 3
    chosen = select(
        method,
        log_probs,
        2,
        classes=np.stack([log_probs, np.log1p(-np.exp(log_probs))], -1),
        kernel=gram,
        temperature=10.0,
        rule=np.full(9, 1 / 9),
    )
    weights = np.asarray(chosen.weights)
    if pool_of(method) == "mixture":
        np.testing.assert_allclose(weights.sum(), 1, rtol=1e-5)
    assert np.isfinite(weights).all() and (weights >= 0).all()
    if not method.startswith("recombine"):  # which chooses by the kernel's moments
        assert set(chosen.members.tolist()) == {0, 1}


@functools.cache
def ensembles(name, size, precision):
    del precision
    run = jax.jit(jax.vmap(make(name, SPACE, size, kernel=KERNEL, config=CONFIG), (0, None)))
    found = run(jax.random.split(jax.random.key(0), 3), evaluator(table(), SPACE))
    return jax.tree.map(np.asarray, found)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32"], indirect=True)
@pytest.mark.parametrize("size", [2, 3])
def test_a_deep_ensemble_is_the_best_architecture_with_other_seeds(size, precision):
    found = ensembles("Deep ensemble", size, precision)
    assert (found.history.count == CONFIG.budget).all(), "as many trainings as the others"
    np.testing.assert_allclose(found.weights, 1 / size, rtol=1e-6)
    for archs, history in zip(found.archs, found.history.archs, strict=True):
        assert len({tuple(arch) for arch in archs[:, :-1].tolist()}) == 1
        assert len(set(archs[:, -1].tolist())) == size
        _, first = np.unique(history[:, :-1], axis=0, return_index=True)
        assert len(first) >= CONFIG.budget - CONFIG.initial - SEEDS + 1, "one training of each"
        likelihoods = np.asarray(table().log_likelihoods)[index_of(history[first])]
        np.testing.assert_array_equal(history[first][likelihoods.argmax(), :-1], archs[0, :-1])


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_bq_w_is_stacking_of_all_replicates(precision):
    found = ensembles("BQ-W", 3, precision)
    np.testing.assert_allclose(found.weights.sum(axis=1), 1, rtol=1e-5)
    same = ensembles("us+restack", 3, precision)
    jax.tree.map(np.testing.assert_array_equal, found[:4], same[:4])
    assert (found.history.archs[..., -1] > 0).any()


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_both_need_seeds():
    for name in ("BQ-W", "Deep ensemble"):
        assert name in algorithms.algorithms()
        for space in (GRID, SPACE.first):
            with pytest.raises(BQNESError, match=f"'{name}', which tries .* several weight seeds"):
                make(name, space, 2, config=CONFIG)
    with pytest.raises(BQNESError, match=r"'Deep ensemble' with 4 members.* there are 3 seeds"):
        make("Deep ensemble", SPACE, 4, config=CONFIG)
    check_seeds("BQ-S", GRID, 4)
