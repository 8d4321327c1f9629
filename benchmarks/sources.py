"""What algorithms are compared on: cells of a table, or slices of a supernet.

Either may have been trained twice, which tells how much of a lead comes from training.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import gates
import jax.numpy as jnp
import retrained
import slimmable
from jaxtyping import Array

from bqnes_jax.candidates import SearchConfig
from bqnes_jax.errors import BQNESError, check_choice
from bqnes_jax.runs import Workbench
from bqnes_jax.studies.comparison import compare_on_table
from bqnes_jax.studies.rows import Row
from bqnes_jax.tables import Tabulated

# (names, sizes, seeds, budget) -> rows, with calibrated metrics as well.
Compare = Callable[[Sequence[str], Sequence[int], int, int], list[Row]]


class Source(NamedTuple):
    """Networks to search among.

    Attributes:
        name: the stem of the table's file, or DATASET-slices.
        described: what results depend on.
        gates: measures whether a search with so many candidates can answer anything.
        compare: compares algorithms.
        best: returns what some of the best networks by validation say about the test points; of
            slices they are the best of the draws for the gates.
        trainings: functions like `compare`, one for each of two trainings of the same cells or of
            a supernet; or nothing.
        most: with how many candidates these can be compared; None for as many as one likes.
    """

    name: str
    described: dict
    gates: Callable[[int], list[gates.Gate]]
    compare: Compare
    best: Callable[[int], Array]
    trainings: tuple[Compare, ...]
    most: int | None = None

    def largest(self, budget: int) -> int:
        """Return with how many candidates trainings are compared, instead of `budget`."""
        return budget if self.most is None else min(budget, self.most)


def with_budget(config: SearchConfig, budget: int) -> SearchConfig:
    return replace(config, initial=min(config.initial, budget), budget=budget)


def of_cells(name: str, config: SearchConfig) -> Source:
    """Return the cells of a table of the package, or of a file, to search with that config."""
    tabulated, seeded = gates.read(name)
    space, table, _ = tabulated
    if table.classes is None:
        raise BQNESError(f"{name} has no classes of validation points, which calibration needs.")

    def comparing(tabulated: Tabulated) -> Compare:
        return lambda names, sizes, seeds, budget: compare_on_table(
            tabulated,
            names,
            sizes,
            seeds,
            config=with_budget(config, budget),
            calibrated=True,
        )

    def best(count: int) -> Array:
        return jnp.asarray(table.test_log_probs)[jnp.argsort(-table.log_likelihoods)[:count]]

    trainings = retrained.trainings(name)
    return Source(
        Path(name).stem,
        {"cells": space.size},
        lambda budget: gates.measure(tabulated, seeded, with_budget(config, budget), 5),
        comparing(tabulated),
        best,
        tuple(map(comparing, trainings)),
        min((one.space.size // 2 for one in trainings), default=None),
    )


def of_slices(name: str, stores: Path, config: SearchConfig) -> Source:
    """Return the slices of two supernets, trained where missing, to search with that config."""
    benches = slimmable.open_twice(name, stores)

    def comparing(bench: Workbench) -> Compare:
        return lambda names, sizes, seeds, budget: slimmable.compare_slices(
            bench, names, sizes, seeds, with_budget(config, budget), calibrated=True
        )

    def best(count: int) -> Array:
        archs = slimmable.draw_archs(benches[0].space)
        known = slimmable.draw(benches[0], archs)
        return benches[0].test_log_probs(archs[jnp.argsort(-known)[:count]])

    trainings = tuple(map(comparing, benches))
    return Source(
        f"{name}-slices",
        {"scaled down": slimmable.what_was_scaled_down(name)},
        lambda budget: slimmable.measure_gates(benches, with_budget(config, budget)),
        trainings[0],
        best,
        trainings,
    )


def find(name: str, stores: Path, observations: float | None = None) -> Source:
    """Return what a name is of: DATASET-slices, or a table.

    Searches have the default scale of the likelihood, or so many observations.
    """
    scale = {} if observations is None else {"observations": observations}
    if name.endswith("-slices"):
        dataset = name.removesuffix("-slices")
        check_choice("data set of slices", dataset, slimmable.TASKS)
        source = of_slices(dataset, stores, replace(slimmable.SEARCH, **scale))
    else:
        source = of_cells(name, replace(SearchConfig(), **scale))
    if not scale:
        return source
    own = f"{source.name}-{observations:g}-observations"
    return source._replace(name=own, described=source.described | scale)
