"""Draw what the method does, on a table inside the package: the picture of README.

python benchmarks/picture.py
"""

from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from matplotlib.figure import Figure
from shared import RESULTS, console

from bqnes_jax import tables
from bqnes_jax.algorithms import make
from bqnes_jax.candidates import SearchConfig
from bqnes_jax.kernels import WL
from bqnes_jax.quadrature import Evidence, drawn_evidence
from bqnes_jax.spaces import NATS
from bqnes_jax.studies.comparison import compare_on_table

BLUE, ORANGE, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#9a9a9a"
COLOURS = {"Random": GREY, "NES-RE": ORANGE, "BQ-S": BLUE, "BQ-L": GREEN}


@dataclass(frozen=True)
class Options:
    """One search to look at, and a comparison over seeds."""

    budget: int = 150
    """Evaluations of the search that is drawn."""
    seeds: int = 10
    """Seeds of the comparison."""
    out: Path = RESULTS / "overview.png"
    """Where the picture goes."""


def plane(gram: np.ndarray) -> np.ndarray:
    """Place architectures in the plane so that distances are near those of the kernel."""
    centred = gram - gram.mean(0) - gram.mean(1)[:, None] + gram.mean()
    values, vectors = np.linalg.eigh(centred)
    return vectors[:, -2:] * np.sqrt(values[-2:])


def draw_map(axes, space, table, result) -> None:
    places = plane(np.asarray(WL(NATS).gram(NATS.from_index(np.array(space.numbers)))))
    values = np.asarray(table.log_likelihoods)
    seen = np.asarray(space.index(result.history.archs))
    members = np.asarray(space.index(result.archs))
    shade = axes.scatter(*places.T, c=values, s=9, cmap="cividis", vmin=np.quantile(values, 0.05))
    axes.scatter(*places[seen].T, s=34, facecolors="none", edgecolors=ORANGE, label="trained")
    axes.scatter(
        *places[members].T, s=150, marker="*", color=ORANGE, edgecolors="k", label="ensemble"
    )
    axes.set(xticks=[], yticks=[], title=f"{space.size:,} architectures, near if alike")
    axes.legend(loc="upper right", frameon=False)
    axes.figure.colorbar(shade, ax=axes, label="log-likelihood", shrink=0.8)


def by_draws(space, history, temperature: float, counts: np.ndarray) -> Evidence:
    """Estimate the evidence after each count from the draws, whatever the surrogate believes."""

    def after(count):
        mask = jnp.arange(len(history.archs)) < count
        given = history.log_likelihoods, history.scores, space.size
        return drawn_evidence(*given, mask=mask, temperature=temperature)

    return jax.vmap(after)(counts)


def draw_evidence(axes, table, estimates: dict[str, Evidence], counts, temperature: float) -> None:
    tempered = np.asarray(table.log_likelihoods, float) / temperature
    exact = tempered.max() + np.log(np.exp(tempered - tempered.max()).mean())
    for (name, evidence), colour in zip(estimates.items(), (ORANGE, BLUE), strict=True):
        mean = np.asarray(evidence.log_evidence)
        deviation = np.hypot(evidence.posterior_sd, evidence.sampling_sd)
        axes.fill_between(counts, mean - deviation, mean + deviation, color=colour, alpha=0.2, lw=0)
        axes.plot(counts, mean, color=colour, label=name)
    axes.axhline(exact, color="k", lw=1, ls="--", label="exact sum")
    axes.set(xlabel="architectures trained", title="log Ẑ ± sd, one search each")
    axes.legend(frameon=False)


def draw_comparison(axes, made, seeds: int) -> None:
    rows = compare_on_table(made, tuple(COLOURS), (3, 5, 10), seeds)
    single = compare_on_table(made, ("Best single",), (1,), 1)[0].log_likelihood[0]
    for name, colour in COLOURS.items():
        own = [row for row in rows if row.algorithm == name]
        means = [row.log_likelihood.mean() for row in own]
        errors = [row.log_likelihood.std(ddof=1) / np.sqrt(seeds) for row in own]
        sizes = [row.size for row in own]
        axes.errorbar(sizes, means, errors, marker="o", capsize=3, color=colour, label=name)
    axes.axhline(single, color="k", lw=1, ls="--", label="best single of all")
    axes.set(xlabel="members", xticks=[3, 5, 10], title=f"test log-likelihood, {seeds} seeds")
    axes.legend(frameon=False, fontsize=9, loc="upper right", bbox_to_anchor=(1, 0.77))


def main(options: Options) -> None:
    made = tables.load("cifar10")
    config = SearchConfig(budget=options.budget)
    evaluate = tables.evaluator(made.table, made.space)

    def searched(name):
        return jax.jit(make(name, made.space, 3, config=config))(jax.random.key(0), evaluate)

    result, drawn = searched("BQ-S"), searched("posterior+restack")
    counts, temperature = np.asarray(result.trace.count), float(result.trace.temperature[-1])
    estimates = {
        "uncertainty sampling, by WSABI-L": result.trace.evidence,
        "posterior draws, by their chances": by_draws(
            made.space, drawn.history, temperature, counts
        ),
    }
    figure = Figure(figsize=(13, 3.9), layout="constrained")
    axes = figure.subplots(1, 3, width_ratios=[1.25, 1, 1])
    draw_map(axes[0], made.space, made.table, result)
    draw_evidence(axes[1], made.table, estimates, counts, temperature)
    draw_comparison(axes[2], made, options.seeds)
    for panel in axes[1:]:
        panel.spines[["top", "right"]].set_visible(False)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(options.out, dpi=110)
    console.print(f"written to {options.out}; weights {jnp.round(result.weights, 2).tolist()}")


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
