"""Strategies by name."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from bqnes_jax.candidates.base import (
    Chooser,
    History,
    Info,
    SearchConfig,
    Situation,
    State,
    Strategy,
    empty_history,
)
from bqnes_jax.candidates.bayesian import believed, improving, uncertain
from bqnes_jax.candidates.evolution import evolution
from bqnes_jax.candidates.landscape import make_landscape
from bqnes_jax.candidates.random import draw_fresh, log_probability, random
from bqnes_jax.errors import BQNESError, check_choice
from bqnes_jax.kernels import RBF, WL, Kernel
from bqnes_jax.quadrature.evidence import Evidence, weighted_evidence
from bqnes_jax.spaces.base import Architectures, CoordinateSpace, GraphSpace, Space
from bqnes_jax.surrogates import Hyperparameters, LikelihoodModel, wsabi
from bqnes_jax.types import PRNGKey, Status

_CHOOSERS: dict[str, Chooser] = {
    "random": random,
    "evolution": evolution,
    "ei": improving,
    "us": uncertain,
    "posterior": believed,
}
_BUILT_IN = tuple(_CHOOSERS)


def strategies() -> tuple[str, ...]:
    """Return the names that `make` knows."""
    return tuple(_CHOOSERS)


def register(name: str, chooser: Chooser) -> None:
    """Add a strategy of your own: a pure function (key, Situation, q) -> (q architectures, scores).

    Example:
        >>> def neighbours_of_the_last(key, situation, q):
        ...     last = situation.history.archs[situation.history.count - 1]
        ...     keys = jax.random.split(key, q)
        ...     return jax.vmap(situation.space.mutate, (0, None))(keys, last), jnp.zeros(q)
        >>> register("walk", neighbours_of_the_last)
        >>> "walk" in strategies()
        True
    """
    if name in _BUILT_IN:
        raise BQNESError(f"name is {name!r}, which is built in; choose one not in {_BUILT_IN}.")
    _CHOOSERS[name] = chooser


def default_kernel(space: Space) -> Kernel:
    """Return the WL kernel for a space of graphs, otherwise an RBF kernel on coordinates.

    That has a length scale for each coordinate, which is fitted.
    """
    if isinstance(space, GraphSpace):
        return WL(space) if space.size is not None else WL(space, buckets=4096)
    if isinstance(space, CoordinateSpace):
        none = jnp.zeros(len(space.options), jnp.int32)
        return RBF(space, jnp.ones(jax.eval_shape(space.coordinates, none).shape[-1]))
    raise BQNESError(
        f"space {space.name!r} has neither graph nor coordinates; pass a kernel of your own."
    )


def make(
    name: str,
    space: Space,
    kernel: Kernel | None = None,
    config: SearchConfig = SearchConfig(),  # noqa: B008 (immutable)
) -> Strategy:
    """Make the strategy of that name: `random`, `evolution`, `ei`, `us`, `posterior` or your own.

    All of them see the same first `config.initial` architectures for the same key, and refit the
    surrogate of the likelihood at every step, so that they report the same things.

    Args:
        name: of the strategy.
        space: what to search.
        kernel: between architectures; WL or RBF with their defaults, as the space has it.
        config: budget, batch, surrogate and the rest.

    Returns:
        A `Strategy`.

    Example:
        >>> from bqnes_jax.candidates import Outcome
        >>> from bqnes_jax.spaces import NATS
        >>> strategy = make("us", NATS, config=SearchConfig(initial=4, budget=6, batch=2))
        >>> state, info = strategy.init(jax.random.key(0))
        >>> log_likelihoods = -500.0 * jnp.sum(info.archs != 3, axis=1)  # by your training
        >>> outcome = Outcome(info.archs, log_likelihoods)
        >>> state, info = strategy.step(jax.random.key(1), state, outcome)
        >>> info.archs.shape, int(info.count)
        ((2, 6), 4)
    """
    check_choice("name", name, strategies())
    if space.size is not None and config.budget > space.size:
        raise BQNESError(
            f"budget is {config.budget}; space {space.name!r} has {space.size} architectures: "
            "ask for at most as many."
        )
    chooser = _CHOOSERS[name]
    landscape = make_landscape(space, default_kernel(space) if kernel is None else kernel, config)
    batch = min(config.batch, space.size or config.batch)

    def init(key: PRNGKey) -> tuple[State, Info]:
        draw_key, reference_key = jax.random.split(key)
        history = empty_history(config.budget, len(space.options))
        asked = draw_fresh(draw_key, space, history, config.initial)
        state = State(history, landscape.reference(reference_key))
        nothing = jnp.asarray(jnp.nan)
        return state, Info(
            archs=asked,
            scores=log_probability(space, history, config.initial),
            count=history.count,
            best=-jnp.asarray(jnp.inf),
            evidence=Evidence(nothing, nothing, nothing, jnp.int32(Status.EMPTY)),
            hyperparameters=Hyperparameters(nothing, nothing),
            kernel=landscape.kernel,
        )

    def choose(key: PRNGKey, state: State) -> tuple[State, Info]:
        history = state.history
        model = _fit_model(landscape, history, config)
        archs, scores = chooser(key, Situation(space, landscape, config, history, model), batch)
        rows, weights = landscape.summands(state.reference)
        sampled = state.reference is not None
        info = Info(
            archs=archs,
            scores=scores,
            count=history.count,
            best=jnp.max(history.log_likelihoods, where=history.usable, initial=-jnp.inf),
            evidence=weighted_evidence(model, rows, weights, sampled=sampled),
            hyperparameters=model.latent.hyperparameters,
            kernel=model.latent.kernel,
        )
        return state, info

    def gram(info: Info, archs: Architectures) -> Float[Array, "n n"]:
        return info.kernel.gram(landscape.rows(archs))

    return Strategy(jax.jit(init), jax.jit(choose), jax.jit(gram))


def _fit_model(landscape, history: History, config: SearchConfig) -> LikelihoodModel:
    return wsabi.fit(
        landscape.kernel,
        landscape.rows(history.archs),
        history.log_likelihoods,
        history.usable,
        config.warp,
        config.fit,
    )
