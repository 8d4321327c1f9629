"""How well surrogates predict the likelihood: the paper's first table.

A Gaussian process, WSABI-L and WSABI-M with the WL kernel are fitted to 150 architectures and asked
for the likelihood of 625 others, every 25th in the ranking by validation loss (any of them among
the 150 is left out of the fit). RMSE is divided by the mean likelihood; NLPD is that of Gaussians
with the predicted moments and the fitted noise, for likelihoods in units of the largest of the
surface. The 150 are those of uncertainty sampling, or draws from the prior. The surfaces are
NAS-Bench-201's, with losses by proxy from published validation accuracies; the paper's are the real
losses, and it does not say how its training set was chosen.

    python benchmarks/surrogates.py --seeds 10
"""

from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from against_paper import SURROGATES, show_beside
from jax import lax
from shared import RESULTS, console, make_repeats, one_sentence, timed, write

from bqnes_jax.candidates import SearchConfig
from bqnes_jax.candidates.landscape import Listed
from bqnes_jax.kernels import WL
from bqnes_jax.metrics import nlpd, rmse
from bqnes_jax.spaces import NATS
from bqnes_jax.surrogates import TEMPERATURE, WarpConfig, wsabi
from bqnes_jax.tables import evaluator, nb201_proxy

MODELS = {"GP": "none", "WSABI-L": "linear", "WSABI-M": "moment"}
LIKE = {"cifar100": "CIFAR-100", "imagenet16-120": "ImageNet16-120"}


@dataclass(frozen=True)
class Options:
    """Compare surrogates on held-out architectures."""

    seeds: int = 10
    """How many repeats."""
    out: Path = RESULTS / "surrogates.json"
    """Where to write the results."""


def observed_variance(model, latent):
    """Return the mean squared distance of an observed likelihood from the predicted mean.

    The latent function f is observed with noise ε: (f + ε)² / 2 is f²/2 + fε + ε²/2. Without the
    last term WSABI-L would be certain wherever the mean of f is 0.
    """
    variance, noise = latent.variance, model.latent.hyperparameters.noise
    if model.warp == "none":
        return variance + noise
    spread = latent.mean**2 * (variance + noise) + 0.75 * noise**2
    return spread if model.warp == "linear" else spread + variance**2 / 2 + variance * noise


def make_score(warp: str, space, test, temperature: float = TEMPERATURE):
    """Return a function (table, indices of the training sets) -> RMSE and NLPD of each."""
    landscape = Listed(space, WL(space))
    config, test_rows = WarpConfig(warp), landscape.rows(space.from_index(test))

    def score(table, index):
        training = ~jnp.isin(index, test)
        rows = landscape.rows(space.from_index(index))
        targets = table.log_likelihoods[index]
        model = wsabi.fit(
            landscape.kernel, rows, targets, mask=training, temperature=temperature, config=config
        )
        latent = model.latent.predict(test_rows)
        mean = wsabi.unwarp(model, latent).mean
        truth = jnp.exp(table.log_likelihoods[test] / temperature - model.log_scale)
        unit = model.log_scale - jnp.max(table.log_likelihoods) / temperature
        return rmse(mean, truth), nlpd(mean, observed_variance(model, latent), truth) + unit

    return jax.jit(lambda table, indices: lax.map(lambda index: score(table, index), indices))


def main(options: Options) -> None:
    keys = jax.random.split(jax.random.key(0), options.seeds)
    repeats = {name: jax.jit(make_repeats(name, SearchConfig())) for name in ("us", "random")}
    result, seconds = {"seeds": options.seeds}, 0.0
    for dataset, like in LIKE.items():
        table = nb201_proxy(dataset)
        test = jnp.argsort(-table.log_likelihoods)[::25]
        for design, run in repeats.items():
            indices = NATS.index(run(keys, evaluator(table, NATS))[0].archs)
            scores = {}
            for name, warp in MODELS.items():
                both, took = timed(make_score(warp, NATS, test), table, indices)
                scores[name] = np.stack(both, axis=1)
                seconds += took
            title = f"{dataset}, proxy losses: {design} designs, {len(test)} test architectures"
            show_beside(title, "table1", like, scores, SURROGATES)
            result[f"{dataset}, {design}"] = scores
    console.print(f"fitted, predicted and compiled in {seconds:.1f} s")
    write(options.out, result)


if __name__ == "__main__":
    one_sentence(main, tyro.cli(Options, description=__doc__))
