"""Candidates for a deep ensemble: the best single architecture, and then its other seeds."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int32

from bqnes_jax.candidates.base import (
    History,
    Landscape,
    Pool,
    Prior,
    Situation,
    Summands,
    first_fresh,
    is_allowed,
    is_among,
)
from bqnes_jax.candidates.bayesian import ask_improvement
from bqnes_jax.kernels import Kernel
from bqnes_jax.spaces.base import Architectures
from bqnes_jax.spaces.seeded import Seeded
from bqnes_jax.types import PRNGKey


def replicate(
    key: PRNGKey, situation: Situation, q: int
) -> tuple[Int32[Array, "q length"], Float[Array, " q"]]:
    """Ask for new architectures as `ei` does, and at the end for all seeds of the best of them.

    Of a space with S seeds the last S − 1 evaluations are those replicates (a few more where they
    begin with a batch, which then goes on with `ei`); of a space without, it is `ei`.
    """
    space, landscape, config, history = situation[:4]
    if not isinstance(space, Seeded) or space.seeds == 1:
        return ask_improvement(key, situation, q)
    once = history._replace(archs=_with_seed(history.archs, 0))
    alone = situation._replace(space=space.first, landscape=_Once(landscape, space), history=once)
    asked, scores = ask_improvement(key, alone, q)
    best = history.archs[jnp.argmax(jnp.where(_counts(history), history.log_likelihoods, -jnp.inf))]
    every = best * jnp.ones((space.seeds, 1), jnp.int32)
    every = every.at[:, -1].set(jnp.arange(space.seeds, dtype=jnp.int32))
    ending = history.asked + q > config.budget - (space.seeds - 1)
    replicates = first_fresh(jnp.concatenate([every, asked]), history, q)
    return jnp.where(ending, replicates, asked), jnp.where(ending, 0, scores)


def of_the_best(history: History) -> Bool[Array, " budget"]:
    """Tell which candidates are of the best architecture, whatever their seeds.

    The best is the one whose first training was: that it was trained again is no advantage.
    """
    best = jnp.argmax(jnp.where(_counts(history), history.log_likelihoods, -jnp.inf))
    same = jnp.all(history.archs[:, :-1] == history.archs[best, :-1], axis=1)
    return history.evaluated & same


def _counts(history: History) -> Bool[Array, " budget"]:
    """Tell which entries did not fail, and are the first of their architecture."""
    archs = history.archs[:, :-1]
    same = jnp.all(archs[:, None, :] == archs[None, :, :], axis=-1)
    repeated = jnp.any(jnp.tril(same, k=-1), axis=1)
    return history.finite & ~repeated


def _with_seed(archs: Architectures, seed: int) -> Architectures:
    return archs.at[:, -1].set(seed)


class _Once:
    """A landscape of (architecture, seed) in which each architecture has the first seed only."""

    def __init__(self, whole: Landscape, space: Seeded) -> None:
        self._whole, self._space = whole, space

    @property
    def kernel(self) -> Kernel:
        """The kernel on rows."""
        return self._whole.kernel

    @property
    def prior(self) -> Prior | None:
        """The logarithm of the prior."""
        return self._whole.prior

    def rows(self, archs: Architectures) -> Array:
        """Return the rows of architectures."""
        return self._whole.rows(archs)

    def reference(self, key: PRNGKey) -> Summands | None:
        """Draw what the evidence sums over."""
        return self._whole.reference(key)

    def summands(self, reference: Summands | None) -> Summands:
        """Return rows that stand for the prior."""
        return self._whole.summands(reference)

    def pool(self, key: PRNGKey, history: History) -> Pool:
        """Return what can be asked for, each architecture with the first seed."""
        pool = self._whole.pool(key, history)
        if pool.row_of is None:
            archs = _with_seed(pool.archs, 0)
            fresh = ~is_among(archs, history.archs, history.taken)
            return pool._replace(archs=archs, fresh=fresh & is_allowed(archs, self.prior))
        step = self._space.seeds  # in a whole space they stand one after the other
        log_prior = None if pool.log_prior is None else pool.log_prior[::step]
        return Pool(
            pool.archs[::step], pool.rows, pool.row_of[::step], pool.fresh[::step], log_prior
        )
