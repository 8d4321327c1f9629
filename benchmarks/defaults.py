"""Which prior mean, noise bound and layer weights the surrogate should have by default.

Every choice of mean and bound searches by uncertainty sampling, 10 → 150, and fits WSABI-L to what
it found and to 150 draws from the prior, with layer weights of 1 and with fitted ones. Shown are
the paper's measures of a surrogate on every 25th architecture in the ranking (every 5th of digits),
the distance of log Ẑ from the exact sum, how often the fit sits at a bound, and how much of the
posterior the search found. The surfaces are NAS-Bench-201's by proxy, and the networks trained on
digits, at two temperatures.

    python benchmarks/defaults.py --seeds 10
"""

import itertools
from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from jax import lax
from shared import RESULTS, make_repeats, one_sentence, show, with_error, write
from surrogates import observed_variance

from bqnes_jax import tables
from bqnes_jax.candidates import SearchConfig
from bqnes_jax.candidates.landscape import Listed
from bqnes_jax.files import write_whole
from bqnes_jax.kernels import WL
from bqnes_jax.metrics import nlpd, rmse
from bqnes_jax.quadrature import evidence_over, log_posterior
from bqnes_jax.quadrature.scale import OBSERVATIONS
from bqnes_jax.spaces import NATS
from bqnes_jax.surrogates import FitConfig, wsabi
from bqnes_jax.types import Status

MEANS = ("zero", "constant")
NOISES = (0.1, 10.0)
LAYERS = {"fixed": None, "fitted": np.ones(2)}
COLUMNS = ("RMSE", "NLPD", "error of log Ẑ", "bias", "at bound")


@dataclass(frozen=True)
class Options:
    """Compare what the surrogate may be by default."""

    seeds: int = 10
    """How many searches of each."""
    out: Path = RESULTS / "defaults.json"
    """Where to write the results; a table of the same name is put beside."""


def surfaces():
    """Return (name, space, table, temperature) of each surface."""
    digits = tables.load("digits")
    points = np.asarray(digits.table.log_probs).shape[1]
    return [
        ("CIFAR-100 (proxy), T = 128", NATS, tables.nb201_proxy("cifar100"), 128.0),
        ("ImageNet16-120 (proxy), T = 128", NATS, tables.nb201_proxy("imagenet16-120"), 128.0),
        ("digits, T = 128", digits.space, digits.table, 128.0),
        ("digits, T = n / 39", digits.space, digits.table, points / OBSERVATIONS),
    ]


def make_score(space, kernel, config: SearchConfig, stride: int):
    """Return a function (table, indices of 150) -> the numbers of `COLUMNS`, and the mass found."""
    landscape = Listed(space, kernel)
    rows, masses = landscape.summands(None)
    temperature = config.temperature

    def fit(table, index, mask):
        return wsabi.fit(
            landscape.kernel,
            landscape.rows(space.from_index(index)),
            table.log_likelihoods[index],
            mask=mask,
            temperature=temperature,
            config=config.warp,
            fit_config=config.fit,
        )

    def score(table, index):
        tempered = table.log_likelihoods / temperature
        test = jnp.argsort(-tempered)[::stride]
        model = fit(table, index, ~jnp.isin(index, test))
        latent = model.latent.predict(landscape.rows(space.from_index(test)))
        mean = wsabi.unwarp(model, latent).mean
        truth = jnp.exp(tempered[test] - model.log_scale)
        unit = model.log_scale - jnp.max(tempered)
        everything = fit(table, index, jnp.ones(len(index), bool))
        exact = jax.nn.logsumexp(tempered) - jnp.log(space.size)
        error = evidence_over(everything, rows, masses).log_evidence - exact
        return (
            rmse(mean, truth),
            nlpd(mean, observed_variance(model, latent), truth) + unit,
            jnp.abs(error),
            error,
            everything.status & Status.AT_BOUND > 0,
            jnp.sum(jnp.exp(log_posterior(table.log_likelihoods, temperature=temperature)[index])),
        )

    return jax.jit(lambda table, indices: lax.map(lambda index: score(table, index), indices))


def main(options: Options) -> None:
    keys = jax.random.split(jax.random.key(0), options.seeds)
    result, text = {}, []
    for name, space, table, temperature in surfaces():
        evaluate = tables.evaluator(table._replace(test_log_probs=None), space)
        plain = SearchConfig(temperature=temperature)
        drawn = jax.jit(make_repeats("random", plain, space))(keys, evaluate)[0].archs
        rows = []
        for mean, noise in itertools.product(MEANS, NOISES):
            config = SearchConfig(temperature=temperature, fit=FitConfig((1e-5, noise), mean=mean))
            found = jax.jit(make_repeats("us", config, space))(keys, evaluate)[0].archs
            for layers, weights in LAYERS.items():
                kernel = WL(space, layer_weights=weights)
                score = make_score(space, kernel, config, stride=25 if space is NATS else 5)
                scores = {
                    design: np.array(score(table, space.index(archs)), float)
                    for design, archs in (("us", found), ("random", drawn))
                }
                choice = f"{mean} mean, noise ≤ {noise:g}, layers {layers}"
                result.setdefault(name, {})[choice] = scores
                rows.append([choice, *write_scores(scores)])
        columns = ["", *(f"{column}, {d}" for d in ("US", "prior") for column in COLUMNS), "found"]
        show(name, columns, rows)
        text += [f"**{name}**", "", *as_markdown(columns, rows), ""]
        write(options.out, {"seeds": options.seeds, "surfaces": result})
        write_whole(options.out.with_suffix(".md"), "\n".join(text).encode())


def write_scores(scores: dict) -> list[str]:
    """Write the measures of both designs, and how much of the posterior US has found."""
    cells = []
    for values in scores.values():
        for column, numbers in zip(COLUMNS, values, strict=False):
            plain = {"at bound": f"{numbers.mean():.0%}", "bias": f"{numbers.mean():+.2f}"}
            cells.append(plain.get(column) or with_error(numbers, 2))
    return [*cells, with_error(scores["us"][-1], 3)]


def as_markdown(columns: list[str], rows: list[list[str]]) -> list[str]:
    lines = [columns, ["---", *["--:"] * (len(columns) - 1)], *rows]
    return [f"| {' | '.join(cells)} |" for cells in lines]


if __name__ == "__main__":
    one_sentence(main, tyro.cli(Options, description=__doc__))
