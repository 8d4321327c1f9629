"""Predictions on disk: what each trained network said, safe against crashes and bit rot.

A store is a directory for one search space, one data set and one training config:

    manifest.json        what the entries belong to; written once
    entries/<key>.bqe    one trained network; <key> is a hash of architecture and seed

A file is written under a temporary name and renamed, so at any moment each entry is there whole or
not at all, whoever writes and whenever they are killed. An entry that was cut short or altered
later is reported by `DamagedEntryWarning` and treated as missing.
"""

import dataclasses
import os
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Float32

from bqnes_jax.errors import BQNESError
from bqnes_jax.files import as_path, explain_writing, open_file, sweep, write_whole
from bqnes_jax.files.trees import Tree
from bqnes_jax.identity import digest
from bqnes_jax.storage.records import (
    FAILED,
    NUMBERS,
    OK,
    DamagedError,
    Entry,
    Key,
    Manifest,
    Part,
    check_same,
    decode,
    encode,
    read_manifest,
    write_manifest,
)

__all__ = ["DamagedEntryWarning", "Entry", "Key", "Manifest", "Predictions", "Store", "merge"]

_ENTRY = ".bqe"
_ABANDONED = 3600.0  # seconds; to write one entry takes less than one


class DamagedEntryWarning(UserWarning):
    """An entry on disk cannot be trusted; it is treated as missing."""


class Predictions(NamedTuple):
    """The entries of k architectures, stacked; NaN where the training failed."""

    ok: Bool[np.ndarray, " k"]
    valid_log_probs: Float32[np.ndarray, "k n classes"]
    test_log_probs: Float32[np.ndarray, "k m classes"]
    train_losses: Float[np.ndarray, " k"]
    valid_losses: Float[np.ndarray, " k"]
    test_losses: Float[np.ndarray, " k"]
    seconds: Float[np.ndarray, " k"]
    train_log_likelihoods: Float[np.ndarray, " k"]


@dataclasses.dataclass(frozen=True)
class Store:
    """Predictions of trained networks in a directory. Make one with `Store.open`.

    Several processes may use the same directory at once; the last one to write a key wins.

    Example:
        >>> import tempfile
        >>> folder = tempfile.TemporaryDirectory()
        >>> manifest = Manifest("nats", "toy", {"epochs": 3}, 4, 2, 2)
        >>> store = Store.open(folder.name, manifest)
        >>> half = np.log(np.full((4, 2), 0.5))
        >>> store.put([Entry("a", 0, "ok", half, half[:2]), Entry("b", 0, "failed")])
        >>> store.find_missing(["a", "b", "c"], seeds=[0])
        [Key(arch='c', seed=0)]
        >>> store.predictions(["a", "b"], seed=0).ok.tolist()
        [True, False]
        >>> folder.cleanup()
    """

    directory: Path
    manifest: Manifest

    @classmethod
    def open(cls, directory: str | os.PathLike[str], manifest: Manifest | None = None) -> "Store":
        """Open a store, or make one; without a manifest, open what is there."""
        directory = as_path(directory)
        path, entries = directory / "manifest.json", directory / "entries"
        if manifest is None and not path.is_file():
            raise BQNESError(f"{directory} is not a store: it has no manifest.json.")
        with explain_writing(f"store {directory}"):
            if not entries.is_dir():
                entries.mkdir(parents=True, exist_ok=True)
            if manifest is not None and not path.is_file():
                write_whole(path, write_manifest(manifest), overwrite=False, swept=True)
        there = read_manifest(path)
        if manifest is not None:
            check_same(directory, there, manifest)
        store = cls(directory, there)
        for folder in (directory, entries):  # where writers on other hosts may be at work
            sweep(folder, age=_ABANDONED)
        return store

    def put(self, entries: Entry | Iterable[Entry]) -> None:
        """Write entries, each for good before the next; one of the same key is replaced."""
        for entry in [entries] if isinstance(entries, Entry) else entries:
            content = encode(entry, self.manifest)
            with explain_writing(f"entry {entry.arch!r} of store {self.directory}"):
                write_whole(self._path(entry.key), content, swept=True)

    def get(self, arch: str, seed: int) -> Entry | None:
        """Read one entry; None if it is missing or damaged."""
        return self._read(self._path(Key(arch, seed)))

    def variables(self, arch: str, seed: int) -> Tree:
        """Read what was trained."""
        entry = self._read(self._path(Key(arch, seed)), "variables")
        if entry is None or entry.variables is None:
            raise BQNESError(
                f"store {self.directory} has no variables of {arch!r} with seed {seed}, only what "
                "it predicted, and cannot predict anew; train it again and keep them."
            )
        return entry.variables

    def has_variables(self, arch: str, seed: int) -> bool:
        """Tell whether what was trained is kept, so that it can predict anew."""
        entry = self._read(self._path(Key(arch, seed)), "variables")
        return entry is not None and entry.variables is not None

    def find_missing(self, archs: Iterable[str], seeds: Iterable[int]) -> list[Key]:
        """List what has to be trained: never written, or damaged. What failed is not missing."""
        archs = list(archs)
        keys = (Key(arch, int(seed)) for seed in seeds for arch in archs)
        return [key for key in keys if not self._is_whole(key)]

    def keys(self) -> list[Key]:
        """List what is stored, in order."""
        return [entry.key for entry in self.summaries()]

    def summaries(self) -> list[Entry]:
        """List what is stored, in order, without predictions: reads headers and sizes only."""
        read = (self._read(path, "header") for path in self._paths())
        return sorted((entry for entry in read if entry is not None), key=lambda entry: entry.key)

    def predictions(self, archs: Sequence[str], seed: int | Sequence[int]) -> Predictions:
        """Read the entries of these architectures, with one seed or one each, stacked."""
        seeds = np.broadcast_to(seed, len(archs)).tolist()
        found = [self.get(*key) for key in zip(archs, seeds, strict=True)]
        absent = [key for *key, entry in zip(archs, seeds, found, strict=True) if entry is None]
        if absent:
            raise BQNESError(
                f"{len(absent)} of {len(archs)} architectures have no entry with seed "
                f"{absent[0][1]} in store {self.directory}, {absent[0][0]!r} the first; train what "
                "`find_missing` lists."
            )
        entries = [entry for entry in found if entry is not None]
        shape = self.manifest  # to be believed: entries have the size that it says
        valid = np.full((len(archs), shape.valid_points, shape.classes), np.nan, np.float32)
        test = np.full((len(archs), shape.test_points, shape.classes), np.nan, np.float32)
        for i, entry in enumerate(entries):
            if entry.status == OK:
                valid[i], test[i] = entry.valid_log_probs, entry.test_log_probs

        def column(name: str) -> np.ndarray:
            return np.array([getattr(entry, name) for entry in entries], np.float64)

        return Predictions(
            np.array([entry.status == OK for entry in entries], bool),
            valid,
            test,
            *map(column, NUMBERS),
        )

    def find_damaged(self) -> dict[Path, str]:
        """Read everything, and tell what is damaged and how."""
        found = {}
        for path in self._paths():
            try:
                self._decode(path)
                self._decode(path, "variables")
            except DamagedError as error:
                found[path] = str(error)
        return found

    def _whole(self, key: Key) -> Entry | None:
        """Read an entry with its variables; None if either is missing or damaged."""
        entry, kept = self.get(*key), self._read(self._path(key), "variables")
        return None if entry is None or kept is None else entry._replace(variables=kept.variables)

    def _is_whole(self, key: Key) -> bool:
        parts: tuple[Part, ...] = ("predictions", "variables")
        return all(self._read(self._path(key), part) is not None for part in parts)

    def _path(self, key: Key) -> Path:
        name = digest([key.arch, int(key.seed)])[:32]
        return self.directory / "entries" / (name + _ENTRY)

    def _paths(self) -> list[Path]:
        try:
            return sorted(
                path for path in (self.directory / "entries").iterdir() if path.suffix == _ENTRY
            )
        except OSError as error:
            raise BQNESError(f"store {self.directory} cannot be read ({error.strerror}).") from None

    def _read(self, path: Path, part: Part = "predictions") -> Entry | None:
        try:
            return self._decode(path, part)
        except DamagedError as error:
            message = f"{path} {error}; it is treated as missing."
            warnings.warn(message, DamagedEntryWarning, stacklevel=3)
            return None

    def _decode(self, path: Path, part: Part = "predictions") -> Entry | None:
        try:
            with open_file(path, follow=False) as file:
                entry = decode(file, self.manifest, part=part)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise DamagedError(f"cannot be read ({error.strerror})") from None
        if self._path(entry.key) != path:
            raise DamagedError("is filed under the name of another entry")
        return entry


def merge(target: Store, *sources: Store) -> int:
    """Copy what the target lacks, checked, and return how many entries that were.

    An entry that is ok replaces one that failed; otherwise the target keeps its own.
    """
    for source in sources:
        check_same(source.directory, source.manifest, target.manifest)
    copied = 0
    for source in sources:
        for summary in source.summaries():
            held = target.get(*summary.key) if target._is_whole(summary.key) else None
            offered = source._whole(summary.key)
            wanted = held is None or (held.status == FAILED and offered and offered.status == OK)
            if offered is not None and wanted:
                target.put(offered)
                copied += 1
    return copied
