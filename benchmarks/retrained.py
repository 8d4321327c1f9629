"""How much of a lead comes from how networks happened to be trained.

The standard error over searches says nothing of that: all of them choose among the same networks.
A second, independent training of some cells of a table, or of a supernet, does. Algorithms search
twice, with the same keys, and what a lead differs by is the training.
"""

import numpy as np
from shared import companion

from bqnes_jax import tables
from bqnes_jax.errors import BQNESError
from bqnes_jax.spaces import Subset
from bqnes_jax.tables import Tabulated


def restrict(tabulated: Tabulated, space: Subset) -> Tabulated:
    """Return the part of a table that is about the cells of a smaller space."""
    whole, table, labels = tabulated
    assert isinstance(whole, Subset)
    missing = set(space.numbers) - set(whole.numbers)
    if missing:
        raise BQNESError(
            f"{len(missing)} of the {space.size} cells that were trained again are not in the "
            "table; make theirs by: bqnes tabulate --again TABLE"
        )
    rows = np.searchsorted(np.array(whole.numbers), np.array(space.numbers))
    own = {
        name: value[rows]
        for name, value in table._asdict().items()
        if value is not None and name != "train_points"
    }
    return Tabulated(space, table._replace(**own), labels)


def trainings(name: str) -> tuple[Tabulated, ...]:
    """Return the cells of a table that were trained twice, by either training, or nothing."""
    path = companion(name, "again")
    if path is None:
        return ()
    again = tables.read(path)
    assert isinstance(again.space, Subset)
    return restrict(tables.find(name), again.space), again


def deviation(first: np.ndarray, second: np.ndarray) -> float:
    """Return the standard deviation of a lead from training to training.

    With n leads d (each the mean over seeds) and their standard errors e, in either training,

        s² = mean over leads of ((d₁ − d₂)² − e₁² − e₂²) / 2,

    which is 0 where the searches' own noise explains what the leads differ by.

    Args:
        first: leads×seeds, by the first training.
        second: by the second.
    """
    apart = first.mean(axis=1) - second.mean(axis=1)
    noise = sum(each.var(axis=1, ddof=1) / each.shape[1] for each in (first, second))
    return float(np.sqrt(max(np.mean(apart**2 - noise) / 2, 0)))
