"""What an algorithm is given, and what it returns."""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int32

from bqnes_jax.calibration import Calibration
from bqnes_jax.candidates import History, Info, SearchConfig
from bqnes_jax.drivers import Evaluate
from bqnes_jax.errors import BQNESError
from bqnes_jax.kernels import Kernel
from bqnes_jax.pooling import Pool
from bqnes_jax.selection import Selection, SelectionInfo, select
from bqnes_jax.spaces.base import Space
from bqnes_jax.types import PRNGKey


class Result(NamedTuple):
    """An ensemble, and how it was found.

    Attributes:
        archs: M architectures. A place that is not in use has weight 0.
        weights: as in a `Selection`; all 0 if nothing usable was evaluated (Status.EMPTY).
        info: how good it is on the validation points.
        history: everything that was evaluated, or taken into account.
        trace: what was believed after each step, stacked; None where nothing was searched.
        pool: what the weights are for: a mixture, or a pool in log space.
        calibration: the temperature after pooling; None where it was not fitted.
    """

    archs: Int32[Array, "M length"]
    weights: Float[Array, " M"]
    info: SelectionInfo
    history: History
    trace: Info | None
    pool: Pool = Pool.MIXTURE
    calibration: Calibration | None = None


Algorithm = Callable[[PRNGKey, Evaluate], Result]
Maker = Callable[[Space, int, Kernel | None, SearchConfig], Algorithm]


class Given(NamedTuple):
    """What members are selected by.

    Attributes:
        history: what was evaluated; a log-likelihood of NaN is a failure.
        gram: how alike the candidates are, where the method needs it.
        log_prior: the logarithm of their prior; equal unless given.
        temperature: that of the search (`Info.temperature`).
        rule: the weights of a quadrature of the prior (`Strategy.rule`), where the method needs it.
        classes: what they say about all classes, where the method needs it (`classes_for`).
    """

    history: History
    gram: Float[Array, "n n"] | None = None
    log_prior: Float[Array, " n"] | None = None
    temperature: ArrayLike | None = None
    rule: Float[Array, " n"] | None = None
    classes: Float[Array, "n points classes"] | None = None

    def arguments(self) -> dict:
        """Return them as arguments of `selection.select`."""
        history = self.history
        if history.log_probs is None:
            raise BQNESError(
                "evaluate returned log_probs None; selecting an ensemble needs the log-probability "
                "of the true class for each validation point: use a table or a store with "
                "predictions."
            )
        return {
            "log_probs": history.log_probs,
            "classes": self.classes,
            "kernel": self.gram,
            "mask": history.evaluated & (history.log_likelihoods < jnp.inf),  # −inf is no failure
            "log_prior": self.log_prior,
            "temperature": self.temperature,
            "rule": self.rule,
            "measures": history.measures,
        }


def select_members(method: str, given: Given, size: int) -> Selection:
    """Select members and weights from what was evaluated."""
    return select(method, size=size, **given.arguments())


def as_result(chosen: Selection, history: History, *, trace: Info | None = None) -> Result:
    """Return the ensemble of the members that were selected."""
    archs = history.archs[chosen.members]
    return Result(archs, chosen.weights, chosen.info, history, trace, chosen.pool)
