"""Asynchronous search: as the loop with one worker, never the same twice, and the same again."""

import concurrent.futures
import functools
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bqnes_jax import candidates
from bqnes_jax.candidates import Outcome, Pending, tell
from bqnes_jax.drivers import loop
from bqnes_jax.elastic import Arrived, Asked, OnExecutor, drive, drive_all
from bqnes_jax.errors import BQNESError
from bqnes_jax.tables import evaluator
from tests.algorithms.test_algorithms import table
from tests.helpers.toy import GRID
from tests.test_drivers import WIDE, evaluate_wide, setting_of

SPACES = pytest.mark.parametrize(
    ("space", "precision"),
    [
        pytest.param(GRID, "float64", id="listed"),
        pytest.param(WIDE, "float32", id="drawn", marks=pytest.mark.slow),
    ],
    indirect=["precision"],
)


def look_up_of(space):
    return jax.jit(evaluator(table(), GRID)) if space is GRID else jax.jit(evaluate_wide)


class Shuffled:
    """A crew whose evaluations end in an order that is drawn, without a clock."""

    def __init__(self, evaluate, size, seed=0, sizes=None):
        self._evaluate, self._draw = evaluate, np.random.default_rng(seed)
        self._size, self._sizes = size, sizes
        self.running, self.most, self.evaluated = {}, 0, 0

    @property
    def size(self):
        if self._sizes:
            self._size = self._sizes[min(self.evaluated, len(self._sizes) - 1)]
        return self._size

    def start(self, number, arch):
        assert not any((arch == other).all() for other in self.running.values())
        self.running[number] = arch
        self.most = max(self.most, len(self.running))

    def collect(self, *, wait):
        if not wait and self._draw.random() < 0.7:
            return []
        number = sorted(self.running)[self._draw.integers(len(self.running))]
        self.evaluated += 1
        return [(number, self._evaluate(jnp.asarray(self.running.pop(number)[None])))]


def is_same(one, other):
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for pair in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_array_equal(*pair)


@pytest.mark.parametrize("name", candidates.strategies())
@SPACES
def test_one_worker_searches_as_the_loop_does(name, space, precision):
    strategy, config = setting_of(name, space, precision)
    look_up, key = look_up_of(space), jax.random.key(3)
    found = drive(strategy, config, key, Shuffled(look_up, 1))
    is_same(found.searched, loop(strategy, config, key, look_up))


@pytest.mark.parametrize("name", candidates.strategies())
@SPACES
def test_pending_candidates_are_not_asked_for_and_an_order_happens_again(name, space, precision):
    strategy, config = setting_of(name, space, precision)
    look_up, key = look_up_of(space), jax.random.key(3)
    crew = Shuffled(look_up, 4)
    found = drive(strategy, config, key, crew)
    history = found.searched.history
    assert int(history.count) == config.budget and crew.most == 4
    assert len(np.unique(history.archs, axis=0)) == config.budget
    assert np.isfinite(history.scores).all() or name in ("us", "ei", "replicate")
    order = [event.number for event in found.events if isinstance(event, Arrived)]
    assert order != sorted(order) and sorted(order) == list(range(config.budget))
    again = drive(strategy, config, key, Shuffled(look_up, 3, seed=1), recorded=found.events)
    is_same(again.searched, found.searched)
    asked = [event.archs for event in found.events[1:] if isinstance(event, Asked)]
    chosen = again.searched.trace.archs[: len(asked)]  # by the strategy, not from the record
    for recorded, one in zip(asked, chosen, strict=True):
        np.testing.assert_array_equal(recorded, one[: len(recorded)])


@pytest.mark.parametrize("name", candidates.strategies())
@SPACES
def test_a_choice_can_be_made_before_anything_is_known(name, space, precision):
    """As with more workers than first architectures."""
    strategy, config = setting_of(name, space, precision)
    crew = Shuffled(look_up_of(space), 7)
    history = drive(strategy, config, jax.random.key(1), crew).searched.history
    assert crew.most == 7 > config.initial
    assert len(np.unique(history.archs, axis=0)) == config.budget


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
@pytest.mark.parametrize("stop", [1, 4, 8, 11])
def test_a_search_that_was_stopped_goes_on(precision, stop):
    """What had happened stays; what was pending is evaluated."""
    strategy, config = setting_of("us", GRID, precision)
    look_up, key = look_up_of(GRID), jax.random.key(5)
    events = []

    class StopError(Exception):
        pass

    def until(event):
        events.append(event)
        if len(events) == stop:
            raise StopError

    with pytest.raises(StopError):
        drive(strategy, config, key, Shuffled(look_up, 3), note=until)
    found = drive(strategy, config, key, Shuffled(look_up, 2, seed=7), recorded=events)
    assert len(found.events) > stop
    for before, after in zip(events, found.events, strict=False):
        is_same(before, after)
    arrived = [event.number for event in events if isinstance(event, Arrived)]
    asked = np.concatenate([event.archs for event in found.events if isinstance(event, Asked)])
    np.testing.assert_array_equal(
        found.searched.history.archs[: len(arrived)], asked[arrived].reshape(-1, 2)
    )
    assert int(found.searched.history.count) == config.budget


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_workers_join_and_leave(precision):
    strategy, config = setting_of("us", GRID, precision)
    crew = Shuffled(look_up_of(GRID), 1, sizes=[1, 1, 5, 5, 0, 0, 2, 2])
    found = drive(strategy, config, jax.random.key(5), crew)
    assert crew.most == 5 and int(found.searched.history.count) == config.budget
    rooms = [event.room for event in found.events if isinstance(event, Asked)]
    assert rooms[0] == 0 and rooms == sorted(rooms) and rooms[-1] == 4
    again = drive(strategy, config, jax.random.key(5), crew, recorded=found.events)
    is_same(again.searched, found.searched)


class Several(Shuffled):
    """A crew of several searches, which may ask for the same."""

    def start(self, number, arch):
        self.running[number] = arch
        self.most = max(self.most, len(self.running))


@pytest.mark.parametrize("workers", [1, 5])
@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_searches_at_once_are_those_one_after_another(precision, workers):
    strategy, config = setting_of("us", GRID, precision)
    look_up, keys = look_up_of(GRID), [jax.random.key(seed) for seed in range(3)]
    crew = Several(look_up, workers)
    found = drive_all(strategy, config, keys, crew)
    assert crew.most == workers and crew.evaluated == 3 * config.budget
    for key, one in zip(keys, found, strict=True):
        is_same(one, loop(strategy, config, key, look_up))


@pytest.mark.parametrize("name", ["random", "posterior"])
@pytest.mark.parametrize("precision", ["float64"], indirect=True)
def test_probabilities_of_draws_are_those_of_the_order_of_asking(name, precision):
    """The n-th of uniform draws has probability 1 / (size − n), and the last of all has 1."""
    strategy, config = setting_of(name, GRID, precision, GRID.size)
    found = drive(strategy, config, jax.random.key(2), Shuffled(look_up_of(GRID), 4))
    scores, order = np.asarray(found.searched.history.scores), found.asking_order
    uniform = GRID.size if name == "random" else config.initial
    expected = -np.log(GRID.size - np.arange(GRID.size))[:uniform]
    np.testing.assert_allclose(scores[order][:uniform], expected, atol=1e-9)
    np.testing.assert_allclose(scores[order][-1], 0.0, atol=1e-9)
    assert not np.allclose(scores[:uniform], expected), "it is not the order of arrival"


@functools.lru_cache(maxsize=4)
def pending_step(name, precision):
    strategy, _ = setting_of(name, GRID, precision)
    state, info = strategy.init(jax.random.key(0))
    return strategy, tell(state, evaluator(table(), GRID)(info.archs))


@pytest.mark.parametrize("name", ["us", "ei"])
def test_fantasies_are_those_of_a_batch(name, precision):
    """The second of a batch is what would be asked for beside the first."""
    strategy, state = pending_step(name, precision)
    key = jax.random.key(2)
    _, pair = strategy.ask(key, state)
    nobody = Pending(jnp.zeros((3, 2), jnp.int32), jnp.zeros(3, bool))
    np.testing.assert_array_equal(strategy.ask(key, state, nobody)[1].archs, pair.archs)
    first = nobody._replace(
        archs=nobody.archs.at[1].set(pair.archs[0]), mask=jnp.array([False, True, False])
    )
    _, beside = strategy.ask(key, state, first)
    np.testing.assert_array_equal(beside.archs[0], pair.archs[1])
    is_same(beside.evidence, strategy.ask(key, state, nobody)[1].evidence)
    assert int(beside.count) == int(pair.count), "what is pending is not known"


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_one_program_for_a_whole_search(precision, compilations):
    strategy, config = setting_of("us", GRID, precision)
    look_up = look_up_of(GRID)
    drive(strategy, config, jax.random.key(0), Shuffled(look_up, 3))
    compilations()
    drive(strategy, config, jax.random.key(8), Shuffled(look_up, 3, seed=3))
    assert compilations() == 0


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_an_executor_is_kept_busy(precision):
    """Four workers wait for each other: with fewer in flight none would come through."""
    strategy, config = setting_of("random", GRID, precision, 12)
    look_up, meeting = look_up_of(GRID), threading.Barrier(4, timeout=20)

    def evaluate(archs):
        meeting.wait()
        return look_up(archs)

    with concurrent.futures.ThreadPoolExecutor(6) as executor:
        crew = OnExecutor(executor, evaluate, workers=4)
        found = drive(strategy, config, jax.random.key(0), crew)
    assert int(found.searched.history.count) == 12
    with pytest.raises(BQNESError, match="workers is 0; it must be a whole number, at least 1"):
        OnExecutor(executor, evaluate, workers=0)


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_an_error_of_an_evaluation_is_raised(precision):
    strategy, config = setting_of("random", GRID, precision)

    def evaluate(archs):
        raise ValueError("no such network")

    with (
        concurrent.futures.ThreadPoolExecutor(2) as executor,
        pytest.raises(ValueError, match="no such network"),
    ):
        drive(strategy, config, jax.random.key(0), OnExecutor(executor, evaluate, workers=2))


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_a_failed_evaluation_is_told(precision):
    strategy, config = setting_of("us", GRID, precision)
    look_up = look_up_of(GRID)

    def evaluate(archs):
        outcome = look_up(archs)
        bad = archs[0, 0] >= 3
        return Outcome(
            outcome.archs,
            jnp.where(bad, jnp.nan, outcome.log_likelihoods),
            None if outcome.log_probs is None else jnp.where(bad, jnp.nan, outcome.log_probs),
        )

    history = drive(strategy, config, jax.random.key(0), Shuffled(evaluate, 3)).searched.history
    alone = np.isnan(look_up(history.archs).log_likelihoods)  # in the table itself
    bad = np.asarray(history.archs)[:, 0] >= 3
    assert 0 < np.sum(bad & ~alone) < config.budget
    np.testing.assert_array_equal(np.isnan(history.log_likelihoods), bad | alone)
