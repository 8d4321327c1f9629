"""The algorithms of the paper by name: a candidate strategy and a way to select the ensemble.

`make(name, space, size)` returns `run(key, evaluate)`, a pure function: compile it with `jax.jit`,
map it over keys for repeats. `evaluate` tells what evaluating architectures gives; one that looks
results up is `tables.evaluator(table, space)`.
"""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int32

from bqnes_jax import candidates
from bqnes_jax.candidates import History, Info, Outcome, SearchConfig, Strategy, record
from bqnes_jax.candidates.base import State, empty_history
from bqnes_jax.candidates.variational import draw_diverse, fit_mean_field
from bqnes_jax.errors import BQNESError, check_choice, check_whole
from bqnes_jax.kernels import Kernel
from bqnes_jax.selection import SelectionInfo, methods, select
from bqnes_jax.spaces.base import Architectures, Space, enumerate_space
from bqnes_jax.types import PRNGKey

Evaluate = Callable[[Architectures], Outcome]

_DRAWS = 10  # sets drawn by NES-BS, of which the best is kept


class Result(NamedTuple):
    """An ensemble, and how it was found.

    Attributes:
        archs: M architectures. A place that is not in use has weight 0.
        weights: non-negative with sum 1; all 0 if nothing usable was evaluated (Status.EMPTY).
        info: how good it is on the validation points.
        history: everything that was evaluated, or taken into account.
        trace: what was believed after each step, stacked; None where nothing was searched.
    """

    archs: Int32[Array, "M length"]
    weights: Float[Array, " M"]
    info: SelectionInfo
    history: History
    trace: Info | None


Run = Callable[[PRNGKey, Evaluate], Result]
Maker = Callable[[Space, int, Kernel | None, SearchConfig], Run]


def search(
    strategy: Strategy, config: SearchConfig, key: PRNGKey, evaluate: Evaluate
) -> tuple[History, Info]:
    """Spend the whole budget; returns what was evaluated and what was believed at each step.

    The first entry of the trace is after the initial architectures, the last after all of them.
    What the last step asks for, and what exceeds the budget in the last batch, is evaluated too and
    not recorded: on a table that costs nothing.
    """
    init_key, steps_key = jax.random.split(key)
    state, info = strategy.init(init_key)
    state = record(state, evaluate(info.archs)._replace(scores=info.scores))

    def step(state, key):
        state, info = strategy.choose(key, state)
        return record(state, evaluate(info.archs)._replace(scores=info.scores)), info

    # One step more than evaluations: for what is believed after the last of them.
    steps = -(-(config.budget - config.initial) // config.batch) + 1
    state, trace = lax.scan(step, state, jax.random.split(steps_key, steps))
    return state.history, trace


class Pair(NamedTuple):
    """The maker of an algorithm that chooses candidates and then selects among them."""

    strategy: str
    method: str
    only_members: bool = False  # as many candidates as members

    def __call__(self, space: Space, size: int, kernel: Kernel | None, config: SearchConfig) -> Run:
        """Make the algorithm."""
        self.check()
        config = self.budgeted(config, size)
        strategy = candidates.make(self.strategy, space, kernel, config)

        def run(key: PRNGKey, evaluate: Evaluate) -> Result:
            history, trace = search(strategy, config, key, evaluate)
            return select_ensemble(self.method, strategy, history, trace, size, config)

        return run

    def budgeted(self, config: SearchConfig, size: int) -> SearchConfig:
        """Return the config, with as many candidates as this algorithm needs."""
        if not self.only_members:
            return config
        return dataclasses.replace(config, initial=size, budget=size)

    def check(self) -> None:
        """Refuse names that do not exist, before anything is trained."""
        check_choice("strategy", self.strategy, candidates.strategies())
        check_choice("selection method", self.method, methods())


def select_ensemble(
    method: str,
    strategy: Strategy,
    history: History,
    trace: Info,
    size: int,
    config: SearchConfig,
) -> Result:
    """Select an ensemble from what a search has evaluated, alike by the kernel fitted last."""
    last = jax.tree.map(lambda leaf: leaf[-1], trace)
    gram = strategy.gram(last, history.archs)
    return _selected(method, history, size, gram, config)._replace(trace=trace)


def best_single(space: Space, size: int, kernel: Kernel | None, config: SearchConfig) -> Run:
    """Look at every architecture and take the one with the smallest validation loss, size or not.

    That needs a table of the whole space; among the candidates of a search, `"us+top"` with one
    member is its like.
    """
    _check_listed("Best single", space)

    def run(key: PRNGKey, evaluate: Evaluate) -> Result:
        best = _best_of_all(space, 1, evaluate)
        return _selected("top", best.history, size, None, config)

    return run


def variational_ensemble(
    space: Space, size: int, kernel: Kernel | None, config: SearchConfig
) -> Run:
    """Draw the members together from a distribution fitted to the best architectures of all.

    As many architectures as the budget, those with the largest likelihoods in the whole space, are
    what a mean-field distribution is fitted to; the best of ten sets drawn from it is returned.
    Members of a set may be the same.
    """
    _check_listed("NES-BS", space)

    def run(key: PRNGKey, evaluate: Evaluate) -> Result:
        best = _best_of_all(space, config.budget, evaluate)
        history = best.history
        distribution = fit_mean_field(
            space,
            history.archs,
            history.log_likelihoods,
            best.elsewhere,
            config.warp.temperature,
        )

        def draw(key: PRNGKey) -> Result:
            archs = draw_diverse(key, space, distribution, size)
            outcome = evaluate(archs)
            drawn = _history_of(outcome)
            return _selected("top", drawn, size, None, config)

        draws = lax.map(draw, jax.random.split(key, _DRAWS))
        # A set without a usable member has an infinite loss.
        best_draw = jnp.argmin(jnp.nan_to_num(draws.info.loss, nan=jnp.inf))
        chosen = jax.tree.map(lambda leaf: leaf[best_draw], draws)
        return chosen._replace(history=history)

    return run


_ALGORITHMS: dict[str, Maker] = {
    "BQ-S": Pair("us", "restack"),
    "BQ-R": Pair("us", "recombine"),
    "NES-RE": Pair("evolution", "beam"),
    "NES-BS": variational_ensemble,
    "Random": Pair("random", "top", only_members=True),
    "Best single": best_single,
}
_BUILT_IN = tuple(_ALGORITHMS)


def algorithms() -> tuple[str, ...]:
    """Return the names of the algorithms; every `"strategy+method"` is one more."""
    return tuple(_ALGORITHMS)


def register(name: str, maker: Maker) -> None:
    """Add an algorithm of your own: a function (space, size, kernel, config) -> run.

    Example:
        >>> register("EI + beam", Pair("ei", "beam"))
        >>> "EI + beam" in algorithms()
        True
    """
    if name in _BUILT_IN:
        raise BQNESError(f"name is {name!r}, which is built in; choose one not in {_BUILT_IN}.")
    _ALGORITHMS[name] = maker


def make(
    name: str,
    space: Space,
    size: int,
    kernel: Kernel | None = None,
    config: SearchConfig = SearchConfig(),  # noqa: B008 (immutable)
) -> Run:
    """Make the algorithm of that name.

    Args:
        name: `"BQ-S"`, `"BQ-R"`, `"NES-RE"`, `"NES-BS"`, `"Random"`, `"Best single"`, one that was
            registered, or any `"strategy+method"`, such as `"us+corrective"`.
        space: what to search.
        size: M, the number of members.
        kernel: between architectures; WL or RBF with their defaults, as the space has it.
        config: budget, batch, surrogate and the rest.

    Returns:
        A pure function `run(key, evaluate) -> Result`.

    Example:
        >>> from bqnes_jax.spaces import NATS
        >>> def evaluate(archs):  # predictions for two validation points; yours are trained
        ...     log_probs = -0.1 - 0.2 * jnp.stack([archs[:, 0], archs[:, 1]], axis=1)
        ...     return Outcome(archs, jnp.sum(log_probs, axis=1), log_probs)
        >>> run = make("NES-RE", NATS, size=2, config=SearchConfig(initial=4, budget=6))
        >>> result = jax.jit(run, static_argnums=1)(jax.random.key(0), evaluate)
        >>> result.archs.shape, result.weights.tolist()
        ((2, 6), [0.5, 0.5])
    """
    check_whole("size", size, 1)
    return find(name)(space, size, kernel, config)


def find(name: str) -> Maker:
    """Return what makes the algorithm of that name; a `Pair` where it is one.

    Example:
        >>> find("BQ-S")
        Pair(strategy='us', method='restack', only_members=False)
        >>> find("ei+beam").method
        'beam'
    """
    strategy, plus, method = name.partition("+")
    if name not in _ALGORITHMS and not plus:
        known = ", ".join(map(repr, _ALGORITHMS))
        raise BQNESError(f"algorithm is {name!r}; allowed are {known}, or 'strategy+method'.")
    maker = _ALGORITHMS.get(name, Pair(strategy, method))
    if isinstance(maker, Pair):
        maker.check()
    return maker


def _check_listed(name: str, space: Space) -> None:
    if space.size is None:
        raise BQNESError(
            f"{name} looks at every architecture, but space {space.name!r} cannot be listed; "
            "use another algorithm."
        )


def _selected(
    method: str,
    history: History,
    size: int,
    gram: Float[Array, "n n"] | None,
    config: SearchConfig,
) -> Result:
    if history.log_probs is None:
        raise BQNESError(
            "evaluate returned log_probs None; selecting an ensemble needs the log-probability of "
            "the true class for each validation point: use a table or a store with predictions."
        )
    chosen = select(
        method,
        history.log_probs,
        size,
        gram,
        history.evaluated & (history.log_likelihoods < jnp.inf),  # −inf is no failure, NaN is
        temperature=config.warp.temperature,
    )
    return Result(history.archs[chosen.members], chosen.weights, chosen.info, history, None)


class _Best(NamedTuple):
    history: History
    elsewhere: Float[Array, ""]  # average log-likelihood of all others


def _best_of_all(space: Space, count: int, evaluate: Evaluate) -> _Best:
    archs = enumerate_space(space)
    everything = evaluate(archs).log_likelihoods
    usable = jnp.isfinite(everything)
    _, best = lax.top_k(jnp.where(usable, everything, -jnp.inf), min(count, len(archs)))
    others = usable.at[best].set(False)
    average = jnp.sum(jnp.where(others, everything, 0)) / jnp.maximum(jnp.sum(others), 1)
    # With nothing usable left over, all else (which failed) is no better than the worst.
    worst = jnp.min(everything, where=usable, initial=jnp.inf)
    elsewhere = jnp.where(jnp.any(others), average, jnp.where(jnp.any(usable), worst, 0))
    return _Best(_history_of(evaluate(archs[best])), elsewhere)


def _history_of(outcome: Outcome) -> History:
    state = State(empty_history(*outcome.archs.shape), None)
    return record(state, outcome).history
