"""Strategies: one protocol for all, and what each of them promises."""

import dataclasses
import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.tree_util import Partial

from bqnes_jax.candidates import Outcome, SearchConfig, make, register, registry, strategies, tell
from bqnes_jax.candidates.base import Landscape, State, first_fresh
from bqnes_jax.candidates.history import empty_history
from bqnes_jax.candidates.landscape import Listed, make_landscape
from bqnes_jax.drivers import scan
from bqnes_jax.errors import BQNESError
from bqnes_jax.kernels import RBF, WL, Linear
from bqnes_jax.quadrature import drawn_evidence, exact_evidence, log_expected_improvement, propose
from bqnes_jax.spaces import NATS
from bqnes_jax.surrogates import FitConfig, gp, wsabi
from bqnes_jax.tables import Table, evaluator
from bqnes_jax.types import Status
from tests.helpers.toy import GRID, POINTS, Endless, Polynomial

NAMES = ("random", "evolution", "ei", "us", "posterior", "replicate")
NUMERICAL = ("ei", "us", "posterior")  # what they choose depends on numbers of the surrogate
KERNEL = Polynomial()
INITIAL, BUDGET, BATCH = 6, 36, 4
CONFIG = SearchConfig(
    initial=INITIAL,
    budget=BUDGET,  # the whole space
    batch=BATCH,
    population=8,
    parents=3,
    temperature=1.0,
    pool=24,
    mutated=8,
    samples=64,
)
STEPS = 9  # of 4, the last of them beyond the budget
ENDLESS = Endless()


def likelihoods():
    """A surface without symmetries, of a few nats."""
    return np.random.default_rng(0).normal(size=36).cumsum() / 2


def index_of(archs):
    return np.asarray(archs) @ [6, 1]


def look_up(archs):
    """What a table of the grid says, for the space that does not know its index."""
    return Outcome(archs, jnp.asarray(likelihoods())[archs[:, 0] * 6 + archs[:, 1]])


def evaluate(log_likelihoods=None):
    table = likelihoods() if log_likelihoods is None else log_likelihoods
    return evaluator(Table(jnp.asarray(table), jnp.asarray(np.zeros(36))), GRID)


# Each is a program of seconds; in float64 test_drivers has the others, too.
each_strategy = pytest.mark.parametrize(
    ("name", "precision"),
    [(name, "float32") for name in NAMES] + [(name, "float64") for name in NUMERICAL],
    indirect=["precision"],
)


@functools.cache
def strategy_of(name, precision):
    del precision  # only to compile once for each
    return make(name, GRID, kernel=KERNEL, config=CONFIG)


@functools.cache
def searches_of(name, precision):
    run = functools.partial(scan, strategy_of(name, precision), CONFIG)
    return jax.jit(jax.vmap(run, (0, None)))


@pytest.fixture
def run(precision):
    """Return a function (name, seeds, log-likelihoods) -> histories and traces."""
    keys = jax.random.split(jax.random.key(0), 3)
    return lambda name, table=None: searches_of(name, precision)(keys, evaluate(table))


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_every_built_in_strategy_is_tested():
    assert registry._CHOOSERS.built_in == NAMES
    assert set(NAMES) <= set(strategies())


@pytest.mark.slow
@each_strategy
def test_a_search_spends_its_budget_on_different_architectures(name, run):
    """On all of this small space, 4 at a time, however little is left to choose from."""
    histories, traces = jax.tree.map(np.asarray, run(name))
    for seed in range(3):
        history, trace = jax.tree.map(lambda leaf, i=seed: leaf[i], (histories, traces))
        assert history.count == BUDGET
        index = index_of(history.archs)
        assert sorted(index.tolist()) == list(range(36))
        np.testing.assert_allclose(history.log_likelihoods, likelihoods()[index], rtol=1e-6)
        counts = [6, 10, 14, 18, 22, 26, 30, 34, 36]
        assert trace.count.tolist() == counts
        running = np.maximum.accumulate(history.log_likelihoods)
        np.testing.assert_allclose(history.best, running)
        assert history.log_likelihoods[history.best_index] == running[-1]
        assert np.isfinite(history.scores).all()
        np.testing.assert_array_equal(trace.scores[0, :], history.scores[6:10])
        np.testing.assert_allclose(trace.best, running[np.array(counts) - 1])
        asked = trace.archs[:-1].reshape(-1, 2)[: BUDGET - INITIAL]
        np.testing.assert_array_equal(asked, history.archs[INITIAL:])
        assert not np.isnan(trace.scores).any()
        assert (trace.evidence.posterior_sd > 0).all()
        assert np.isfinite(trace.evidence.log_evidence).all()
        assert (trace.hyperparameters.noise > 0).all()
    assert (histories.archs[0] != histories.archs[1]).any()


@pytest.mark.slow
@each_strategy
def test_mapped_over_seeds_is_a_loop_on_the_host(name, run, precision):
    """The compiled search of several seeds, and `init` and `step` called for each in Python."""
    histories, again = (jax.tree.map(np.asarray, run(name)[0]) for _ in range(2))
    chex.assert_trees_all_equal(histories, again)
    strategy, table = strategy_of(name, precision), evaluate()
    for seed, key in enumerate(jax.random.split(jax.random.key(0), 3)):
        init_key, steps_key = jax.random.split(key)
        state, info = strategy.init(init_key)
        assert info.archs.shape == (INITIAL, 2)
        for step_key in jax.random.split(steps_key, STEPS)[:3]:
            state, info = strategy.step(step_key, state, table(info.archs))
        assert info.count == 14
        archs = np.asarray(state.history.archs)
        np.testing.assert_array_equal(archs[:14], histories.archs[seed, :14])


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_all_strategies_see_the_same_first_architectures(run):
    first = [np.asarray(run(name)[0].archs)[:, :INITIAL] for name in NAMES]
    for other in first[1:]:
        np.testing.assert_array_equal(first[0], other)


@pytest.mark.slow
@each_strategy
def test_failed_evaluations_are_recorded_and_not_repeated(name, run):
    broken = np.where(np.arange(36) % 2 == 0, np.nan, likelihoods())
    histories, traces = run(name, broken)
    index = index_of(histories.archs)
    assert all(len(set(row)) == 36 for row in index.tolist())
    finite = jax.jit(jax.vmap(lambda history: history.finite))(histories)
    np.testing.assert_array_equal(finite, index % 2 == 1)
    assert np.isfinite(traces.best).all()
    assert np.isfinite(traces.evidence.log_evidence).all()


@each_strategy
def test_nothing_but_failures(name, run):
    histories, traces = run(name, np.full(36, np.nan))
    assert all(len(set(row)) == 36 for row in index_of(histories.archs).tolist())
    assert (np.asarray(traces.best) == -np.inf).all()
    assert all(Status(s) & Status.EMPTY for s in traces.evidence.status.flatten().tolist())


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_a_space_that_cannot_be_listed():
    """With a finite kernel; test_drivers and test_seeded search such spaces by each strategy."""
    config = dataclasses.replace(CONFIG, budget=16)
    strategy = make("us", ENDLESS, kernel=Polynomial(ENDLESS), config=config)
    run = jax.jit(functools.partial(scan, strategy, config, evaluate=Partial(look_up)))
    history, trace = run(jax.random.key(0))
    assert len({tuple(arch) for arch in history.archs.tolist()}) == 16
    assert (np.asarray(trace.evidence.sampling_sd) > 0).all()


@pytest.mark.slow("float64")
def test_uncertainty_sampling_asks_for_what_propose_proposes(run, tolerance):
    histories, traces = jax.tree.map(np.asarray, run("us"))
    archs, log_likelihoods = histories.archs[0, :14], histories.log_likelihoods[0, :14]
    model = wsabi.fit(
        KERNEL,
        archs,
        log_likelihoods,
        temperature=CONFIG.temperature,
        config=CONFIG.warp,
        fit_config=CONFIG.fit,
    )
    proposal = propose(model, POINTS, q=BATCH)
    close = {"rtol": tolerance(1e-2, 1e-8), "atol": tolerance(1e-2, 1e-8)}
    np.testing.assert_allclose(traces.scores[0, 2], proposal.scores, **close)
    ours, exact = traces.evidence.log_evidence[0, 2], exact_evidence(model, GRID).log_evidence
    np.testing.assert_allclose(ours, exact, **close)


@pytest.mark.slow("float64")
def test_expected_improvement_is_that_of_a_process_on_standardised_targets(run, tolerance):
    histories, traces = jax.tree.map(np.asarray, run("ei"))
    targets = histories.log_likelihoods[0, :14]
    targets = (targets - targets.mean()) / targets.std()
    posterior = gp.fit(KERNEL, histories.archs[0, :14], targets, config=SearchConfig().fit)
    score = Partial(log_expected_improvement, best=targets.max())
    expected = propose(posterior, POINTS, acquisition=score)
    atol = tolerance(1e-2, 1e-8)
    np.testing.assert_allclose(traces.scores[0, 2, 0], expected.scores[0], rtol=atol, atol=atol)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_draws_from_the_believed_posterior_estimate_the_evidence_without_bias(precision):
    keys = jax.random.split(jax.random.key(0), 400)
    histories, _ = searches_of("posterior", precision)(keys, evaluate())
    estimate = jax.jit(jax.vmap(functools.partial(drawn_evidence, size=36, temperature=1.0)))
    log_likelihoods, scores = map(np.asarray, (histories.log_likelihoods, histories.scores))
    evidence = estimate(log_likelihoods[:, :14], scores[:, :14])
    exact = np.log(np.exp(likelihoods()).mean())
    ratios = np.exp(np.asarray(evidence.log_evidence, float) - exact)
    error = ratios.std() / np.sqrt(400)
    assert abs(ratios.mean() - 1) < 4 * error
    assert error < 0.02
    np.testing.assert_allclose(np.mean(evidence.sampling_sd), ratios.std(), rtol=0.5)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_evolution_mutates_parents_of_a_young_population():
    """Replays a search on NATS cells and looks where each offspring came from."""
    config = SearchConfig(initial=4, budget=30, population=8, parents=3)
    cells = np.stack(np.unravel_index(np.arange(NATS.size), NATS.options), axis=-1)
    table = Table(jnp.asarray(-50.0 * cells @ np.arange(1, 7)), jnp.asarray(np.zeros(NATS.size)))
    run = functools.partial(
        scan, make("evolution", NATS, kernel=WL(NATS, 0), config=config), config
    )
    history, _ = jax.jit(run)(jax.random.key(0), evaluator(table, NATS))
    archs, scores = np.asarray(history.archs), np.asarray(history.log_likelihoods)
    for n in range(8, 30):
        young = np.arange(n - 8, n)
        parents = archs[young[np.argsort(-scores[young])[:3]]]
        assert ((parents != archs[n]).sum(axis=1) == 1).any()
    assert scores[20:].max() > scores[:8].max()


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_evolution_chooses_parents_that_do_well_together():
    """With predictions the parents are beam search's: here not the two best ones."""
    log_probs = jnp.log(jnp.array([[0.9, 0.1], [0.8, 0.1], [0.1, 0.6]]))
    archs = jnp.array([[0, 0], [0, 5], [5, 0]], jnp.int32)
    config = SearchConfig(initial=3, budget=4, population=3, parents=2)
    strategy = make("evolution", GRID, kernel=KERNEL, config=config)
    state = tell(State(empty_history(4, 2), None), Outcome(archs, jnp.sum(log_probs, 1), log_probs))
    children = jax.jit(jax.vmap(lambda key: strategy.ask(key, state)[1].archs[0]))(
        jax.random.split(jax.random.key(0), 200)
    )
    of_the_left_out = (np.asarray(children) == [3, 5]).all(axis=1)
    assert not of_the_left_out.any()  # (3, 5) is a neighbour of (0, 5) alone
    assert {tuple(child) for child in children.tolist()} > {(0, 1), (3, 0)}


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_first_fresh_takes_what_is_new():
    history = empty_history(3, 2)._replace(
        archs=jnp.array([[1, 1], [2, 2], [3, 3]], jnp.int32), count=jnp.int32(2)
    )
    proposals = jnp.array([[1, 1], [3, 3], [3, 3], [2, 2], [4, 4]], jnp.int32)
    assert first_fresh(proposals, history, 2).tolist() == [[3, 3], [4, 4]]
    assert first_fresh(proposals, history, 3).tolist()[:2] == [[3, 3], [4, 4]]


@pytest.mark.parametrize("space", [GRID, ENDLESS])
@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_a_landscape_gives_the_rows_that_its_kernel_is_on(space, key):
    landscape = make_landscape(space, Polynomial(space), CONFIG)
    assert isinstance(landscape, Landscape)
    archs = space.sample(key, 8)
    gram = landscape.kernel.gram(landscape.rows(archs))
    np.testing.assert_allclose(gram, Polynomial(space).gram(archs), rtol=1e-5)
    reference = landscape.reference(key)
    rows, masses = landscape.summands(reference)
    assert (reference is None) == (space is GRID)
    assert len(rows) == len(masses)
    if space is ENDLESS:
        with pytest.raises(BQNESError, match="reference is None; it must be what"):
            landscape.summands(None)


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_a_landscape_has_each_row_once():
    landscape = Listed(NATS, WL(NATS))
    rows, masses = landscape.summands(None)
    assert rows.shape == (4_915, 100)  # one of them the empty graph's
    np.testing.assert_allclose(masses.sum(), 1, rtol=1e-5)
    assert isinstance(landscape.kernel, Linear)
    archs = NATS.sample(jax.random.key(0), 50)
    np.testing.assert_allclose(landscape.rows(archs), WL(NATS).features(archs), atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_fitted_kernels_are_reported(key):
    config = SearchConfig(initial=6, budget=8, temperature=1.0, fit=FitConfig(kernel_steps=3))
    strategy = make("us", GRID, kernel=RBF(GRID, 0.7), config=config)
    state, info = strategy.init(key)
    state, info = strategy.step(key, state, evaluate()(info.archs))
    assert info.kernel.length_scales != jnp.asarray(0.7)
    gram = strategy.gram(info, state.history.archs)
    np.testing.assert_allclose(gram, info.kernel.gram(state.history.archs), rtol=1e-5)


@pytest.mark.usefixtures("own_names")
@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_a_strategy_of_ones_own():
    def upwards(key, situation, q):
        return GRID.from_index(situation.history.count + jnp.arange(q)), jnp.ones(q)

    register("upwards", upwards)
    strategy = make("upwards", GRID, kernel=KERNEL, config=CONFIG)
    state, info = strategy.init(jax.random.key(0))
    _, info = strategy.step(jax.random.key(0), state, evaluate()(info.archs))
    assert index_of(info.archs).tolist() == [6, 7, 8, 9]
    with pytest.raises(BQNESError, match="strategy 'us' is built in"):
        register("us", upwards)


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_predictions_come_with_every_outcome_or_with_none(key):
    archs = GRID.sample(key, 2)
    state = State(empty_history(4, 2), None)
    state = tell(state, Outcome(archs, jnp.zeros(2), jnp.zeros((2, 5))))
    assert state.history.log_probs.shape == (4, 5)
    with pytest.raises(BQNESError, match="log_probs is None; earlier outcomes had"):
        tell(state, Outcome(archs, jnp.zeros(2)))


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"initial": 0}, "initial is 0"),
        ({"budget": 5}, "budget is 5, less than the 10 architectures to begin with"),
        ({"batch": 0}, "batch is 0"),
        ({"mutated": 2000}, "mutated is 2000"),
        ({"population": 0}, "population is 0"),
    ],
)
def test_bad_configuration_is_refused(change, says):
    with pytest.raises(BQNESError, match=says):
        SearchConfig(**change)


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_bad_input_is_refused(key):
    with pytest.raises(BQNESError, match="strategy is 'guess'; allowed are 'random'"):
        make("guess", GRID)
    with pytest.raises(BQNESError, match="budget is 150; space 'grid' has 36 architectures"):
        make("us", GRID)
    with pytest.raises(BQNESError, match="log_likelihoods has shape"):
        tell(State(empty_history(4, 2), None), Outcome(GRID.sample(key, 2), jnp.zeros(3)))
    with pytest.raises(BQNESError, match="archs has shape"):
        tell(State(empty_history(4, 6), None), Outcome(GRID.sample(key, 2), jnp.zeros(2)))
