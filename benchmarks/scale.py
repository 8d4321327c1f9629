"""What the scale of the likelihood, its measure, a prior and weight seeds are worth on digits.

Ensembles are selected from the networks inside the package, 10 searches of 10 → 150 for each
choice, and measured on test images without calibration. A choice differs from the defaults in what
its name says. With three weight seeds there are 256 cells, and as many trainings as elsewhere.

    python benchmarks/scale.py
"""

import json
from dataclasses import dataclass, replace
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import tyro
from shared import RESULTS, one_sentence, show, with_error, write

from bqnes_jax import tables
from bqnes_jax.candidates import Prior, SearchConfig
from bqnes_jax.files import write_whole
from bqnes_jax.spaces.nats import OPERATIONS
from bqnes_jax.studies.comparison import compare_on_table
from bqnes_jax.surrogates import FitConfig

SIZES = (3, 10)
DEFAULT = SearchConfig()
PUBLISHED = SearchConfig(fit=FitConfig())  # the prior mean 0, and noise up to 0.1
BAYESIAN = ("BQ-R", "BQ-S", "BQ-L", "us+quadrature")


@dataclass(frozen=True)
class Options:
    """Compare ensembles of choices that a search has."""

    seeds: int = 10
    """How many searches of each."""
    choices: tuple[str, ...] = ()
    """Which choices, by the first words of their names; all if none are given."""
    out: Path = RESULTS / "scale.json"
    """Where to write the results; what is there already is kept. A table is put beside."""


@dataclass(frozen=True)
class Choice:
    """What is searched, how, and by which algorithms."""

    config: SearchConfig = DEFAULT
    algorithms: tuple[str, ...] = BAYESIAN
    prior: Prior | None = None
    weight_seeds: int = 1


def prefer_small(archs):
    """Return a log prior by which each 3×3 convolution makes a cell half as likely."""
    return -jnp.log(2.0) * jnp.sum(archs[..., :6] == OPERATIONS.index("nor_conv_3x3"), axis=-1)


def with_noise(mean: str, bound: float) -> Choice:
    return Choice(replace(DEFAULT, fit=FitConfig((1e-5, bound), mean=mean)))


CHOICES = {
    "defaults": Choice(algorithms=(*BAYESIAN, "NES-RE")),
    "zero mean, noise ≤ 0.1": Choice(PUBLISHED),
    "zero mean, noise ≤ 10": with_noise("zero", 10.0),
    "constant mean, noise ≤ 0.1": with_noise("constant", 0.1),
    "temperature auto": Choice(replace(DEFAULT, temperature="auto")),
    "temperature 128": Choice(replace(DEFAULT, temperature=128.0)),
    "zero mean, noise ≤ 0.1, auto": Choice(replace(PUBLISHED, temperature="auto")),
    "zero mean, noise ≤ 0.1, 128": Choice(replace(PUBLISHED, temperature=128.0)),
    "training likelihood": Choice(replace(DEFAULT, measure="train"), ("BQ-R", "us+quadrature")),
    "both likelihoods": Choice(replace(DEFAULT, measure="both"), ("BQ-R", "us+quadrature")),
    "small cells preferred": Choice(prior=prefer_small),
    "three weight seeds": Choice(
        algorithms=("BQ-S", "NES-RE", "BQ-W", "Deep ensemble"), weight_seeds=3
    ),
}


def measure(choice: Choice, seeds: int) -> dict:
    """Return the test log-likelihoods, ECEs and accuracies of every algorithm and size."""
    rows = compare_on_table(
        tables.load("digits", seeds=choice.weight_seeds),
        choice.algorithms,
        SIZES,
        seeds,
        config=choice.config,
        prior=choice.prior,
    )
    return {
        f"{row.algorithm}, {row.size}": {
            "log-likelihood": row.log_likelihood,
            "ECE": row.ece,
            "accuracy": row.accuracy,
        }
        for row in rows
    }


def main(options: Options) -> None:
    known = json.loads(options.out.read_text()) if options.out.exists() else {}
    result = known.get("choices", {}) if known.get("seeds") == options.seeds else {}
    for name, choice in CHOICES.items():
        if name not in result and name.startswith(options.choices or ("",)):
            result[name] = measure(choice, options.seeds)
            write(options.out, {"seeds": options.seeds, "choices": result})
    result = {name: result[name] for name in CHOICES if name in result}
    text = []
    for title, column, digits in (("Test log-likelihood", "log-likelihood", 1), ("ECE", "ECE", 4)):
        columns, rows = tabulate(result, column, digits)
        show(title, columns, rows)
        text += [f"**{title}** on digits, {options.seeds} searches", ""]
        lines = [columns, ["---", *["--:"] * (len(columns) - 1)], *rows]
        text += [f"| {' | '.join(cells)} |" for cells in lines] + [""]
    write_whole(options.out.with_suffix(".md"), "\n".join(text).encode())


def tabulate(result: dict, column: str, digits: int) -> tuple[list[str], list[list[str]]]:
    """Return the columns and rows of a table: a choice in each row, an algorithm in each column."""
    names = list(dict.fromkeys(name for rows in result.values() for name in rows))
    rows = [
        [choice, *(with_error(np.array(m[n][column]), digits) if n in m else "" for n in names)]
        for choice, m in result.items()
    ]
    return ["", *names], rows


if __name__ == "__main__":
    one_sentence(main, tyro.cli(Options, description=__doc__))
