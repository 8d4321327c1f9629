"""What drawing at random would have done with as many trainings as the search had."""

from math import comb
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from bqnes_jax.report.uncertainty import Estimate, interval_of_draws

_DRAWS = 1000


class Luck(NamedTuple):
    """Candidates that a search chose against those that were drawn at random before.

    Attributes:
        drawn: how many were drawn at random, and trained.
        chosen: how many the search chose, and were trained.
        wins: the share of pairs in which the chosen one is better; ½ is as good as random.
        ahead: how many of the chosen are better than every random one.
        expected: how many of as many further random draws would be, on average.
    """

    drawn: int
    chosen: int
    wins: Estimate
    ahead: int
    expected: float


def judge(values: Float[np.ndarray, " n"], initial: int) -> Luck | None:
    """Compare candidates from `initial` on with those before; None where either are none.

    Of n + k draws in any order each is as likely to be the best: one of k further draws is better
    than all of n with the probability 1/(n + 1).

    Example:
        >>> found = judge(np.array([1.0, 2.0, 3.0, 2.5, 4.0, 5.0]), 3)
        >>> found.ahead, found.expected, round(found.wins.value, 2)
        (2, 0.75, 0.89)
    """
    values = np.where(np.isnan(values), -np.inf, values)  # what failed is worse than all else
    drawn, chosen = values[:initial], values[initial:]
    if not drawn.size or not chosen.size:
        return None
    wins = (chosen[:, None] > drawn) + 0.5 * (chosen[:, None] == drawn)
    random = np.random.default_rng(0)
    shares = np.array(
        [
            wins[np.ix_(random.integers(0, n, n), random.integers(0, m, m))].mean()
            for n, m in [wins.shape] * _DRAWS
        ]
    )
    ahead = int((chosen > drawn.max()).sum())
    share = interval_of_draws(shares, float(wins.mean()))
    return Luck(len(drawn), len(chosen), share, ahead, len(chosen) / (len(drawn) + 1))


def expected_best(values: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    """Return the best of 1, 2, … n of the values, on average over all subsets of that size.

    With values in descending order, the i-th is the best of k with the probability
    C(n − i, k − 1) / C(n, k).

    Example:
        >>> expected_best(np.array([1.0, 3.0, 2.0])).round(3).tolist()
        [2.0, 2.667, 3.0]
    """
    ordered, count = np.sort(values)[::-1], len(values)
    return np.array(
        [
            sum(v * (comb(count - i - 1, k - 1) / comb(count, k)) for i, v in enumerate(ordered))
            for k in range(1, count + 1)
        ]
    )


def evidence_of_draws(tempered: Float[np.ndarray, " n"]) -> Estimate:
    """Return log (1/n) Σ exp(L/T) of random draws alone, and its interval by the bootstrap.

    No surrogate has a part in it: it checks log Ẑ, with more noise.
    """
    tempered = np.where(np.isfinite(tempered), tempered, -np.inf)
    best = tempered.max(initial=-np.inf)
    if best == -np.inf:
        return Estimate(*[float("nan")] * 3)
    values = np.exp(tempered - best)
    random = np.random.default_rng(0)
    means = random.choice(values, (_DRAWS, len(values))).mean(axis=1)
    with np.errstate(divide="ignore"):
        drawn = np.log(means) + best
    return interval_of_draws(drawn, float(np.log(values.mean()) + best))
