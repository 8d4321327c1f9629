"""Ensembles of DARTS cells, on which neural ensemble search was introduced, by several searches.

Pairs of cells are trained on 8×8 digits by the tiny preset, as searches ask for them, into a store
that all searches share; ensembles of 3, 5 and 10 are selected and judged on test images. The gates
come first, on uniform draws of the space, which cannot be listed: where one fails there are figures
and no verdict. Collisions of the hashed features are counted, and what searches believe of log Z is
put beside the mean over the draws. Stop it whenever you like: the same command goes on.

    python benchmarks/darts.py
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import gates
import jax
import jax.numpy as jnp
import numpy as np
import tyro
from against_paper import HOLDS, Claim, Metric, as_markdown, judge, keep
from collisions import DEFAULT_BUCKETS, collide
from gates import Gate
from shared import RESULTS, console, one_sentence, show, with_error

from bqnes_jax.candidates import make
from bqnes_jax.candidates.landscape import Drawn
from bqnes_jax.cli.shell import prepare_jax, progress_bar
from bqnes_jax.drivers import Searched, loop_all
from bqnes_jax.files import write_whole
from bqnes_jax.kernels import make_kernel
from bqnes_jax.quadrature import effective_size, scale_temperature
from bqnes_jax.runs import Workbench, load_data, make_family, open_workbench, preset_config
from bqnes_jax.spaces import DARTS
from bqnes_jax.spaces.base import Architectures
from bqnes_jax.storage.store import Predictions
from bqnes_jax.studies.comparison import compare_live
from bqnes_jax.studies.rows import Row

TASK = preset_config("tiny", "darts")
SEARCH = TASK.search  # 10 pairs of cells to begin with, 40 in all, 4 at a time

NAMES = {  # of an algorithm, as the tables call it
    "evolution+beam": "NES-RE (evolution, beam search)",
    "random+beam": "NES with random search (beam search)",
    "us+restack": "BQ-S (uncertainty sampling, re-weighted stacking)",
    "us+logpool": "BQ-L (uncertainty sampling, log pool)",
    "evolution+logpool": "evolution, log pool",
    "random+logpool": "random search, log pool",
}
RIVALS = ("evolution+beam", "random+beam")
OURS = ("us+restack", "us+logpool")
METRICS = (
    Metric("accuracy %", 100, 2, 1),
    Metric("ECE", 1, 4, -1),
    Metric("log-likelihood", 1, 1, 1),
    Metric("calibrated ECE", 1, 4, -1),
    Metric("calibrated log-likelihood", 1, 1, 1),
)
ACCURACY, ECE, LL, CALIBRATED_ECE, CALIBRATED_LL = range(5)
_DRAWS_KEY = 1000  # searches have the keys 0, 1, …


@dataclass(frozen=True)
class Options:
    """Train, search, compare."""

    seeds: int = 5
    """Searches of each strategy."""
    sizes: tuple[int, ...] = (3, 5, 10)
    """Numbers of members."""
    draws: int = 200
    """Uniform draws of the space, for the gates."""
    noisy: int = 20
    """How many of them are trained with several weight seeds."""
    weight_seeds: int = 4
    """With how many."""
    samples: int = 10_000
    """Draws among whose features collisions are counted."""
    stores: Path = Path("stores")
    """Where predictions are kept."""
    out: Path = RESULTS / "darts.json"
    """Where to write the results; a table is put beside."""


class Draws(NamedTuple):
    """What networks of uniform draws said.

    Attributes:
        archs: those whose training did not fail.
        failed: of how many it did.
        log_likelihoods: of the validation points.
        train_losses: in nats per training point.
        valid_losses: in nats per validation point.
        seeded: log-likelihoods of some of them, architectures×weight seeds.
        accuracies: on test points, of the same.
    """

    archs: Architectures
    failed: int
    log_likelihoods: np.ndarray
    train_losses: np.ndarray
    valid_losses: np.ndarray
    seeded: np.ndarray
    accuracies: np.ndarray


def open_cells(stores: Path, seed: int = 0) -> Workbench:
    family, data = make_family(TASK), load_data(TASK)
    folder = stores / f"darts-{TASK.data_name}"
    return open_workbench(family, data, folder, seed=seed, keep=False, dtype="float32")


def train(bench: Workbench, archs: Architectures, title: str) -> Predictions:
    """Return what networks of architectures say, trained if they are not in the store."""
    done = 0

    def count(more: int) -> None:
        nonlocal done
        done += more
        progress(done, len(archs))

    with progress_bar(title) as progress:
        bench.train(archs, count)
    return bench.store.predictions([DARTS.to_string(arch) for arch in archs], bench.seed)


def draw(options: Options) -> Draws:
    """Train uniform draws of the space, some of them with several weight seeds."""
    archs = DARTS.sample(jax.random.key(_DRAWS_KEY), options.draws)
    bench = open_cells(options.stores)
    points = len(bench.data.train.labels)
    found = train(bench, archs, "uniform draws")
    again = [
        train(open_cells(options.stores, seed), archs[: options.noisy], f"weight seed {seed}")
        for seed in range(1, options.weight_seeds)
    ]
    few = jax.tree.map(lambda leaf: leaf[: options.noisy], found)
    seeded = np.stack([-each.valid_losses for each in (few, *again)], axis=1)
    accuracies = np.stack([accuracy(each, bench) for each in (few, *again)], axis=1)
    whole = ~np.isnan(seeded).any(axis=1)
    ok = found.ok
    return Draws(
        archs[ok],
        int((~ok).sum()),
        -found.valid_losses[ok] * len(bench.data.valid.labels),
        -found.train_log_likelihoods[ok] / points,
        found.valid_losses[ok],
        seeded[whole],
        accuracies[whole],
    )


def accuracy(found: Predictions, bench: Workbench) -> np.ndarray:
    return np.mean(found.test_log_probs.argmax(-1) == bench.data.test.labels, axis=1)


def search(bench: Workbench, strategy: str, seeds: int) -> list[Searched]:
    """Search again what the comparison has searched: everything is in the store."""
    made = make(strategy, DARTS, config=SEARCH)
    keys = [jax.random.key(seed) for seed in range(seeds)]
    return loop_all(made, SEARCH, keys, bench.evaluator())


def measure_gates(
    drawn: Draws, searches: Sequence[Searched], temperature: float
) -> tuple[list[Gate], dict[str, float]]:
    """Return the gates, and further figures beside them."""
    landscape = Drawn(DARTS, make_kernel(DARTS), SEARCH)
    others = landscape.rows(drawn.archs), jnp.asarray(drawn.log_likelihoods)
    everywhere = jnp.ones(len(drawn.archs), bool)  # no search finds a draw of 10¹⁸ again

    def error(history) -> float:
        usable = np.isfinite(history.log_likelihoods)
        known = landscape.rows(history.archs[usable]), history.log_likelihoods[usable]
        fit = gates.misfit_of(landscape.kernel, known, others, everywhere, temperature, SEARCH)
        return float(fit)

    of_search = [
        float(effective_size(history.known / temperature)) / int(history.count)
        for history in (one.history for one in searches)
    ]
    worth = float(effective_size(drawn.log_likelihoods / temperature))
    found = [
        Gate(
            "training loss / validation loss",
            float(drawn.train_losses.mean() / drawn.valid_losses.mean()),
            0.5,
        ),
        Gate(
            "sd between seeds / sd between architectures",
            gates.noise_of(gates.those_that_learnt(drawn.seeded, drawn.accuracies, 10)),
            0.5,
        ),
        Gate("effective sample size / uniform draws", worth / len(drawn.archs), 0.2),
        Gate(
            "RMSE of the surrogate / of a constant",
            float(np.mean([error(one.history) for one in searches])),
            1.0,
        ),
        Gate("candidates / architectures", SEARCH.budget / DARTS.count, 0.3),
    ]
    return found, {"effective sample size / candidates of a search": float(np.mean(of_search))}


def compare_evidence(
    drawn: Draws, searches: Sequence[Searched], temperature: float
) -> list[list[str]]:
    """Return log Ẑ by the draws, and what searches believe at their end, by a pool of draws."""
    tempered = drawn.log_likelihoods / temperature
    weights = np.exp(tempered - tempered.max())
    mean = np.log(weights.mean()) + tempered.max()
    error = weights.std(ddof=1) / weights.mean() / np.sqrt(len(weights))
    last = [jax.tree.map(lambda leaf: leaf[-1], one.trace.evidence) for one in searches]
    said = np.mean([np.hypot(one.posterior_sd, one.sampling_sd) for one in last])
    found = with_error([one.log_evidence for one in last], 2)
    return [
        [f"mean over {len(weights)} uniform draws", f"{mean:.2f} ± {error:.2f}", f"{error:.2f}"],
        [f"WSABI-L, mean over {len(last)} searches by us", found, f"{said:.2f}"],
    ]


def compare(bench: Workbench, options: Options) -> list[Row]:
    labels = jnp.asarray(bench.data.test.labels)
    strategies = {name.partition("+")[0] for name in NAMES}
    done, total = 0, len(strategies) * options.seeds * SEARCH.budget

    def count(more: int) -> None:
        nonlocal done
        done += more
        progress(min(done, total), total)

    with progress_bar("pairs of cells") as progress:
        return compare_live(
            DARTS,
            bench.evaluator(count),
            bench.test_log_probs,
            labels,
            list(NAMES),
            options.sizes,
            options.seeds,
            config=SEARCH,
            calibrated=True,
        )


def as_results(rows: Sequence[Row]) -> dict[str, np.ndarray]:
    """Return [seeds, metrics] for each algorithm and number of members."""
    return {
        f"{row.algorithm}, {row.size}": np.stack(
            [
                row.accuracy,
                row.ece,
                row.log_likelihood,
                row.calibrated_ece,
                row.calibrated_log_likelihood,
            ],
            axis=1,
        )
        for row in rows
        if row.calibrated_ece is not None and row.calibrated_log_likelihood is not None
    }


def claims_of(sizes: Sequence[int]) -> list[Claim]:
    return [
        Claim(
            f"{ours} ahead of {rival}, M = {size}",
            f"{ours}, {size}",
            f"{rival}, {size}",
            CALIBRATED_LL,
            (),
        )
        for size in sizes
        for ours in OURS
        for rival in RIVALS
    ]


class Report:
    """Tables, printed and as Markdown."""

    def __init__(self, title: str) -> None:
        self.parts = [f"# {title}\n"]

    def table(self, title: str, columns: list[str], rows: list[list[str]]) -> None:
        show(title, columns, rows)
        self.parts += [f"## {title}\n", as_markdown(columns, rows)]

    def say(self, text: str) -> None:
        console.print(text)
        self.parts.append(f"{text}\n")


def main(options: Options) -> None:
    prepare_jax()
    report = Report("Ensembles of DARTS cells on digits")
    train_points, valid, test = TASK.split or ()
    report.say(
        f"Made by `python benchmarks/darts.py`: {options.seeds} searches of each strategy, "
        f"{SEARCH.initial} architectures to begin with and {SEARCH.budget} in all, {SEARCH.batch} "
        f"at a time; {TASK.train.network.cells} cells of {TASK.train.network.channels} channels, "
        f"{TASK.train.steps} steps of {TASK.train.batch} images; {train_points} images to train "
        f"on, {valid} to validate, {test} to test."
    )
    drawn, bench = draw(options), open_cells(options.stores)
    rows = compare(bench, options)
    searched = search(bench, "us", options.seeds)
    temperature = scale_temperature(len(bench.data.valid.labels), observations=SEARCH.observations)
    found, further = measure_gates(drawn, searched, temperature)
    lines = [*gates.lines(found), *([name, f"{v:.3f}", "", ""] for name, v in further.items())]
    report.table("Gates", ["gate", "value", "wanted", ""], lines)
    loss = drawn.valid_losses
    report.say(
        f"Of {len(drawn.archs) + drawn.failed} uniform draws {drawn.failed} failed to train; "
        f"validation losses of the others: best {loss.min():.3f}, median {np.median(loss):.3f}, "
        f"worst {loss.max():.3f} nats."
    )
    results = as_results(rows)
    for i, metric in enumerate(METRICS):
        report.table(
            f"Test {metric.name}",
            ["", *(f"M = {size}" for size in options.sizes)],
            [
                [said, *(written(results[f"{name}, {m}"][:, i], metric) for m in options.sizes)]
                for name, said in NAMES.items()
            ],
        )
    claims = claims_of(options.sizes)
    verdicts = judge(claims, results, METRICS)
    failed = [gate.asks for gate in found if not gate.passed]
    report.table(
        "Differences in calibrated log-likelihood, seed by seed",
        [
            "",
            "ahead by",
            "",
        ][: 2 if failed else 3],
        [
            [claim.says, by, verdict][: 2 if failed else 3]
            for claim, (verdict, by) in zip(claims, verdicts, strict=True)
        ],
    )
    if failed:
        report.say(f"No verdict: {len(failed)} gates failed ({'; '.join(failed)}).")
    else:
        held = sum(verdict == HOLDS for verdict, _ in verdicts)
        report.say(f"All gates passed; {held} of {len(claims)} differences hold.")
    evidence = compare_evidence(drawn, searched, temperature)
    report.table("log Ẑ at the end of a search", ["", "log Ẑ", "sd that it states"], evidence)
    collisions = collide(options.samples)
    report.table(
        f"Collisions among {options.samples:,} uniform draws, one refinement",
        [
            *("buckets", "labels", "that share a bucket", "different draws"),
            *("different when hashed", "mean error of the kernel", "largest"),
        ],
        [
            [f"{c.buckets:,}{' (default)' if c.buckets == DEFAULT_BUCKETS else ''}"]
            + [f"{number:,}" for number in c[1:5]]
            + [f"{error:.1e}" for error in c[5:]]
            for c in collisions
        ],
    )
    setting = {
        "seeds": options.seeds,
        "task": report.parts[1],
        "metrics": [metric.name for metric in METRICS],
        "gates": [[gate.asks, gate.value, gate.bound] for gate in found],
        "further": further,
        "evidence": evidence,
        "collisions": [c._asdict() for c in collisions],
        "valid losses of draws": np.sort(loss),
    }
    keep(options.out, setting, results)
    write_whole(options.out.with_suffix(".md"), "\n".join(report.parts).encode())


def written(values: np.ndarray, metric: Metric) -> str:
    error = values.std(ddof=1) / np.sqrt(len(values)) if len(values) > 1 else np.nan
    scale, digits = metric.scale, metric.digits
    return f"{scale * values.mean():.{digits}f} ± {scale * error:.{digits}f}"


if __name__ == "__main__":
    one_sentence(main, tyro.cli(Options, description=__doc__))
