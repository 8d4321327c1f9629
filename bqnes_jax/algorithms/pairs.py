"""Algorithms that choose candidates by a strategy, and then select among them by a method."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int32

from bqnes_jax import candidates
from bqnes_jax.algorithms.base import Algorithm, Given, Result, as_result
from bqnes_jax.calibration import select_calibrated
from bqnes_jax.candidates import History, Prior, SearchConfig, Strategy
from bqnes_jax.candidates.replicates import of_the_best
from bqnes_jax.drivers import Driver, Evaluate, Searched, scan
from bqnes_jax.errors import BQNESError, check_choice
from bqnes_jax.kernels import Kernel
from bqnes_jax.selection import methods, needs_classes, needs_kernel, select
from bqnes_jax.spaces.base import Architectures, Space
from bqnes_jax.types import PRNGKey


class Pair(NamedTuple):
    """The maker of an algorithm that chooses candidates and then selects among them."""

    strategy: str
    method: str
    only_members: bool = False  # as many candidates as members
    needs_seeds: bool = False  # a candidate is (architecture, weight seed)
    one_architecture: bool = False  # all members are replicates of the best architecture

    def __call__(
        self,
        space: Space,
        size: int,
        kernel: Kernel | None,
        config: SearchConfig,
        *,
        driver: Driver = scan,
        prior: Prior | None = None,
    ) -> Algorithm:
        """Make the algorithm."""
        self.check()
        config = self.with_budget(config, size)
        strategy = candidates.make(self.strategy, space, kernel=kernel, config=config, prior=prior)

        def run(key: PRNGKey, evaluate: Evaluate) -> Result:
            searched = driver(strategy, config, key, evaluate)
            if config.measure != "valid" and searched.history.measures is None:
                raise BQNESError(
                    f"measure is {config.measure!r}, but evaluate returned no measures; use "
                    "selection.measure_candidates there, or measure='valid'."
                )
            classes = classes_for(self.method, evaluate, searched.history.archs)
            return select_ensemble(self, strategy, searched, size, classes=classes)

        return run

    def with_budget(self, config: SearchConfig, size: int) -> SearchConfig:
        """Return the config, with as many candidates as this algorithm needs."""
        if not self.only_members:
            return config
        return dataclasses.replace(config, initial=size, budget=size)

    def selectable(self, history: History, size: int | Int32[Array, ""]) -> History:
        """Return a history with what this algorithm does not select from left out, or failed."""
        if self.only_members:  # it never had more to choose from than it takes
            return history._replace(count=jnp.minimum(history.count, size))
        if self.one_architecture:
            own = jnp.where(of_the_best(history), history.log_likelihoods, jnp.nan)
            return history._replace(log_likelihoods=own)
        return history

    def check(self) -> None:
        """Refuse names that do not exist, before anything is trained."""
        check_choice("strategy", self.strategy, candidates.strategies())
        check_choice("selection method", self.method, methods())


def classes_for(
    method: str, evaluate: Evaluate, archs: Architectures
) -> Float[Array, "n points classes"] | None:
    """Return what architectures say about all classes, if the method needs to know."""
    if not needs_classes(method):
        return None
    classes = evaluate(archs).classes
    if classes is None:
        raise BQNESError(
            f"evaluate returned classes None; {method!r} needs the log-probabilities of all "
            "classes at the validation points: use a store, or a table that has them."
        )
    return classes


def select_ensemble(
    algorithm: Pair,
    strategy: Strategy,
    searched: Searched,
    size: int,
    *,
    classes: Float[Array, "n points classes"] | None = None,
    calibrated: bool = False,
    limit: Int32[Array, ""] | None = None,
) -> Result:
    """Select an ensemble from what a search has evaluated.

    They are alike by the kernel fitted last, and likely at the temperature of the search. If it is
    `calibrated`, which needs what they say about all classes, a temperature is fitted as well. Of
    `size` slots only as many are filled as `limit` says (`selection.select`).
    """
    history, trace = searched
    last = jax.tree.map(lambda leaf: leaf[-1], trace)
    alike = needs_kernel(algorithm.method)
    given = Given(
        algorithm.selectable(history, size if limit is None else limit),
        strategy.gram(last, history.archs) if alike else None,
        None if strategy.prior is None else strategy.prior(history.archs),
        last.temperature,
        strategy.rule(last, history) if alike else None,
        classes,
    )
    method, arguments = algorithm.method, given.arguments()
    if not calibrated:
        chosen = select(method, size=size, limit=limit, **arguments)
        return as_result(chosen, history, trace=trace)
    chosen, calibration = select_calibrated(method, size=size, limit=limit, **arguments)
    return as_result(chosen, history, trace=trace)._replace(calibration=calibration)
