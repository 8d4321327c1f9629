"""A family at work on a store: what is asked for is trained once, and remembered."""

from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int32

from bqnes_jax.candidates import Outcome
from bqnes_jax.data import Split
from bqnes_jax.drivers import Evaluate
from bqnes_jax.elastic import Crew
from bqnes_jax.families import Evaluation, NetworkFamily, Setting, Trainer
from bqnes_jax.families.base import Progress
from bqnes_jax.parallel import agree, own_part, wait_for_all
from bqnes_jax.runs.tasks import Team
from bqnes_jax.selection import Measure, measure_candidates
from bqnes_jax.spaces import Architectures, Space, split_seeds
from bqnes_jax.storage import Entry, Key, Store
from bqnes_jax.storage.entries import entry_of, manifest_of

Count = Callable[[int], None]


class Workbench(NamedTuple):
    """What is needed to train architectures of a family, one store for all of them.

    Attributes:
        family: what is trained.
        data: on what.
        trainer: the family, ready to train.
        store: where it all goes.
        seed: of the weights; the first one where candidates have seeds of their own.
        keep: whether what was trained is kept, and not only what it predicts.
        team: who trains, if it is done elsewhere.
    """

    family: NetworkFamily
    data: Split
    trainer: Trainer
    store: Store
    seed: int
    keep: bool = True
    team: Team | None = None

    @property
    def space(self) -> Space:
        """What can be trained."""
        return self.family.space

    def train(self, archs: Architectures, report: Count | None = None) -> None:
        """Train those of the architectures that the store does not have.

        With several hosts, each puts a part of what all have trained into the store. `report` is
        called with how many more of them are there, each time that some are stored.
        """
        by_key = dict(zip(keys_of(self.space, archs, self.seed), np.asarray(archs), strict=True))
        absent = [bool(self.store.find_missing([key.arch], [key.seed])) for key in by_key]
        missing = agree(np.array(absent))
        keys = [key for key, untrained in zip(by_key, missing, strict=True) if untrained]
        keys.sort(key=lambda key: key.seed)  # those of one seed are trained together
        report = report or (lambda count: None)
        if len(keys) < len(archs):
            report(len(archs) - len(keys))
        together = self.trainer.together
        own = keys if together else list(own_part(keys))
        if own:
            self._train(own, np.stack([by_key[key] for key in own]), report)
        if keys and not together:
            wait_for_all()
            report(len(keys) - len(own))

    def _train(self, keys: Sequence[Key], archs: np.ndarray, report: Count) -> None:
        if self.team is not None:
            for ended in self.team.train(archs):
                for place, evaluation in ended:
                    self.store.put(self._entry_of(keys[place], evaluation))
                report(len(ended))
            return
        done = 0
        for evaluations in self.trainer.train(archs):
            some = keys[done : done + len(evaluations)]
            entries = list(map(self._entry_of, some, evaluations))
            if self.trainer.together:
                self.store.put(own_part(entries))
                wait_for_all()
            else:
                self.store.put(entries)
            done += len(entries)
            report(len(entries))

    def _entry_of(self, key: Key, evaluation: Evaluation) -> Entry:
        entry = entry_of(evaluation, key.arch, key.seed, self.data)
        return entry if self.keep else entry._replace(variables=None)

    def evaluator(self, report: Count | None = None, *, measure: Measure = "valid") -> Evaluate:
        """Return a function that trains architectures, or remembers what training them gave.

        It answers with what the store holds, to the store's precision, so that a resumed search
        sees what the first one saw. `measure` is that of the search (`SearchConfig.measure`).
        """
        labels = np.asarray(self.data.valid.labels)

        def evaluate(archs: Architectures) -> Outcome:
            archs = agree(archs)
            self.train(archs, report)
            keys = keys_of(self.space, archs, self.seed)
            stored = self.store.predictions(*zip(*keys, strict=True))
            classes = stored.valid_log_probs
            log_probs = np.take_along_axis(classes, labels[None, :, None], axis=2)[..., 0]
            values, train = log_probs.sum(axis=1), stored.train_log_likelihoods
            return Outcome(
                *map(jax.device_put, (archs, values, log_probs)),
                classes=jax.device_put(classes),
                measures=measure_stored(self.store, measure, values, train),
            )

        return evaluate

    def crew(self, report: Count | None = None, *, measure: Measure = "valid") -> Crew:
        """Return who evaluates candidates for an asynchronous search: the team, or one at a time.

        What is trained goes into the store before anything is said of it.
        """
        return _Crew(self, self.evaluator(measure=measure), report or (lambda count: None))

    def _is_stored(self, key: Key) -> bool:
        return not self.store.find_missing([key.arch], [key.seed])

    def test_log_probs(self, archs: Architectures) -> Float[Array, "M m classes"]:
        """Return what trained architectures say about the test points."""
        return stored_log_probs(self.store, self.space, self.seed, archs)


class _Crew:
    """A crew at a workbench; what the store has is known at once."""

    def __init__(self, bench: Workbench, evaluate: Evaluate, report: Count) -> None:
        self._bench, self._evaluate, self._report = bench, evaluate, report
        self._known: deque[int] = deque()  # or to be trained here
        self._given: dict[int, tuple[Key, np.ndarray]] = {}
        self._trained: dict[Key, list[int]] = {}  # now, for whom: several searches may ask for it

    @property
    def size(self) -> int:
        """How many can be trained at once."""
        return 1 if self._bench.team is None else self._bench.team.size

    def start(self, number: int, arch: Int32[np.ndarray, " length"]) -> None:
        """Begin to train a candidate, if it has not been trained."""
        bench, arch = self._bench, np.asarray(arch)
        (key,) = keys_of(bench.space, arch[None], bench.seed)
        self._given[number] = key, arch
        if key in self._trained:
            self._trained[key].append(number)
        elif bench.team is None or bench._is_stored(key):
            self._known.append(number)
        else:
            self._trained[key] = [number]
            bench.team.start(number, arch)

    def collect(self, *, wait: bool) -> list[tuple[int, Outcome]]:
        """Store what has been trained, and return what the store says of it."""
        team = self._bench.team
        if self._known:
            return [self._outcome(self._known.popleft())]
        ended = [] if team is None else team.collect(wait=wait)
        numbers = []
        for number, evaluation in ended:
            key, _ = self._given[number]
            self._bench.store.put(self._bench._entry_of(key, evaluation))
            numbers += self._trained.pop(key)
        return [self._outcome(number) for number in numbers]

    def _outcome(self, number: int) -> tuple[int, Outcome]:
        _, arch = self._given.pop(number)
        outcome = self._evaluate(jnp.asarray(arch[None]))
        self._report(1)
        return number, outcome._replace(classes=None)


def open_workbench(
    family: NetworkFamily,
    data: Split,
    directory: Path,
    *,
    seed: int = 0,
    keep: bool = True,
    dtype: str = "float16",
    progress: Progress | None = None,
    asked: int | None = None,
    mesh: Mesh | None = None,
    team: Team | None = None,
) -> Workbench:
    """Let a family prepare itself, and open the store in a directory.

    Args:
        family: what is trained.
        data: on what.
        directory: of the store, and of what the family prepares.
        seed: of the weights; of the first of them where the family has several.
        keep: whether what was trained is kept, and not only what it predicts.
        dtype: of the predictions in the store, "float16" or "float32".
        progress: called while the family prepares itself.
        asked: how many architectures will be asked for at a time.
        mesh: the devices that they are divided among; by default all.
        team: who trains (`tasks.open_team`); by default it is done here.
    """
    store = Store.open(directory / "store", manifest_of(family, data, dtype=dtype))
    setting = Setting(seed, directory, progress, asked, mesh)
    return Workbench(family, data, family.prepare(data, setting), store, seed, keep, team)


def keys_of(space: Space, archs: ArrayLike, seed: int) -> list[Key]:
    """Return under which keys candidates are stored; a seed of their own is added to `seed`."""
    base, archs, seeds = split_seeds(space, archs)
    return [Key(base.to_string(a), seed + int(s)) for a, s in zip(archs, seeds, strict=True)]


def measure_stored(
    store: Store,
    measure: Measure,
    log_likelihoods: Float[np.ndarray, " n"],
    train_log_likelihoods: Float[np.ndarray, " n"],
) -> Float[Array, " n"] | None:
    """Return what a posterior over networks of a store is formed by; None for validation points."""
    if measure == "valid":
        return None
    unknown = np.isnan(train_log_likelihoods) & ~np.isnan(log_likelihoods)  # NaN itself: it failed
    config = store.manifest.config
    points = config.get("train_points") if isinstance(config, dict) else None
    known = None if unknown.any() else train_log_likelihoods
    return measure_candidates(measure, log_likelihoods, store.manifest.valid_points, known, points)


def stored_log_probs(
    store: Store, space: Space, seed: int, archs: Architectures
) -> Float[Array, "M m classes"]:
    """Return what networks in a store say about the test points, as log-probabilities."""
    keys = keys_of(space, archs, seed)
    stored = store.predictions(*zip(*keys, strict=True)).test_log_probs
    return jax.nn.log_softmax(stored)  # were rounded
