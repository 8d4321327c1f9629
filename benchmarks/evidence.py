"""How fast the evidence of a real likelihood surface is learned, and by what.

Architectures of NATS-Bench are evaluated one at a time, 10 from the prior and then 140 by a
strategy, with hyper-parameters refitted at every step; log Ẑ of the tempered likelihood is compared
with the exact sum over all 15,625. The surfaces are NAS-Bench-201's, with losses by proxy from
published validation accuracies.

    python benchmarks/evidence.py --seeds 10
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from jax import lax
from shared import REPORTED, RESULTS, console, make_repeats, show, timed, with_error, write

from bqnes_jax.candidates import SearchConfig
from bqnes_jax.candidates.landscape import Listed
from bqnes_jax.kernels import WL, FeatureRBF
from bqnes_jax.quadrature import drawn_evidence, evidence_over
from bqnes_jax.spaces import NATS
from bqnes_jax.surrogates import TEMPERATURE, WarpConfig, wsabi
from bqnes_jax.tables import evaluator, nb201_proxy

Dataset = Literal["cifar10", "cifar100", "imagenet16-120"]


@dataclass(frozen=True)
class Options:
    """Compare estimates of the evidence after the same number of evaluations."""

    datasets: tuple[Dataset, ...] = ("cifar100", "imagenet16-120")
    """Which surfaces."""
    seeds: int = 10
    """How many repeats."""
    out: Path = RESULTS / "evidence.json"
    """Where to write the results."""


CONFIG = SearchConfig()
GP_CONFIG = SearchConfig(warp=WarpConfig("none"))


def counts():
    return [n for n in REPORTED if CONFIG.initial <= n <= CONFIG.budget]


def at_counts(trace):
    """Take log Ẑ of the surrogate out of a trace."""
    return trace.evidence.log_evidence[:, jnp.array(counts()) - CONFIG.initial]


def averaged(history):
    """Average the likelihoods of prior draws: plain Monte Carlo."""
    tempered = history.log_likelihoods / TEMPERATURE
    return jnp.stack([jax.nn.logsumexp(tempered[:, :n], 1) - jnp.log(n) for n in counts()], axis=1)


def unbiased(history):
    """Weigh each draw by the probability of having drawn it."""

    def estimate(log_likelihoods, log_q, n):
        mask = jnp.arange(CONFIG.budget) < n
        return drawn_evidence(log_likelihoods, log_q, NATS.size, mask).log_evidence

    every = jax.vmap(jax.vmap(estimate, (None, None, 0)), (0, 0, None))
    return every(history.log_likelihoods, history.scores, jnp.array(counts()))


def make_log_model():
    """Return the estimate by a GP on the log-likelihood, from histories of any strategy."""
    landscape = Listed(NATS, FeatureRBF(WL(NATS), length_scale=1.0))
    rows, weights = landscape.summands(None)

    def estimate(archs, log_likelihoods, n):
        model = wsabi.fit(
            landscape.kernel,
            landscape.rows(archs),
            log_likelihoods,
            jnp.arange(CONFIG.budget) < n,
            WarpConfig("log"),
        )
        return evidence_over(model, rows, weights).log_evidence

    def every(history):
        numbers = jnp.array(counts())
        return lax.map(
            lambda one: lax.map(lambda n: estimate(*one, n), numbers),
            (history.archs, history.log_likelihoods),
        )

    return every


def main(options: Options) -> None:
    keys = jax.random.split(jax.random.key(0), options.seeds)
    tables = {dataset: nb201_proxy(dataset) for dataset in options.datasets}
    any_table = evaluator(next(iter(tables.values())), NATS)
    programs = {
        name: timed(jax.jit(make_repeats(strategy, config)).lower(keys, any_table).compile)
        for name, strategy, config in (
            ("us", "us", CONFIG),
            ("random", "random", CONFIG),
            ("posterior", "posterior", CONFIG),
            ("plain GP", "us", GP_CONFIG),
        )
    }
    log_model = jax.jit(make_log_model())
    result = {"counts": counts(), "seeds": options.seeds, "errors": {}, "seconds": {}}
    for dataset, table in tables.items():
        exact = float(jax.nn.logsumexp(table.log_likelihoods / TEMPERATURE) - np.log(NATS.size))
        found = {}
        for name, (program, compiling) in programs.items():
            found[name], running = timed(program, keys, evaluator(table, NATS))
            result["seconds"][name] = {
                "compiling": compiling,
                "running, per repeat": running / options.seeds,
            }
        estimates = {
            "US + WSABI-L (the paper's)": at_counts(found["us"][1]),
            "random + WSABI-L": at_counts(found["random"][1]),
            "US + plain GP": at_counts(found["plain GP"][1]),
            "plain Monte Carlo": averaged(found["random"][0]),
            "US + GP on log-likelihood": log_model(found["us"][0]),
            "posterior draws, weighted": unbiased(found["posterior"][0]),
        }
        errors = {name: np.asarray(values) - exact for name, values in estimates.items()}
        result["errors"][dataset] = errors
        report(dataset, exact, errors)
    for name, seconds in result["seconds"].items():
        console.print(
            f"{name}: compiled in {seconds['compiling']:.1f} s, "
            f"{seconds['running, per repeat']:.2f} s for each repeat of 10 → 150"
        )
    write(options.out, result)


def report(dataset: str, exact: float, errors: dict) -> None:
    rows, negative = [], 0
    for name, error in errors.items():
        row = [name]
        for column in error.T:
            positive = np.isfinite(column)  # the plain GP's estimate can be negative
            negative += (~positive).sum()
            text = with_error(np.abs(column[positive]), 2) if positive.any() else "–"
            row.append(text + ("" if positive.all() else "*"))
        last = error[:, -1]
        row.append(f"{last[np.isfinite(last)].mean():+.2f}")
        rows.append(row)
    columns = ["|log Ẑ − log Z| after", *map(str, counts()), "bias"]
    show(f"{dataset} (proxy losses): exact log Z = {exact:.3f}", columns, rows)
    if negative:
        console.print(f"* without {negative} estimates of Z that were negative")


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
