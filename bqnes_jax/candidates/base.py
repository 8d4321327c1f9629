"""What every strategy shares: what has been evaluated, what was asked for, what is believed.

A strategy is a pair of pure functions. `init(key)` asks for the first architectures and `ask(key,
state)` for the next; both return `(state, info)`, and the architectures to evaluate are
`info.archs`. `tell(state, outcome)` records what evaluating them gave. While some are being
evaluated, `ask(key, state, pending)` asks for others. `drivers` has the loops.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Literal, NamedTuple, Protocol, TypeVar, cast, runtime_checkable

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int32

from bqnes_jax.candidates.history import History, Outcome, Pending
from bqnes_jax.errors import BQNESError, check_choice, check_positive, check_shape, check_whole
from bqnes_jax.identity import EXTENT, SELECTION, SPEED, field
from bqnes_jax.kernels import Kernel, KernelConfig
from bqnes_jax.quadrature.evidence import Evidence
from bqnes_jax.quadrature.scale import OBSERVATIONS, choose_temperature, scale_temperature
from bqnes_jax.selection import MEASURES, Measure
from bqnes_jax.spaces.base import Architectures, EnumerableSpace, Space
from bqnes_jax.surrogates import (
    FitConfig,
    Hyperparameters,
    LikelihoodModel,
    Surrogate,
    WarpConfig,
)
from bqnes_jax.surrogates.fitting import Shape
from bqnes_jax.types import PRNGKey


@dataclasses.dataclass(frozen=True)
class SearchConfig:
    """How candidates are searched for; sizes are the paper's by default.

    Attributes:
        initial: architectures drawn from the prior to begin with.
        budget: architectures evaluated in all, those included.
        batch: how many are asked for at a time after that.
        kernel: how alike architectures are to the surrogate.
        temperature: divides the log-likelihoods, in the surrogate, in the evidence and in the
            posterior; "auto" chooses it on the first architectures. By default the number of
            validation points / `observations`, or the published 128 where that is not known.
        observations: how many independent observations all validation points count as.
        effective: the share of the first architectures that their posterior is worth, with "auto".
        warp: the surrogate of the likelihood.
        fit: how its hyper-parameters are fitted, and how often.
        population: of evolution; it is filled with random architectures first, which spend the
            whole budget if that is no larger.
        parents: how many of a population may have offspring; also the best ones whose mutations
            join a pool.
        exhaustive: whether every architecture is scored at each step where the space can be listed;
            otherwise a pool is, as where it cannot.
        pool: architectures scored at each step where not all are.
        mutated: how many of the pool are mutations of the best so far; the rest are prior draws.
        climbs: rounds of local search from the best of that pool: steps to better neighbours.
        measure: by which likelihood recombination and quadrature form the posterior over
            candidates: of validation points, of training points, or of both.
        diversity: δ of NES-BS: a positive one keeps the members of a set apart, the paper's −0.5
            lets them gather.
        samples: prior draws that stand for a space that cannot be listed in the evidence.
    """

    initial: int = 10
    budget: int = field(EXTENT, default=150)
    _: dataclasses.KW_ONLY
    batch: int = 1
    kernel: KernelConfig = KernelConfig()
    temperature: float | Literal["auto"] | None = None
    observations: float = OBSERVATIONS
    effective: float = 0.3
    warp: WarpConfig = WarpConfig()
    fit: FitConfig = FitConfig((1e-5, 10.0), mean="constant")  # by benchmarks/defaults.py
    population: int = 50
    parents: int = 10
    exhaustive: bool = True
    pool: int = 1024
    mutated: int = 128
    climbs: int = 10
    measure: Measure = field(SELECTION, default="valid")  # noqa: RUF009 (a field, of ours)
    diversity: float = field(SELECTION, default=-0.5)
    samples: int = field(SPEED, default=2048)

    def __post_init__(self) -> None:
        check_whole("initial", self.initial, 1)
        check_whole("budget", self.budget, 1)
        if self.budget < self.initial:
            raise BQNESError(
                f"budget is {self.budget}, less than the {self.initial} architectures to begin "
                "with; give a larger budget, or a smaller initial."
            )
        check_whole("batch", self.batch, 1)
        if self.temperature not in (None, "auto"):
            check_positive("temperature", self.temperature)
        check_positive("observations", self.observations)
        if not 0 < self.effective < 1:
            raise BQNESError(f"effective is {self.effective!r}; it must be between 0 and 1.")
        check_whole("population", self.population, 1)
        check_whole("parents", self.parents, 1)
        check_whole("pool", self.pool, self.batch)
        check_whole("mutated", self.mutated, 0, self.pool)
        check_whole("climbs", self.climbs, 0)
        check_choice("measure", self.measure, MEASURES)
        if not math.isfinite(self.diversity):
            raise BQNESError(f"diversity is {self.diversity}; it must be a finite number.")
        check_whole("samples", self.samples, 2)


# Log-probabilities of n architectures before anything is known, up to a constant; −inf rules out.
Prior = Callable[[Architectures], Float[Array, " n"]]

# Rows that stand for the prior, and their probabilities.
Summands = tuple[Array, Float[Array, " m"]]


class State(NamedTuple):
    """What the next step needs."""

    history: History
    reference: Summands | None  # draws for the evidence, where the space cannot be listed
    shape: Shape | None = None  # what was fitted last, where that is kept for some steps


class Info(NamedTuple):
    """What a step asks for, and what is believed after `count` evaluations.

    Attributes:
        archs: q architectures to evaluate next.
        scores: their acquisition values. Of a strategy that draws at random they are the
            log-probabilities of the draws; 0 where a strategy has none, −inf where the best or the
            likeliest of what is left was asked for and nothing was.
        count: how many have been evaluated.
        best: the largest log-likelihood among them, −inf if there is none.
        temperature: by which the log-likelihoods are divided.
        effective_size: of the posterior over what has been evaluated: how many equally likely
            architectures it is worth (`quadrature.effective_size`).
        evidence: log Ẑ under the surrogate, with its errors and status.
        hyperparameters: amplitude, noise and mean of the surrogate of the likelihood.
        kernel: of that surrogate, with its leaves as fitted.
    """

    archs: Int32[Array, "q length"]
    scores: Float[Array, " q"]
    count: Int32[Array, ""]  # pyright: ignore[reportIncompatibleMethodOverride]
    best: Float[Array, ""]
    temperature: Float[Array, ""]
    effective_size: Float[Array, ""]
    evidence: Evidence
    hyperparameters: Hyperparameters
    kernel: Kernel


@runtime_checkable
class Ask(Protocol):
    """Asks for what to evaluate next, beside what is being evaluated."""

    def __call__(
        self, key: PRNGKey, state: State, pending: Pending | None = None
    ) -> tuple[State, Info]:
        """Return the state, and what to evaluate next."""
        ...


class Strategy(NamedTuple):
    """A way to choose candidates; made by `candidates.make`."""

    init: Callable[[PRNGKey], tuple[State, Info]]
    ask: Ask
    gram: Callable[[Info, Architectures], Float[Array, "n n"]]  # by the fitted kernel
    rule: Callable[[Info, History], Float[Array, " n"]]  # weights of a quadrature of the prior
    prior: Prior | None = None  # uniform

    def step(self, key: PRNGKey, state: State, outcome: Outcome) -> tuple[State, Info]:
        """Record what evaluating architectures gave, and ask for what to evaluate next."""
        return self.ask(key, tell(state, outcome))


class Pool(NamedTuple):
    """Architectures to choose from; the surrogate sees the i-th as `rows[row_of[i]]`."""

    archs: Int32[Array, "k length"]
    rows: Array
    row_of: Int32[Array, " k"] | None
    fresh: Bool[Array, " k"]  # not asked for yet, nor ruled out by the prior
    log_prior: Float[Array, " k"] | None = None  # equal


@runtime_checkable
class Landscape(Protocol):
    """What strategies need to know of a space and a kernel."""

    @property
    def kernel(self) -> Kernel:
        """The kernel on rows."""
        ...

    @property
    def prior(self) -> Prior | None:
        """The logarithm of the prior; None where it is uniform."""
        ...

    def rows(self, archs: Architectures) -> Array:
        """Return the rows that the surrogate is given in place of architectures."""
        ...

    def reference(self, key: PRNGKey) -> Summands | None:
        """Draw what the evidence sums over; None where that is everything."""
        ...

    def summands(self, reference: Summands | None) -> Summands:
        """Return rows that stand for the prior, and their probabilities."""
        ...

    def pool(self, key: PRNGKey, history: History) -> Pool:
        """Return what can be asked for next."""
        ...


Believing = TypeVar("Believing", bound=Surrogate)


class Situation(NamedTuple):
    """What a strategy decides on: what there is, what is known and what is believed."""

    space: Space
    landscape: Landscape
    config: SearchConfig
    history: History
    fitted: LikelihoodModel | None  # to what is known; None where nothing has to be believed
    pending: Pending | None = None  # what is being evaluated

    @property
    def model(self) -> LikelihoodModel:
        """The surrogate of the likelihood, as if what is being evaluated were as it predicts."""
        assert self.fitted is not None, "the strategy was made without a surrogate"
        return self.expect(self.fitted)

    def expect(self, surrogate: Believing) -> Believing:
        """Let a surrogate expect its own predictions of what is being evaluated."""
        if self.pending is None:
            return surrogate
        rows = self.landscape.rows(self.pending.archs)
        return cast(Believing, surrogate.fantasise(rows, self.pending.mask))


# Asks for q architectures: their rows, and a score of each.
Chooser = Callable[[PRNGKey, Situation, int], tuple[Int32[Array, "q length"], Float[Array, " q"]]]


def check_members(name: str, size: object, space: Space, config: SearchConfig) -> None:
    """Refuse more members than a search has candidates, or than a space has architectures."""
    most = config.budget if space.size is None else min(config.budget, space.size)
    check_whole(name, size, 1, most)


def resolve_temperature(
    config: SearchConfig, log_likelihoods: Float[Array, " n"], points: int | None
) -> Float[Array, ""]:
    """Return the temperature of a search, by how many validation points there are.

    With "auto", by the log-likelihoods of its first architectures too.
    """
    by_points = jnp.asarray(scale_temperature(points, observations=config.observations), float)
    if config.temperature is None:
        return by_points
    if config.temperature == "auto":
        return choose_temperature(log_likelihoods, effective=config.effective, otherwise=by_points)
    return jnp.asarray(config.temperature, float)


@jax.jit
def tell(state: State, outcome: Outcome) -> State:
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
    measures = history.measures
    if outcome.measures is not None:
        measures = jnp.full(budget, jnp.nan) if measures is None else measures
        measures = measures.at[places].set(outcome.measures, mode="drop")
    return state._replace(
        history=History(
            history.archs.at[places].set(archs, mode="drop"),
            history.log_likelihoods.at[places].set(log_likelihoods, mode="drop"),
            log_probs,
            history.scores.at[places].set(scores, mode="drop"),
            jnp.minimum(history.count + q, budget).astype(jnp.int32),
            measures,
        )
    )


def find_fresh(space: EnumerableSpace, history: History) -> Bool[Array, " size"]:
    """Tell which architectures of a space that can be listed have not been asked for."""
    # Padding is sent out of range, which drops it.
    places = jnp.where(history.taken, space.index(history.archs), space.size)
    return jnp.ones(space.size, bool).at[places].set(False, mode="drop")


def is_allowed(archs: Architectures, prior: Prior | None) -> Bool[Array, " n"]:
    """Tell which architectures the prior does not rule out."""
    return jnp.ones(len(archs), bool) if prior is None else prior(archs) > -jnp.inf


def is_among(
    archs: Int32[Array, "k length"], others: Architectures, counts: Bool[Array, " n"]
) -> Bool[Array, " k"]:
    """Tell which architectures equal one of the others that count."""

    # One choice after another, which runs along the rows of a matrix and so is vectorised.
    def compare(same, pair):
        return same & (pair[0][:, None] == pair[1]), None

    every = jnp.broadcast_to(counts, (len(archs), len(counts)))
    return jnp.any(lax.scan(compare, every, (archs.T, others.T))[0], axis=1)


def first_fresh(
    proposals: Int32[Array, "k length"], history: History, q: int, *, prior: Prior | None = None
) -> Int32[Array, "q length"]:
    """Take the first q proposals that are new and differ from each other; others if there are none.

    Proposals that are not new, or that the prior rules out, come after those that are, so that
    there are always q.
    """
    same = jnp.all(proposals[:, None, :] == proposals[None, :, :], axis=-1)
    repeated = jnp.any(jnp.tril(same, k=-1), axis=1)
    stale = repeated | is_among(proposals, history.archs, history.taken)
    stale |= ~is_allowed(proposals, prior)
    return proposals[jnp.argsort(stale, stable=True)[:q]]
