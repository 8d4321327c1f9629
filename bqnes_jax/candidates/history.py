"""What has been evaluated, and what is being evaluated, in arrays of fixed shapes."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int32

from bqnes_jax.surrogates.fitting import take_evenly


class Outcome(NamedTuple):
    """What evaluating q architectures gave; NaN marks one that failed.

    Attributes:
        archs: the architectures.
        log_likelihoods: summed over the validation points.
        log_probs: of the true class of each of n validation points; None where it is not known.
        scores: with which they were asked for (`Info.scores`), for the record; NaN unless given.
        classes: log-probabilities of all classes at these points; None where they are not known.
            No search needs them, nor are they kept: what selects in log space evaluates again.
        measures: the log-likelihoods that a posterior over candidates is formed by in the end, as
            `selection.measure_candidates` returns them; None for those above.
    """

    archs: Int32[Array, "q length"]
    log_likelihoods: Float[Array, " q"]
    log_probs: Float[Array, "q n"] | None = None
    scores: Float[Array, " q"] | None = None
    classes: Float[Array, "q n classes"] | None = None
    measures: Float[Array, " q"] | None = None


class Pending(NamedTuple):
    """Architectures that are being evaluated, padded, so that their number is no part of a program.

    Attributes:
        archs: w architectures.
        mask: false for padding.
    """

    archs: Int32[Array, "w length"]
    mask: Bool[Array, " w"]


class History(NamedTuple):
    """All that has been evaluated, in order, padded: to the budget, or as far as a step needs.

    Where `waiting` is given, as many of the architectures that follow are being evaluated.
    """

    archs: Int32[Array, "budget length"]
    log_likelihoods: Float[Array, " budget"]
    log_probs: Float[Array, "budget n"] | None
    scores: Float[Array, " budget"]
    count: Int32[Array, ""]  # pyright: ignore[reportIncompatibleMethodOverride]
    measures: Float[Array, " budget"] | None = None
    waiting: Int32[Array, ""] | None = None

    @property
    def evaluated(self) -> Bool[Array, " budget"]:
        """True where there is an entry."""
        return jnp.arange(self.archs.shape[-2]) < self.count

    @property
    def asked(self) -> Int32[Array, ""]:
        """How many have been asked for: evaluated, or being evaluated."""
        return self.count if self.waiting is None else self.count + self.waiting

    @property
    def taken(self) -> Bool[Array, " budget"]:
        """True where there is an architecture that need not be asked for again."""
        return jnp.arange(self.archs.shape[-2]) < self.asked

    @property
    def finite(self) -> Bool[Array, " budget"]:
        """True where there is an entry whose log-likelihood is a finite number."""
        return self.evaluated & jnp.isfinite(self.log_likelihoods)

    @property
    def points(self) -> int | None:
        """The number of validation points; None where it is not known."""
        return None if self.log_probs is None else self.log_probs.shape[-1]

    @property
    def known(self) -> Float[Array, " budget"]:
        """The log-likelihoods, −inf where an entry failed: what cannot be trained explains nothing.

        Padding has −inf, too.
        """
        return jnp.where(self.finite, self.log_likelihoods, -jnp.inf)

    def first(self, size: int) -> "History":
        """Return the first entries, all of them if there are no more than `size`."""
        kept = jax.tree.map(lambda leaf: leaf[:size], self._replace(count=None))
        return kept._replace(count=self.count)

    def beside(self, pending: Pending) -> "History":
        """Return the history with architectures that are being evaluated after its entries."""
        places = self.count + jnp.cumsum(pending.mask) - 1
        places = jnp.where(pending.mask, places, len(self.archs))  # out of range: dropped
        return self._replace(
            archs=self.archs.at[places].set(pending.archs, mode="drop"),
            waiting=jnp.sum(pending.mask, dtype=jnp.int32),
        )

    def thin(self, size: int) -> "History":
        """Return `size` entries at most: the best, and others evenly, which bias no average."""
        if len(self.archs) <= size:
            return self
        others = self.evaluated.at[self.best_index].set(False)
        chosen = jnp.append(self.best_index, take_evenly(others, size - 1))
        chosen = chosen[jnp.argsort(~self.evaluated[chosen], stable=True)]
        entries = self._replace(count=None, waiting=None)
        kept = jax.tree.map(lambda leaf: leaf[chosen], entries)
        return kept._replace(count=jnp.minimum(self.count, size))

    @property
    def best_index(self) -> Int32[Array, ""]:
        """Return which entry has the largest log-likelihood, of those that did not fail."""
        return jnp.argmax(self.known).astype(jnp.int32)

    @property
    def best(self) -> Float[Array, " budget"]:
        """The largest log-likelihood up to each entry, −inf before the first."""
        return lax.cummax(self.known)


def empty_history(budget: int, length: int) -> History:
    """Return a history without entries."""
    return History(
        jnp.zeros((budget, length), jnp.int32),
        jnp.full(budget, jnp.nan),
        None,
        jnp.full(budget, jnp.nan),
        jnp.int32(0),
    )
