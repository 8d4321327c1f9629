"""How good predictions are, and how far that depends on which test points were drawn.

One set of draws serves all ensembles, so that what one loses less than another is compared on the
same points; and without a program to compile.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

_DRAWS, _FEWER, _MANY = 1000, 200, 20_000  # draws, or fewer of them where points are many
_TOGETHER = 50  # draws that are held in memory at once
_BINS = 10
TAILS = (0.025, 0.975)


class Estimate(NamedTuple):
    """A number measured on all points, and between which values 95 % of the draws lie."""

    value: float
    low: float
    high: float


class Measured(NamedTuple):
    """How good one of several ensembles is.

    Attributes:
        error: the share of the points that it gets wrong.
        loss: −log p of the true class, in nats per point.
        ece: expected calibration error. Draws of points have more of it than all points have, so
            that its interval is that of the draws, less what they have more on average.
        beyond: how much larger its loss is than that of the first ensemble, on the same points.
    """

    error: Estimate
    loss: Estimate
    ece: Estimate
    beyond: Estimate


Said = Float[np.ndarray, "_ m classes"]  # log-probabilities; several sets are averaged


def measure_each(every: Sequence[Said], labels: Int[np.ndarray, " m"]) -> list[Measured]:
    """Measure ensembles on the same points, each by its log-probabilities.

    Of an ensemble that is drawn at random there are several sets: what they do on average counts.

    Example:
        >>> sure, unsure = np.log([[[0.9, 0.1]] * 4]), np.log([[[0.5, 0.5]] * 4])
        >>> first, second = measure_each([sure, unsure], np.zeros(4, int))
        >>> first.error.value, round(first.loss.value, 3), round(second.beyond.value, 3)
        (0.0, 0.105, 0.588)
    """
    points, labels = len(labels), np.asarray(labels)
    parts = [_parts(np.asarray(said, float), labels) for said in every]
    whole = [_sums(np.ones((1, points)), *part) for part in parts]
    drawn = [
        np.concatenate(chunk, axis=1)
        for chunk in zip(
            *([_sums(counts, *part) for part in parts] for counts in _draws(points)), strict=True
        )
    ]
    return [
        Measured(
            _estimate(one[0], own[0]),
            _estimate(one[1], own[1]),
            _estimate(one[2], np.maximum(own[2] - own[2].mean() + one[2], 0)),
            _estimate(*_difference((one[1], own[1]), (whole[0][1], drawn[0][1]))),
        )
        for one, own in zip(whole, drawn, strict=True)
    ]


def compare_losses(
    first: Float[np.ndarray, " m"], others: Sequence[Float[np.ndarray, " m"]]
) -> list[Estimate]:
    """Return how much larger the mean loss of each other is than the first, point for point."""
    gaps = np.stack([other - first for other in others], axis=1)
    drawn = np.concatenate([counts @ gaps / len(first) for counts in _draws(len(first))])
    return [_estimate(gap.mean(keepdims=True), d) for gap, d in zip(gaps.T, drawn.T, strict=True)]


def interval_of_draws(values: Float[np.ndarray, " draws"], value: float) -> Estimate:
    """Return a value with the ends between which 95 % of its draws lie."""
    return _estimate(np.array([value]), values)


def _difference(a: tuple, b: tuple) -> list[np.ndarray]:
    """Return the differences of losses; between two infinite ones there is none that is known."""
    with np.errstate(invalid="ignore"):
        return [one - other for one, other in zip(a, b, strict=True)]


def _draws(points: int) -> Iterator[Float[np.ndarray, "draws m"]]:
    """Yield how often each point is drawn, for some draws at a time; the same each time."""
    random = np.random.default_rng(0)
    total = _DRAWS if points <= _MANY else _FEWER
    for _ in range(total // _TOGETHER):
        counts = np.empty((_TOGETHER, points))
        for row in counts:
            row[:] = np.bincount(random.integers(0, points, points), minlength=points)
        yield counts


def _parts(said: Said, labels: Int[np.ndarray, " m"]) -> tuple[np.ndarray, ...]:
    """Return of each point what sums are made of: mistakes, losses, and gaps by bins."""
    sets, points, _ = said.shape
    loss = -said[:, np.arange(points), labels]
    wrong = said.argmax(axis=2) != labels
    confidence = np.exp(said.max(axis=2))
    bins = np.clip(np.ceil(confidence * _BINS).astype(int) - 1, 0, _BINS - 1)
    gaps = np.zeros((points, sets, _BINS))
    place = np.arange(sets)[:, None], np.arange(points)
    gaps[place[1], place[0], bins] = ~wrong - confidence
    return wrong.mean(axis=0), loss.mean(axis=0), gaps


def _sums(
    counts: Float[np.ndarray, "draws m"],
    wrong: Float[np.ndarray, " m"],
    loss: Float[np.ndarray, " m"],
    gaps: Float[np.ndarray, "m sets bins"],
) -> Float[np.ndarray, "metrics draws"]:
    """Return error, loss and ECE of each draw."""
    points = len(wrong)
    infinite = ~np.isfinite(loss)
    losses = counts @ np.where(infinite, 0, loss) / points
    losses = np.where(counts[:, infinite].sum(axis=1) > 0, np.inf, losses)
    of_bins = counts @ gaps.reshape(points, -1) / points
    eces = np.abs(of_bins).reshape(len(counts), *gaps.shape[1:]).sum(axis=2).mean(axis=1)
    return np.stack([counts @ wrong / points, losses, eces])


def _estimate(value: Float[np.ndarray, " one"], drawn: Float[np.ndarray, " draws"]) -> Estimate:
    low, high = np.quantile(drawn, TAILS, method="nearest")
    return Estimate(float(value[0]), float(low), float(high))
