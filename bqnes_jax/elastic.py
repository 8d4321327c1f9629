"""An asynchronous search: several candidates are evaluated at once, and none waits for another.

As soon as an evaluation ends, the strategy is told and asked for another candidate, beside those
that are still being evaluated: it expects its own predictions of them. What it asks for depends on
the order in which outcomes arrive. That order is a list of events; who has it can go on from there,
or do the same search again. With one evaluation at a time it is the search of `drivers.loop`.
"""

import concurrent.futures
import itertools
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int, Int32

from bqnes_jax.candidates import Info, Outcome, Pending, SearchConfig, Strategy, tell
from bqnes_jax.drivers import Report, Searched, conversation, step_keys
from bqnes_jax.errors import check_whole
from bqnes_jax.spaces import Architectures
from bqnes_jax.types import PRNGKey

__all__ = [
    "Arrived",
    "Asked",
    "Crew",
    "EvaluateOne",
    "Event",
    "Found",
    "Future",
    "OnExecutor",
    "drive",
    "drive_all",
    "wait_for_first",
]


def __dir__() -> list[str]:
    return __all__  # and nothing that is imported


class Asked(NamedTuple):
    """Candidates were asked for.

    Attributes:
        archs: the candidates; they are numbered in the order in which they are asked for.
        scores: with which they were asked for.
        room: how many candidates could be pending meanwhile: the length of a padded array.
    """

    archs: Int32[np.ndarray, "q length"]
    scores: Float[np.ndarray, " q"]
    room: int


class Arrived(NamedTuple):
    """The outcome of a candidate arrived."""

    number: int


Event = Asked | Arrived
Future = concurrent.futures.Future
EvaluateOne = Callable[[Int32[np.ndarray, "1 length"]], Outcome]


@runtime_checkable
class Crew(Protocol):
    """Who evaluates candidates, several at a time."""

    @property
    def size(self) -> int:
        """How many can be evaluated at once; it may change."""
        ...

    def start(self, number: int, arch: Int32[np.ndarray, " length"]) -> None:
        """Begin to evaluate a candidate."""
        ...

    def collect(self, *, wait: bool) -> list[tuple[int, Outcome]]:
        """Return the numbers and outcomes of what has ended, in that order.

        With `wait`, wait until there is one, or for some time, after which `size` is looked at.
        """
        ...


class Found(NamedTuple):
    """What an asynchronous search leaves behind: candidates as they arrived, and how they did."""

    searched: Searched
    events: list[Event]

    @property
    def asking_order(self) -> Int[np.ndarray, " n"]:
        """Where in the history each candidate is, in the order in which they were asked for.

        Scores are the log-probabilities of draws in that order: `quadrature.drawn_evidence` needs
        it, and `history.scores[asking_order]` has it.
        """
        return np.argsort([event.number for event in self.events if isinstance(event, Arrived)])


class OnExecutor:
    """A crew of the workers of an executor: processes or threads here, or a cluster's.

    Args:
        executor: any `concurrent.futures.Executor`.
        evaluate: a function of 1×length architectures, which the executor can send to its workers.
        workers: how many evaluations to keep in flight.
    """

    def __init__(
        self, executor: concurrent.futures.Executor, evaluate: EvaluateOne, workers: int
    ) -> None:
        check_whole("workers", workers, 1)
        self._executor, self._evaluate, self._workers = executor, evaluate, workers
        self._numbers: dict[Future, int] = {}

    @property
    def size(self) -> int:
        """How many evaluations are kept in flight."""
        return self._workers

    def start(self, number: int, arch: Int32[np.ndarray, " length"]) -> None:
        """Send a candidate to a worker."""
        self._numbers[self._executor.submit(self._evaluate, arch[None])] = number

    def collect(self, *, wait: bool) -> list[tuple[int, Outcome]]:
        """Return the numbers and outcomes of what has ended; an error is raised here."""
        done = wait_for_first(self._numbers, seconds=None if wait else 0.0)
        return [(self._numbers.pop(future), future.result()) for future in done]


def wait_for_first(futures: Iterable[Future], *, seconds: float | None) -> list[Future]:
    """Return the futures that are done, in their order: at once if there are some, or when one is.

    None waits for as long as that takes.
    """
    futures = list(futures)
    first = concurrent.futures.FIRST_COMPLETED
    done = concurrent.futures.wait(futures, seconds, return_when=first).done
    return [future for future in futures if future in done]


def drive(
    strategy: Strategy,
    config: SearchConfig,
    key: PRNGKey,
    crew: Crew,
    *,
    recorded: Sequence[Event] = (),
    note: Callable[[Event], None] | None = None,
    report: Report | None = None,
) -> Found:
    """Search with as many evaluations in flight as a crew can do.

    Args:
        strategy: as `candidates.make` made it from the same config.
        config: budget and batch. The next batch is asked for when the last one has been begun.
        key: of everything random.
        crew: who evaluates candidates.
        recorded: the events of the same search until it was stopped, which happen again in their
            order, whatever the crew does; or all of another's, which is then done again.
        note: called with each event that is not recorded, before anything follows from it.
        report: called after each step with what is believed, and what was evaluated.

    Example:
        >>> from concurrent.futures import ThreadPoolExecutor
        >>> from bqnes_jax import candidates
        >>> from bqnes_jax.spaces import Product
        >>> space = Product(depth=(1, 2, 3, 4), width=(8, 16, 32))
        >>> config = SearchConfig(initial=3, budget=6)
        >>> strategy = candidates.make("random", space, config=config, beliefs=False)
        >>> def evaluate(archs):  # yours: train it
        ...     return Outcome(archs, -10.0 * jnp.sum(jnp.asarray(archs), axis=1))
        >>> with ThreadPoolExecutor(2) as executor:
        ...     crew = OnExecutor(executor, evaluate, workers=2)
        ...     found = drive(strategy, config, jax.random.key(0), crew)
        >>> int(found.searched.history.count), len(found.events)
        (6, 10)
    """
    search = _Search(strategy, config, key, report)
    work = _Work(crew, search)
    events, room = list(recorded), 0
    for event in recorded:
        if isinstance(event, Asked):
            # No search has more room; what a file says may be anything, and would take memory.
            own = min(event.room, 2 * config.budget)
            search.ask(own, event)
            work.start()
            room = max(room, own)
        else:
            search.tell(event.number, work.outcome_of(event.number))

    def happen(event: Event) -> None:
        if note is not None:
            note(event)
        events.append(event)

    while search.told < config.budget:
        # What arrives while a candidate is chosen is known to the choice of the next one.
        complete = len(search.asked) == config.budget
        for number, outcome in work.take_arrivals(wait=complete or work.is_busy()):
            happen(Arrived(number))
            search.tell(number, outcome)
        if not (complete or work.is_busy()):
            most = min(crew.size, config.budget) - 1  # beside the one that is asked for
            room = _next_length(room, max(most, search.pending))
            happen(search.ask(room))
            work.start()
    search.ask(room)  # for what is believed in the end
    return Found(search.searched, events)


def drive_all(
    strategy: Strategy, config: SearchConfig, keys: Sequence[PRNGKey], crew: Crew
) -> list[Searched]:
    """Do several searches at once, each as `drivers.loop` does it, with one crew for all.

    None waits for another. Each waits for a batch of its own, so that what it finds does not depend
    on the order of arrival.
    """
    searches = [conversation(strategy, config, key) for key in keys]
    batches: list[dict[int, Outcome | None]] = [{} for _ in searches]
    found: dict[int, Searched] = {}
    waiting: deque[tuple[int, int, np.ndarray]] = deque()
    running: dict[int, tuple[int, int]] = {}
    numbers = itertools.count()

    def ask(i: int, archs: Architectures) -> None:
        batches[i] = dict.fromkeys(range(len(archs)))
        waiting.extend((i, place, arch) for place, arch in enumerate(np.asarray(archs)))

    for i, search in enumerate(searches):
        ask(i, next(search))
    while len(found) < len(searches):
        while waiting and len(running) < max(crew.size, 1):
            i, place, arch = waiting.popleft()
            number = next(numbers)
            running[number] = i, place
            crew.start(number, arch)
        for number, outcome in crew.collect(wait=True):
            i, place = running.pop(number)
            batches[i][place] = outcome
            outcomes = list(batches[i].values())
            if all(one is not None for one in outcomes):
                try:
                    ask(i, searches[i].send(_stack(outcomes)))
                except StopIteration as stop:
                    found[i] = stop.value
    return [found[i] for i in range(len(searches))]


def _stack(outcomes: list) -> Outcome:
    return jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *outcomes)


class _Search:
    """The state of a search, between the compiled steps that change it."""

    def __init__(
        self, strategy: Strategy, config: SearchConfig, key: PRNGKey, report: Report | None
    ) -> None:
        first, keys = step_keys(key, config.budget + 1)
        self._strategy, self._budget, self._report = strategy, config.budget, report
        self._state, self._first = strategy.init(first)
        self._keys = iter(keys)
        self._trace: list[Info] = []
        self.asked: list[tuple[np.ndarray, np.ndarray]] = []  # each with its score
        self._pending: dict[int, np.ndarray] = {}
        self.told = 0

    def ask(self, room: int, recorded: Asked | None = None) -> Asked:
        """Ask for candidates beside those that are pending; take recorded ones instead."""
        if not self.asked:
            info = self._first
        else:
            key = next(self._keys)
            self._state, info = self._strategy.ask(key, self._state, self._beside(room))
            info = jax.device_get(info)
            self._trace.append(info)
            if self._report is not None:
                self._report(info, self._state.history)
        left = self._budget - len(self.asked)
        asked = Asked(np.asarray(info.archs)[:left], np.asarray(info.scores)[:left], room)
        asked = asked if recorded is None else recorded
        self._pending |= dict(enumerate(asked.archs, len(self.asked)))
        self.asked += zip(asked.archs, asked.scores, strict=True)
        return asked

    def tell(self, number: int, outcome: Outcome) -> None:
        """Record what evaluating a candidate gave."""
        arch, score = self.asked[number]
        del self._pending[number]
        told = outcome._replace(archs=jnp.asarray(arch[None]), scores=jnp.asarray(score[None]))
        self._state = tell(self._state, told)
        self.told += 1

    @property
    def pending(self) -> int:
        """How many candidates were asked for and not told of."""
        return len(self._pending)

    def _beside(self, room: int) -> Pending | None:
        if room == 0:
            return None
        archs = np.zeros((room, self._state.history.archs.shape[1]), np.int32)
        for place, arch in enumerate(self._pending.values()):
            archs[place] = arch
        return Pending(jnp.asarray(archs), jnp.arange(room) < len(self._pending))

    @property
    def searched(self) -> Searched:
        trace = jax.tree.map(lambda *leaves: np.stack(leaves), *self._trace)
        return Searched(self._state.history, trace)


class _Work:
    """What a crew does for a search: candidates are begun in the order in which they were asked."""

    def __init__(self, crew: Crew, search: _Search) -> None:
        self._crew, self._search = crew, search
        self._begun = self._running = 0
        self._held: dict[int, Outcome] = {}  # arrived, and not told

    def is_busy(self) -> bool:
        """Tell whether nobody is free to evaluate another candidate."""
        waiting = self._begun < len(self._search.asked)
        return waiting or self._running >= max(self._crew.size, 1)

    def start(self) -> None:
        """Begin as many as there are people for."""
        asked = self._search.asked
        while self._begun < len(asked) and self._running < max(self._crew.size, 1):
            self._crew.start(self._begun, asked[self._begun][0])
            self._begun += 1
            self._running += 1

    def take_arrivals(self, *, wait: bool) -> list[tuple[int, Outcome]]:
        """Return what has arrived, in that order; wait until there is something, or do not."""
        self._collect(wait=wait and not self._held)
        arrived, self._held = list(self._held.items()), {}
        return arrived

    def outcome_of(self, number: int) -> Outcome:
        """Wait for the outcome of one candidate."""
        while number not in self._held:
            self._collect(wait=True)
        return self._held.pop(number)

    def _collect(self, *, wait: bool) -> None:
        self.start()
        if self._running:
            finished = self._crew.collect(wait=wait)
            self._running -= len(finished)
            self._held |= dict(finished)
            self.start()


def _next_length(room: int, needed: int) -> int:
    """Return the length of the array of pending candidates: it is doubled, if it has to grow."""
    return room if needed <= room else max(needed, 2 * room)
