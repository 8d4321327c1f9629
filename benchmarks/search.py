"""What each strategy finds: the best architecture, and how much of the posterior.

All strategies start from the same 10 architectures and evaluate 150 of the 15,625 cells of
NATS-Bench. Posterior mass is that of the evaluated architectures under the exact posterior at the
default temperature: what an ensemble of them can average over. The surfaces are NAS-Bench-201's,
with losses by proxy from published validation accuracies.

    python benchmarks/search.py --seeds 10
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import jax
import jax.numpy as jnp
import tyro
from shared import REPORTED, RESULTS, console, make_repeats, show, timed, with_error, write

from bqnes_jax.candidates import SearchConfig, strategies
from bqnes_jax.quadrature import log_posterior
from bqnes_jax.spaces import NATS
from bqnes_jax.tables import evaluator, nb201_proxy


@dataclass(frozen=True)
class Options:
    """Compare strategies by what they have found after the same number of evaluations."""

    datasets: tuple[Literal["cifar10", "cifar100", "imagenet16-120"], ...] = (
        "cifar100",
        "imagenet16-120",
    )
    """Which surfaces."""
    seeds: int = 10
    """How many repeats."""
    out: Path = RESULTS / "search.json"
    """Where to write the results."""


COUNTS = REPORTED[1:]


def found(table, archs):
    """Return best accuracy and posterior mass after each count, repeats×counts."""
    index = NATS.index(archs)
    mass = jnp.exp(log_posterior(table.log_likelihoods))[index]
    accuracy = table.accuracies[index]
    return (
        jnp.stack([jnp.max(accuracy[:, :n], axis=1) for n in COUNTS], axis=1),
        jnp.stack([jnp.sum(mass[:, :n], axis=1) for n in COUNTS], axis=1),
    )


def main(options: Options) -> None:
    keys = jax.random.split(jax.random.key(0), options.seeds)
    tables = {dataset: nb201_proxy(dataset) for dataset in options.datasets}
    any_table = evaluator(next(iter(tables.values())), NATS)
    config = SearchConfig()
    programs = {
        name: timed(jax.jit(make_repeats(name, config)).lower(keys, any_table).compile)
        for name in strategies()
    }
    result = {"counts": COUNTS, "seeds": options.seeds, "found": {}, "seconds": {}}
    for dataset, table in tables.items():
        rows, result["found"][dataset] = [], {}
        for name, (program, compiling) in programs.items():
            (history, _), running = timed(program, keys, evaluator(table, NATS))
            accuracy, mass = found(table, history.archs)
            result["found"][dataset][name] = {"best accuracy": accuracy, "posterior mass": mass}
            result["seconds"][name] = (compiling, running / options.seeds)
            rows.append([name, "best accuracy, %", *(with_error(100 * x, 2) for x in accuracy.T)])
            rows.append(["", "posterior mass, %", *(with_error(100 * x, 1) for x in mass.T)])
        best = f"best of all {100 * float(jnp.nanmax(table.accuracies)):.2f} %"
        columns = ["strategy", "after", *map(str, COUNTS)]
        show(f"{dataset} (proxy losses): {best}", columns, rows, names=2)
    for name, (compiling, running) in result["seconds"].items():
        console.print(f"{name}: compiled in {compiling:.1f} s, {running:.2f} s for each repeat")
    write(options.out, result)


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
