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
from shared import REPORTED, RESULTS, console, show, timed, with_error, write

from bqnes_jax.candidates import SearchConfig, inclusion_probabilities, make
from bqnes_jax.candidates.landscape import Listed
from bqnes_jax.candidates.registry import fit_model
from bqnes_jax.drivers import scan
from bqnes_jax.kernels import WL, FeatureRBF, WithCoordinates
from bqnes_jax.quadrature import Evidence, drawn_evidence, included_evidence
from bqnes_jax.spaces import NATS
from bqnes_jax.surrogates import TEMPERATURE, FitConfig, WarpConfig
from bqnes_jax.tables import evaluator, nb201_proxy

Dataset = Literal["cifar10", "cifar100", "imagenet16-120"]


@dataclass(frozen=True)
class Options:
    """Compare estimates of the evidence after the same number of evaluations."""

    datasets: tuple[Dataset, ...] = ("cifar100", "imagenet16-120")
    """Which surfaces."""
    seeds: int = 10
    """How many repeats."""
    estimators: tuple[str, ...] = ()
    """Which estimators, by the first words of their names; all if none are given."""
    out: Path = RESULTS / "evidence.json"
    """Where to write the results."""


DEFAULT = SearchConfig()
PAPER = SearchConfig(fit=FitConfig())  # the prior mean 0, and the published bounds
PLAIN = SearchConfig(warp=WarpConfig("none"), fit=FitConfig())
# A surrogate that learns the logarithm, and where in a cell an operation is.
FREE = FitConfig((1e-5, 10.0), kernel_steps=0, mean="constant")
LOGARITHM = SearchConfig(warp=WarpConfig("log", depth=12.0), fit=FREE)
LOGNORMAL = SearchConfig(warp=WarpConfig("lognormal", depth=12.0), fit=FREE)
PLACED = FeatureRBF(WithCoordinates(WL(NATS)), length_scale=1.4)
COUNTS = [n for n in REPORTED if PAPER.initial <= n <= PAPER.budget]
MONTE_CARLO = "plain Monte Carlo"


def by_surrogate(strategy: str, config: SearchConfig):
    """Take the surrogate's own estimate out of the trace of a search."""
    made = make(strategy, NATS, config=config)

    def estimate(key, evaluate):
        evidence = scan(made, config, key, evaluate).trace.evidence
        return jax.tree.map(lambda x: x[jnp.array(COUNTS) - config.initial], evidence)

    return estimate


def by_draws(config: SearchConfig, kernel=None):
    """Weigh each draw from the believed posterior by how likely it was at its step."""
    made = make("posterior", NATS, kernel=kernel, config=config)

    def estimate(key, evaluate):
        history = scan(made, config, key, evaluate).history
        masks = jnp.arange(config.budget) < jnp.array(COUNTS)[:, None]
        return jax.vmap(
            lambda mask: drawn_evidence(
                history.log_likelihoods, history.scores, NATS.size, mask=mask
            )
        )(masks)

    return estimate


def by_inclusion(config: SearchConfig, kernel, corrected: bool = False):
    """Weigh each draw by how likely it was to be drawn at all.

    Corrected by what the same weights make of the surrogate's own sum, that of its median.
    """
    made = make("posterior", NATS, kernel=kernel, config=config)
    landscape = Listed(NATS, kernel)
    rows, masses = landscape.summands(None)

    def predict(history):
        model = fit_model(landscape, history, config, jnp.asarray(TEMPERATURE))
        each = model.latent.leave_one_out().mean
        return each, jax.nn.logsumexp(model.latent.predict(rows).mean, b=masses)

    def estimate(key, evaluate):
        history = scan(made, config, key, evaluate).history
        chances = inclusion_probabilities(NATS, history, kernel=kernel, config=config)

        def after(count):
            known = history._replace(count=count)
            return included_evidence(
                history.log_likelihoods,
                chances[count - config.initial],
                NATS.size,
                mask=jnp.arange(config.budget) < count,
                predicted=predict(known) if corrected else None,
            )

        return lax.map(after, jnp.array(COUNTS, jnp.int32))

    return estimate


def by_average(key, evaluate):
    """Average the likelihoods of prior draws."""
    made = make("random", NATS, config=PAPER)
    tempered = scan(made, PAPER, key, evaluate).history.log_likelihoods / TEMPERATURE

    def average(n: int) -> Evidence:
        values = jnp.exp(tempered[:n] - jnp.max(tempered[:n]))
        error = jnp.std(values, ddof=1) / jnp.sqrt(n) / jnp.mean(values)
        mean = jnp.max(tempered[:n]) + jnp.log(jnp.mean(values))
        return Evidence(mean, jnp.zeros_like(error), error, jnp.int32(0))

    return jax.tree.map(lambda *x: jnp.stack(x), *map(average, COUNTS))


ESTIMATORS = {
    MONTE_CARLO: by_average,
    "US + WSABI-L (the paper's)": by_surrogate("us", PAPER),
    "US + WSABI-L, as fitted by default": by_surrogate("us", DEFAULT),
    "random + WSABI-L": by_surrogate("random", PAPER),
    "US + plain GP": by_surrogate("us", PLAIN),
    "WSABI-L draws, by step": by_draws(PAPER),
    "log draws, by step": by_draws(LOGARITHM, PLACED),
    "log draws, by inclusion": by_inclusion(LOGARITHM, PLACED),
    "lognormal draws, by inclusion": by_inclusion(LOGNORMAL, PLACED),
    "lognormal draws, corrected": by_inclusion(LOGNORMAL, PLACED, corrected=True),
}


def main(options: Options) -> None:
    keys = jax.random.split(jax.random.key(0), options.seeds)
    tables = {dataset: nb201_proxy(dataset) for dataset in options.datasets}
    chosen = {
        name: jax.jit(lambda keys, evaluate, one=one: lax.map(lambda k: one(k, evaluate), keys))
        for name, one in ESTIMATORS.items()
        if not options.estimators or name.startswith((MONTE_CARLO, *options.estimators))
    }
    result = {"counts": COUNTS, "seeds": options.seeds, "errors": {}, "deviations": {}}
    for dataset, table in tables.items():
        exact = float(jax.nn.logsumexp(table.log_likelihoods / TEMPERATURE) - np.log(NATS.size))
        errors, deviations = {}, {}
        for name, program in chosen.items():
            found, seconds = timed(program, keys, evaluator(table, NATS))
            errors[name] = np.asarray(found.log_evidence, float) - exact
            deviations[name] = np.hypot(found.posterior_sd, found.sampling_sd)
            console.print(f"{name}: {seconds / options.seeds:.2f} s for each search")
        result["errors"][dataset], result["deviations"][dataset] = errors, deviations
        report(dataset, exact, errors, deviations)
        write(options.out, result)


def report(dataset: str, exact: float, errors: dict, deviations: dict) -> None:
    """Print mean distances, what is lost against Monte Carlo with the same keys, and coverage."""
    rows, paired, negative = [], [], 0
    usual = np.abs(errors[MONTE_CARLO])
    for name, error in errors.items():
        finite = np.isfinite(error)  # the plain GP's estimate can be negative
        negative += (~finite).sum()
        marks = np.where(finite.all(0), "", "*")
        size = [np.abs(column[ok]) for column, ok in zip(error.T, finite.T, strict=True)]
        last, sd = error[finite[:, -1], -1], deviations[name][finite[:, -1], -1]
        rows.append(
            [
                name,
                *(with_error(one, 2) + mark for one, mark in zip(size, marks, strict=True)),
                f"{last.mean():+.2f}",
                *(f"{(np.abs(last) <= width * sd).mean():.0%}" for width in (1, 1.96)),
            ]
        )
        differences = [
            (np.abs(column) - other)[ok]
            for column, other, ok in zip(error.T, usual.T, finite.T, strict=True)
        ]
        paired.append([name, *(with_error(one, 2) for one in differences)])
    columns = ["|log Ẑ − log Z| after", *map(str, COUNTS), "bias", "in 68 %", "in 95 %"]
    show(f"{dataset} (proxy losses): exact log Z = {exact:.3f}", columns, rows)
    show("less Monte Carlo's, in pairs", ["after", *map(str, COUNTS)], paired)
    if negative:
        console.print(f"* without {negative} estimates of Z that were negative")


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
