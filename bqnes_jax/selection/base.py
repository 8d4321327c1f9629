"""What goes into a selection method, what comes out of it, and how a loss is counted.

Every loss here is the mean negative log-likelihood of the validation points. For mixtures the
probabilities of the true class are enough for it: N×n numbers instead of N×n×C. Pools in log space
need those of all classes.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int32

from bqnes_jax.errors import BQNESError, as_float, check_mask, check_shape, concrete

# Methods see a probability of 0, and all below e^ZERO, as e^FLOOR: a number that can be added up
# and mixed, and that even after mixing stays apart from every other.
FLOOR, ZERO = -1e4, -5e3


class Candidates(NamedTuple):
    """What a selection method sees of N candidates on n validation points.

    Attributes:
        log_probs: of the true class; not below FLOOR, and FLOOR throughout where not usable.
        usable: false for padding and for failed candidates, which must get no weight.
        kernel: how alike the candidates are, 0 with those that are not usable; None if not given.
        log_prior: of the architectures, not necessarily normalised.
        temperature: by which the summed log-likelihood is divided in the posterior.
        classes: log-probabilities of all classes, as they were given: not above 0, of any floating
            type, down to −inf, and NaN where not usable; None if not given.
        rule: the weights v of a quadrature rule on the candidates, Σ_α π(α) f(α) ≈ Σ_n v_n f(α_n);
            None if not given.
        measures: the log-likelihoods that the posterior is formed by; None for those of the
            validation points.
        limit: how many members there may be, if that is fewer than slots; None for all slots.
    """

    log_probs: Float[Array, "N n"]
    usable: Bool[Array, " N"]
    kernel: Float[Array, "N N"] | None
    log_prior: Float[Array, " N"]
    temperature: Float[Array, ""]
    classes: Float[Array, "N n C"] | None = None
    rule: Float[Array, " N"] | None = None
    measures: Float[Array, " N"] | None = None
    limit: Int32[Array, ""] | None = None


class Choice(NamedTuple):
    """What a selection method answers; slots of weight 0 are free.

    Weights of a mixture need not be normalised. Those of a log pool are taken as they are.

    Attributes:
        members: indices of candidates, in the order in which the method prefers them.
        weights: their non-negative weights.
        status: `Status` bits of the method itself.
    """

    members: Int32[Array, " M"]
    weights: Float[Array, " M"]
    status: Int32[Array, ""]


Method = Callable[[Candidates, int], Choice]


def open_slots(candidates: Candidates, size: int) -> Bool[Array, " M"]:
    """Tell which of M slots may be filled: the first ones, as many as the limit says."""
    slots = jnp.arange(size)
    return slots < (size if candidates.limit is None else candidates.limit)


def required_kernel(candidates: Candidates) -> Float[Array, "N N"]:
    """Return the kernel between the candidates, and refuse to go on without one."""
    if candidates.kernel is None:
        raise BQNESError(
            "kernel is None; the method needs to know how alike the candidates are: pass their "
            "Gram matrix, and register the method with needs_kernel=True."
        )
    return candidates.kernel


def required_classes(candidates: Candidates) -> Float[Array, "N n C"]:
    """Return the log-probabilities of all classes, and refuse to go on without them."""
    if candidates.classes is None:
        raise BQNESError(
            "classes is None; the method needs what the candidates say about every class: pass "
            "their log-probabilities N×n×C, and register the method with needs_classes=True."
        )
    return candidates.classes


def prepare(log_probs: ArrayLike, mask: ArrayLike | None) -> tuple[jax.Array, jax.Array]:
    """Check log-probabilities N×n and mask N, and tell which candidates are usable."""
    log_probs = as_float(log_probs)
    log_probs = log_probs.astype(jnp.promote_types(log_probs.dtype, jnp.float32))
    check_shape("log_probs", log_probs, (None, None))
    if log_probs.size == 0:
        raise BQNESError(
            f"log_probs has shape {log_probs.shape}; it must be (candidates, validation points) "
            "with at least one of each."
        )
    mask = jnp.asarray(np.ones(len(log_probs), bool) if mask is None else mask)
    check_mask("mask", mask, len(log_probs))
    usable = _usable(log_probs, mask)
    values, known = concrete(log_probs), concrete(usable)
    if values is not None and known is not None:
        _check_values(values, known)
    return log_probs, usable


def prepare_classes(
    classes: ArrayLike, log_probs: jax.Array, usable: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Check log-probabilities N×n×C of all classes, and tell which candidates are still usable."""
    classes = as_float(classes)
    check_shape("classes", classes, (*log_probs.shape, None))
    if classes.shape[2] == 0:
        raise BQNESError(f"classes has shape {classes.shape}; at least one class is needed.")
    largest = _largest(classes)
    usable = usable & (largest < jnp.inf)
    values, known = concrete(largest), concrete(usable)
    if values is not None and known is not None:
        _check_values(values[:, None], known, "classes")
    return classes, usable


@jax.jit
def _largest(classes: Float[Array, "N n C"]) -> Float[Array, " N"]:
    """Return the largest entry of each candidate, NaN if there is one."""
    return jax.lax.map(jnp.max, classes).astype(jnp.promote_types(classes.dtype, jnp.float32))


@jax.jit
def _usable(log_probs: Float[Array, "N n"], mask: Bool[Array, " N"]) -> Bool[Array, " N"]:
    return mask & jnp.all(log_probs < jnp.inf, axis=1)  # NaN is not below infinity


def _check_values(log_probs: np.ndarray, usable: np.ndarray, name: str = "log_probs") -> None:
    if not usable.any():
        raise BQNESError(
            f"{name} has no usable row among {len(usable)}: each is masked out, or holds NaN; "
            "at least one candidate must have been trained successfully."
        )
    largest = np.fmax.reduce(log_probs, axis=1).max(where=usable, initial=-np.inf)
    if largest > 1e-3:  # room for the rounding of a log-softmax
        raise BQNESError(
            f"{name} holds {largest:.6g}; the logarithm of a probability is at most 0: "
            "pass log-probabilities, not probabilities or losses."
        )


def floor_entries(log_probs: Float[Array, "N n"], usable: Bool[Array, " N"]) -> Float[Array, "N n"]:
    """Make every entry a finite number, FLOOR standing for probability 0 and for failure."""
    return jnp.where(usable[:, None] & (log_probs >= ZERO), log_probs, FLOOR)


def zeros(log_mixture: Float[Array, "*batch n"]) -> Int32[Array, "*batch"]:
    """Count the points that get probability 0."""
    return jnp.sum(log_mixture < (FLOOR + ZERO) / 2, axis=-1, dtype=jnp.int32)


def score(log_mixture: Float[Array, "*batch n"]) -> Float[Array, "*batch"]:
    """Rank mixtures: first by how few points get probability 0, then by the mean log-likelihood."""
    return jnp.mean(log_mixture, axis=-1) + 10 * FLOOR * zeros(log_mixture)


def countable_points(log_probs: Float[Array, "N n"]) -> Bool[Array, " n"]:
    """Tell which points any candidate gives a positive probability; the others count for none."""
    return jnp.max(log_probs, axis=0) > FLOOR


def mean_loss(log_mixture: Float[Array, " n"], countable: Bool[Array, " n"]) -> Float[Array, ""]:
    """Average −log p over the countable points; infinite where a mixture misses one, or all do."""
    total = -jnp.sum(jnp.where(countable, log_mixture, 0))
    return jnp.where(jnp.any(countable), total / jnp.maximum(jnp.sum(countable), 1), jnp.inf)


def log_mixture(log_probs: Float[Array, "M n"], weights: Float[Array, " M"]) -> Float[Array, " n"]:
    """Return log Σ_m w_m p_m at each point, −inf where all members in use are at the FLOOR."""
    log_probs = jnp.where(weights[:, None] > 0, log_probs, FLOOR)
    best = jnp.max(log_probs, axis=0)
    relative = jnp.sum(weights[:, None] * jnp.exp(log_probs - best), axis=0)
    return jnp.where(best > FLOOR, best + jnp.log(relative), -jnp.inf)
