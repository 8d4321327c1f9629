"""What waiting costs: an asynchronous search beside one that waits for each batch.

Workers are threads that sleep for the time of a training, drawn log-normally for each architecture,
and look its result up in the table of digits: 150 evaluations with 1 to 32 workers, some searches
each. Quality is the share of the posterior over all 1,024 cells that was found, when both had the
time that the faster search took in all.

Then the driver alone, with up to 1,000 workers that train for ten minutes each: how long it takes
to decide, and to decide and keep everything as `bqnes run --workers` does, in a store and a
journal on this disk. Their clock is simulated; the driver's time is real, and added. Last, what
Dask takes of it: sending tasks to two processes, and receiving what was trained. A search that
was measured with the same options is not measured again.

    python benchmarks/cluster.py
"""

import contextlib
import heapq
import itertools
import json
import os
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from shared import RESULTS, console, one_sentence, show, with_error, write

from bqnes_jax import candidates, drivers, elastic, tables
from bqnes_jax.candidates import Outcome, SearchConfig
from bqnes_jax.families import CellFamily, Evaluation
from bqnes_jax.parallel import Calls, open_cluster
from bqnes_jax.quadrature import log_posterior
from bqnes_jax.runs.config import load_data
from bqnes_jax.runs.journal import Journal
from bqnes_jax.runs.presets import preset_config
from bqnes_jax.runs.tasks import Task, Team
from bqnes_jax.runs.workbench import open_workbench
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
    seeds: int = 4
    """How many searches, each with times of its own."""
    simulated: tuple[int, ...] = (10, 100, 1000)
    """How many workers the driver decides for in the simulation."""
    rounds: int = 3
    """How many trainings each of these does."""
    weights: int = 100_000
    """How many numbers a trained network has, which are stored."""
    sent: int = 500
    """How many tasks are sent through Dask."""
    out: Path = RESULTS / "cluster.json"
    """Where to write the results."""


def times_of(number: int, mean: float) -> np.ndarray:
    draws = np.random.default_rng(number).lognormal(-(SPREAD**2) / 2, SPREAD, 200_000)
    return mean * draws


class Sleepers:
    """Threads that sleep for a training, and look up what it gave; when each was done is noted."""

    def __init__(self, tabulated, workers: int, seconds: float, seed: int) -> None:
        self._space, self._values = tabulated.space, np.asarray(tabulated.table.log_likelihoods)
        self._times = times_of(seed, seconds)
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


def searched(
    tabulated, workers: int, options: Options, seed: int, *, waits: bool, warm: bool = False
):
    """Return the wall time of a search, how busy its workers were, and what was done when."""
    seconds = 0.0 if warm else options.seconds
    sleepers = Sleepers(tabulated, workers, seconds, seed)
    config = SearchConfig(
        budget=options.budget, batch=workers if waits else 1, temperature=600 / 39
    )
    strategy = candidates.make("us", tabulated.space, config=config)
    key, started = jax.random.key(seed), time.perf_counter()
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


def compare_waiting(workers: int, seed: int, options: Options) -> list[dict]:
    """Return how both searches did with the same times and the same first candidates."""
    tabulated, both = tables.find("digits"), {}
    for waits in (True, False):
        if seed == 0:
            searched(tabulated, workers, options, seed, waits=waits, warm=True)  # compiles
        name = "batch" if waits else "asynchronous"
        both[name] = searched(tabulated, workers, options, seed, waits=waits)
    until = min(wall for wall, *_ in both.values())
    rows = []
    for name, (wall, busy, ended) in both.items():
        row = {"workers": workers, "seed": seed, "search": name, "seconds": wall, "busy": busy}
        for name_of, end in (("mass", until), ("mass_in_all", np.inf)):
            row[name_of] = mass_found(tabulated, ended, end)
        rows.append(row | {"load": os.getloadavg()[0]})
    return rows


class Simulated:
    """Workers whose clock jumps to the next end, and goes on while the driver is at work.

    It is a crew, or in place of `parallel.Calls`, by what an evaluation is given and returns.
    """

    def __init__(self, workers: int, evaluate) -> None:
        self.size, self._evaluate = workers, evaluate
        self._times = iter(times_of(1, TRAINING))
        self._ends: list[tuple[float, int]] = []
        self._given: dict[int, Any] = {}
        self._since, self._processor = time.perf_counter(), time.process_time()
        self.now = self.driver = self.processor = self.trained = self.waited = 0.0
        self._free_since: list[float] = [0.0] * workers

    def _tick(self) -> None:
        spent = time.perf_counter() - self._since
        self.now += spent
        self.driver += spent
        self.processor += time.process_time() - self._processor
        self._go_on()

    def _go_on(self) -> None:
        self._since, self._processor = time.perf_counter(), time.process_time()

    def start(self, number: int, given: Any) -> None:
        self._tick()
        takes = next(self._times)
        self.trained += takes
        self.waited += self.now - heapq.heappop(self._free_since)
        self._given[number] = given
        heapq.heappush(self._ends, (self.now + takes, number))

    def collect(self, *, wait: bool) -> list[tuple[int, Any]]:
        self._tick()
        if wait and self._ends:
            self.now = max(self.now, self._ends[0][0])
        ended = []
        while self._ends and self._ends[0][0] <= self.now:
            when, number = heapq.heappop(self._ends)
            heapq.heappush(self._free_since, when)
            ended.append((number, self._evaluate(self._given.pop(number))))
        self._go_on()
        return ended


def losses() -> np.ndarray:
    """Draw log-likelihoods of all cells: the more operations, the worse, and noise."""
    values = np.asarray(-40.0 * jnp.sum(NATS.from_index(jnp.arange(NATS.size)) != 3, axis=1))
    return values + 20 * np.random.default_rng(0).normal(size=NATS.size)


def decide(workers: int, options: Options, *, stores: bool) -> dict:
    """Return what the driver costs when that many workers train for ten minutes each."""
    config = SearchConfig(budget=max(options.rounds * workers, 60), temperature=15.4)
    strategy, key = candidates.make("us", NATS, config=config), jax.random.key(0)

    def stop(info, history) -> None:
        if history.count > 0:
            raise StopIteration

    for report in (stop, None):  # the first steps compile
        with contextlib.ExitStack() as stack:
            if stores:
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
                simulated, crew, note = with_store(workers, options, folder)
            else:
                simulated, note = with_table(workers), None
                crew = simulated
            with contextlib.suppress(StopIteration):
                found = elastic.drive(strategy, config, key, crew, note=note, report=report)
    decisions = len(found.searched.trace.count)
    return {
        "workers": workers,
        "stores": stores,
        "decisions": decisions,
        "milliseconds": 1e3 * simulated.driver / decisions,
        "processor": 1e3 * simulated.processor / decisions,
        "waiting": simulated.waited / (simulated.waited + simulated.trained),
        "load": os.getloadavg()[0],
    }


def with_table(workers: int) -> Simulated:
    """Return workers whose results are known."""
    values = losses()

    def evaluate(arch: np.ndarray) -> Outcome:
        index = int(NATS.index(arch))
        return Outcome(jnp.asarray(arch[None]), jnp.asarray(values[index : index + 1]))

    return Simulated(workers, evaluate)


def with_store(workers: int, options: Options, folder: Path):
    """Return workers, the crew of a run that keeps what they send, and how it notes events."""
    config, values = preset_config(), losses()
    data, family = load_data(config), CellFamily(config.train)
    valid, test = (len(part.labels) for part in (data.valid, data.test))
    labels = np.asarray(data.valid.labels)
    weights = np.zeros(options.weights, np.float32)

    def answer(task: Task) -> Evaluation:
        mean = np.clip(values[int(NATS.index(task.arch))] / valid, -9, -1e-3)
        others = np.log(-np.expm1(mean) / (data.classes - 1))
        log_probs = np.full((valid, data.classes), others, np.float32)
        log_probs[np.arange(valid), labels] = mean
        blind = np.full((test, data.classes), -np.log(data.classes), np.float32)
        return Evaluation(log_probs, blind, 1.0, TRAINING, weights, -1.0)

    simulated = Simulated(workers, answer)
    task = Task(np.zeros(0, np.int32), "", "", False)
    team = Team(simulated, task, b"")  # type: ignore[arg-type] (in place of calls)
    bench = open_workbench(family, data, folder, team=team)
    return simulated, bench.crew(), Journal(folder / "arrivals.log", NATS).note


def answer_with(weights: int, shapes: list[tuple[int, int]]) -> Evaluation:
    """Return, on a worker, as much as training a network gives."""
    valid, test = (np.zeros(shape, np.float32) for shape in shapes)
    return Evaluation(valid, test, 1.0, TRAINING, np.zeros(weights, np.float32), -1.0)


def send(options: Options) -> dict:
    """Return what Dask takes of a driver's time per task, with its scheduler in the same process.

    It is processor time: so many tasks are in flight that two workers are never idle.
    """
    data, numbers, most = load_data(preset_config()), itertools.count(), 50
    shapes = [(len(part.labels), data.classes) for part in (data.valid, data.test)]
    with open_cluster("2") as cluster:
        calls = Calls(cluster.executor, answer_with, 2)

        def exchange(count: int) -> float:
            spent, flying, ended = time.process_time(), 0, 0
            while ended < count:
                while flying < min(most, count - ended):
                    calls.start(next(numbers), options.weights, shapes)
                    flying += 1
                done = len(calls.collect(wait=True))
                ended, flying = ended + done, flying - done
            return time.process_time() - spent

        exchange(most)  # the first ones connect
        return {"milliseconds": 1e3 * exchange(options.sent) / options.sent}


def steady(milliseconds: float, workers: int) -> float:
    """Return the share of its time that the driver is at work while all workers train."""
    return 1e-3 * milliseconds * workers / TRAINING


def known(options: Options) -> dict:
    """Return what was measured before with the same options."""
    asked = {"seconds": options.seconds, "budget": options.budget, "rounds": options.rounds}
    asked |= {"weights": options.weights, "sent": options.sent}
    there = json.loads(options.out.read_text()) if options.out.exists() else {}
    fresh = {"asked": asked, "waiting": [], "driver": [], "sending": None}
    return there if there.get("asked") == asked else fresh


def measure(options: Options) -> dict:
    """Measure what is not known, and write it as it is found."""
    result = known(options)
    for workers, seed in itertools.product(options.workers, range(options.seeds)):
        if not any((r["workers"], r["seed"]) == (workers, seed) for r in result["waiting"]):
            result["waiting"] += compare_waiting(workers, seed, options)
            write(options.out, result)
    for workers, stores in itertools.product(options.simulated, (False, True)):
        if not any((r["workers"], r["stores"]) == (workers, stores) for r in result["driver"]):
            result["driver"].append(decide(workers, options, stores=stores))
            write(options.out, result)
    if result["sending"] is None:
        result["sending"] = send(options)
        write(options.out, result)
    return result


def main(options: Options) -> None:
    result = measure(options)
    pairs = itertools.product(options.workers, ("batch", "asynchronous"))
    groups = {
        pair: [r for r in result["waiting"] if (r["workers"], r["search"]) == pair]
        for pair in pairs
    }
    show(
        f"{options.budget} evaluations of {options.seconds} s on average, log-normal; "
        f"{options.seeds} searches",
        ["workers", "search", "wall time, s", "busy, %", "mass at equal time", "in all"],
        [
            [
                str(workers),
                search,
                with_error([r["seconds"] for r in rows], 1),
                with_error([100 * r["busy"] for r in rows], 1),
                with_error([r["mass"] for r in rows]),
                with_error([r["mass_in_all"] for r in rows]),
            ]
            for (workers, search), rows in groups.items()
        ],
        names=2,
    )
    driver = [row for row in result["driver"] if row["workers"] in options.simulated]
    show(
        "the driver, trainings of ten minutes",
        ["workers", "at work", "decisions", "each", "processor", "of its time", "workers waiting"],
        [
            [
                str(row["workers"]),
                "decides, stores" if row["stores"] else "decides",
                str(row["decisions"]),
                f"{row['milliseconds']:.1f} ms",
                f"{row['processor']:.1f} ms",
                f"{steady(row['milliseconds'], row['workers']):.2%}",
                f"{row['waiting']:.2%}",
            ]
            for row in driver
        ],
        names=2,
    )
    sending = result["sending"]["milliseconds"]
    console.print(f"Dask takes {sending:.1f} ms of the driver's processor for each task.")
    largest = [row for row in driver if row["workers"] == max(options.simulated)]
    for row in largest:
        more = sending if row["stores"] else 0.0
        wall, processor = (
            steady(row[name] + more, row["workers"]) for name in ("milliseconds", "processor")
        )
        what = "decides, stores and sends" if row["stores"] else "decides"
        console.print(
            f"{row['workers']} workers: the driver {what} for {wall:.2%} of the time "
            f"(processor: {processor:.2%}), and workers wait for {row['waiting']:.2%}."
        )


if __name__ == "__main__":
    one_sentence(main, tyro.cli(Options, description=__doc__))
