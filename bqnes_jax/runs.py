"""From a data set to an ensemble that predicts: search, train, select; and what is kept of it.

    result = bqnes_jax.search(dataset="digits", budget=40)
    ensemble = result.ensemble(size=3)
    probabilities = ensemble.predict(images)

A run is a directory. What was trained is in its store, so that a run that was stopped goes on from
there, and other ensembles can be selected from the same candidates without training anything:

    config.json     the config, and the versions it ran with
    store/          what each network predicts, and its weights
    supernet/       checkpoints of the one network that all candidates are slices of, if they are
    supernet.npy    its weights
    search.npz      the candidates in their order, how alike they are, what was believed
    ensemble.json   the members and weights of the ensemble that was selected
    robustness.json what it does on corrupted images, if that was asked for
    lock            held by the process that is at work, so that no other is
"""

import contextlib
import dataclasses
import functools
import importlib.metadata
import io
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int

from bqnes_jax import algorithms, candidates, live
from bqnes_jax.arrays import read_arrays, read_npy
from bqnes_jax.candidates import SearchConfig, Strategy
from bqnes_jax.config import (
    PRESETS,
    RunConfig,
    configure,
    load_data,
    space_of,
    supernet_config,
    train_config,
    updated,
)
from bqnes_jax.data import Split, channel_moments
from bqnes_jax.devices import is_first, make_mesh, wait_for_all
from bqnes_jax.ensemble import ensemble_log_probabilities, ensemble_probabilities
from bqnes_jax.errors import BQNESError, check_choice, check_whole
from bqnes_jax.files import (
    damaged_means_refused,
    locked,
    read_json,
    write_json,
    write_whole,
    writing,
)
from bqnes_jax.metrics import accuracy, ece, log_likelihood
from bqnes_jax.prediction import as_images, predict_cells, predict_slices_of
from bqnes_jax.selection import methods, select
from bqnes_jax.spaces import Space
from bqnes_jax.store import Store
from bqnes_jax.trainers import Trainer, check_task, make_trainer

_CONFIG, _STORE, _SEARCH, _ENSEMBLE = "config.json", "store", "search.npz", "ensemble.json"
_SHARED, _LOCK = "supernet.npy", "lock"
_PACKAGES = ("bqnes-jax", "jax", "jaxlib", "flax", "optax", "numpy")

Progress = Callable[[int, int], None]  # networks that are trained, networks in all
Predictor = Callable[[np.ndarray], Float[np.ndarray, "k n classes"]]


class Found(NamedTuple):
    """What a search leaves behind: n candidates in their order, and what was believed at T steps.

    Attributes:
        archs: the candidates.
        log_likelihoods: summed over the validation points; NaN where the training failed.
        log_probs: of the true class of each validation point.
        scores: with which each was asked for.
        gram: how alike they are, by the kernel fitted last.
        counts: how many candidates there were at each step.
        log_evidence: log Ẑ of the tempered likelihood then.
        evidence_sd: its standard deviation, of the surrogate and of sampling together.
        test_labels: the classes of the test images.
        image_shape: height, width and channels.
        moments: mean and standard deviation of each channel, by which images are normalised.
        classes: how many classes there are.
    """

    archs: Int[np.ndarray, "n length"]
    log_likelihoods: Float[np.ndarray, " n"]
    log_probs: Float[np.ndarray, "n valid"]
    scores: Float[np.ndarray, " n"]
    gram: Float[np.ndarray, "n n"]
    counts: Int[np.ndarray, " T"]
    log_evidence: Float[np.ndarray, " T"]
    evidence_sd: Float[np.ndarray, " T"]
    test_labels: Int[np.ndarray, " m"]
    image_shape: Int[np.ndarray, "3"]
    moments: Float[np.ndarray, "2 channels"]
    classes: Int[np.ndarray, ""]


class Metrics(NamedTuple):
    """How good predictions are on the test images."""

    accuracy: float
    ece: float
    log_likelihood: float


def search(
    config: RunConfig | None = None,
    out: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
    supernet_progress: Progress | None = None,
    preset: str = "tiny",
    supernet: str | os.PathLike[str] | None = None,
    **fields: object,
) -> "Run":
    """Search a space with real training, and return the run.

    Args:
        config: what to do; by default the preset.
        out: the directory of the run; one that was begun with the same config goes on from there.
            By default a temporary one, which is removed with the result.
        progress: called with (how many networks are trained, how many there will be).
        supernet_progress: called with (step, steps) of the training of a supernet.
        preset: "tiny", "small" or "paper", unless a config is given.
        supernet: the directory `supernet` of another run with the same seed, data and supernet,
            instead of training it again; it is trained there if it is not.
        **fields: of `RunConfig` and `SearchConfig`, instead of those of the preset.
    """
    if config is not None and fields:
        raise BQNESError(
            f"both a config and {next(iter(fields))!r} are given; put it into the config."
        )
    config = configure(preset, **fields) if config is None else config
    algorithm = live.trainable(config.algorithm)
    dataset, data = load_data(config)
    check_task(config, dataset, data)
    search_config = algorithm.budgeted(config.search, config.ensemble_size)
    strategy = candidates.make(algorithm.strategy, space_of(config), None, search_config)

    if out is None and jax.process_count() > 1:
        raise BQNESError("out is None; several hosts need a directory that all of them see.")
    scratch = tempfile.TemporaryDirectory(prefix="bqnes-") if out is None else None
    directory = Path(scratch.name if scratch else out)
    with _begun(directory, config):
        trained = directory / "supernet" if supernet is None else Path(supernet)
        trainer = make_trainer(
            config,
            dataset,
            data,
            trained,
            keep_weights=True,
            progress=supernet_progress,
            asked=search_config.batch,
        )
        store = Store.open(directory / _STORE, trainer.manifest)
        found = _search(config, search_config, strategy, store, trainer, data, progress)
        run = Run(directory, config, found, scratch)
        if is_first():
            _save(run, trainer.shared)
        wait_for_all()
    return run


def _search(
    config: RunConfig,
    search_config: SearchConfig,
    strategy: Strategy,
    store: Store,
    trainer: Trainer,
    data: Split,
    progress: Progress | None,
) -> "Found":
    """Train what the strategy asks for, and return what that gave."""
    done = 0

    def count(trained: int) -> None:
        nonlocal done
        done += trained
        if progress is not None:
            progress(done, search_config.budget)

    evaluate = live.stored_evaluator(store, trainer, config.seed, count)
    history, trace = live.search(strategy, search_config, jax.random.key(config.seed), evaluate)
    if not np.any(history.log_likelihoods < np.inf):  # NaN is not; nor is what was not evaluated
        part = "train" if config.space == "nats" else "supernet"
        raise BQNESError(
            f"every training failed: no loss of {search_config.budget} networks is a number; lower "
            f"{part}.learning_rate (it is {getattr(config, part).learning_rate}) in a new run."
        )
    last = jax.tree.map(lambda leaf: leaf[-1], trace)
    gram = strategy.gram(last, history.archs)
    return _found(history, trace, gram, data, trainer.manifest.classes)


def _save(run: "Run", shared: Float[np.ndarray, " w"] | None) -> None:
    """Write what was found, and the ensemble selected from it."""
    with writing(f"run {run.directory}"):
        if shared is not None:
            write_whole(run.directory / _SHARED, _as_bytes(np.save, shared))
        content = _as_bytes(np.savez_compressed, **run.found._asdict())
        write_whole(run.directory / _SEARCH, content)
    run.ensemble().save()


@dataclasses.dataclass(frozen=True)
class Run:
    """A finished search. Make one with `search`, or read one with `Run.load`."""

    directory: Path
    config: RunConfig
    found: Found
    _scratch: tempfile.TemporaryDirectory | None = None

    @classmethod
    def load(cls, directory: str | os.PathLike[str]) -> "Run":
        """Read a run from its directory."""
        directory = Path(directory)
        if not (directory / _CONFIG).is_file():
            raise BQNESError(f"{directory} is not a run: it has no {_CONFIG}.")
        config = _read_config(directory)
        if not (directory / _SEARCH).is_file():
            raise BQNESError(
                f"run {directory} is not finished; the command that began it goes on with it."
            )
        return cls(directory, config, _read_found(directory / _SEARCH, config))

    @functools.cached_property
    def store(self) -> Store:
        """What each candidate predicts."""
        store = Store.open(self.directory / _STORE)
        there, found = store.manifest, self.found
        points = (found.log_probs.shape[1], len(found.test_labels))
        if (there.valid_points, there.test_points, there.classes) != (*points, found.classes):
            raise BQNESError(
                f"store {store.directory} is of other images than {_SEARCH} next to it; one of "
                "them has been altered or replaced."
            )
        return store

    @property
    def space(self) -> Space:
        """What was searched."""
        return space_of(self.config)

    @property
    def versions(self) -> dict[str, str]:
        """The packages it ran with."""
        path = self.directory / _CONFIG
        versions = read_json(path, "config").get("versions")
        if not isinstance(versions, dict) or not all(isinstance(v, str) for v in versions.values()):
            raise BQNESError(f"{path} has been altered: it holds no versions.")
        return versions

    def ensemble(self, size: int | None = None, method: str | None = None) -> "Ensemble":
        """Select an ensemble from the candidates: by default, the one of the config."""
        size = self.config.ensemble_size if size is None else size
        method = algorithms.find(self.config.algorithm).method if method is None else method
        check_whole("size", size, 1)
        check_choice("method", method, methods())
        found, temperature = self.found, self.config.search.warp.temperature
        usable = found.log_likelihoods < np.inf  # −inf is no failure, NaN is
        chosen = select(method, found.log_probs, size, found.gram, usable, temperature=temperature)
        used = np.asarray(chosen.weights) > 0
        members, weights = np.asarray(chosen.members)[used], np.asarray(chosen.weights)[used]
        return Ensemble(self, method, size, members, weights)

    def saved_ensemble(self) -> "Ensemble":
        """Return the ensemble that was saved last."""
        path = self.directory / _ENSEMBLE
        content = read_json(path, "ensemble")
        method, size, members, weights = map(content.get, ("method", "size", "members", "weights"))
        sound = (
            method in methods()
            and type(size) is int
            and size >= 1
            and isinstance(members, list)
            and isinstance(weights, list)
            and 0 < len(members) == len(weights)
            and all(type(i) is int and 0 <= i < len(self.found.archs) for i in members)
            and all(type(weight) in (int, float) and weight > 0 for weight in weights)
            and abs(sum(weights) - 1) < 1e-3
        )
        if not sound:
            raise BQNESError(f"ensemble {path} has been altered; select it again: bqnes reselect.")
        return Ensemble(self, method, size, np.array(members), np.array(weights, float))

    def test_probabilities(self, members: ArrayLike) -> Float[Array, "k m classes"]:
        """Return what candidates, by number, predict for the test images."""
        predict = live.stored_predictor(self.store, self.space, self.config.seed)
        return predict(jnp.asarray(self.found.archs[np.asarray(members)], jnp.int32))

    def predictor(self, members: ArrayLike) -> Predictor:
        """Return a function from images, like those of training, to log-probabilities.

        Those of candidates, by number; their weights are read once.
        """
        archs = self.found.archs[np.asarray(members)].astype(np.int32)
        texts = [self.space.to_string(arch) for arch in archs]
        weights = np.stack([self.store.weights(text, self.config.seed) for text in texts])
        classes, moments = int(self.found.classes), self.found.moments
        mesh = make_mesh(jax.local_devices())  # each host may ask for other images
        if self.config.space == "nats":
            network = train_config(self.config, classes).network
            return lambda images: predict_cells(network, weights, archs, images, moments, mesh)
        supernet = supernet_config(self.config, classes)
        shared = _read_array(self.directory / _SHARED)
        return lambda images: predict_slices_of(
            supernet, shared, weights, archs, images, moments, mesh
        )


@dataclasses.dataclass(frozen=True)
class Ensemble:
    """Members of a run, and their weights.

    Attributes:
        run: where the members come from.
        method: by which they were selected.
        size: how many were asked for; a method may use fewer.
        members: numbers of candidates.
        weights: positive, with sum 1.
    """

    run: Run
    method: str
    size: int
    members: Int[np.ndarray, " M"]
    weights: Float[np.ndarray, " M"]

    @property
    def archs(self) -> Int[np.ndarray, "M length"]:
        """The architectures of the members."""
        return self.run.found.archs[self.members]

    @property
    def texts(self) -> list[str]:
        """The architectures as text."""
        return [self.run.space.to_string(arch) for arch in self.archs]

    @functools.cached_property
    def test_probabilities(self) -> Float[Array, "m classes"]:
        """What the ensemble says about the test images."""
        return ensemble_probabilities(self.weights, self.run.test_probabilities(self.members))

    @functools.cached_property
    def metrics(self) -> Metrics:
        """How good it is on the test images."""
        return measure(self.test_probabilities, self.run.found.test_labels)

    def predict(self, images: ArrayLike) -> Float[Array, "n classes"]:
        """Return class probabilities of images, as they come: not normalised, from 0 to 255.

        Larger images than those the networks saw are shrunk as those were.
        """
        found = self.run.found
        brightness = float(found.moments[0].mean())
        images = as_images(images, found.image_shape, self.run.config.data.size, brightness)
        log_probs = self.run.predictor(self.members)(images)
        return jnp.exp(ensemble_log_probabilities(self.weights, log_probs))

    def save(self) -> None:
        """Make it the ensemble of its run: the one that `saved_ensemble` returns."""
        with writing(f"run {self.run.directory}"):
            write_json(
                self.run.directory / _ENSEMBLE,
                {
                    "method": self.method,
                    "size": self.size,
                    "members": self.members.tolist(),
                    "weights": self.weights.tolist(),
                    "architectures": self.texts,
                },
            )


def measure(probabilities: ArrayLike, labels: ArrayLike) -> Metrics:
    """Return the three metrics of the paper's tables."""
    values = (metric(probabilities, labels) for metric in (accuracy, ece, log_likelihood))
    return Metrics(*(round(float(value), 6) for value in values))  # float32 has no more digits


@contextlib.contextmanager
def _begun(directory: Path, config: RunConfig) -> Iterator[None]:
    """Make the directory of a run, or see that it is of the same, and keep others out of it."""
    with contextlib.ExitStack() as stack:
        if is_first():
            with writing(f"run {directory}"):
                directory.mkdir(parents=True, exist_ok=True)
            stack.enter_context(locked(directory / _LOCK, f"run {directory}"))
            _check_config(directory, config)
        wait_for_all()
        if not (directory / _CONFIG).is_file():
            raise BQNESError(
                f"run {directory} was begun by the first host, but is not seen by host "
                f"{jax.process_index()}; choose a directory (--out) on a file system they share."
            )
        yield


def _check_config(directory: Path, config: RunConfig) -> None:
    """Note the config in an empty directory; refuse that of another run."""
    path = directory / _CONFIG
    if not path.is_file():
        versions = {name: importlib.metadata.version(name) for name in _PACKAGES}
        with writing(f"run {directory}"):
            write_json(path, {"config": dataclasses.asdict(config), "versions": versions})
        return
    there = _read_config(directory)
    if there != config:
        name, old, new = _difference(dataclasses.asdict(there), dataclasses.asdict(config))
        raise BQNESError(
            f"run {directory} has {name} = {old!r}, not {new!r}; use another directory (--out) for "
            "this one, or the same config."
        )


def _difference(old: dict, new: dict, prefix: str = "") -> tuple[str, object, object]:
    name = next(name for name in old if old[name] != new[name])
    if isinstance(old[name], dict):
        return _difference(old[name], new[name], f"{prefix}{name}.")
    return prefix + name, old[name], new[name]


def _read_config(directory: Path) -> RunConfig:
    content = read_json(directory / _CONFIG, "config").get("config")
    if not isinstance(content, dict):
        raise BQNESError(f"{directory / _CONFIG} has been altered: it holds no config.")
    return updated(PRESETS["tiny"], content, str(directory / _CONFIG))


def _found(history, trace, gram, data: Split, classes: int) -> Found:
    count = int(history.count)
    evidence = trace.evidence
    values = Found(
        history.archs[:count],
        history.log_likelihoods[:count],
        history.log_probs[:count],
        history.scores[:count],
        gram[:count, :count],
        trace.count,
        evidence.log_evidence,
        jnp.hypot(evidence.posterior_sd, evidence.sampling_sd),
        data.test.labels,
        np.array(data.train.images.shape[1:]),
        jnp.stack(channel_moments(jnp.asarray(data.train.images))),
        np.array(classes),
    )
    return Found(*map(np.asarray, values))


def _as_bytes(save: Callable, *arrays: np.ndarray, **named: np.ndarray) -> bytes:
    content = io.BytesIO()
    save(content, *arrays, **named)
    return content.getvalue()


def _read_array(path: Path) -> np.ndarray:
    remedy = "give the command of the run again."
    damaged = "is damaged or not there"
    with damaged_means_refused(path, damaged, remedy, f"{damaged}; {remedy}"):
        array = read_npy(path)
        if array.ndim != 1 or array.dtype.kind != "f":
            raise ValueError(f"it has type {array.dtype} and shape {array.shape}")
    return array


def _read_found(path: Path, config: RunConfig) -> Found:
    with damaged_means_refused(
        path,
        "is damaged",
        "remove it and give the command of the run again: what was trained is in its store.",
    ):
        found = read_arrays(path, Found)
        _check_found(found, config)
    return found


def _check_found(found: Found, config: RunConfig) -> None:
    """Refuse candidates that are not of the space, and numbers that are not of this search."""
    (count, length), slimmable = found.archs.shape, config.supernet.network.space
    if config.space == "slimmable" and length != slimmable.blocks * slimmable.layers:
        raise ValueError("its candidates are of another space")  # whose options may fill the memory
    options = space_of(config).options
    sound = (
        count > 0
        and length == len(options)
        and np.all((found.archs >= 0) & (found.archs < options))
        and np.all((found.counts >= 0) & (found.counts <= count))
        and found.classes >= 2
        and np.all((found.test_labels >= 0) & (found.test_labels < found.classes))
        and np.all(found.image_shape > 0)
        and found.moments.shape[1] == found.image_shape[2]
        and np.all(np.isfinite(found.moments))
    )
    if not sound:
        raise ValueError("its numbers are out of range")
