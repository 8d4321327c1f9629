"""What the surrogate said of candidates before they were trained, and how right it was."""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int

from bqnes_jax.compiling import jit_quickly
from bqnes_jax.kernels import KernelConfig, make_kernel
from bqnes_jax.report.uncertainty import Estimate
from bqnes_jax.runs import Run
from bqnes_jax.spaces import Space
from bqnes_jax.surrogates import FitConfig, WarpConfig, wsabi


class Predicted(NamedTuple):
    """What a surrogate said of k candidates that it had not seen, as logarithms of ℓ.

    Attributes:
        actual: the tempered log-likelihood.
        mean: its prediction; −inf where the predicted likelihood is not positive.
        low: the prediction less one standard deviation.
        high: the prediction and one standard deviation more.
        off: by how many standard deviations it was off, of the likelihood and not its logarithm.
    """

    actual: Float[np.ndarray, " k"]
    mean: Float[np.ndarray, " k"]
    low: Float[np.ndarray, " k"]
    high: Float[np.ndarray, " k"]
    off: Float[np.ndarray, " k"]


def ask_surrogate(run: Run) -> Predicted:
    """Ask the surrogate for each candidate that it helped to choose, as it was then."""
    record, search = run.record, run.config.search
    counts = record.counts[record.counts < len(record.archs)]
    if not counts.size:
        return Predicted(*(np.zeros(0) for _ in Predicted._fields))
    said = predict_each(
        jnp.asarray(record.archs),
        jnp.asarray(record.log_likelihoods),
        jnp.asarray(counts),
        search.warp,
        search.fit,
        run.space,
        search.kernel,
        record.temperature,
    )
    actual = record.log_likelihoods / record.temperature
    known = np.isfinite(actual) & (np.arange(len(actual)) >= counts[0])
    mean, sd, log_scale = (np.asarray(values, float)[known] for values in said)
    actual = actual[known].astype(float)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        ends = [np.log(np.maximum(mean + step * sd, 0)) + log_scale for step in (0, -1, 1)]
        off = (np.exp(actual - log_scale) - mean) / sd
    middle, low, high = ends
    return Predicted(actual, middle, low, high, off)


@jit_quickly(("warp", "fit", "space", "chosen"))
def predict_each(
    archs: Int[Array, "n length"],
    log_likelihoods: Float[Array, " n"],
    counts: Int[Array, " T"],
    warp: WarpConfig,
    fit: FitConfig,
    space: Space,
    chosen: KernelConfig,
    temperature: ArrayLike,
) -> tuple[Float[Array, " n"], Float[Array, " n"], Float[Array, " n"]]:
    """Predict each candidate from those before its step: mean, standard deviation, log-scale.

    `counts` tells how many candidates there were before each step. A candidate from before the
    first has no prediction: NaN.
    """
    kernel, places = make_kernel(space, chosen), jnp.arange(len(archs))
    known = jnp.where(jnp.isfinite(log_likelihoods), log_likelihoods, -jnp.inf)  # failed: ℓ = 0

    def after(count: Int[Array, ""]) -> tuple[Array, Array, Array]:
        model = wsabi.fit(
            kernel,
            archs,
            known,
            mask=places < count,
            temperature=temperature,
            config=warp,
            fit_config=fit,
        )
        mean, variance = model.predict(archs)
        return mean, jnp.sqrt(variance), jnp.broadcast_to(model.log_scale, mean.shape)

    step = jnp.searchsorted(counts, places, side="right") - 1
    mean, deviation, scale = (
        jnp.where(step >= 0, said[jnp.maximum(step, 0), places], jnp.nan)
        for said in lax.map(after, counts)
    )
    return mean, deviation, scale


def rank_correlation(a: np.ndarray, b: np.ndarray) -> float:
    """Return Spearman's correlation; NaN where one of the two has no order.

    Example:
        >>> rank_correlation(np.array([1.0, 2.0, 9.0]), np.array([0.0, 5.0, 6.0]))
        1.0
    """
    ranks = np.stack([_ranks(a), _ranks(b)])
    ranks -= ranks.mean(axis=1, keepdims=True) if ranks.size else 0
    norm = float(np.sqrt(np.prod((ranks**2).sum(axis=1))))
    return float(np.prod(ranks, axis=0).sum()) / norm if norm > 0 else float("nan")


def interval_of_correlation(correlation: float, count: int) -> Estimate:
    """Return a rank correlation of so many pairs with its 95 % interval, by Fisher's z.

    Its standard error is √((1 + ρ²/2) / (n − 3)), as Bonett and Wright have it for ranks.

    Example:
        >>> [round(end, 2) for end in interval_of_correlation(0.5, 30)]
        [0.5, 0.15, 0.74]
    """
    if count < 4 or not np.isfinite(correlation):
        return Estimate(correlation, float("nan"), float("nan"))
    width = 1.96 * np.sqrt((1 + correlation**2 / 2) / (count - 3))
    z = np.arctanh(np.clip(correlation, -1 + 1e-12, 1 - 1e-12))
    low, high = (float(end) for end in np.tanh([z - width, z + width]))
    return Estimate(correlation, low, high)


def _ranks(values: np.ndarray) -> Float[np.ndarray, " n"]:
    """Return ranks from 1, the mean of them where values are equal."""
    _, group, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[group]
