"""How likely architectures were to be among the candidates of a search by draws."""

import dataclasses

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int32

from bqnes_jax.candidates.base import History, SearchConfig, resolve_temperature
from bqnes_jax.candidates.bayesian import draw_masses
from bqnes_jax.candidates.landscape import Listed
from bqnes_jax.candidates.registry import first_shape, refit_model
from bqnes_jax.kernels import Kernel, make_kernel
from bqnes_jax.spaces.base import EnumerableSpace
from bqnes_jax.surrogates.fitting import Shape


def inclusion_probabilities(
    space: EnumerableSpace,
    history: History,
    *,
    kernel: Kernel | None = None,
    config: SearchConfig = SearchConfig(),
) -> Float[Array, "steps budget"]:
    """Return how likely each candidate of strategy `posterior` was to become one at all.

    It could be drawn at any step; the probability at the step at which it was is a poor measure of
    how much of the space it stands for, above all of an early one. The search is done over: with
    q_n the probability at step n, it was to be drawn with 1 − Π (1 − q_n). Of steps after its own,
    q_n is what it would have been had it not been drawn, by what the surrogate predicts for it from
    the others alone.

    Args:
        space: the space, which can be listed.
        history: what the search evaluated, its whole budget, in the order in which it was asked
            for. Of an asynchronous search, which chose while others were pending, the
            probabilities are approximate: this lets each choice know all before it.
        kernel: of the search.
        config: of the search.

    Returns:
        A row for each number of candidates from `config.initial` to `config.budget`, with a
        probability for each of them: what `quadrature.included_evidence` takes. What comes after
        them in a row has no meaning. Beyond `config.fit.limit` candidates they are approximate:
        the search saw some of its candidates there, and this looks at all.
    """
    landscape = Listed(space, make_kernel(space, config.kernel) if kernel is None else kernel)
    # Every candidate is predicted from the others: none may be left out.
    fit = dataclasses.replace(config.fit, limit=max(config.fit.limit, config.budget))
    config = dataclasses.replace(config, fit=fit)
    rows, _ = landscape.summands(None)
    index, numbers = space.index(history.archs), jnp.arange(config.budget)
    first = history.known[: config.initial]
    temperature = resolve_temperature(config, first, history.points)
    nobody = jax.random.key(0)  # a pool of everything draws nothing

    def step(carry: tuple[Float[Array, " budget"], Shape | None], n: Int32[Array, ""]):
        log_missed, shape = carry
        before = history._replace(count=n.astype(jnp.int32))
        model, shape = refit_model(landscape, before, config, temperature, shape)
        likely = jnp.maximum(model.predict(rows).mean, 0)[landscape.row_of]
        total = jnp.sum(likely)
        masses = draw_masses(likely, total, 1 / space.size)
        left = jnp.sum(masses, where=landscape.pool(nobody, before).fresh)
        alone = draw_masses(model.leave_one_out().mean, total, 1 / space.size)
        mass = jnp.where(model.design.mask, alone, masses[index])

        def draw(carry, n: Int32[Array, ""]):
            log_missed, left = carry
            q = mass / (left + jnp.where(numbers < n, mass, 0))
            log_missed += jnp.log1p(-jnp.minimum(q, 1 - 1e-6))
            return (log_missed, left - mass[n]), log_missed

        (log_missed, _), rows_of_batch = lax.scan(
            draw, (log_missed, left), n + jnp.arange(config.batch, dtype=jnp.int32)
        )
        return (log_missed, shape), rows_of_batch

    start = jnp.full(config.budget, jnp.log1p(-config.initial / space.size))
    starts = jnp.arange(config.initial, config.budget, config.batch, dtype=jnp.int32)
    _, later = lax.scan(step, (start, first_shape(landscape, config, history)), starts)
    log_missed = jnp.concatenate([start[None], later.reshape(-1, config.budget)])
    return -jnp.expm1(log_missed[: config.budget - config.initial + 1])
