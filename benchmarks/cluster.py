"""What waiting costs: an asynchronous search beside one that waits for each batch.

Workers are threads that sleep for the time of a training, drawn log-normally for each architecture,
and look its result up in the table of digits: 150 evaluations with 1 to 32 workers. Quality is the
share of the posterior over all 1,024 cells that was found, when both had the time that the faster
search took in all. Then the driver alone: how long it takes to decide, with up to 1,000 workers
that train for ten minutes each. Their clock is simulated; the driver's time is real, and added.

    python benchmarks/cluster.py
"""

import contextlib
import heapq
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from shared import RESULTS, console, show, write

from bqnes_jax import candidates, drivers, elastic, tables
from bqnes_jax.candidates import Outcome, SearchConfig
from bqnes_jax.quadrature import log_posterior
from bqnes_jax.spaces import NATS

SPREAD = 0.7  # of the logarithm of a task's time
TRAINING = 600.0  # seconds, in the simulation


@dataclass(frozen=True)
class Options:
    """Measure how busy workers are, and what the driver costs."""

    workers: tuple[int, ...] = (1, 2, 4, 8, 32)
    """How many sleep."""
    seconds: float = 0.5
    """For how long on average."""
    budget: int = 150
    """How many evaluations."""
    simulated: tuple[int, ...] = (10, 100, 1000)
    """How many workers the driver decides for in the simulation."""
    rounds: int = 3
    """How many trainings each of these does."""
    out: Path = RESULTS / "cluster.json"
    """Where to write the results."""


def times_of(number: int, mean: float) -> np.ndarray:
    draws = np.random.default_rng(number).lognormal(-(SPREAD**2) / 2, SPREAD, 200_000)
    return mean * draws


class Sleepers:
    """Threads that sleep for a training, and look up what it gave; when each was done is noted."""

    def __init__(self, tabulated, workers: int, seconds: float) -> None:
        self._space, self._values = tabulated.space, np.asarray(tabulated.table.log_likelihoods)
        self._times = times_of(0, seconds)
        self.workers, self.slept, self.ended = workers, 0.0, []
        self.executor = ThreadPoolExecutor(workers)

    def evaluate(self, arch: np.ndarray) -> Outcome:
        index = int(self._space.index(arch)[0])
        time.sleep(self._times[index])
        self.slept += self._times[index]
        self.ended.append((time.perf_counter(), index))
        return Outcome(jnp.asarray(arch), jnp.asarray(self._values[index : index + 1]))

    def evaluate_batch(self, archs) -> Outcome:
        found = list(self.executor.map(self.evaluate, np.asarray(archs)[:, None]))
        return Outcome(archs, jnp.concatenate([one.log_likelihoods for one in found]))


def searched(tabulated, workers: int, options: Options, *, waits: bool, warm: bool = False):
    """Return the wall time of a search, how busy its workers were, and what was done when."""
    seconds = 0.0 if warm else options.seconds
    sleepers = Sleepers(tabulated, workers, seconds)
    config = SearchConfig(
        budget=options.budget, batch=workers if waits else 1, temperature=600 / 39
    )
    strategy = candidates.make("us", tabulated.space, config=config)
    key, started = jax.random.key(0), time.perf_counter()
    with sleepers.executor:
        if waits:
            drivers.loop(strategy, config, key, sleepers.evaluate_batch)
        else:
            crew = elastic.OnExecutor(sleepers.executor, sleepers.evaluate, workers)
            elastic.drive(strategy, config, key, crew)
    wall = max(when for when, _ in sleepers.ended) - started
    busy = sleepers.slept / (wall * workers)
    return wall, busy, [(when - started, index) for when, index in sleepers.ended]


def mass_found(tabulated, ended, until: float) -> float:
    mass = np.exp(np.asarray(log_posterior(tabulated.table.log_likelihoods, temperature=600 / 39)))
    return float(sum(mass[index] for when, index in ended if when <= until))


def compare_waiting(options: Options) -> list[dict]:
    tabulated, rows = tables.find("digits"), []
    for workers in options.workers:
        for waits in (True, False):
            searched(tabulated, workers, options, waits=waits, warm=True)  # compiles
        both = {}
        for name, waits in (("batch", True), ("asynchronous", False)):
            both[name] = searched(tabulated, workers, options, waits=waits)
        until = min(wall for wall, *_ in both.values())
        for name, (wall, busy, ended) in both.items():
            row = {"workers": workers, "search": name, "seconds": wall, "busy": busy}
            for name_of, end in (("mass", until), ("mass_in_all", np.inf)):
                row[name_of] = mass_found(tabulated, ended, end)
            rows.append(row)
    return rows


class Simulated:
    """Workers whose clock jumps to the next end, and goes on while the driver is at work."""

    def __init__(self, workers: int, evaluate) -> None:
        self.size, self._evaluate = workers, evaluate
        self._times = iter(times_of(1, TRAINING))
        self._ends: list[tuple[float, int]] = []
        self._archs: dict[int, np.ndarray] = {}
        self._since = time.perf_counter()
        self.now = self.driver = self.trained = self.waited = 0.0
        self._free_since: list[float] = [0.0] * workers

    def _tick(self) -> None:
        spent = time.perf_counter() - self._since
        self.now += spent
        self.driver += spent
        self._since = time.perf_counter()

    def start(self, number: int, arch: np.ndarray) -> None:
        self._tick()
        takes = next(self._times)
        self.trained += takes
        self.waited += self.now - heapq.heappop(self._free_since)
        self._archs[number] = arch
        heapq.heappush(self._ends, (self.now + takes, number))

    def finished(self, *, wait: bool) -> list[tuple[int, Outcome]]:
        self._tick()
        if wait and self._ends:
            self.now = max(self.now, self._ends[0][0])
        ended = []
        while self._ends and self._ends[0][0] <= self.now:
            when, number = heapq.heappop(self._ends)
            heapq.heappush(self._free_since, when)
            ended.append((number, self._evaluate(self._archs.pop(number)[None])))
        self._since = time.perf_counter()
        return ended


def decide(workers: int, options: Options) -> dict:
    """Return what the driver costs when that many workers train for ten minutes each."""
    values = np.asarray(-40.0 * jnp.sum(NATS.from_index(jnp.arange(NATS.size)) != 3, axis=1))
    numbers = np.random.default_rng(0).normal(size=NATS.size) * 20

    def evaluate(arch):
        index = int(NATS.index(arch)[0])
        return Outcome(jnp.asarray(arch), jnp.asarray(values[index : index + 1] + numbers[index]))

    config = SearchConfig(budget=max(options.rounds * workers, 60), temperature=15.4)
    strategy = candidates.make("us", NATS, config=config)
    key = jax.random.key(0)

    def stop(info, history) -> None:
        raise StopIteration

    with contextlib.suppress(StopIteration):  # after the first step, which compiles
        elastic.drive(strategy, config, key, Simulated(workers, evaluate), report=stop)
    crew = Simulated(workers, evaluate)
    decisions = len(elastic.drive(strategy, config, key, crew).searched.trace.count)
    return {
        "workers": workers,
        "decisions": decisions,
        "milliseconds": 1e3 * crew.driver / decisions,
        "driver": crew.driver / crew.now,
        "waiting": crew.waited / (crew.waited + crew.trained),
    }


def steady(row: dict) -> float:
    """Return the share of its time that the driver decides while all workers train."""
    return 1e-3 * row["milliseconds"] * row["workers"] / TRAINING


def main(options: Options) -> None:
    rows = compare_waiting(options)
    show(
        f"{options.budget} evaluations of {options.seconds} s on average, log-normal",
        ["workers", "search", "wall time", "busy", "mass at equal time", "in all"],
        [
            [
                str(row["workers"]),
                row["search"],
                f"{row['seconds']:.1f} s",
                f"{row['busy']:.0%}",
                f"{row['mass']:.3f}",
                f"{row['mass_in_all']:.3f}",
            ]
            for row in rows
        ],
        names=2,
    )
    driver = [decide(workers, options) for workers in options.simulated]
    show(
        "the driver, trainings of ten minutes",
        ["workers", "decisions", "each", "driver at work", "while all train", "workers waiting"],
        [
            [
                str(row["workers"]),
                str(row["decisions"]),
                f"{row['milliseconds']:.1f} ms",
                f"{row['driver']:.2%}",
                f"{steady(row):.2%}",
                f"{row['waiting']:.2%}",
            ]
            for row in driver
        ],
    )
    for what, most in {
        "the driver is at work for": max(map(steady, driver)),
        "workers wait for the driver for": max(row["waiting"] for row in driver),
    }.items():
        verdict = "less" if most < 0.05 else "more"
        console.print(f"{what} {most:.2%} of the time at most: {verdict} than 5 %.")
    write(options.out, {"waiting": rows, "driver": driver})


if __name__ == "__main__":
    main(tyro.cli(Options))
