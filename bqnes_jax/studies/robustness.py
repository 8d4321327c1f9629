"""How ensembles do on test images that are not like those they were validated on.

Validation images stay clean, as in the paper: members and weights are what they were, and only the
test images are corrupted.
"""

import dataclasses
import functools
import itertools
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int, UInt8

import bqnes_jax
from bqnes_jax.data import (
    CORRUPTIONS,
    Examples,
    Split,
    downsample,
    load,
    read_split,
    split_indices,
)
from bqnes_jax.data.shifted import CLEAN, Shifted, corrupt_test, read_corrupted
from bqnes_jax.errors import BQNESError, check_choice, check_whole
from bqnes_jax.files import as_json, check_bound, explain_writing, is_there, read_json, write_bound
from bqnes_jax.pooling import Pool
from bqnes_jax.runs import Ensemble, Run, TaskConfig, load_data
from bqnes_jax.storage import DamagedEntryWarning
from bqnes_jax.studies.rows import measure_ensemble

PAPER_SEVERITIES = (1, 3, 5)
OWN = "corrupted here"
NAMES = ("ensemble", "best single")  # what of a run is studied
_FILE = "robustness.json"

Condition = tuple[str, int]  # corruption and severity
Predict = Callable[[UInt8[np.ndarray, "n h w c"]], Float[np.ndarray | Array, "members n classes"]]
Measured = Float[np.ndarray, "ensembles 3"]


class Robustness(NamedTuple):
    """How good ensembles are under shift; the last axis is that of `runs.Metrics`.

    Attributes:
        names: of the ensembles.
        corruptions: which.
        severities: which.
        clean: on the test images as they are.
        shifted: on corrupted ones.
    """

    names: tuple[str, ...]
    corruptions: tuple[str, ...]
    severities: tuple[int, ...]
    clean: Float[np.ndarray, "ensembles 3"]
    shifted: Float[np.ndarray, "ensembles corruptions severities 3"]

    def by_severity(self) -> Float[np.ndarray, "ensembles severities 3"]:
        """Average over corruptions, as the paper's table does."""
        return self.shifted.mean(axis=1)


def conditions(
    corruptions: Sequence[str] = tuple(CORRUPTIONS), severities: Sequence[int] = PAPER_SEVERITIES
) -> list[Condition]:
    """List the clean images first, and then every corruption at every severity."""
    if not corruptions or not severities:
        raise BQNESError("corruptions or severities are none; give at least one of each.")
    for name in corruptions:
        check_choice("corruption", name, tuple(CORRUPTIONS))
    for severity in severities:
        check_whole("severity", severity, 1, 5)
    return [(CLEAN, 0), *itertools.product(corruptions, sorted(set(severities)))]


def study(
    predict: Predict,
    weights: Float[Array, "ensembles members"],
    shifted: Shifted,
    under: Iterable[Condition],
    *,
    pools: Sequence[Pool] | None = None,
    temperatures: ArrayLike | None = None,
) -> Iterator[tuple[Condition, Measured]]:
    """Measure ensembles of the same members, one condition after another.

    Args:
        predict: returns the log-probabilities of all members for images.
        weights: of the members in each ensemble; 0 for those that do not belong to it.
        shifted: returns the images of a condition; see `data.shifted`.
        under: the conditions.
        pools: what the weights of each ensemble are for; mixtures unless given.
        temperatures: of each ensemble after pooling; 1 unless given.
    """
    pools = (Pool.MIXTURE,) * len(weights) if pools is None else tuple(pools)
    for condition in under:
        images, labels = shifted(*condition)
        log_probs = predict(np.asarray(images))
        measured = measure_all(
            weights, log_probs, jnp.asarray(labels), pools=pools, temperatures=temperatures
        )
        yield condition, np.asarray(measured, float)


@functools.partial(jax.jit, static_argnames="pools")
def measure_all(
    weights: Float[Array, "ensembles members"],
    log_probs: Float[Array, "members n classes"],
    labels: Int[Array, " n"],
    *,
    pools: tuple[Pool, ...] | None = None,
    temperatures: ArrayLike | None = None,
) -> Float[Array, "ensembles 3"]:
    """Return accuracy, ECE and log-likelihood of every ensemble, a mixture unless said."""
    warmth = jnp.ones(len(weights)) if temperatures is None else jnp.asarray(temperatures)
    pools = (Pool.MIXTURE,) * len(weights) if pools is None else pools
    measured = jnp.zeros((len(weights), 3), jnp.result_type(weights, log_probs))
    for pool in Pool:  # one program for all ensembles of a kind, however many they are
        rows = np.flatnonzero([own == pool for own in pools])
        if rows.size:
            found = jax.lax.map(
                lambda one, pool=pool: measure_ensemble(
                    one[0], log_probs, labels, pool=pool, temperature=one[1]
                ),
                (weights[rows], warmth[rows]),
            )
            measured = measured.at[rows].set(found)
    return measured


def collect(
    names: Sequence[str], measured: dict[Condition, Measured], under: Sequence[Condition]
) -> Robustness:
    """Put what `study` yields into one array."""
    corruptions = tuple(dict.fromkeys(name for name, _ in under if name != CLEAN))
    severities = tuple(dict.fromkeys(severity for _, severity in under if severity))
    shifted = [[measured[name, severity] for severity in severities] for name in corruptions]
    shifted = np.moveaxis(np.array(shifted, float), 2, 0)
    return Robustness(tuple(names), corruptions, severities, measured[CLEAN, 0], shifted)


def of_run(
    run: Run,
    corruptions: Sequence[str] = tuple(CORRUPTIONS),
    *,
    severities: Sequence[int] = PAPER_SEVERITIES,
    path: str | None = None,
    data: Split | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Robustness:
    """Study the saved ensemble of a run, and its best single network, and keep what is found.

    What was measured before, of the same ensemble on the same images, is not measured again.

    Args:
        run: whose ensemble.
        corruptions: which.
        severities: from 1 to 5.
        path: of published corrupted images (see `data.shifted.published`) instead of own ones.
        data: what the run was given, if that was arrays and not the name of a data set.
        progress: called with (how many conditions are measured, how many there are).
    """
    under = conditions(corruptions, severities)
    ensemble, single = run.saved_ensemble(), run.ensemble(1, "top")
    members = np.union1d(ensemble.members, single.members)
    weights = np.stack([_spread(one, members) for one in (ensemble, single)])
    pools = ensemble.pool, single.pool
    setting = _setting(ensemble) | {"images": str(path or OWN)}
    of_setting, _, known = _read(run)
    measured = known if of_setting == setting else {}
    own = None if data is None else corrupt_test(jax.random.key(run.config.seed), _images(data))
    shifted = own or shifted_test_images(run.config, path)
    labels, known = shifted(CLEAN, 0).labels, run.record.test_labels
    if len(labels) == len(known) and not np.array_equal(labels, known):
        raise BQNESError(
            f"the test images of {run.config.data} are not those of run {run.directory}: the "
            "data have changed since."
        )
    missing = [condition for condition in under if condition not in measured]
    predict = run.predictor(members)
    temperatures = np.array([ensemble.temperature, single.temperature])
    for condition, found in study(
        predict,
        jnp.asarray(weights),
        shifted,
        missing,
        pools=pools,
        temperatures=jnp.asarray(temperatures),
    ):
        measured[condition] = found
        _write(run, setting, under, measured)
        if progress is not None:
            progress(sum(one in measured for one in under), len(under))
    _write(run, setting, under, measured)  # so that a report shows what was asked for last
    return collect(NAMES, measured, under)


def read_study(run: Run) -> tuple[Robustness, str] | None:
    """Return what `of_run` found last for the saved ensemble, and of which images; None if nothing.

    Nothing is also what was not measured to its end, or damaged.
    """
    setting, under, measured = _read(run)
    ensemble = _setting(run.saved_ensemble())
    if {name: setting.get(name) for name in ensemble} != ensemble:
        return None
    if not all(condition in measured for condition in under):
        return None
    return collect(NAMES, measured, under), setting["images"]


def shifted_test_images(task: TaskConfig, path: str | None = None) -> Shifted:
    """Return the test images of a task under a condition, own or published.

    They are corrupted in the size they come in, and shrunk after that, as the task's images are.
    """
    if path is None:
        whole = load_data(dataclasses.replace(task, image_size=None))
        full = corrupt_test(jax.random.key(task.seed), _images(whole))
    else:
        dataset = load(task.data, task.data_directory)
        if task.split_file:
            places = read_split(task.split_file, dataset)
        else:
            places = split_indices(dataset, task.split, seed=task.split_seed)
        full = read_corrupted(path, dataset, places)

    def shift(name: str, severity: int) -> Examples:
        images, labels = full(name, severity)
        return Examples(downsample(images, task.image_size) if task.image_size else images, labels)

    return shift


def _images(data: Split) -> Examples:
    """Return the test data, if they are images that can be corrupted."""
    inputs = data.test.inputs
    if inputs.ndim != 4 or inputs.dtype != np.uint8:
        raise BQNESError(
            f"the test inputs of {data.name} have type {inputs.dtype} and shape {inputs.shape}; "
            "only images, uint8 of shape (n, height, width, channels), can be corrupted."
        )
    return data.test


def _spread(ensemble: Ensemble, members: Int[np.ndarray, " k"]) -> Float[np.ndarray, " k"]:
    """Return the weight of each of these members in an ensemble."""
    weights = np.zeros(len(members))
    np.add.at(weights, np.searchsorted(members, ensemble.members), ensemble.weights)
    return weights


def _setting(ensemble: Ensemble) -> dict:
    """Describe what measurements are of; another version may corrupt images otherwise."""
    run = ensemble.run
    likely = np.where(run.record.log_likelihoods < np.inf, run.record.log_likelihoods, -np.inf)
    return {
        "members": ensemble.members.tolist(),
        "weights": ensemble.weights.round(6).tolist(),
        "pool": ensemble.pool.value,
        "temperature": ensemble.temperature,
        "single": [int(likely.argmax()), run.config.calibrate],
        "version": bqnes_jax.__version__,
    }


def _read(run: Run) -> tuple[dict, list[Condition], dict[Condition, Measured]]:
    """Read what was measured before: of what, under what, and how good it is.

    Damaged files count as nothing, with a warning.
    """
    path = run.directory / _FILE
    if not is_there(path):
        return {}, [], {}
    try:
        check_bound(path, "measure it again.")
        content = read_json(path, "study")
        under = [(str(name), severity) for name, severity in content["under"]]
        corruptions, severities = (dict.fromkeys(column) for column in zip(*under[1:], strict=True))
        if under != conditions(tuple(corruptions), tuple(severities)):
            raise ValueError
        if not isinstance(content["setting"]["images"], str):
            raise TypeError
        return content["setting"], under, _measure(content["measured"])
    except (BQNESError, KeyError, TypeError, ValueError, AttributeError):
        message = f"{path} is damaged and counts as not measured; bqnes robustness does it again."
        warnings.warn(message, DamagedEntryWarning, stacklevel=2)
        return {}, [], {}


def _plain(found: Measured) -> list:
    """Return numbers as lists, with None for those that JSON does not have."""
    return np.where(np.isfinite(found), found.round(6), np.array(None)).tolist()


def _measure(content: dict) -> dict[Condition, Measured]:
    measured = {}
    for name, values in content.items():
        corruption, _, severity = name.partition("-")
        found = np.array(values, float)
        if found.shape != (len(NAMES), 3):
            raise ValueError
        measured[corruption, int(severity)] = found
    return measured


def _write(
    run: Run, setting: dict, under: list[Condition], measured: dict[Condition, Measured]
) -> None:
    values = {
        f"{corruption}-{severity}": _plain(found)
        for (corruption, severity), found in measured.items()
    }
    content = {"setting": setting, "under": under, "measured": values}
    with explain_writing(f"run {run.directory}"):
        write_bound(run.directory / _FILE, as_json(content))
