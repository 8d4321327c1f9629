"""What is in the directory of a run, and who may work in it.

config.json     the config, and the versions it ran with
store/          what each network predicts, and its variables
supernet/       checkpoints of the one network that all candidates are slices of, for such families
shared.bqt      what all networks of the run have in common
first-stage/    the run with shared weights that the candidates are a shortlist of, if it has one
arrivals.log    in what order they were asked for and arrived, if several were trained at once
search.npz      the candidates in their order, how alike they are, what was believed
ensemble.json   the members and weights of the ensemble that was selected
robustness.json what it does on corrupted images, if that was asked for
SHA256SUMS      what all of these but the store and arrivals.log may hold, so that damage shows
lock            held by the process that is at work, so that no other is
"""

import contextlib
import dataclasses
import importlib.metadata
import json
import warnings
from collections.abc import Iterator
from pathlib import Path

import jax

import bqnes_jax
from bqnes_jax.errors import BQNESError
from bqnes_jax.families import NetworkFamily, NoOptions, families, find, is_named
from bqnes_jax.files import as_json, check_bound, explain_writing, hold_lock, read_json, write_bound
from bqnes_jax.identity import canonical, first_difference
from bqnes_jax.parallel import is_first, wait_for_all
from bqnes_jax.runs.config import RunConfig
from bqnes_jax.runs.fields import replace_fields
from bqnes_jax.storage import Store
from bqnes_jax.storage.entries import CHOICES, describe_family

CONFIG, SEARCH, ENSEMBLE, SHARED = "config.json", "search.npz", "ensemble.json", "shared.bqt"
ARRIVALS = "arrivals.log"
FIRST_STAGE = "first-stage"
_LOCK = "lock"
_PACKAGES = ("jax", "jaxlib", "flax", "optax", "numpy")


@contextlib.contextmanager
def begin(directory: Path, config: RunConfig) -> Iterator[None]:
    """Make the directory of a run, or see that it is of the same, and keep others out of it."""
    with contextlib.ExitStack() as stack:
        if is_first():
            with explain_writing(f"run {directory}"):
                directory.mkdir(parents=True, exist_ok=True)
            stack.enter_context(hold_lock(directory / _LOCK, f"run {directory}"))
            _note_config(directory, config)
        wait_for_all()
        if not (directory / CONFIG).is_file():
            raise BQNESError(
                f"run {directory} was begun by the first host, but is not seen by host "
                f"{jax.process_index()}; choose a directory (--out) on a file system they share."
            )
        yield


def read_config(directory: Path) -> RunConfig:
    """Read the config of a run."""
    check_bound(directory / CONFIG, "remove it and give the command of the run again.")
    content = read_json(directory / CONFIG, "config").get("config")
    if not isinstance(content, dict):
        raise BQNESError(f"{directory / CONFIG} has been altered: it holds no config.")
    name = content.get("family")
    options = NoOptions()
    if isinstance(name, str) and name in families():
        options = find(name).options
    return replace_fields(RunConfig(train=options), content, where=str(directory / CONFIG))


def read_versions(directory: Path) -> dict[str, str]:
    """Read the versions of the packages that a run was begun with."""
    path = directory / CONFIG
    versions = read_json(path, "config").get("versions")
    if not isinstance(versions, dict) or not all(isinstance(v, str) for v in versions.values()):
        raise BQNESError(f"{path} has been altered: it holds no versions.")
    return versions


def check_family(directory: Path, family: NetworkFamily) -> None:
    """Refuse a family of another space than the run's; warn of one that trains otherwise."""
    manifest = Store.open(directory / "store").manifest
    if manifest.space != family.space.name:
        raise BQNESError(
            f"run {directory} is of the space {manifest.space!r}, but the family "
            f"{family.name!r} is of {family.space.name!r}; give the family that was trained."
        )
    trained = manifest.config if isinstance(manifest.config, dict) else {}
    given = describe_family(family, manifest.classes)
    given = json.loads(canonical(given))  # as a store gives it back
    if trained.get(CHOICES) != given.get(CHOICES):
        raise BQNESError(
            f"run {directory} is of {trained.get(CHOICES)}, but the family {family.name!r} is of "
            f"{given.get(CHOICES)}; give the family that was trained."
        )
    different = first_difference({name: trained.get(name) for name in given}, given)
    if different is None:
        return
    name, old, new = different
    warnings.warn(
        f"run {directory} was trained with {name} = {old!r}, the family that is given has {new!r}; "
        "what it predicts may differ.",
        stacklevel=3,
    )


def _note_config(directory: Path, config: RunConfig) -> None:
    """Note the config in an empty directory; refuse that of another run."""
    path = directory / CONFIG
    if not path.is_file():
        others = {name: importlib.metadata.version(name) for name in _PACKAGES}
        versions = {"bqnes-jax": bqnes_jax.__version__} | others
        _write_config(directory, config, versions)
        return
    different = first_difference(read_config(directory).identity(), config.identity())
    if different is not None:
        name, old, new = different
        raise BQNESError(
            f"run {directory} has {name} = {old!r}, not {new!r}; use another directory (--out) "
            "for this one, or the same config."
        )


def keep_config(directory: Path, config: RunConfig) -> None:
    """Note what the same run was asked for last: it may have gone further, or selected another."""
    there = read_config(directory)
    longest = max(there.search.budget, config.search.budget)
    search = dataclasses.replace(config.search, budget=longest)
    config = dataclasses.replace(config, search=search)
    if not is_named(config.family):  # objects in a run that may have been begun by their names
        own = {name: getattr(there, name) for name in ("family", "data", "train")}
        config = dataclasses.replace(config, **own)
    if there != config:
        _write_config(directory, config, read_versions(directory))


def _write_config(directory: Path, config: RunConfig, versions: dict[str, str]) -> None:
    with explain_writing(f"run {directory}"):
        content = {"config": dataclasses.asdict(config), "versions": versions}
        write_bound(directory / CONFIG, as_json(content))
