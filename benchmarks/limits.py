"""What it costs a surrogate to be conditioned on some of the candidates, and fitted to fewer.

In a space that cannot be listed a search conditions its surrogate on `FitConfig.limit` candidates
at most, and fits length scales to `FitConfig.points`: of 10,000 on a fifth and a tenth. Here both
are such shares of fewer candidates, so that a surrogate of all of them is feasible beside them, on
a smooth surface with noise whose evidence is known.

    python benchmarks/limits.py
"""

from dataclasses import dataclass, replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from shared import RESULTS, one_sentence, show, with_error, write
from timing import description

from bqnes_jax.candidates import Outcome, SearchConfig, State, tell
from bqnes_jax.candidates.history import empty_history
from bqnes_jax.candidates.landscape import make_landscape
from bqnes_jax.candidates.registry import refit_model
from bqnes_jax.kernels import make_kernel
from bqnes_jax.quadrature.evidence import weighted_evidence
from bqnes_jax.spaces import SlimmableSpace

SPACE = SlimmableSpace(blocks=7, layers=3)
SHARES = (1.0, 0.5, 0.2, 0.1)  # conditioned on; length scales are fitted to half as many


@dataclass(frozen=True)
class Options:
    """Compare surrogates of all candidates and of some."""

    candidates: int = 2000
    """How many were evaluated."""
    seeds: int = 5
    """Surfaces, and draws of candidates from the prior."""
    out: Path = RESULTS / "limits.json"
    """Where to write the results."""


def make_surface(seed: int):
    """Return a function of architectures: log-likelihoods with one peak, and without noise."""
    draw = np.random.default_rng(seed)
    dimension = SPACE.coordinates(SPACE.sample(jax.random.key(0), 1)).shape[1]
    centre, weights = draw.random(dimension), draw.gamma(1.0, size=dimension)

    def distance(archs):
        return jnp.sum(weights * (SPACE.coordinates(archs) - centre) ** 2, axis=1)

    spread = jnp.std(distance(SPACE.sample(jax.random.key(seed), 1000)))

    def surface(archs):
        return -1.5 * distance(archs) / spread  # nats, so that a few draws do not make up the sum

    return surface


def make_measure(share: float, n: int):
    """Return a function of a seed: the RMSE of the likelihood at new draws, the error of log Ẑ."""
    config = SearchConfig(initial=n, budget=n, temperature=1.0)
    limit = max(2, round(share * n))
    points = n if share == 1 else max(2, limit // 2)
    config = replace(config, fit=replace(config.fit, growth=0.0, limit=limit, points=points))
    landscape = make_landscape(SPACE, make_kernel(SPACE, config.kernel), config)
    fit = jax.jit(lambda history: refit_model(landscape, history, config, 1.0, None)[0])

    def measure(seed: int) -> tuple[float, float]:
        surface, archs = make_surface(seed), SPACE.sample(jax.random.key(seed), n)
        noise = 0.1 * jax.random.normal(jax.random.key(100 + seed), (n,))
        empty = State(empty_history(n, len(SPACE.options)), None)
        model = fit(tell(empty, Outcome(archs, surface(archs) + noise)).history)
        draws = SPACE.sample(jax.random.key(200 + seed), config.samples)
        log_truth = surface(draws)
        rows, equal = landscape.rows(draws), jnp.full(len(draws), 1 / len(draws))
        wrong = model.predict(rows).mean - jnp.exp(log_truth - model.log_scale)
        found = weighted_evidence(model, rows, equal, sampled=True)
        truth = jax.nn.logsumexp(log_truth) - jnp.log(len(draws))
        return float(jnp.sqrt(jnp.mean(wrong**2))), float(found.log_evidence - truth)

    return measure


def main(options: Options) -> None:
    results, rows = [], []
    for share in SHARES:
        measure = make_measure(share, options.candidates)
        errors, differences = np.array([measure(seed) for seed in range(options.seeds)]).T
        results.append({"share": share, "rmse": errors, "log evidence": differences})
        texts = (with_error(values, 4) for values in (errors, np.abs(differences)))
        rows.append([f"{share:.0%}", *texts])
    show("surrogates of some candidates", ["conditioned on", "RMSE", "|log Ẑ − log Z|"], rows)
    about = {"candidates": options.candidates, "machine": description()}
    write(options.out, about | {"results": results})


if __name__ == "__main__":
    one_sentence(main, tyro.cli(Options, description=__doc__))
