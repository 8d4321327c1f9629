"""How fast Bayesian quadrature learns the evidence of a real likelihood surface.

Architectures are chosen one at a time by uncertainty sampling over all 15,625 cells of NATS-Bench,
with hyper-parameters refitted at every step; log Ẑ of the tempered likelihood is compared with the
exact sum. The surface is NAS-Bench-201's, with losses by proxy from validation accuracies.

    python benchmarks/evidence.py --dataset cifar100 --seeds 3
"""

import json
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from jax import lax
from rich.console import Console
from rich.table import Table as RichTable

from bqnes_jax.kernels import WL, Linear
from bqnes_jax.quadrature import evidence_over, propose
from bqnes_jax.spaces import NATS, enumerate_space
from bqnes_jax.surrogates import TEMPERATURE, WarpConfig, wsabi
from bqnes_jax.tables import nb201_proxy

REPORTED = (10, 25, 50, 100, 150)


@dataclass(frozen=True)
class Options:
    """Choose architectures by Bayesian quadrature and watch the estimate of the evidence."""

    dataset: Literal["cifar10", "cifar100", "imagenet16-120"] = "cifar100"
    """Which surface."""
    budget: int = 150
    """How many architectures are evaluated in all."""
    initial: int = 10
    """How many of them are drawn from the prior."""
    seeds: int = 3
    """How many repeats."""
    warp: Literal["linear", "moment", "none"] = "linear"
    """WSABI-L, WSABI-M or the plain Gaussian process."""
    out: Path | None = None
    """Where to write the results as JSON."""


def make_run(table, options):
    """Return a pure function of a key: the trace of one search."""
    features = WL(NATS).features(enumerate_space(NATS))  # once, not at every step
    prior = jnp.full(NATS.size, 1 / NATS.size)
    config = WarpConfig(options.warp)

    def step(chosen, count):
        mask = jnp.arange(options.budget) < count
        model = wsabi.fit(Linear(), features[chosen], table.log_likelihoods[chosen], mask, config)
        best = jnp.max(table.accuracies[chosen], where=mask, initial=0)
        proposal = propose(model, features)
        estimate = evidence_over(model, features, prior)
        return chosen.at[count].set(proposal.indices[0], mode="drop"), (estimate, best)

    def run(key):
        start = jax.random.choice(key, NATS.size, (options.initial,), replace=False)
        chosen = jnp.zeros(options.budget, jnp.int32).at[: options.initial].set(start)
        return lax.scan(step, chosen, jnp.arange(options.initial, options.budget + 1))[1]

    return run


def timed(function, *arguments):
    start = perf_counter()
    result = jax.block_until_ready(function(*arguments))
    return result, perf_counter() - start


def main(options: Options) -> None:
    table = nb201_proxy(options.dataset)
    tempered = table.log_likelihoods / TEMPERATURE
    exact = float(jax.nn.logsumexp(tempered) - np.log(NATS.size))
    keys = jax.random.split(jax.random.key(0), options.seeds)
    run, compiling = timed(
        jax.jit(lambda keys: lax.map(make_run(table, options), keys)).lower(keys).compile
    )
    (estimates, best), running = timed(run, keys)

    errors = np.asarray(estimates.log_evidence) - exact
    shown = RichTable(title=f"{options.dataset} (proxy losses): exact log Z = {exact:.3f}")
    for column in ("evaluated", "log Ẑ − log Z", "± s.e.", "posterior sd", "best accuracy"):
        shown.add_column(column, justify="right")
    for count in (n for n in REPORTED if options.initial <= n <= options.budget):
        at = count - options.initial
        spread = errors[:, at].std(ddof=1) / np.sqrt(options.seeds) if options.seeds > 1 else np.nan
        shown.add_row(
            str(count),
            f"{errors[:, at].mean():+.3f}",
            f"{spread:.3f}",
            f"{np.mean(estimates.posterior_sd[:, at]):.3f}",
            f"{100 * np.mean(best[:, at]):.2f} %",
        )
    console = Console()
    console.print(shown)
    each = running / options.seeds
    console.print(
        f"compiled in {compiling:.1f} s; {each:.1f} s for each of {options.seeds} repeats"
    )
    if options.out:
        result = {
            "dataset": options.dataset,
            "exact_log_evidence": exact,
            "errors": errors.tolist(),
        }
        options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
