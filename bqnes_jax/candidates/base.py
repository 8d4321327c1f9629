"""What every strategy shares: what has been evaluated, what was asked for, what is believed.

A strategy is a pair of pure functions. `init(key)` asks for the first architectures, `step(key,
state, outcome)` takes what evaluating them gave and asks for the next; both return `(state, info)`
and the architectures to evaluate are `info.archs`. On a table of results the loop around them is a
`lax.scan`; with real training it is a `for` loop on the host, over the same functions.
"""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple, Protocol, runtime_checkable

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int32

from bqnes_jax.errors import BQNESError, check_shape, check_whole
from bqnes_jax.kernels import Kernel
from bqnes_jax.quadrature.evidence import Evidence
from bqnes_jax.spaces.base import Architectures, EnumerableSpace, Space
from bqnes_jax.surrogates import FitConfig, Hyperparameters, LikelihoodModel, WarpConfig
from bqnes_jax.types import PRNGKey


@dataclasses.dataclass(frozen=True)
class SearchConfig:
    """How candidates are searched for; the defaults are the paper's.

    Attributes:
        initial: architectures drawn from the prior to begin with.
        budget: architectures evaluated in all, those included.
        batch: how many are asked for at a time after that.
        warp: the surrogate of the likelihood.
        fit: how its hyper-parameters are fitted, at every step.
        population: of evolution; it is filled with random architectures first, which spend the
            whole budget if that is no larger.
        parents: how many of a population may have offspring; also the best ones whose mutations
            join a pool.
        pool: architectures scored at each step where the space cannot be listed.
        mutated: how many of the pool are mutations of the best so far; the rest are prior draws.
        climbs: rounds of local search from the best of that pool: steps to better neighbours.
        samples: prior draws that stand for a space that cannot be listed in the evidence.
    """

    initial: int = 10
    budget: int = 150
    batch: int = 1
    warp: WarpConfig = WarpConfig()  # noqa: RUF009 (immutable)
    fit: FitConfig = FitConfig()  # noqa: RUF009 (immutable)
    population: int = 50
    parents: int = 10
    pool: int = 1024
    mutated: int = 128
    climbs: int = 10
    samples: int = 2048

    def __post_init__(self) -> None:
        check_whole("initial", self.initial, 1)
        check_whole("budget", self.budget, self.initial)
        check_whole("batch", self.batch, 1)
        check_whole("population", self.population, 1)
        check_whole("parents", self.parents, 1)
        check_whole("pool", self.pool, self.batch)
        check_whole("mutated", self.mutated, 0, self.pool)
        check_whole("climbs", self.climbs, 0)
        check_whole("samples", self.samples, 2)


class Outcome(NamedTuple):
    """What evaluating q architectures gave; NaN marks one that failed.

    Attributes:
        archs: the architectures.
        log_likelihoods: summed over the validation points.
        log_probs: of the true class of each of n validation points; None where it is not known.
        scores: with which they were asked for (`Info.scores`), for the record; NaN unless given.
    """

    archs: Int32[Array, "q length"]
    log_likelihoods: Float[Array, " q"]
    log_probs: Float[Array, "q n"] | None = None
    scores: Float[Array, " q"] | None = None


class History(NamedTuple):
    """All that has been evaluated, in order, padded to the budget."""

    archs: Int32[Array, "budget length"]
    log_likelihoods: Float[Array, " budget"]
    log_probs: Float[Array, "budget n"] | None
    scores: Float[Array, " budget"]
    count: Int32[Array, ""]

    @property
    def evaluated(self) -> Bool[Array, " budget"]:
        """True where there is an entry."""
        return jnp.arange(self.archs.shape[-2]) < self.count

    @property
    def usable(self) -> Bool[Array, " budget"]:
        """True where there is an entry that a surrogate can learn from."""
        return self.evaluated & jnp.isfinite(self.log_likelihoods)

    @property
    def best_index(self) -> Int32[Array, ""]:
        """Which entry has the largest log-likelihood, of those that did not fail."""
        return jnp.argmax(jnp.where(self.usable, self.log_likelihoods, -jnp.inf)).astype(jnp.int32)

    @property
    def best(self) -> Float[Array, " budget"]:
        """The largest log-likelihood up to each entry, −inf before the first."""
        return lax.cummax(jnp.where(self.usable, self.log_likelihoods, -jnp.inf))


class State(NamedTuple):
    """What the next step needs."""

    history: History
    reference: Array | None  # prior draws for the evidence, where the space cannot be listed


class Info(NamedTuple):
    """What a step asks for, and what is believed after `count` evaluations.

    Attributes:
        archs: q architectures to evaluate next.
        scores: their acquisition values. Of a strategy that draws at random they are the
            log-probabilities of the draws; 0 where a strategy has none, −inf where the best or the
            likeliest of what is left was asked for and nothing was.
        count: how many have been evaluated.
        best: the largest log-likelihood among them, −inf if there is none.
        evidence: log Ẑ under the surrogate, with its errors and status.
        hyperparameters: amplitude and noise of the surrogate of the likelihood.
        kernel: of that surrogate, with its leaves as fitted.
    """

    archs: Int32[Array, "q length"]
    scores: Float[Array, " q"]
    count: Int32[Array, ""]
    best: Float[Array, ""]
    evidence: Evidence
    hyperparameters: Hyperparameters
    kernel: Kernel


class Strategy(NamedTuple):
    """A way to choose candidates; made by `candidates.make`."""

    init: Callable[[PRNGKey], tuple[State, Info]]
    choose: Callable[[PRNGKey, State], tuple[State, Info]]
    gram: Callable[[Info, Architectures], Float[Array, "n n"]]  # by the fitted kernel

    def step(self, key: PRNGKey, state: State, outcome: Outcome) -> tuple[State, Info]:
        """Record what evaluating architectures gave, and choose what to evaluate next."""
        return self.choose(key, record(state, outcome))


class Pool(NamedTuple):
    """Architectures to choose from; the surrogate sees the i-th as `rows[row_of[i]]`."""

    archs: Int32[Array, "k length"]
    rows: Array
    row_of: Int32[Array, " k"] | None
    fresh: Bool[Array, " k"]  # not evaluated yet


@runtime_checkable
class Landscape(Protocol):
    """What strategies need to know of a space and a kernel."""

    kernel: Kernel  # on rows
    rows: Callable[[Architectures], Array]

    def reference(self, key: PRNGKey) -> Array | None:
        """Draw what the evidence sums over, as rows; None where that is everything."""

    def summands(self, reference: Array | None) -> tuple[Array, Float[Array, " m"]]:
        """Return rows that stand for the prior, and their probabilities."""

    def pool(self, key: PRNGKey, history: History) -> Pool:
        """Return what can be asked for next."""


class Situation(NamedTuple):
    """What a strategy decides on: what there is, what is known and what is believed."""

    space: Space
    landscape: Landscape
    config: SearchConfig
    history: History
    model: LikelihoodModel


# Asks for q architectures: their rows, and a score of each.
Chooser = Callable[[PRNGKey, Situation, int], tuple[Int32[Array, "q length"], Float[Array, " q"]]]


def empty_history(budget: int, length: int) -> History:
    """Return a history without entries."""
    return History(
        jnp.zeros((budget, length), jnp.int32),
        jnp.full(budget, jnp.nan),
        None,
        jnp.full(budget, jnp.nan),
        jnp.int32(0),
    )


def record(state: State, outcome: Outcome) -> State:
    """Append what evaluating architectures gave; what exceeds the budget is dropped.

    Any but the first outcomes must have predictions if and only if the first had.
    """
    history = state.history
    archs = jnp.asarray(outcome.archs, jnp.int32)
    check_shape("outcome.archs", archs, (None, history.archs.shape[1]))
    budget, q = len(history.archs), len(archs)
    log_likelihoods = jnp.asarray(outcome.log_likelihoods, history.log_likelihoods.dtype)
    check_shape("outcome.log_likelihoods", log_likelihoods, (q,))
    scores = jnp.full(q, jnp.nan) if outcome.scores is None else outcome.scores
    check_shape("outcome.scores", scores, (q,))
    places = history.count + jnp.arange(q)
    log_probs = history.log_probs
    if outcome.log_probs is not None:
        check_shape("outcome.log_probs", outcome.log_probs, (q, None))
        if log_probs is None:
            points = outcome.log_probs.shape[1]
            log_probs = jnp.full((budget, points), jnp.nan, outcome.log_probs.dtype)
        log_probs = log_probs.at[places].set(outcome.log_probs, mode="drop")
    elif log_probs is not None:
        raise BQNESError("outcome.log_probs is None; earlier outcomes had predictions: pass them.")
    return state._replace(
        history=History(
            history.archs.at[places].set(archs, mode="drop"),
            history.log_likelihoods.at[places].set(log_likelihoods, mode="drop"),
            log_probs,
            history.scores.at[places].set(scores, mode="drop"),
            jnp.minimum(history.count + q, budget).astype(jnp.int32),
        )
    )


def not_evaluated(space: EnumerableSpace, history: History) -> Bool[Array, " size"]:
    """Tell which architectures of a space that can be listed are not in the history."""
    # Padding is sent out of range, which drops it.
    places = jnp.where(history.evaluated, space.index(history.archs), space.size)
    return jnp.ones(space.size, bool).at[places].set(False, mode="drop")


def is_among(
    archs: Int32[Array, "k length"], others: Architectures, counts: Bool[Array, " n"]
) -> Bool[Array, " k"]:
    """Tell which architectures equal one of the others that count."""
    same = jnp.all(archs[:, None, :] == others[None, :, :], axis=-1)
    return jnp.any(same & counts, axis=1)


def first_fresh(
    proposals: Int32[Array, "k length"], history: History, q: int
) -> Int32[Array, "q length"]:
    """Take the first q proposals that are new and differ from each other; others if there are none.

    Proposals that are not new come after those that are, so that there are always q.
    """
    same = jnp.all(proposals[:, None, :] == proposals[None, :, :], axis=-1)
    repeated = jnp.any(jnp.tril(same, k=-1), axis=1)
    stale = repeated | is_among(proposals, history.archs, history.evaluated)
    return proposals[jnp.argsort(stale, stable=True)[:q]]
