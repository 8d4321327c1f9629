"""Algorithms that look at every architecture of a space: they need a table of it."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from bqnes_jax.algorithms.base import Algorithm, Given, Result, as_result, select_members
from bqnes_jax.candidates import History, Outcome, SearchConfig, tell
from bqnes_jax.candidates.base import State, resolve_temperature
from bqnes_jax.candidates.history import empty_history
from bqnes_jax.candidates.variational import draw_diverse, fit_mean_field
from bqnes_jax.drivers import Evaluate
from bqnes_jax.errors import BQNESError
from bqnes_jax.kernels import Kernel
from bqnes_jax.spaces.base import Space, enumerate_space
from bqnes_jax.types import PRNGKey

_DRAWS = 10  # sets drawn by NES-BS, of which the best is kept


def best_single(space: Space, size: int, kernel: Kernel | None, config: SearchConfig) -> Algorithm:
    """Look at every architecture and take the one with the smallest validation loss, size or not.

    That needs a table of the whole space; among the candidates of a search, `"us+top"` with one
    member is its like.
    """
    _check_listed("Best single", space)

    def run(key: PRNGKey, evaluate: Evaluate) -> Result:
        best = _best_of_all(space, 1, evaluate)
        return as_result(select_members("top", Given(best.history), size), best.history)

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
            return as_result(select_members("top", Given(drawn), size), drawn)

        draws = lax.map(draw, jax.random.split(key, _DRAWS))
        # A set without a usable member has an infinite loss.
        best_draw = jnp.argmin(jnp.nan_to_num(draws.info.loss, nan=jnp.inf))
        chosen = jax.tree.map(lambda leaf: leaf[best_draw], draws)
        return chosen._replace(history=history)

    return run


def _check_listed(name: str, space: Space) -> None:
    if space.size is None:
        raise BQNESError(
            f"{name} looks at every architecture, but space {space.name!r} cannot be listed; "
            "use another algorithm."
        )


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
