"""Each command is killed at some moment and done again: nothing is lost, nothing else comes out."""

import contextlib
import hashlib
import json
import os
import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from attacks.processes import forked
from attacks.tally import Tally
from bqnes_jax.cli import main
from bqnes_jax.runs import Run

KILLS = 100
TIMES = 3  # that a command is killed before it may end
TASK = {
    "image_size": 4,
    "split": [40, 50, 60],
    "train": {"steps": 4, "batch": 20, "network": {"channels": 1}},
}
SUPERNET = {
    "image_size": 4,
    "split": [40, 50, 60],
    "train": {
        "steps": 20,
        "batch": 20,
        "save_every": 1,
        "network": {
            "space": {"blocks": 1, "layers": 2, "widths": 2},
            "channels": [3],
            "strides": [2],
            "expansion": 2,
            "stem": 3,
            "head": 4,
        },
    },
}
THIRDS = ("1st", "2nd", "3rd")


def wait_for_a_third(process, folder: Path, draws: random.Random, seconds: float) -> str:
    """Wait for a part of the seconds that a command takes; return in which third it then is."""
    moment = draws.random()
    process.join(moment * seconds)
    return f"{THIRDS[int(3 * moment)]} third"


def wait_for_a_save(process, folder: Path, draws: random.Random, seconds: float) -> str:
    """Wait until Orbax has been seen at work on a checkpoint, at once or after some others."""
    seen = being_saved(folder)
    goal = len(seen) + draws.randrange(1, 20)
    while process.is_alive() and len(seen) < goal:
        time.sleep(0.001)
        seen |= being_saved(folder)
    return "while Orbax saves"


def being_saved(folder: Path) -> set[tuple[str, int]]:
    """Return the checkpoints that are half written, each with when a file was added to it."""
    found = set()
    for path in folder.glob("run/supernet/checkpoints/*.orbax-checkpoint-tmp*"):
        with contextlib.suppress(FileNotFoundError):
            found.add((path.name, path.stat().st_mtime_ns))
    return found


class Command(NamedTuple):
    """A command that is killed.

    Attributes:
        typed: after `bqnes`.
        outcome: reads what comes out of it from its folder.
        of_run: whether it begins with a finished run.
        wait: waits for a moment to kill it, and says which.
    """

    typed: str
    outcome: Callable[[Path], object]
    of_run: bool = False
    wait: Callable[..., str] = wait_for_a_third


def of_run(folder: Path) -> list:
    run = Run.load(folder / "run")
    ensemble = run.saved_ensemble()
    return [*(array.tolist() for array in run.record), ensemble.members.tolist(), ensemble.metrics]


def of_table(folder: Path) -> list:
    with np.load(folder / "table.npz") as file:
        return [hashlib.sha256(file[name].tobytes()).hexdigest() for name in sorted(file)]


def of_file(name: str) -> Callable[[Path], str]:
    return lambda folder: hashlib.sha256((folder / name).read_bytes()).hexdigest()


def of_page(folder: Path) -> list:
    text = (folder / "run" / "report.html").read_text()
    return [text.endswith("</html>\n"), text.count("<tr"), of_run(folder)]


def of_saved(folder: Path) -> list:
    ensemble = Run.load(folder / "run").saved_ensemble()
    return [ensemble.method, ensemble.members.tolist(), ensemble.weights.tolist()]


SEARCH = "--initial 4 --budget 8 --batch 2"
COMMANDS = {
    "run": Command(f"run --config task.yaml {SEARCH} --out run", of_run),
    "run with a supernet": Command(
        f"run --family slimmable --algorithm NES-RE --config supernet.yaml {SEARCH} --out run",
        of_run,
        wait=wait_for_a_save,
    ),
    "tabulate": Command(
        "tabulate --config task.yaml --count 4 --best 0 --store store --table table.npz", of_table
    ),
    "compare --live": Command(
        "compare --live --config task.yaml --algorithms Random BQ-S --sizes 2 --seeds 1 "
        f"{SEARCH} --out compared",
        of_file("compared/comparison.csv"),
    ),
    "combine": Command(
        "combine models.npz --size 2 --out combined", of_file("combined/ensemble.json")
    ),
    "reselect --save": Command("reselect run --method beam --size 2 --save", of_saved, True),
    "predict": Command("predict run --input x.npy --out said.csv", of_file("said.csv"), True),
    "report": Command("report run", of_page, True),
}


def prepare(folder: Path) -> None:
    """Make what the commands read."""
    folder.mkdir()
    (folder / "task.yaml").write_text(json.dumps(TASK))
    (folder / "supernet.yaml").write_text(json.dumps(SUPERNET))
    draw = np.random.default_rng(0)
    said = draw.dirichlet(np.ones(3), (5, 60))
    np.savez(folder / "models.npz", valid=said, valid_labels=draw.integers(0, 3, 60))
    np.save(folder / "x.npy", draw.integers(0, 255, (3, 4, 4, 1)).astype(np.uint8))


def do(arguments: list[str], folder: str, cache: str) -> None:
    """Do a command in a process of its own; programs are compiled once for all processes."""
    jax.config.update("jax_compilation_cache_dir", cache)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"  # else the command sets it
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    os.chdir(folder)
    log = os.open("log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os._exit(main(arguments))


class Killer:
    """Starts commands and kills them; knows what they do if they are not disturbed."""

    def __init__(self, scratch: Path):
        self._processes = forked()
        self._folder = scratch / "folder"
        self._finished = scratch / "finished"  # a run, which some commands begin with
        self._cache = os.environ.get("JAX_COMPILATION_CACHE_DIR", str(scratch / "cache"))
        self._expected: dict[str, tuple[object, float]] = {}

    def _begin(self, command: Command) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
        prepare(self._folder)
        if command.of_run:
            shutil.copytree(self._finished, self._folder / "run")

    def _start(self, command: Command):
        given = (command.typed.split(), str(self._folder), self._cache)
        process = self._processes.Process(target=do, args=given)
        process.start()
        return process

    def _said(self) -> str:
        return (self._folder / "log").read_text()

    def _undisturbed(self, name: str) -> tuple[object, float]:
        """Return what comes out of a command, and how many seconds it takes."""
        if name not in self._expected:
            self._expected[name] = self._do_undisturbed(name)
        return self._expected[name]

    def _do_undisturbed(self, name: str) -> tuple[object, float]:
        command = COMMANDS[name]
        if command.of_run:
            self._undisturbed("run")
        seconds = 0.0
        for _ in range(2):  # the second time nothing is compiled
            self._begin(command)
            started = time.perf_counter()
            process = self._start(command)
            process.join()
            seconds = time.perf_counter() - started
            assert process.exitcode == 0, (name, self._said())
        if name == "run":
            shutil.copytree(self._folder / "run", self._finished)
        return command.outcome(self._folder), seconds

    def kill(self, name: str, draws: random.Random) -> tuple[list[str], str, str]:
        """Kill a command a few times, one after another, then let it end.

        Returns the moments at which it was killed, what came of it, and a note if that is a bug.
        """
        command, (expected, seconds) = COMMANDS[name], self._undisturbed(name)
        self._begin(command)
        moments = []
        for _ in range(TIMES):
            process = self._start(command)
            moment = command.wait(process, self._folder, draws, seconds)
            if process.is_alive():
                moments.append(moment)
            process.kill()
            process.join()
        process = self._start(command)
        process.join()
        said = self._said()
        if process.exitcode != 0 or "Traceback" in said:
            return moments, "lost", f"code {process.exitcode}: {said[-200:]}"
        try:
            same = command.outcome(self._folder) == expected
        except Exception as error:
            return moments, "lost", f"{type(error).__name__}: {error}"
        return moments, *(("survived", "") if same else ("silent", "another result"))


def attack(tally: Tally, scratch: Path) -> None:
    """Kill each command in turn until there were enough kills, and one in each third of it."""
    killer = Killer(scratch)
    while names := [*COMMANDS] if tally.tried("kills") < KILLS else _not_in_each_third(tally):
        for name in names:
            draws = random.Random(f"{tally.tried('kills')} {name}")
            moments, found, note = killer.kill(name, draws)
            for moment in moments:
                tally.add("kills", f"{name}, {moment}", note, tried=1, **{found: 1})
            tally.write()


def _not_in_each_third(tally: Tally) -> list[str]:
    return [
        name
        for name, command in COMMANDS.items()
        if command.wait is wait_for_a_third
        and not all(tally.tried("kills", f"{name}, {third} third") for third in THIRDS)
    ]
