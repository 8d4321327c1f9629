"""Whether other fits of the surrogate help the evidence: averaged ones, and noise that differs.

The draws of `evidence.py` ("lognormal draws, corrected") are taken as they are, and corrected by
four surrogates of the logarithm in turn: one with the noise that fits best; one with noise that
grows where little is predicted, σ² exp(−γ (f − mean f)), γ fitted as well; and an average over a
grid of length scales and noises, weighed by their marginal likelihoods, of either kind.

    python benchmarks/averaging.py --seeds 40
"""

from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from evidence import COUNTS, LOGNORMAL, MONTE_CARLO, PLACED, Dataset, by_average
from jax import lax
from scipy.linalg import cho_factor, cho_solve
from scipy.special import logsumexp
from shared import RESULTS, show, with_error, write

from bqnes_jax.candidates import inclusion_probabilities, make
from bqnes_jax.drivers import scan
from bqnes_jax.spaces import NATS, enumerate_space
from bqnes_jax.surrogates import TEMPERATURE
from bqnes_jax.tables import evaluator, nb201_proxy

LENGTHS = (0.7, 1.0, 1.4, 2.0, 2.8)
NOISES = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)  # in units of the amplitude
GROWTHS = (0.0, 0.15, 0.3, 0.5)
NEGLIGIBLE = 1e-3  # a share in an average that is left out
DEPTH = LOGNORMAL.warp.depth


@dataclass(frozen=True)
class Options:
    """Correct the same draws by several surrogates."""

    datasets: tuple[Dataset, ...] = ("cifar100", "imagenet16-120")
    """Which surfaces."""
    seeds: int = 40
    """How many searches, with other keys than those of evidence.py."""
    counts: tuple[int, ...] = (25, 50)
    """After how many evaluations."""
    out: Path = RESULTS / "averaging.json"
    """Where to write the results."""


class Fit(NamedTuple):
    """A Gaussian process on the logarithm, whose mean and amplitude fit best."""

    length: float
    growth: float
    evidence: float  # the logarithm of its marginal likelihood
    log_sum: float  # of its median over the whole space
    left_out: np.ndarray  # what each was predicted to be from the others


def fit(kernel: np.ndarray, known: np.ndarray, y: np.ndarray, noise: np.ndarray):
    """Return marginal likelihood, predictions everywhere, and of each from the others."""
    factor = cho_factor(kernel[known] + np.diag(noise), lower=True)
    inverse = cho_solve(factor, np.eye(len(y)))
    mean = (inverse @ y).sum() / inverse.sum()
    coefficients = inverse @ (y - mean)
    amplitude = (y - mean) @ coefficients / len(y)
    evidence = -0.5 * len(y) * np.log(amplitude) - np.log(np.diag(factor[0])).sum()
    return evidence, mean + kernel @ coefficients, y - coefficients / np.diag(inverse)


def every_fit(distances: np.ndarray, known: np.ndarray, y: np.ndarray) -> list[Fit]:
    """Return fits with every length scale, noise and growth."""
    fits = []
    for length, noise in product(LENGTHS, NOISES):
        kernel = np.exp(-0.5 * distances / length**2)
        _, _, even = fit(kernel, known, y, np.full(len(y), noise))
        for growth in GROWTHS:
            own = noise * np.exp(-growth * (even - even.mean()))
            evidence, everywhere, left_out = fit(kernel, known, y, own)
            fits.append(Fit(length, growth, evidence, logsumexp(everywhere), left_out))
    return fits


def best(fits: list[Fit]) -> list[tuple[float, Fit]]:
    return [(1.0, max(fits, key=lambda one: one.evidence))]


def average(fits: list[Fit]) -> list[tuple[float, Fit]]:
    """Return fits with their shares by marginal likelihood."""
    evidence = np.array([one.evidence for one in fits])
    shares = np.exp(evidence - logsumexp(evidence))
    return [(share, one) for share, one in zip(shares, fits, strict=True) if share > NEGLIGIBLE]


def corrected(log_likelihoods, chances, shares: list[tuple[float, Fit]]) -> float:
    """Return log Ẑ of draws, corrected by what they make of the surrogate's known sum."""
    parts = np.log([share for share, _ in shares])
    total = logsumexp(parts + [one.log_sum for _, one in shares])
    each = logsumexp(parts[:, None] + [one.left_out for _, one in shares], axis=0)
    drawn = logsumexp(log_likelihoods - np.log(chances))
    return drawn - logsumexp(each - np.log(chances)) + total - np.log(NATS.size)


def estimates(distances, numbers, log_likelihoods, chances) -> dict[str, float]:
    """Return what each surrogate makes of the draws of one search."""
    top = log_likelihoods.max()
    y = np.maximum(log_likelihoods - top, -DEPTH)
    fits = every_fit(distances[:, numbers], numbers, y)
    one_length = [one for one in fits if one.length == PLACED.length_scale]
    even = [one for one in fits if not one.growth]
    chosen = {
        "best noise": best([one for one in one_length if not one.growth]),
        "best growing noise": best(one_length),
        "averaged": average(even),
        "averaged, growing noise": average(fits),
    }
    found = {name: corrected(log_likelihoods, chances, each) for name, each in chosen.items()}
    found["not corrected"] = logsumexp(log_likelihoods - np.log(chances)) - np.log(NATS.size)
    return found


def draw(keys, evaluate, counts):
    """Return numbers, tempered log-likelihoods and chances of draws, and Monte Carlo's log Ẑ."""
    made = make("posterior", NATS, kernel=PLACED, config=LOGNORMAL)

    def one(key):
        history = scan(made, LOGNORMAL, key, evaluate).history
        chances = inclusion_probabilities(NATS, history, kernel=PLACED, config=LOGNORMAL)
        usual = by_average(key, evaluate).log_evidence
        picked = chances[jnp.array(counts) - LOGNORMAL.initial]
        return NATS.index(history.archs), history.log_likelihoods / TEMPERATURE, picked, usual

    return jax.tree.map(np.asarray, jax.jit(lambda keys: lax.map(one, keys))(keys))


def main(options: Options) -> None:
    features = np.asarray(PLACED.features(enumerate_space(NATS)), np.float64)
    squares = (features**2).sum(1)
    distances = np.maximum(squares[:, None] + squares - 2 * features @ features.T, 0)
    distances = distances.astype(np.float32)
    keys = jax.random.split(jax.random.key(100), options.seeds)
    result = {"counts": options.counts, "seeds": options.seeds, "errors": {}}
    for dataset in options.datasets:
        table = nb201_proxy(dataset)
        exact = float(jax.nn.logsumexp(table.log_likelihoods / TEMPERATURE) - np.log(NATS.size))
        drawn = draw(keys, evaluator(table, NATS), options.counts)
        errors: dict[str, list] = {}
        for numbers, log_likelihoods, chances, usual in zip(*drawn, strict=True):
            row = [
                estimates(distances, numbers[:n], log_likelihoods[:n], chances[i, :n])
                | {MONTE_CARLO: float(usual[COUNTS.index(n)])}
                for i, n in enumerate(options.counts)
            ]
            for name in row[0]:
                errors.setdefault(name, []).append([one[name] - exact for one in row])
        result["errors"][dataset] = errors
        rows = [
            [name, *(with_error(np.abs(column), 2) for column in np.array(values).T)]
            for name, values in errors.items()
        ]
        show(dataset, ["|log Ẑ − log Z| after", *map(str, options.counts)], rows)
        write(options.out, result)


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
