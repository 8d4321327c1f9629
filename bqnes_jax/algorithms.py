"""The algorithms of the paper by name: a candidate strategy and a way to select the ensemble.

`make(name, space, size)` returns `run(key, evaluate)`, a pure function: compile it with `jax.jit`,
map it over keys for repeats. `evaluate` tells what evaluating architectures gives; one that looks
results up is `tables.evaluator(table, space)`; with `driver=drivers.loop` it may train on the host.
"""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int32

from bqnes_jax import candidates
from bqnes_jax.calibration import Calibration, select_calibrated
from bqnes_jax.candidates import History, Info, Outcome, Prior, SearchConfig, Strategy, tell
from bqnes_jax.candidates.base import State, check_members, resolve_temperature
from bqnes_jax.candidates.history import empty_history
from bqnes_jax.candidates.replicates import of_the_best
from bqnes_jax.candidates.variational import draw_diverse, fit_mean_field
from bqnes_jax.drivers import Driver, Evaluate, Searched, scan
from bqnes_jax.errors import BQNESError, check_choice
from bqnes_jax.kernels import Kernel
from bqnes_jax.pooling import Pool
from bqnes_jax.registry import Registry
from bqnes_jax.selection import (
    Selection,
    SelectionInfo,
    methods,
    needs_classes,
    needs_kernel,
    select,
)
from bqnes_jax.spaces.base import Architectures, Space, enumerate_space
from bqnes_jax.spaces.seeded import count_seeds
from bqnes_jax.types import PRNGKey

__all__ = [  # pyright: ignore[reportUnsupportedDunderAll] (it reads no parts)
    *("Algorithm", "Given", "Maker", "Pair", "Result", "algorithms", "best_single", "check_seeds"),
    *("classes_for", "find", "find_trainable", "make", "register", "select_ensemble"),
    *("select_members", "variational_ensemble"),
]


def __dir__() -> list[str]:
    return __all__


_DRAWS = 10  # sets drawn by NES-BS, of which the best is kept


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
        return _result(select(method, size=size, limit=limit, **arguments), history, trace)
    chosen, calibration = select_calibrated(method, size=size, limit=limit, **arguments)
    return _result(chosen, history, trace)._replace(calibration=calibration)


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


def best_single(space: Space, size: int, kernel: Kernel | None, config: SearchConfig) -> Algorithm:
    """Look at every architecture and take the one with the smallest validation loss, size or not.

    That needs a table of the whole space; among the candidates of a search, `"us+top"` with one
    member is its like.
    """
    _check_listed("Best single", space)

    def run(key: PRNGKey, evaluate: Evaluate) -> Result:
        best = _best_of_all(space, 1, evaluate)
        return _result(select_members("top", Given(best.history), size), best.history)

    return run


def variational_ensemble(
    space: Space,
    size: int,
    kernel: Kernel | None,
    config: SearchConfig,
    *,
    supernet: tuple[Space, Evaluate] | None = None,
) -> Algorithm:
    """Draw the members together from a distribution fitted to the best architectures of all.

    As many architectures as the budget, those with the largest likelihoods in the whole space, are
    what a mean-field distribution is fitted to; the best of ten sets drawn from it is returned.
    Members of a set may be the same.

    Args:
        space: what members are drawn from.
        size: M.
        kernel: not used.
        config: of which the budget, the temperature and the diversity count.
        supernet: what the distribution is fitted to instead, as Shu et al. (2022) do: architectures
            whose networks share their weights, and what evaluating them gives.
    """
    learnt_in = space if supernet is None else supernet[0]
    _check_listed("NES-BS", space)
    _check_listed("NES-BS", learnt_in)

    def run(key: PRNGKey, evaluate: Evaluate) -> Result:
        learnt_from = evaluate if supernet is None else supernet[1]
        best = _best_of_all(learnt_in, config.budget, learnt_from)
        history = best.history
        distribution = fit_mean_field(
            learnt_in,
            history.archs,
            history.log_likelihoods,
            best.elsewhere,
            temperature=resolve_temperature(config, best.everything, history.points),
        )

        def draw(key: PRNGKey) -> Result:
            archs = draw_diverse(key, space, distribution, size, diversity=config.diversity)
            outcome = evaluate(archs)
            drawn = _history_of(outcome)
            return _result(select_members("top", Given(drawn), size), drawn)

        draws = lax.map(draw, jax.random.split(key, _DRAWS))
        # A set without a usable member has an infinite loss.
        best_draw = jnp.argmin(jnp.nan_to_num(draws.info.loss, nan=jnp.inf))
        chosen = jax.tree.map(lambda leaf: leaf[best_draw], draws)
        return chosen._replace(history=history)

    return run


_ALGORITHMS: Registry[Maker] = Registry(
    "algorithm",
    {
        "BQ-S": Pair("us", "restack"),
        "BQ-R": Pair("us", "recombine"),
        "BQ-L": Pair("us", "logpool"),
        "NES-RE": Pair("evolution", "beam"),
        "NES-BS": variational_ensemble,
        "Random": Pair("random", "top", only_members=True),
        "BQ-W": Pair("us", "restack", needs_seeds=True),
        "Deep ensemble": Pair("replicate", "top", needs_seeds=True, one_architecture=True),
        "Best single": best_single,
    },
)


def algorithms() -> tuple[str, ...]:
    """Return the names of the algorithms; every `"strategy+method"` is one more."""
    return _ALGORITHMS.names()


def register(name: str, maker: Maker) -> None:
    """Add an algorithm of your own: a function (space, size, kernel, config) -> run.

    Example:
        >>> register("EI + beam", Pair("ei", "beam"))
    """
    _ALGORITHMS.register(name, maker)


def make(
    name: str,
    space: Space,
    size: int,
    *,
    kernel: Kernel | None = None,
    config: SearchConfig = SearchConfig(),
    driver: Driver = scan,
    prior: Prior | None = None,
) -> Algorithm:
    """Make the algorithm of that name: a function `run(key, evaluate) -> Result`.

    Args:
        name: `"BQ-S"`, `"BQ-R"`, `"BQ-L"`, `"NES-RE"`, `"NES-BS"`, `"Random"`, `"Best single"`, one
            that was registered, or any `"strategy+method"`, such as `"us+corrective"`. In a space
            with weight seeds (`spaces.Seeded`) also `"BQ-W"` and `"Deep ensemble"`.
        space: what to search.
        size: M, the number of members; at most the budget.
        kernel: between architectures; by default the one that `config.kernel` chooses.
        config: budget, batch, surrogate and the rest.
        driver: the loop of the search: `drivers.scan`, with which the function is pure, or
            `drivers.loop` for an `evaluate` that trains on the host.
        prior: over the space, as in `candidates.make`; by default uniform.

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
    check_members("size", size, space, config)
    check_seeds(name, space, size)
    maker = find(name) if driver is scan else find_trainable(name)
    if isinstance(maker, Pair):
        return maker(space, size, kernel, config, driver=driver, prior=prior)
    if prior is not None:
        raise BQNESError(
            f"algorithm is {name!r}, in which a prior plays no part; leave prior out, or use "
            "'BQ-S', 'BQ-R', 'NES-RE', 'Random' or 'strategy+method'."
        )
    return maker(space, size, kernel, config)


def find(name: str) -> Maker:
    """Return what makes the algorithm of that name; a `Pair` where it is one.

    Example:
        >>> find("BQ-S")[:2], find("ei+beam").method
        (('us', 'restack'), 'beam')
    """
    strategy, plus, method = name.partition("+")
    if name not in _ALGORITHMS and not plus:
        known = ", ".join(map(repr, algorithms()))
        raise BQNESError(f"algorithm is {name!r}; allowed are {known}, or 'strategy+method'.")
    maker = _ALGORITHMS.find(name) if name in _ALGORITHMS else Pair(strategy, method)
    if isinstance(maker, Pair):
        maker.check()
    return maker


def check_seeds(name: str, space: Space, size: int) -> None:
    """Refuse an algorithm about weight seeds where a space has too few of them.

    BQ-W marginalises over architectures and seeds together. A Deep ensemble is the best
    architecture with as many seeds as members.
    """
    algorithm, seeds = find(name), count_seeds(space)
    if not isinstance(algorithm, Pair) or not algorithm.needs_seeds:
        return
    if seeds == 1:
        raise BQNESError(
            f"algorithm is {name!r}, which tries architectures with several weight seeds, but "
            "there is one; train with more (seeds, --seeds), or use a table that has them "
            "(--weight-seeds)."
        )
    if algorithm.one_architecture and size > seeds:
        raise BQNESError(
            f"algorithm is {name!r} with {size} members, seeds of one architecture, but there are "
            f"{seeds} seeds; ask for at most as many members, or train with more seeds."
        )


def find_trainable(name: str) -> Pair:
    """Return the algorithm of that name, if it needs no more results than it asks for.

    NES-BS and Best single look at every architecture, which no one trains: they need a table.
    """
    algorithm = find(name)
    if not isinstance(algorithm, Pair):
        raise BQNESError(
            f"algorithm is {name!r}, which needs results of the whole space; with training use "
            "'BQ-S', 'BQ-R', 'BQ-L', 'NES-RE', 'Random' or 'strategy+method'."
        )
    return algorithm


def _check_listed(name: str, space: Space) -> None:
    if space.size is None:
        raise BQNESError(
            f"{name} looks at every architecture, but space {space.name!r} cannot be listed; "
            "use another algorithm."
        )


def _result(chosen: Selection, history: History, trace: Info | None = None) -> Result:
    archs = history.archs[chosen.members]
    return Result(archs, chosen.weights, chosen.info, history, trace, chosen.pool)


class _Best(NamedTuple):
    history: History
    elsewhere: Float[Array, ""]  # average log-likelihood of all others
    everything: Float[Array, " size"]  # the log-likelihoods of the whole space


def _best_of_all(space: Space, count: int, evaluate: Evaluate) -> _Best:
    archs = enumerate_space(space)
    everything = evaluate(archs).log_likelihoods
    finite = jnp.isfinite(everything)
    _, best = lax.top_k(jnp.where(finite, everything, -jnp.inf), min(count, len(archs)))
    others = finite.at[best].set(False)
    average = jnp.sum(jnp.where(others, everything, 0)) / jnp.maximum(jnp.sum(others), 1)
    # With nothing finite left over, all else (which failed) is no better than the worst.
    worst = jnp.min(everything, where=finite, initial=jnp.inf)
    elsewhere = jnp.where(jnp.any(others), average, jnp.where(jnp.any(finite), worst, 0))
    return _Best(_history_of(evaluate(archs[best])), elsewhere, everything)


def _history_of(outcome: Outcome) -> History:
    state = State(empty_history(*outcome.archs.shape), None)
    return tell(state, outcome).history
