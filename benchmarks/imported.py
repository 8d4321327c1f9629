"""Cells of the published benchmark, as `bqnes nats import` has read them.

For a data set there is a store of predictions, <folder>/<dataset>/, or at least a table of losses,
nats-<dataset>.npz in that folder or where the import puts it when nothing else is said: here.
"""

import functools
import hashlib
from pathlib import Path

import jax.numpy as jnp
import numpy as np

from bqnes_jax import tables
from bqnes_jax.data import fingerprint, load, split
from bqnes_jax.errors import BQNESError, check_choice
from bqnes_jax.nats_bench import SEEDS, read_results
from bqnes_jax.runs.workbench import stored_log_probs
from bqnes_jax.spaces import NATS, Subset
from bqnes_jax.storage import Store
from bqnes_jax.studies.rows import Predict
from bqnes_jax.tables import Table, Tabulated

_FILE = "nats-{}.npz"
_AT_ONCE = 64  # all predictions for all classes would fill the memory


def describe_store(name: str, folder: Path, seed: int, split_file: Path | None) -> dict:
    """Say what results depend on: which networks, and of which images."""
    check_choice("training-seed", seed, SEEDS)
    if not has_store(name, folder):
        raise BQNESError(
            f"{folder / name} is not a store of predictions; make it with: bqnes nats import "
            f"--archive ARCHIVE --dataset {name} --store {folder / name}"
        )
    store = Store.open(folder / name)
    stored = store.summaries()
    ok = sum(entry.seed == seed and entry.status == "ok" for entry in stored)
    _check_any(ok, store.directory, seed, {e.seed for e in stored if e.status == "ok"})
    return {
        "training seed": seed,
        "architectures": ok,
        "failed": sum(entry.seed == seed for entry in stored) - ok,
        "images": store.manifest.config.get("inputs"),
        "own split": split_file is None,
    }


def describe_losses(name: str, folder: Path, seed: int, split_file: Path | None) -> dict:
    """Say what results depend on where losses are enough: those of a store, if there is one."""
    path = _table(name, folder)
    if has_store(name, folder):
        return describe_store(name, folder, seed, split_file)
    if path is None:
        raise BQNESError(
            f"there is no store {folder / name}, and no table {folder / _FILE.format(name)}; make "
            f"one with: bqnes nats import --archive ARCHIVE --dataset {name}"
        )
    check_choice("training-seed", seed, SEEDS)
    results = read_results(path)
    if results.dataset != name:
        raise BQNESError(f"{path} is of {results.dataset}, and not of {name}.")
    there = np.isfinite(results.valid_losses)
    column = SEEDS.index(seed)
    ok = int(there[:, column].sum())
    _check_any(
        ok, path, seed, {s for s, any_ in zip(SEEDS, there.any(axis=0), strict=True) if any_}
    )
    losses = hashlib.sha256(results.valid_losses[:, column].tobytes()).hexdigest()
    return {"training seed": seed, "architectures": ok, "failed": 0, "losses": losses[:16]}


def from_store(
    name: str, folder: Path, seed: int, split_file: Path | None
) -> tuple[Tabulated, Predict]:
    """Read validation predictions, and return those of test images when they are asked for."""
    data = split(load(name), file=split_file)
    store = Store.open(folder / name)
    if store.manifest.config.get("inputs") != fingerprint(data):
        raise BQNESError(
            f"{folder / name} is of other images than {name}, or split otherwise; give the "
            "--split-file that it was imported with."
        )
    texts = [e.arch for e in store.summaries() if e.seed == seed and e.status == "ok"]
    numbers = np.asarray(NATS.index(jnp.stack([NATS.from_string(text) for text in texts])))
    texts = [texts[i] for i in np.argsort(numbers)]
    log_probs, right = [], []
    for start in range(0, len(texts), _AT_ONCE):
        said = store.predictions(texts[start : start + _AT_ONCE], seed).valid_log_probs
        log_probs.append(said[:, np.arange(len(data.valid.labels)), data.valid.labels])
        right.append((said.argmax(-1) == data.valid.labels).mean(axis=1))
    log_probs = jnp.asarray(np.concatenate(log_probs), jnp.float32)
    table = Table(log_probs.sum(axis=1), jnp.asarray(np.concatenate(right)), log_probs)
    space = Subset(NATS, tuple(np.sort(numbers).tolist()))
    labels = jnp.asarray(data.test.labels)
    predict = functools.partial(stored_log_probs, store, NATS, seed)
    return Tabulated(space, table, labels), predict


def losses(name: str, folder: Path, seed: int, split_file: Path | None) -> tuple[Subset, Table]:
    """Read what does without predictions: of a store, or of a table where there is none."""
    if has_store(name, folder):
        return from_store(name, folder, seed, split_file)[0][:2]
    table = tables.nats_bench(_table(name, folder), seed)
    numbers = np.flatnonzero(np.isfinite(table.log_likelihoods))
    some = Table(table.log_likelihoods[numbers], table.accuracies[numbers])
    return Subset(NATS, tuple(numbers.tolist())), some


def what_is_left_out(content: dict) -> list[str]:
    """Say what of the benchmark is not there, from what `describe_…` has said."""
    absent = NATS.size - content["architectures"] - content["failed"]
    seed = content["training seed"]
    parts = [f"{absent:,} architectures have no training with seed {seed} here"] if absent else []
    if content["failed"]:
        parts.append(f"{content['failed']:,} are left out for other losses than published")
    if content.get("own split"):
        parts.append("images are split into validation and test here, not as the benchmark did")
    return [*parts, f"one training of each architecture, with seed {seed}"]


def has_store(name: str, folder: Path) -> bool:
    """Tell whether there is a store of predictions."""
    return (folder / name / "manifest.json").is_file()


def _table(name: str, folder: Path) -> Path | None:
    file = _FILE.format(name)
    return next((path for path in (folder / file, Path(file)) if path.is_file()), None)


def _check_any(count: int, path: Path, seed: int, others: set[int]) -> None:
    if not count:
        raise BQNESError(
            f"training-seed is {seed}, but {path} has no network trained with it"
            + (f", only with {', '.join(map(str, sorted(others)))}." if others else ".")
        )
