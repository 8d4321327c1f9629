"""Whether an experiment can answer what it asks: five gates, before any verdict.

Networks that do not fit their training images, cells that differ no more than seeds do, a posterior
that is spread over the whole space, a surrogate that predicts no better than a constant, and a
search that sees most of the space: in each case a comparison of searches says little, whoever wins.

    python benchmarks/gates.py digits
    python benchmarks/gates.py cifar100.npz
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from jax import lax
from jaxtyping import Array
from shared import companion, make_repeats, one_sentence, show

from bqnes_jax import tables
from bqnes_jax.candidates import SearchConfig
from bqnes_jax.candidates.landscape import Listed
from bqnes_jax.errors import BQNESError
from bqnes_jax.kernels import WL, Kernel
from bqnes_jax.quadrature import effective_size, scale_temperature
from bqnes_jax.spaces import count_seeds
from bqnes_jax.surrogates import wsabi
from bqnes_jax.tables import Tabulated, evaluator

COLUMNS = ["gate", "value", "wanted", ""]
CHANCES = 2  # a network that is right no more often than so many times by chance has no noise


@dataclass(frozen=True)
class Options:
    """Measure the gates of a table."""

    table: tyro.conf.Positional[str] = "digits"
    """A table of the package, or a file that `bqnes tabulate` wrote. Some of the cells with several
    weight seeds are in NAME-seeds.npz beside it, those of the package's `cifar10` in results/."""
    searches: int = 5
    """How many searches the surrogate is judged after."""


class Gate(NamedTuple):
    """Something that has to be small enough; NaN where it is not known, which does not pass."""

    asks: str
    value: float
    bound: float

    @property
    def passed(self) -> bool:
        return self.value <= self.bound


def read(name: str) -> tuple[Tabulated, Tabulated | None]:
    """Return a table, and the one with several seeds, if there is one."""
    several = max(tables.weight_seeds(name)) if name in tables.names() else 1
    if several > 1:
        return tables.load(name), tables.load(name, seeds=several)
    path = companion(name, "seeds")
    return tables.find(name), None if path is None else tables.read(path)


def measure(
    tabulated: Tabulated, seeded: Tabulated | None, config: SearchConfig, searches: int
) -> list[Gate]:
    """Return the gates of an experiment with searches of this config."""
    size = tabulated.space.size
    return [
        Gate("training loss / validation loss", fitted(tabulated), 0.5),
        Gate("sd between seeds / sd between cells", noise(seeded), 0.5),
        Gate("effective sample size / cells", sharpness(tabulated, config), 0.2),
        Gate("RMSE of the surrogate / of a constant", misfit(tabulated, config, searches), 1.0),
        Gate("candidates / cells", config.budget / size, 0.3),
    ]


def measure_own_misfit(tabulated: Tabulated, config: SearchConfig, searches: int) -> float:
    """Return the misfit among the cells that uncertainty sampling leaves.

    It is no gate: a search takes the likely cells first, and their constant is the mean of what is
    left, which nobody knows who has seen the others only.
    """
    return misfit(tabulated, config, searches, "us")


def fitted(tabulated: Tabulated) -> float:
    """Return the mean training loss as a share of the mean validation loss."""
    table = tabulated.table
    if table.train_log_likelihoods is None or table.train_points is None:
        return float("nan")
    train = jnp.mean(table.train_log_likelihoods) / table.train_points
    return float(train / (jnp.mean(table.log_likelihoods) / count_points(tabulated)))


def noise(seeded: Tabulated | None) -> float:
    """Return the deviation between weight seeds as a share of that between cells.

    Both are of validation log-likelihoods. What seeds add to the variance of the cells' means is
    taken off; cells that learn nothing are left out.
    """
    if seeded is None:
        return float("nan")
    seeds = count_seeds(seeded.space)
    values = np.asarray(seeded.table.log_likelihoods, float).reshape(-1, seeds)
    accuracies = np.asarray(seeded.table.accuracies).reshape(-1, seeds)
    return noise_of(
        those_that_learnt(values, accuracies, np.shape(seeded.table.test_log_probs)[-1])
    )


def those_that_learnt(values: np.ndarray, accuracies: np.ndarray, classes: int) -> np.ndarray:
    """Return the values, cells×seeds, of cells that are right more often than by chance."""
    return values[accuracies.mean(axis=1) > CHANCES / classes]


def noise_of(values: np.ndarray) -> float:
    """Return the deviation between columns as a share of that between rows, which `noise` is."""
    within = values.var(axis=1, ddof=1).mean()
    between = values.mean(axis=1).var(ddof=1) - within / values.shape[1]
    return float(np.sqrt(within / between)) if between > 0 else float("inf")


def sharpness(tabulated: Tabulated, config: SearchConfig) -> float:
    """Return how many cells the posterior over all of them is worth, as a share of them."""
    tempered = tabulated.table.log_likelihoods / temperature_of(tabulated, config)
    return float(effective_size(tempered)) / tabulated.space.size


def misfit(
    tabulated: Tabulated, config: SearchConfig, searches: int, strategy: str = "random"
) -> float:
    """Return the surrogate's RMSE over cells that it has not seen, by that of their mean.

    It has seen as many as a search does, by default uniform draws: so it is the surface that is
    judged, and not what a strategy has left of it.
    """
    space, table, _ = tabulated
    temperature = temperature_of(tabulated, config)
    landscape = Listed(space, WL(space))
    rows = landscape.rows(space.from_index(jnp.arange(space.size)))
    evaluate = evaluator(table, space)
    keys = jax.random.split(jax.random.key(0), searches)
    found = jax.jit(make_repeats(strategy, config, space))(keys, evaluate).history

    def share(archs):
        index = space.index(archs)
        seen = jnp.zeros(space.size, bool).at[index].set(True)
        known, values = (rows[index], table.log_likelihoods[index]), (rows, table.log_likelihoods)
        return misfit_of(landscape.kernel, known, values, ~seen, temperature, config)

    return float(jnp.mean(lax.map(share, found.archs)))


def misfit_of(
    kernel: Kernel,
    known: tuple[Array, Array],
    others: tuple[Array, Array],
    where: Array,
    temperature: float,
    config: SearchConfig,
) -> Array:
    """Fit the surrogate to known rows and log-likelihoods; return its RMSE at some of the others.

    It is divided by the deviation of the likelihoods there, the RMSE of their mean.
    """
    model = wsabi.fit(
        kernel, *known, temperature=temperature, config=config.warp, fit_config=config.fit
    )
    rows, values = others
    truth = jnp.exp((values - jnp.max(values)) / temperature)
    scale = jnp.exp(model.log_scale - jnp.max(values) / temperature)
    error = scale * wsabi.unwarp(model, model.latent.predict(rows)).mean - truth
    return jnp.sqrt(jnp.mean(error**2, where=where)) / jnp.std(truth, where=where)


def temperature_of(tabulated: Tabulated, config: SearchConfig) -> float:
    return scale_temperature(count_points(tabulated), observations=config.observations)


def count_points(tabulated: Tabulated) -> int:
    if tabulated.table.log_probs is None:
        raise BQNESError("the table has no predictions; gates need them.")
    return tabulated.table.log_probs.shape[1]


def as_lists(gates: Sequence[Gate]) -> list:
    """Return gates as a JSON file keeps them."""
    return [[gate.asks, np.array(gate.value), gate.bound] for gate in gates]


def from_lists(lists: Sequence) -> list[Gate]:
    """Return gates that a JSON file has kept."""
    return [
        Gate(asks, float("nan") if value is None else float(value), bound)
        for asks, value, bound in lists
    ]


def lines(gates: Sequence[Gate]) -> list[list[str]]:
    """Return the rows of a table of gates."""
    return [
        [gate.asks, f"{gate.value:.3f}", f"≤ {gate.bound:g}", "passed" if gate.passed else "failed"]
        for gate in gates
    ]


def main(options: Options) -> None:
    tabulated, seeded = read(options.table)
    gates = measure(tabulated, seeded, SearchConfig(), options.searches)
    own = measure_own_misfit(tabulated, SearchConfig(), options.searches)
    rows = [
        *lines(gates),
        ["the same RMSE, of what uncertainty sampling leaves", f"{own:.3f}", "", ""],
    ]
    show(f"{options.table}: {tabulated.space.size} cells", ["gate", "", "wanted", ""], rows)


if __name__ == "__main__":
    one_sentence(main, tyro.cli(Options, description=__doc__))
