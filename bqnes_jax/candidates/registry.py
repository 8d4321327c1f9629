"""Strategies by name."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from bqnes_jax.candidates.base import (
    Chooser,
    History,
    Info,
    Landscape,
    Pending,
    Prior,
    SearchConfig,
    Situation,
    State,
    Strategy,
    Summands,
    resolve_temperature,
)
from bqnes_jax.candidates.bayesian import ask_improvement, ask_uncertain, draw_posterior
from bqnes_jax.candidates.evolution import evolution
from bqnes_jax.candidates.history import empty_history
from bqnes_jax.candidates.landscape import make_landscape
from bqnes_jax.candidates.random import draw_fresh, log_probability, random
from bqnes_jax.candidates.replicates import replicate
from bqnes_jax.errors import BQNESError
from bqnes_jax.kernels import Kernel, make_kernel
from bqnes_jax.quadrature.evidence import Evidence, rule_of, weighted_evidence
from bqnes_jax.quadrature.scale import effective_size
from bqnes_jax.registry import Registry
from bqnes_jax.spaces.base import Architectures, Space
from bqnes_jax.spaces.seeded import Seeded
from bqnes_jax.surrogates import Hyperparameters, LikelihoodModel, gp, wsabi
from bqnes_jax.surrogates.base import Design
from bqnes_jax.surrogates.fitting import Shape, no_shape
from bqnes_jax.surrogates.solve import in_weight_space
from bqnes_jax.types import PRNGKey, Status

_STAGE = 256  # candidates, with which a step is compiled for fewer than the budget

_CHOOSERS: Registry[Chooser] = Registry(
    "strategy",
    {
        "random": random,
        "evolution": evolution,
        "ei": ask_improvement,
        "us": ask_uncertain,
        "posterior": draw_posterior,
        "replicate": replicate,
    },
)


def strategies() -> tuple[str, ...]:
    """Return the names that `make` knows."""
    return _CHOOSERS.names()


def uses_surrogate(name: str) -> bool:
    """Tell whether a strategy asks the surrogate, as one of your own may.

    Example:
        >>> uses_surrogate("us"), uses_surrogate("evolution")
        (True, False)
    """
    return _CHOOSERS.find(name) not in (random, evolution)


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
    _CHOOSERS.register(name, chooser)


def make(
    name: str,
    space: Space,
    *,
    kernel: Kernel | None = None,
    config: SearchConfig = SearchConfig(),
    prior: Prior | None = None,
    beliefs: bool = True,
) -> Strategy:
    """Make the strategy of that name: one of `strategies()`, or your own.

    All of them see the same first `config.initial` architectures for the same key, and refit the
    surrogate of the likelihood at every step (see `FitConfig.growth`), so that they report the same
    things.

    Args:
        name: of the strategy.
        space: what to search.
        kernel: between architectures; by default the one that `config.kernel` chooses.
        config: budget, batch, surrogate and the rest.
        prior: a pure function of n×length architectures that returns n log-weights, which need not
            be normalised; −inf rules an architecture out. By default all are equally likely. Of a
            space with weight seeds it is given the architectures, without their seeds.
        beliefs: whether a strategy that asks no surrogate fits one nevertheless, to report the
            evidence. Without, evidence and hyper-parameters are NaN, and the kernel is not fitted.

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
    chooser = _CHOOSERS.find(name)
    if space.size is not None and config.budget > space.size:
        raise BQNESError(
            f"budget is {config.budget}; space {space.name!r} has {space.size} architectures: "
            "ask for at most as many."
        )
    fits = beliefs or uses_surrogate(name)
    if kernel is None and prior is None:
        return _make_once(chooser, space, config, fits, jnp.result_type(float))
    kernel = make_kernel(space, config.kernel) if kernel is None else kernel
    return _make(chooser, space, kernel, config, prior, fits)


@functools.lru_cache(maxsize=8)  # a search that is done again finds its programs
def _make_once(
    chooser: Chooser, space: Space, config: SearchConfig, fits: bool, precision: np.dtype
) -> Strategy:
    with jax.ensure_compile_time_eval():  # what is kept is no part of a program being traced
        return _make(chooser, space, make_kernel(space, config.kernel), config, None, fits)


def _make(
    chooser: Chooser,
    space: Space,
    kernel: Kernel,
    config: SearchConfig,
    prior: Prior | None,
    fits: bool,
) -> Strategy:
    landscape = make_landscape(space, kernel, config, prior=_without_seeds(prior, space))
    batch = min(config.batch, space.size or config.batch)

    def init(key: PRNGKey) -> tuple[State, Info]:
        draw_key, reference_key = jax.random.split(key)
        history = empty_history(config.budget, len(space.options))
        asked = draw_fresh(draw_key, space, history, config.initial, prior=landscape.prior)
        shape = first_shape(landscape, config, history) if fits else None
        state = State(history, landscape.reference(reference_key), shape)
        return state, Info(
            archs=asked,
            scores=log_probability(space, history, asked, prior=landscape.prior),
            count=history.count,
            best=-jnp.asarray(jnp.inf),
            temperature=jnp.asarray(jnp.nan),
            effective_size=jnp.asarray(0.0),
            **_describe_belief(landscape, None, state.reference),
        )

    def ask(key: PRNGKey, state: State, pending: Pending | None = None) -> tuple[State, Info]:
        sizes = stages(config.budget)
        steps = [functools.partial(step, size) for size in sizes]
        count = state.history.count + (0 if pending is None else jnp.sum(pending.mask))
        stage = jnp.searchsorted(jnp.asarray(sizes), count)
        shape, info = lax.switch(stage, steps, key, state, pending)
        return state._replace(shape=shape), info

    def step(
        size: int, key: PRNGKey, state: State, pending: Pending | None
    ) -> tuple[Shape | None, Info]:
        history = state.history.first(size)
        first = history.known[: config.initial]
        temperature = resolve_temperature(config, first, history.points)
        model, shape = None, state.shape
        if fits:
            model, shape = refit_model(landscape, history, config, temperature, shape)
        everything = history if pending is None else history.beside(pending)
        situation = Situation(space, landscape, config, everything, model, pending)
        archs, scores = chooser(key, situation, batch)
        return shape, Info(
            archs=archs,
            scores=scores,
            count=history.count,
            best=jnp.max(history.known),
            temperature=temperature,
            effective_size=effective_size(history.known / temperature),
            **_describe_belief(landscape, model, state.reference),
        )

    def gram(info: Info, archs: Architectures) -> Float[Array, "n n"]:
        return info.kernel.gram(landscape.rows(archs))

    def rule(info: Info, history: History) -> Float[Array, " n"]:
        # The draws of the search are not kept; any others will do.
        rows, weights = landscape.summands(landscape.reference(jax.random.key(0)))
        nothing = jnp.zeros_like(history.log_likelihoods)
        design = Design(landscape.rows(history.archs), nothing, history.evaluated)
        posterior = gp.condition_design(info.kernel, design, info.hyperparameters)
        return rule_of(posterior, rows, weights)

    return Strategy(jax.jit(init), jax.jit(ask), jax.jit(gram), jax.jit(rule), landscape.prior)


def fit_model(
    landscape: Landscape, history: History, config: SearchConfig, temperature: ArrayLike
) -> LikelihoodModel:
    """Fit the surrogate of the likelihood to what has been evaluated."""
    return wsabi.fit(
        landscape.kernel,
        landscape.rows(history.archs),
        history.known,
        mask=history.evaluated,
        temperature=temperature,
        config=config.warp,
        fit_config=config.fit,
    )


def first_shape(landscape: Landscape, config: SearchConfig, history: History) -> Shape | None:
    """Return what `refit_model` begins with; None where everything is fitted at every step."""
    kernel, rows = landscape.kernel, landscape.rows(history.archs)
    if config.fit.growth == 0:
        return None
    if config.fit.adapts(kernel):
        return no_shape(kernel)
    if in_weight_space(kernel, rows):
        return no_shape(kernel, jax.eval_shape(kernel.features, rows).shape[1])
    return None


def refit_model(
    landscape: Landscape,
    history: History,
    config: SearchConfig,
    temperature: ArrayLike,
    shape: Shape | None,
) -> tuple[LikelihoodModel, Shape | None]:
    """Fit the surrogate to what has been evaluated, beginning with what was fitted to less."""
    count = history.count
    if not in_weight_space(landscape.kernel, landscape.rows(history.archs)):
        history = history.thin(config.fit.limit)
    first = first_shape(landscape, config, history)
    if first is None:
        return fit_model(landscape, history, config, temperature), shape
    return wsabi.refit(
        first if shape is None else shape,
        landscape.kernel,
        landscape.rows(history.archs),
        history.known,
        mask=history.evaluated,
        count=count,
        temperature=temperature,
        config=config.warp,
        fit_config=config.fit,
    )


def _describe_belief(
    landscape: Landscape, model: LikelihoodModel | None, reference: Summands | None
) -> dict[str, Any]:
    """Return what `Info` says of a surrogate; where there is none, that nothing is known."""
    if model is None:
        nothing = jnp.asarray(jnp.nan)
        return {
            "evidence": Evidence(nothing, nothing, nothing, jnp.int32(Status.EMPTY)),
            "hyperparameters": Hyperparameters(nothing, nothing, nothing),
            "kernel": landscape.kernel,
        }
    rows, weights = landscape.summands(reference)
    return {
        "evidence": weighted_evidence(model, rows, weights, sampled=reference is not None),
        "hyperparameters": model.latent.hyperparameters,
        "kernel": model.latent.kernel,
    }


def stages(budget: int) -> tuple[int, ...]:
    """Return to what lengths histories are padded: doubled as often as the budget asks for.

    Example:
        >>> stages(150), stages(800)
        ((150,), (256, 512, 800))
    """
    sizes = (_STAGE * 2**i for i in range(max(budget // _STAGE, 1).bit_length()))
    return (*(size for size in sizes if size < budget), budget)


def _without_seeds(prior: Prior | None, space: Space) -> Prior | None:
    """Let a prior over architectures take those of a space with weight seeds."""
    if prior is None or not isinstance(space, Seeded):
        return prior
    return lambda archs: prior(archs[:, :-1])
