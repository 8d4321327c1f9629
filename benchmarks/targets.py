"""Which likelihood should a search go by when a log pool is built from what it finds?

A log pool gives its members one temperature, so that what they lack in calibration costs it
nothing. The likelihood of a network as it is says otherwise: where networks are overconfident, it
ranks them by that. This puts the likelihood that each has with the temperature that suits it in its
place, and compares the pools of the same strategies.

    python benchmarks/targets.py cifar10 digits
"""

from dataclasses import dataclass, replace
from pathlib import Path

import gates
import jax
import jax.numpy as jnp
import numpy as np
import tyro
from against_paper import as_markdown
from jax import lax
from jaxtyping import Array, Float
from scipy.stats import spearmanr
from shared import RESULTS, one_sentence, show, with_error, write

from bqnes_jax import tables
from bqnes_jax.calibration import fit_temperature
from bqnes_jax.candidates import SearchConfig
from bqnes_jax.errors import BQNESError
from bqnes_jax.files import write_whole
from bqnes_jax.pooling import apply_temperature
from bqnes_jax.studies.comparison import compare_on_table
from bqnes_jax.studies.rows import Row
from bqnes_jax.tables import Table, Tabulated

STRATEGIES = ("us", "posterior")
SIZES = (1, 3, 5, 10)
SCALES = {"39 observations": None, "by itself": "auto"}
PEER = "evolution"  # which goes by no likelihood: its parents are those that do well together


@dataclass(frozen=True)
class Options:
    """Compare targets on tables."""

    tables: tyro.conf.Positional[tuple[str, ...]] = ("digits", "cifar10")
    """Tables of the package, or files that `bqnes tabulate` wrote."""
    seeds: int = 10
    """How many searches of each kind."""
    out: Path = RESULTS
    """Where to write targets.json and .md."""


def calibrate(table: Table) -> Float[Array, " size"]:
    """Return the validation log-likelihood of each network with a temperature of its own."""
    if table.classes is None or table.log_probs is None:
        raise BQNESError("the table has no classes of validation points, which calibration needs.")

    def of_one(network):
        classes, own = (each.astype(float) for each in network)
        labels = jnp.argmin(jnp.abs(classes - own[:, None]), axis=1)
        fitted = apply_temperature(classes, fit_temperature(classes, labels))
        return jnp.sum(jnp.take_along_axis(fitted, labels[:, None], axis=1))

    return lax.map(of_one, (jnp.asarray(table.classes), table.log_probs))


def with_target(tabulated: Tabulated, target: Float[Array, " size"]) -> Tabulated:
    """Return a table by whose likelihoods a search goes; its predictions stay as they are."""
    return tabulated._replace(table=tabulated.table._replace(log_likelihoods=target))


def describe(tabulated: Tabulated) -> list[str]:
    """Return what a surface is like: rank correlation with accuracy, two gates."""
    table, config = tabulated.table, SearchConfig()
    rank = spearmanr(table.log_likelihoods, table.accuracies).statistic
    worth, misfit = gates.sharpness(tabulated, config), gates.misfit(tabulated, config, 5)
    return [f"{rank:.2f}", f"{worth:.3f}", f"{misfit:.3f}"]


def compare(tabulated: Tabulated, name: str, seeds: int) -> dict[str, np.ndarray]:
    """Return test log-likelihood and ECE of log pools, by strategy, scale and size."""
    found = {}
    for scale, temperature in SCALES.items():
        config = replace(SearchConfig(), temperature=temperature)
        pairs = [f"{strategy}+logpool" for strategy in STRATEGIES]
        for row in compare_on_table(tabulated, pairs, SIZES, seeds, config=config):
            strategy = row.algorithm.partition("+")[0]
            found[f"{strategy}, {name}, {scale}, {row.size}"] = as_results(row)
    return found


def as_results(row: Row) -> np.ndarray:
    return np.stack([row.log_likelihood, row.ece])


def study(name: str, options: Options) -> tuple[dict, str]:
    """Measure both targets on a table, and return what came out, as numbers and as Markdown."""
    tabulated = tables.find(name)
    own = with_target(tabulated, jax.jit(calibrate)(tabulated.table))
    targets = {"as it is": tabulated, "calibrated": own}
    surfaces = [[what, *describe(one)] for what, one in targets.items()]
    results = {}
    for what, one in targets.items():
        results |= compare(one, what, options.seeds)
    for row in compare_on_table(tabulated, (f"{PEER}+logpool",), SIZES, options.seeds):
        results[f"{PEER}, {row.size}"] = as_results(row)
    title, columns = Path(name).stem, ["likelihood", "ρ with accuracy", "worth", "surrogate"]
    show(f"{title}: surfaces", columns, surfaces)
    labels = list(dict.fromkeys(key.rpartition(", ")[0] for key in results))
    lines = [
        [label, *(_written(results[f"{label}, {size}"]) for size in SIZES)] for label in labels
    ]
    headings = ["candidates", *(f"M = {size}" for size in SIZES)]
    show(f"{title}: log pools, {options.seeds} searches", headings, lines)
    parts = [f"## {title}\n", as_markdown(columns, surfaces), as_markdown(headings, lines)]
    return {"surfaces": surfaces, "results": results}, "\n".join(parts)


def _written(values: np.ndarray) -> str:
    return f"{with_error(values[0], 1)} / {values[1].mean():.4f}"


def main(options: Options) -> None:
    measured = {Path(name).stem: study(name, options) for name in options.tables}
    write(options.out / "targets.json", {name: found for name, (found, _) in measured.items()})
    names = " ".join(options.tables)
    heading = (
        "# The likelihood that a search goes by\n\n"
        f"Made by `python targets.py {names}`: test log-likelihood / ECE of log pools. "
        '"Worth" is the effective sample size of the posterior by cells, "surrogate" its RMSE by '
        "that of a constant.\n"
    )
    text = "\n".join([heading, *(part for _, part in measured.values())])
    write_whole(options.out / "targets.md", text.encode())


if __name__ == "__main__":
    one_sentence(main, tyro.cli(Options, description=__doc__))
