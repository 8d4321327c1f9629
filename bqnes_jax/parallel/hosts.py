"""Several processes that do the same work together, each on a host of its own."""

import itertools
from collections.abc import Sequence
from typing import Any

import jax
from jax.experimental import multihost_utils

_FOREVER = 2**31 - 1  # milliseconds: 25 days

Tree = Any


def is_first() -> bool:
    """Tell whether this is the process that writes what all have in common."""
    return jax.process_index() == 0


def own_part(members: Sequence) -> Sequence:
    """Return those that this process takes care of; another takes care of each of the others."""
    return members[jax.process_index() :: jax.process_count()]


_meetings = itertools.count()


def wait_for_all() -> None:
    """Return when every process has come here."""
    if jax.process_count() > 1:
        import orbax.checkpoint as ocp  # takes a second or two

        # Collectives wait for half a minute only, this for as long as it takes.
        meet = ocp.multihost.get_barrier_sync_fn()
        meet(key=f"bqnes-{next(_meetings)}", timeout_ms=_FOREVER)


def agree(tree: Tree) -> Tree:
    """Return what the first process has, on all of them; shapes must be the same."""
    if jax.process_count() == 1:
        return tree
    wait_for_all()
    return multihost_utils.broadcast_one_to_all(tree)
