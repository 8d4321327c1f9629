"""States of a training on the disk: the last ones, each there whole or not at all."""

import json
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

import jax
import numpy as np

from bqnes_jax.errors import BQNESError
from bqnes_jax.files import read_json, write_json, writing

_KEPT = 2  # one to go on from if the last is damaged


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
        with writing(f"training {directory}"):
            write_json(path, recipe)
        return
    stored = read_json(path, "the description of a training")
    different = [k for k in recipe.keys() | stored.keys() if recipe.get(k) != stored.get(k)]
    if different:
        raise BQNESError(
            f"{directory} holds checkpoints of another training (different: "
            f"{', '.join(sorted(different))}); choose another directory, or the same config, "
            "images and key."
        )


class Checkpoints:
    """The last states of a training, by their `step`.

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
        with writing(f"training {directory}"):
            directory.mkdir(exist_ok=True)
            self._manager = ocp.CheckpointManager(directory, options=options)

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, *_) -> None:
        self._manager.close()

    def latest(self, start: State) -> State:
        """Return the last state that was saved, of the same types as `start`; or `start`."""
        step = self._manager.latest_step()
        if step is None:
            return start
        like = jax.tree.map(lambda leaf: np.empty(leaf.shape, leaf.dtype), start)
        try:
            saved = self._manager.restore(step, args=self._ocp.args.StandardRestore(like))
        except Exception as error:  # of a damaged file Orbax has errors of many kinds
            raise BQNESError(
                f"checkpoint {self._directory / str(step)} cannot be read "
                f"({type(error).__name__}); remove it to go on from the one before."
            ) from error
        return jax.device_put(saved)

    def save(self, state: Stepped) -> None:
        """Have the state on the disk when this returns."""
        state = jax.device_get(state)  # Orbax saves what one host has on its devices only alone
        with writing(f"training {self._directory}"):
            self._manager.save(int(state.step), args=self._ocp.args.StandardSave(state))
            self._manager.wait_until_finished()
