"""A finished search, and the ensembles that are selected from its candidates.

A run is a directory. What was trained is in its store, so that other ensembles can be selected from
the same candidates without training anything, and predict inputs that they have not seen.
"""

import dataclasses
import functools
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int

from bqnes_jax import algorithms
from bqnes_jax.calibration import WHEN, select_calibrated
from bqnes_jax.candidates import uses_surrogate
from bqnes_jax.data import downsample
from bqnes_jax.errors import BQNESError, check_choice, check_whole
from bqnes_jax.families import NetworkFamily, families, is_named, with_seeds
from bqnes_jax.files import (
    as_json,
    as_path,
    check_bound,
    explain_writing,
    is_there,
    read_json,
    refuse_damaged,
    write_bound,
)
from bqnes_jax.files.trees import Tree, read_tree
from bqnes_jax.metrics import accuracy, ece, log_likelihood
from bqnes_jax.pooling import Pool, ensemble_log_probabilities
from bqnes_jax.runs.config import RunConfig, first_stage, make_family
from bqnes_jax.runs.layout import (
    CONFIG,
    ENSEMBLE,
    FIRST_STAGE,
    SEARCH,
    SHARED,
    check_family,
    read_config,
    read_versions,
)
from bqnes_jax.runs.record import Record, read_record
from bqnes_jax.runs.workbench import keys_of, measure_stored, stored_log_probs
from bqnes_jax.selection import methods, needs_classes, pool_of
from bqnes_jax.spaces import Space
from bqnes_jax.storage import Store
from bqnes_jax.types import Status

Predictor = Callable[[np.ndarray], Float[np.ndarray, "k n classes"]]


class Metrics(NamedTuple):
    """How good predictions are on the test data."""

    accuracy: float
    ece: float
    log_likelihood: float


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Run:
    """A finished search. Make one with `bqnes_jax.search`, or read one with `Run.load`.

    Attributes:
        directory: where everything about it is.
        config: what was asked for.
        family: what was trained.
        record: the candidates, and what was believed.
    """

    directory: Path
    config: RunConfig
    family: NetworkFamily
    record: Record
    _scratch: tempfile.TemporaryDirectory | None = None

    def __repr__(self) -> str:
        return (
            f"Run({str(self.directory)!r}, {self.config.algorithm} on {self.config.data_name}, "
            f"{len(self.record.archs)} networks of {self.family.name})"
        )

    @classmethod
    def load(
        cls, directory: str | os.PathLike[str], *, family: NetworkFamily | None = None
    ) -> "Run":
        """Read a run from its directory.

        Args:
            directory: of the run.
            family: what was trained; needed if it is not one of the package, since what a file
                names is not imported.
        """
        directory = as_path(directory)
        if not (directory / CONFIG).is_file():
            raise BQNESError(f"{directory} is not a run: it has no {CONFIG}.")
        config = read_config(directory)
        if not is_there(directory / SEARCH):
            raise BQNESError(
                f"run {directory} is not finished; the command that began it goes on with it."
            )
        if family is None:
            if config.family not in families():
                name = config.family if is_named(config.family) else "package.module:family"
                raise BQNESError(
                    f"run {directory} is of the family {config.family!r}, which is not among "
                    f"{', '.join(families())}; if you trust its code give it: "
                    f"Run.load(directory, family=family), or --family {name}."
                )
            family = make_family(config)
        family = with_seeds(family, config.seeds)
        check_family(directory, family)
        return cls(directory, config, family, read_record(directory / SEARCH, family.space))

    @functools.cached_property
    def store(self) -> Store:
        """What each candidate predicts."""
        store = Store.open(self.directory / "store")
        there, record = store.manifest, self.record
        points = (record.log_probs.shape[1], len(record.test_labels))
        if (there.valid_points, there.test_points, there.classes) != (*points, record.classes):
            raise BQNESError(
                f"store {store.directory} is of other data than {SEARCH} next to it; one of "
                "them has been altered or replaced."
            )
        return store

    @property
    def space(self) -> Space:
        """What was searched."""
        return self.family.space

    @functools.cached_property
    def first_stage(self) -> "Run | None":
        """The search with shared weights that the candidates are a shortlist of, if there is one.

        It is read from the directory of the run.
        """
        if self.config.evaluate != "shared":
            return None
        _, family = first_stage(self.config, self.family)
        found = Run.load(self.directory / FIRST_STAGE, family=family)
        return dataclasses.replace(found, _scratch=self._scratch)  # for as long as it is in use

    @property
    def versions(self) -> dict[str, str]:
        """The packages it ran with."""
        return read_versions(self.directory)

    @property
    def status(self) -> Status:
        """What went differently when the surrogate was fitted last."""
        return self.record.status

    def ensemble(
        self, size: int | None = None, method: str | None = None, *, calibrate: str | None = None
    ) -> "Ensemble":
        """Select an ensemble from the candidates: by default, the one of the config.

        It is selected once, however often it is asked for.

        Args:
            size: how many members.
            method: of selection.
            calibrate: whether a temperature follows the pool: "auto", "on" or "off".
        """
        size = self.config.ensemble_size if size is None else size
        check_whole("size", size, 1, len(self.record.archs))
        if method is None:
            algorithms.check_seeds(self.config.algorithm, self.space, size)
        else:
            check_choice("method", method, methods())
        calibrate = self.config.calibrate if calibrate is None else calibrate
        check_choice("calibrate", calibrate, WHEN)
        asked = size, method, calibrate
        if asked not in self._selected:
            self._selected[asked] = self._select(*asked)
        return Ensemble(self, *self._selected[asked])

    @functools.cached_property
    def _selected(self) -> dict[tuple[int, str | None, str], tuple]:
        return {}

    def _select(self, size: int, method: str | None, calibrate: str) -> tuple:
        """Select by a method, or by that of the config; returns the fields of an `Ensemble`."""
        algorithm, history = algorithms.find_trainable(self.config.algorithm), self.record.history
        if method is None:
            method, history = algorithm.method, algorithm.selectable(history, size)
        given = algorithms.Given(
            history._replace(measures=self._measures()),
            jax.device_put(self.record.gram),
            jax.device_put(self.record.log_prior),
            self.record.temperature,
            jax.device_put(self.record.rule),
        )
        as_it_is = calibrate == "off" or self.record.log_probs.shape[1] == 1
        if needs_classes(method) or not as_it_is:
            given = given._replace(classes=self.valid_log_probs)
        temperature = 1.0
        if as_it_is:
            chosen = algorithms.select_members(method, given, size)
        else:
            chosen, fitted = select_calibrated(method, size=size, **given.arguments())
            temperature = round(float(fitted.use(calibrate)), 6)
        used = np.asarray(chosen.weights) > 0
        members, weights = np.asarray(chosen.members)[used], np.asarray(chosen.weights)[used]
        status = Status(int(chosen.info.status))
        return method, size, members, weights, status, temperature

    @functools.cached_property
    def valid_log_probs(self) -> Float[Array, "n valid classes"]:
        """What the candidates say about all classes at the validation points."""
        keys = keys_of(self.space, self.record.archs, self.config.seed)
        return jax.device_put(self.store.predictions(*zip(*keys, strict=True)).valid_log_probs)

    def _measures(self) -> Float[Array, " n"] | None:
        """Return what a posterior over the candidates is formed by; None for validation points."""
        measure, record = self.config.search.measure, self.record
        if measure == "valid":
            return None
        fits = {entry.key: entry.train_log_likelihood for entry in self.store.summaries()}
        keys = keys_of(self.space, record.archs, self.config.seed)
        train = np.array([fits.get(key, np.nan) for key in keys])
        return measure_stored(self.store, measure, record.log_likelihoods, train)

    def saved_ensemble(self) -> "Ensemble":
        """Return the ensemble that was saved last."""
        path = self.directory / ENSEMBLE
        remedy = "select it again: bqnes reselect --save."
        check_bound(path, remedy)
        content = read_json(path, "ensemble")
        names = ("method", "size", "members", "weights", "status", "temperature")
        method, size, members, weights, status, temperature = map(content.get, names)
        if not (
            method in methods()
            and type(size) is int
            and size >= 1
            and isinstance(members, list)
            and isinstance(weights, list)
            and 0 < len(members) == len(weights)
            and all(type(i) is int and 0 <= i < len(self.record.archs) for i in members)
            and all(type(weight) in (int, float) and weight > 0 for weight in weights)
            and (pool_of(method) == Pool.LOG or abs(sum(weights) - 1) < 1e-3)
            and sum(weights) < float("inf")
            and type(status) is int
            and 0 <= status <= sum(Status)
            and isinstance(temperature, int | float)
            and 0 < temperature < float("inf")
        ):
            raise BQNESError(f"ensemble {path} has been altered; {remedy}")
        chosen = np.array(members), np.array(weights, float)
        ensemble = Ensemble(self, method, size, *chosen, Status(status), temperature)
        if content.get("architectures") != ensemble.texts:
            raise BQNESError(
                f"ensemble {path} names other architectures than the candidates with the numbers "
                f"of its members; {remedy}"
            )
        return ensemble

    def test_log_probs(self, members: ArrayLike) -> Float[Array, "k m classes"]:
        """Return what candidates, by number, predict for the test points."""
        archs = jnp.asarray(self.record.archs[np.asarray(members)], jnp.int32)
        return stored_log_probs(self.store, self.space, self.config.seed, archs)

    def predictor(self, members: ArrayLike) -> Predictor:
        """Return a function from inputs, like those of training, to log-probabilities.

        Those of candidates, by number; their variables are read once.
        """
        archs = self.record.archs[np.asarray(members)].astype(np.int32)
        keys = keys_of(self.space, archs, self.config.seed)
        variables = [self.store.variables(*key) for key in keys]
        shared = self._shared()
        return lambda inputs: self.family.predict(shared, variables, archs, inputs)

    def as_inputs(self, inputs: ArrayLike) -> np.ndarray:
        """Check inputs, and shrink images that are larger than those of the run, as those were."""
        shape, size = tuple(map(int, self.record.input_shape)), self.config.image_size
        inputs = np.asarray(inputs)
        if shape[-1:] == (1,) and inputs.ndim == len(shape):
            inputs = inputs[..., None]
        if (
            size is not None
            and inputs.ndim == 4
            and min(inputs.shape[1:3]) > size
            and inputs.shape[3] == shape[2]
            and inputs.min() >= 0
            and inputs.max() <= 255
        ):
            inputs = downsample(np.rint(inputs).astype(np.uint8), size)
        if not inputs.size or inputs.shape[1:] != shape:
            raise BQNESError(
                f"inputs have shape {inputs.shape}; it must be (n, {', '.join(map(str, shape))})."
            )
        return inputs

    def _shared(self) -> Tree:
        path = self.directory / SHARED
        remedy = "give the command of the run again."
        check_bound(path, remedy)
        damaged = "is damaged or not there"
        with refuse_damaged(path, damaged, remedy=remedy, absent=f"{damaged}; {remedy}"):
            return read_tree(path)


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Ensemble:
    """Members of a run, and their weights.

    Attributes:
        run: where the members come from.
        method: by which they were selected.
        size: how many were asked for; a method may use fewer.
        members: numbers of candidates.
        weights: positive; with sum 1, unless they are for a pool in log space.
        status: what went differently when they were selected.
        temperature: of the pooled prediction; 1 leaves it as it is.
    """

    run: Run
    method: str
    size: int
    members: Int[np.ndarray, " M"]
    weights: Float[np.ndarray, " M"]
    status: Status = Status.OK
    temperature: float = 1.0

    def __repr__(self) -> str:
        pairs = zip(self.members, self.weights, strict=True)
        members = ", ".join(f"#{member}: {weight:.3g}" for member, weight in pairs)
        status = f"; {self.status!r}" if self.status else ""
        return f"Ensemble({self.method}, {members}; temperature {self.temperature:.3g}{status})"

    @property
    def pool(self) -> Pool:
        """What the weights are for: a mixture, or a pool in log space."""
        return pool_of(self.method)

    @property
    def archs(self) -> Int[np.ndarray, "M length"]:
        """The architectures of the members."""
        return self.run.record.archs[self.members]

    @property
    def texts(self) -> list[str]:
        """The architectures as text."""
        return [self.run.space.to_string(arch) for arch in self.archs]

    @functools.cached_property
    def test_log_probs(self) -> Float[Array, "m classes"]:
        """What the ensemble says about the test points."""
        return self._pool(self.run.test_log_probs(self.members))

    @functools.cached_property
    def valid_log_probs(self) -> Float[Array, "n classes"]:
        """What the ensemble says about the validation points, which selected it."""
        members = jnp.asarray(self.run.valid_log_probs)[self.members]
        return self._pool(jax.nn.log_softmax(members.astype(float)))  # were rounded

    @functools.cached_property
    def metrics(self) -> Metrics:
        """How good it is on the test data."""
        return measure(self.test_log_probs, self.run.record.test_labels)

    def without_temperature(self) -> "Ensemble":
        """Return the same members and weights, without a temperature after pooling."""
        return dataclasses.replace(self, temperature=1.0)

    def _pool(self, log_probs: ArrayLike) -> Float[Array, "n classes"]:
        return ensemble_log_probabilities(
            self.weights, log_probs, pool=self.pool, temperature=self.temperature
        )

    def predict(self, inputs: ArrayLike) -> Float[Array, "n classes"]:
        """Return class probabilities of inputs as they come: of images not normalised, 0 to 255.

        Larger images than those the networks saw are shrunk as those were.
        """
        log_probs = self.run.predictor(self.members)(self.run.as_inputs(inputs))
        return jnp.exp(self._pool(log_probs))

    def warnings(self) -> list[str]:
        """Say what went differently in the search and in the selection, and what helps."""
        run = self.run
        strategy = algorithms.find_trainable(run.config.algorithm).strategy
        searched = run.status if uses_surrogate(strategy) else Status.OK
        said = [
            f"{what}: {status.explain()}"
            for what, status in (("search", searched), ("selection", self.status))
            if status
        ]
        failed = int(np.isnan(run.record.log_likelihoods).sum())
        if failed:
            said.append(f"training: {failed} of {len(run.record.archs)} networks failed.")
        keys = keys_of(run.space, self.archs, run.config.seed)
        if not all(run.store.has_variables(*key) for key in keys):
            said.append(
                "prediction: the variables of members were not kept; it cannot predict anew."
            )
        return said

    def save(self) -> None:
        """Make it the ensemble of its run: the one that `saved_ensemble` returns."""
        with explain_writing(f"run {self.run.directory}"):
            content = {
                "method": self.method,
                "size": self.size,
                "members": self.members.tolist(),
                "weights": self.weights.tolist(),
                "architectures": self.texts,
                "status": int(self.status),
                "temperature": self.temperature,
            }
            write_bound(self.run.directory / ENSEMBLE, as_json(content))


def measure(log_probs: ArrayLike, labels: ArrayLike) -> Metrics:
    """Return the three metrics of the paper's tables, of log-probabilities."""
    values = (metric(log_probs, labels, log=True) for metric in (accuracy, ece, log_likelihood))
    return Metrics(*(round(float(value), 6) for value in values))  # float32 has no more digits
