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
    Prior,
    SearchConfig,
    Summands,
    find_fresh,
    is_allowed,
    is_among,
)
from bqnes_jax.errors import BQNESError
from bqnes_jax.kernels import Kernel
from bqnes_jax.spaces.base import (
    Architectures,
    EnumerableSpace,
    Space,
    can_be_listed,
    enumerate_space,
)
from bqnes_jax.spaces.seeded import Seeded
from bqnes_jax.types import PRNGKey


class Listed:
    """Every architecture of a space.

    Attributes:
        kernel: the kernel on rows.
        prior: the normalised logarithm of the prior; None where it is uniform.
        row_of: which row each architecture of the space has, by its number.
        allowed: how many architectures the prior does not rule out.
    """

    def __init__(
        self, space: EnumerableSpace, kernel: Kernel, *, prior: Prior | None = None
    ) -> None:
        view, self.kernel = kernel.split()
        self._space = space
        with jax.ensure_compile_time_eval():
            self._archs = enumerate_space(space)
            rows = view(_without_seeds(space, self._archs))
            self._points, self.row_of = _distinct(np.asarray(rows))
            self._log_prior = None if prior is None else _log_masses(prior, self._archs)
        self.prior = None if prior is None else self._look_up
        masses = None if self._log_prior is None else np.exp(self._log_prior)
        counted = np.bincount(self.row_of, masses)
        self._masses = counted / space.size if masses is None else counted
        self.allowed = space.size if masses is None else int(np.count_nonzero(masses))

    def rows(self, archs: Architectures) -> Array:
        """Look the rows of architectures up."""
        return jnp.asarray(self._points)[jnp.asarray(self.row_of)[self._space.index(archs)]]

    def _look_up(self, archs: Architectures) -> Float[Array, " n"]:
        return jnp.asarray(self._log_prior, float)[self._space.index(archs)]

    def reference(self, key: PRNGKey) -> None:
        """Return None: the sum is over everything."""

    def summands(self, reference: Summands | None) -> Summands:
        """Return every distinct row and how much of the prior it has."""
        return jnp.asarray(self._points), jnp.asarray(self._masses, float)

    def pool(self, key: PRNGKey, history: History) -> Pool:
        """Return the whole space."""
        fresh = find_fresh(self._space, history)
        rows, row_of = jnp.asarray(self._points), jnp.asarray(self.row_of)
        if self._log_prior is None:
            return Pool(self._archs, rows, row_of, fresh)
        log_prior = jnp.asarray(self._log_prior, float)
        return Pool(self._archs, rows, row_of, fresh & (log_prior > -jnp.inf), log_prior)


class Drawn:
    """Draws from the prior and mutations of the best so far: for a space that cannot be listed."""

    def __init__(
        self, space: Space, kernel: Kernel, config: SearchConfig, *, prior: Prior | None = None
    ) -> None:
        self._view, self.kernel = kernel.split()
        self._space, self._config, self.prior = space, config, prior

    def rows(self, archs: Architectures) -> Array:
        """Return what is fixed about architectures, by the kernel."""
        return self._view(_without_seeds(self._space, archs))

    def reference(self, key: PRNGKey) -> Summands:
        """Draw the architectures that the evidence averages over, once for a whole run.

        They are uniform draws, with weights in proportion to the prior.
        """
        archs = self._space.sample(key, self._config.samples)
        equal = jnp.full(len(archs), 1 / len(archs))
        return self.rows(archs), equal if self.prior is None else jax.nn.softmax(self.prior(archs))

    def summands(self, reference: Summands | None) -> Summands:
        """Return the draws and their weights."""
        if reference is None:
            raise BQNESError("reference is None; it must be what `reference(key)` drew: pass that.")
        return reference

    def pool(self, key: PRNGKey, history: History) -> Pool:
        """Return new uniform draws and mutations of the best architectures so far."""
        config = self._config
        draw_key, parent_key, mutate_key = jax.random.split(key, 3)
        draws = self._space.sample(draw_key, config.pool - config.mutated)
        best, parents = jax.lax.top_k(history.known, min(config.parents, len(history.archs)))
        weights = jnp.where(best > -jnp.inf, 0.0, -jnp.inf).at[0].set(0.0)
        chosen = jax.random.categorical(parent_key, weights, shape=(config.mutated,))
        keys = jax.random.split(mutate_key, config.mutated)
        mutants = jax.vmap(self._space.mutate)(keys, history.archs[parents[chosen]])
        archs = jnp.concatenate([mutants, draws])
        return self.pool_of(archs, history)

    def pool_of(self, archs: Architectures, history: History) -> Pool:
        """Return a pool of these architectures."""
        fresh = ~is_among(archs, history.archs, history.taken) & is_allowed(archs, self.prior)
        log_prior = None if self.prior is None else self.prior(archs)
        return Pool(archs, self.rows(archs), None, fresh, log_prior)


def make_landscape(
    space: Space, kernel: Kernel, config: SearchConfig, *, prior: Prior | None = None
) -> Landscape:
    """List a space that can be listed, unless the config asks for a pool; draw from others."""
    if not (config.exhaustive and can_be_listed(space)):
        return Drawn(space, kernel, config, prior=prior)
    listed = Listed(space, kernel, prior=prior)
    if config.budget > listed.allowed:
        raise BQNESError(
            f"budget is {config.budget}; the prior allows {listed.allowed} architectures of space "
            f"{space.name!r}: ask for at most as many."
        )
    return listed


def _log_masses(prior: Prior, archs: Architectures) -> np.ndarray:
    """Normalise a prior over all architectures of a space; refuse what is none."""
    values = np.asarray(prior(archs), float)
    if values.shape != (len(archs),) or np.isnan(values).any() or not np.isfinite(values.max()):
        raise BQNESError(
            f"prior returned an array of shape {values.shape} with a maximum of "
            f"{values.max(initial=-np.inf)}; it must return one log-weight for each of "
            f"{len(archs)} architectures: numbers or −inf, and not all −inf."
        )
    return np.asarray(jax.nn.log_softmax(jnp.asarray(values)))


def _without_seeds(space: Space, archs: Architectures) -> Architectures:
    """Give all candidates the first seed, if they have one: replicates are one point, exactly."""
    return archs.at[:, -1].set(0) if isinstance(space, Seeded) else archs


def _distinct(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the distinct rows, and which of them each is; rows equal but for rounding are one."""
    keys = rows
    if not np.issubdtype(rows.dtype, np.integer):
        largest = np.abs(rows).max(initial=0) or 1
        keys = np.round(rows / largest, 5 if rows.dtype == np.float32 else 12)
    _, first, row_of = np.unique(keys, axis=0, return_index=True, return_inverse=True)
    return rows[first], row_of.reshape(-1).astype(np.int32)
