"""States of a training on the disk: the last ones, each there whole or not at all."""

import contextlib
import errno
import hashlib
import json
import logging
import os
import secrets
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol, TypeVar, cast, runtime_checkable

import jax
import numpy as np

from bqnes_jax.errors import BQNESError
from bqnes_jax.files import as_json, explain_writing, read_json
from bqnes_jax.files.digests import (
    check_bound,
    digest_folder,
    is_noted,
    is_unknown,
    note,
    write_bound,
)

_KEPT = 2  # one to go on from if the last is damaged
_DESCRIPTION = "_CHECKPOINT_METADATA"  # Orbax writes it into each
_DESCRIBED = {"metrics": dict, "init_timestamp_nsecs": int, "commit_timestamp_nsecs": int}
_PART = "default"  # how Orbax calls the only part of a checkpoint
_TEMPORARY = "*.orbax-checkpoint-tmp*"  # what Orbax calls a checkpoint that it is saving
_ASIDE = "damaged-"  # what a damaged checkpoint is called
_ROOM = 1 << 20  # bytes that a checkpoint takes beside its numbers
_CANNOT_TELL = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)  # of file systems without fallocate


@runtime_checkable
class Stepped(Protocol):
    """A state of a training: a tree of arrays that knows how many steps were done."""

    @property
    def step(self) -> Any:
        """How many steps were done."""
        ...


State = TypeVar("State", bound=Stepped)


def check_same(directory: Path, recipe: dict) -> None:
    """Refuse a directory of another training; note what this one is in an empty one."""
    recipe = json.loads(json.dumps(recipe))  # lists for tuples, as they are read
    path = directory / "training.json"
    if not path.exists():
        with explain_writing(f"training {directory}"):
            write_bound(path, as_json(recipe))
        return
    check_bound(path, "train in another directory, or put the file back.")
    stored = read_json(path, "the description of a training")
    different = [k for k in recipe.keys() | stored.keys() if recipe.get(k) != stored.get(k)]
    if different:
        raise BQNESError(
            f"{directory} holds checkpoints of another training (different: "
            f"{', '.join(sorted(different))}); choose another directory, or the same config, "
            "images and key."
        )


class Checkpoints:
    """The last states of a training, by their `step`; no other process may use the directory.

    What a killed one left is removed. Of damaged checkpoints the one that was put aside last stays.
    Orbax is imported when it is needed: that takes a second or two.
    """

    def __init__(self, directory: Path):
        import orbax.checkpoint as ocp

        self._directory, self._ocp = directory, ocp
        # With several hosts this one alone does the training, and does not wait for the others.
        alone = {jax.process_index()} if jax.process_count() > 1 else None
        options = ocp.CheckpointManagerOptions(
            max_to_keep=_KEPT,
            enable_async_checkpointing=False,
            create=False,
            multiprocessing_options=ocp.options.MultiprocessingOptions(active_processes=alone),
        )
        with explain_writing(f"training {directory}"):
            directory.mkdir(exist_ok=True)
            _remove(directory, _TEMPORARY)  # Orbax would do it in a thread, which prints tracebacks
            _put_undescribed_aside(directory)
            try:
                self._manager = ocp.CheckpointManager(directory, options=options)
            except ValueError:  # of a description that was altered: it reads all of them
                _put_altered_aside(directory)
                self._manager = ocp.CheckpointManager(directory, options=options)

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, *_) -> None:
        self._manager.close()

    def latest(self, start: State) -> State:
        """Return the last state that was saved and is whole, of the same types as `start`.

        It is `start` where there is none. One that is damaged is put aside, and a warning says so.
        """
        like = jax.tree.map(lambda leaf: np.empty(leaf.shape, leaf.dtype), start)
        steps = sorted(self._manager.all_steps(), reverse=True)
        for step, before in zip(steps, [*steps, None][1:], strict=True):
            saved, reason = self._read(step, like)
            if saved is not None:
                return jax.device_put(saved)
            with explain_writing(f"training {self._directory}"):
                _put_aside(self._directory / str(step), reason, _from_step(before))
            self._manager.reload()
        return start

    def _read(self, step: int, like: State) -> tuple[State | None, str]:
        """Return a state and nothing, or None and why it is damaged.

        Orbax sees only files that are as they were written: of others some of its threads print
        tracebacks. Whoever was killed after saving has not noted the files, but their numbers.
        """
        folder = self._directory / str(step)
        name = _files_of(folder)
        known = not is_unknown(self._directory, name)  # refused where the digests are no file
        try:
            files = digest_folder(folder)
        except OSError as error:
            return None, error.strerror or "it cannot be read"
        if known and not is_noted(self._directory, name, files):
            return None, "its files are not those that were saved"
        try:
            with _quiet():
                arguments = self._ocp.args.StandardRestore(like)
                saved = cast(State, self._manager.restore(step, args=arguments))
        except MemoryError:
            raise
        except Exception as error:  # of a damaged file Orbax has errors of many kinds
            return None, type(error).__name__
        if int(saved.step) != step:
            return None, f"it is of step {int(saved.step)}"
        if is_noted(self._directory, str(step), _digest(saved)):
            return saved, ""
        return None, "its numbers are not those that were saved"

    def save(self, state: Stepped) -> None:
        """Have the state on the disk when this returns."""
        state = jax.device_get(state)  # Orbax saves what one host has on its devices only alone
        step = int(state.step)
        with explain_writing(f"training {self._directory}"):
            self._make_room(state)
            note(self._directory, str(step), _digest(state))
            try:
                with _quiet():
                    self._manager.save(step, args=self._ocp.args.StandardSave(state))
                    self._manager.wait_until_finished()
            except Exception as error:  # TensorStore has a ValueError for a full disk
                raise _as_os_error(error) from error
            folder = self._directory / str(step)
            note(self._directory, _files_of(folder), digest_folder(folder))

    def _make_room(self, state: Stepped) -> None:
        """Raise what the system says where there is too little room, before Orbax meets it.

        It would leave a part of its work behind, which complains later, in tracebacks.
        """
        size = sum(np.asarray(leaf).nbytes for leaf in jax.tree.leaves(state))
        with tempfile.TemporaryFile(dir=self._directory) as file:
            if not hasattr(os, "posix_fallocate"):
                return
            try:
                os.posix_fallocate(file.fileno(), 0, 2 * size + _ROOM)
            except OSError as error:
                if error.errno not in _CANNOT_TELL:
                    raise


def _put_undescribed_aside(directory: Path) -> None:
    """Put aside checkpoints whose description Orbax would stop at, or take for all of them."""
    folders = [path for path in directory.iterdir() if path.name.isdecimal()]
    damaged = [folder for folder in folders if not _is_described(folder)]
    newest = max((int(folder.name) for folder in set(folders) - set(damaged)), default=None)
    for folder in damaged:
        _put_aside(folder, "its description cannot be read", _from_step(newest))


def _put_altered_aside(directory: Path) -> None:
    """Put aside checkpoints whose files are known, and are not those that were saved."""
    for folder in [path for path in directory.iterdir() if path.name.isdecimal()]:
        name = _files_of(folder)
        if not is_unknown(directory, name) and not is_noted(directory, name, digest_folder(folder)):
            _put_aside(folder, "its files are not those that were saved", "does without it")


def _is_described(folder: Path) -> bool:
    """Tell whether a checkpoint has what Orbax goes by, before it reads anything: its one part.

    Where that is missing, it takes all checkpoints for others than they are.
    """
    try:
        described = read_json(folder / _DESCRIPTION, "the description of a checkpoint")
    except BQNESError:
        return False
    handlers = described.get("item_handlers")
    return (
        isinstance(handlers, dict)
        and all(isinstance(handler, str) for handler in handlers.values())
        and all(isinstance(described.get(name, kind()), kind) for name, kind in _DESCRIBED.items())
        and (folder / _PART).is_dir()
    )


def _files_of(folder: Path) -> str:
    """Return under which name the digest of a checkpoint's files is noted.

    Each save has its own: a step that is saved again has other files, and whoever is killed before
    they are noted must not find those of the first time.
    """
    try:
        described = read_json(folder / _DESCRIPTION, "the description of a checkpoint")
    except BQNESError:
        described = {}
    return f"{folder.name}/{described.get('init_timestamp_nsecs')}/files"


def _from_step(step: int | None) -> str:
    return "begins anew" if step is None else f"goes on from step {step}"


def _put_aside(folder: Path, reason: str, otherwise: str) -> None:
    """Rename a damaged checkpoint, and warn of it with what the training does instead.

    Those that were put aside before are removed.
    """
    warnings.warn(
        f"checkpoint {folder} is damaged ({reason}) and put aside; the training {otherwise}.",
        stacklevel=3,
    )
    _remove(folder.parent, f"{_ASIDE}*")
    os.replace(folder, folder.with_name(f"{_ASIDE}{folder.name}-{secrets.token_hex(4)}"))


def _remove(directory: Path, pattern: str) -> None:
    """Remove folders as far as the system lets it: they are in nobody's way."""
    for folder in directory.glob(pattern):
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep Orbax from printing tracebacks, one for each of its threads, of what it raises too."""
    logger = logging.getLogger("absl")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(level)


def _digest(state: object) -> str:
    """Return the sha256 of a state: its form, and all its numbers."""
    leaves, form = jax.tree.flatten(jax.device_get(state))
    digest = hashlib.sha256(str(form).encode())
    for leaf in map(np.asarray, leaves):
        digest.update(f"{leaf.dtype.str}{leaf.shape}".encode())
        digest.update(np.ascontiguousarray(leaf).tobytes())
    return digest.hexdigest()


def _as_os_error(error: Exception) -> OSError:
    """Return the error of the system that a text speaks of; otherwise one with the text."""
    reason = " ".join(str(error).split())
    for number in errno.errorcode:
        if os.strerror(number) in reason:
            return OSError(number, os.strerror(number))
    return OSError(errno.EIO, f"{type(error).__name__}: {reason[:160]}")
