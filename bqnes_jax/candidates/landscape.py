"""How the surrogate sees a space: every architecture where it can be listed, draws where not.

Many architectures can be one point to the surrogate (of the 15,625 cells of NATS-Bench, 4,915 are
different to the WL kernel at h = 1). A landscape works out once what is fixed about them: the rows
that the surrogate is given in place of architectures, each row once.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bqnes_jax.candidates.base import (
    History,
    Landscape,
    Pool,
    SearchConfig,
    is_among,
    not_evaluated,
)
from bqnes_jax.kernels import Kernel, split
from bqnes_jax.spaces.base import Architectures, EnumerableSpace, Space, enumerate_space
from bqnes_jax.types import PRNGKey


class Listed:
    """Every architecture of a space."""

    def __init__(self, space: EnumerableSpace, kernel: Kernel) -> None:
        view, self.kernel = split(kernel)
        self._space = space
        with jax.ensure_compile_time_eval():
            self._archs = enumerate_space(space)
            self._points, self.row_of = _distinct(np.asarray(view(self._archs)))
        self._masses = np.bincount(self.row_of) / space.size

    def rows(self, archs: Architectures) -> Array:
        """Look the rows of architectures up."""
        return jnp.asarray(self._points)[jnp.asarray(self.row_of)[self._space.index(archs)]]

    def reference(self, key: PRNGKey) -> None:
        """Return None: the sum is over everything."""

    def summands(self, reference: None) -> tuple[Array, Float[Array, " m"]]:
        """Return every distinct row and how much of the prior it has."""
        return jnp.asarray(self._points), jnp.asarray(self._masses, float)

    def pool(self, key: PRNGKey, history: History) -> Pool:
        """Return the whole space."""
        fresh = not_evaluated(self._space, history)
        return Pool(self._archs, jnp.asarray(self._points), jnp.asarray(self.row_of), fresh)


class Drawn:
    """Draws from the prior and mutations of the best so far: for a space that cannot be listed."""

    def __init__(self, space: Space, kernel: Kernel, config: SearchConfig) -> None:
        self.rows, self.kernel = split(kernel)
        self._space, self._config = space, config

    def reference(self, key: PRNGKey) -> Array:
        """Draw the architectures that the evidence averages over, once for a whole run."""
        return self.rows(self._space.sample(key, self._config.samples))

    def summands(self, reference: Array) -> tuple[Array, Float[Array, " m"]]:
        """Return the draws, equally likely."""
        return reference, jnp.full(len(reference), 1 / len(reference))

    def pool(self, key: PRNGKey, history: History) -> Pool:
        """Return new draws from the prior and mutations of the best architectures so far."""
        config = self._config
        draw_key, parent_key, mutate_key = jax.random.split(key, 3)
        draws = self._space.sample(draw_key, config.pool - config.mutated)
        scores = jnp.where(history.usable, history.log_likelihoods, -jnp.inf)
        best, parents = jax.lax.top_k(scores, min(config.parents, config.budget))
        weights = jnp.where(best > -jnp.inf, 0.0, -jnp.inf).at[0].set(0.0)
        chosen = jax.random.categorical(parent_key, weights, shape=(config.mutated,))
        keys = jax.random.split(mutate_key, config.mutated)
        mutants = jax.vmap(self._space.mutate)(keys, history.archs[parents[chosen]])
        archs = jnp.concatenate([mutants, draws])
        fresh = ~is_among(archs, history.archs, history.evaluated)
        return Pool(archs, self.rows(archs), None, fresh)


def make_landscape(space: Space, kernel: Kernel, config: SearchConfig) -> Landscape:
    """List a space that can be listed; draw from others."""
    return Drawn(space, kernel, config) if space.size is None else Listed(space, kernel)


def _distinct(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the distinct rows, and which of them each is; rows equal but for rounding are one."""
    keys = rows
    if not np.issubdtype(rows.dtype, np.integer):
        largest = np.abs(rows).max(initial=0) or 1
        keys = np.round(rows / largest, 5 if rows.dtype == np.float32 else 12)
    _, first, row_of = np.unique(keys, axis=0, return_index=True, return_inverse=True)
    return rows[first], row_of.reshape(-1).astype(np.int32)
