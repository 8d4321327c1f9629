"""The six tables of the paper, with its own numbers beside and its claims put to the test.

    python benchmarks/paper.py table4                       # networks that were trained here
    python benchmarks/paper.py table4 --data nats --archives nats   # the published benchmark

`--data live` takes networks that were trained here: cells from tables that `bqnes tabulate` wrote,
and for tables 5 and 6 slices of supernets, which it trains where they are missing. `--data nats`
takes what `bqnes nats import` has read from the archives of NATS-Bench. Stop it whenever you like:
data sets that are finished are not measured again. Results are a JSON file for each data set and
one Markdown file.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple

import gates
import imported
import jax
import jax.numpy as jnp
import numpy as np
import retrained
import robustness
import slimmable
import surrogates
import tyro
from against_paper import (
    ENSEMBLES,
    LEVEL,
    MARGIN,
    PAPER_ECE,
    SURROGATES,
    Metric,
    Results,
    as_arrays,
    as_markdown,
    deviations,
    from_rows,
    judge,
    keep,
    kept,
    lines,
    published,
    tally,
)
from claims import CLAIMS, SIZES
from scaled_down import scaled_down_searches, scaled_down_surrogates, search_config, stride
from shared import RESULTS, console, make_repeats, one_sentence, show

from bqnes_jax import tables
from bqnes_jax.errors import BQNESError, check_choice, check_whole
from bqnes_jax.files import write_whole
from bqnes_jax.nats_bench import DATASETS, SEEDS
from bqnes_jax.spaces import Subset
from bqnes_jax.studies.comparison import compare_on_table
from bqnes_jax.studies.rows import Predict
from bqnes_jax.tables import Table as Losses
from bqnes_jax.tables import Tabulated, evaluator

OF_SLICES = ("table5", "table6")
PUBLISHED = {"cifar100": "CIFAR-100", "imagenet16-120": "ImageNet16-120"}
LIKE = {"cifar100_subset": "CIFAR-100", "cifar10_subset": "CIFAR-10"} | PUBLISHED
CENTRES = (
    "ECE compares the accuracy in each of ten bins with the centre of the bin, as the paper's code "
    "does; `bqnes` itself reports the standard form, against the mean confidence in the bin."
)
CONFIDENCES = (
    "ECE is the standard form here, against the mean confidence in each of ten bins; the paper's "
    "code compares with the centre of the bin."
)


@dataclass(frozen=True)
class Options:
    """Make one of the tables."""

    table: tyro.conf.Positional[Literal["table1", "table2", "table3", "table4", "table5", "table6"]]
    """Which: surrogates, candidate strategies, selection methods, the joint comparison, the
    slimmable space, robustness."""
    data: Literal["live", "nats"] = "live"
    """Networks that were trained here, or those of the published benchmark."""
    datasets: tuple[str, ...] | None = None
    """Which data sets; by default all there are of that kind. Of cells that were trained here:
    tables of the package, or files."""
    seeds: int | None = None
    """Searches of each algorithm; by default 10."""
    preset: Literal["all", "quick"] = "all"
    """quick is two seeds, and of what is trained here digits alone, where nothing else is said: a
    few minutes."""
    stores: Path = Path("stores")
    """Where supernets and their slices are kept."""
    archives: Path = Path("nats")
    """Where `bqnes nats import --store` has put a store <dataset>/ of each data set. For table 1
    losses are enough: a table nats-<dataset>.npz there, or in this directory."""
    training_seed: Literal[777, 888, 999] = SEEDS[0]
    """Which training of each published architecture."""
    split_file: Path | None = None
    """The split file that they were imported with, if there was one."""
    out: Path = RESULTS
    """Where to write the results."""
    again: bool = False
    """Measure what has been measured."""

    def completed(self) -> "Options":
        """Refuse what cannot be, and fill in what was not said."""
        nats, quick = self.data == "nats", self.preset == "quick"
        slices = self.table in OF_SLICES
        if nats and slices:
            raise BQNESError(
                f"{self.table} is about slices of a supernet, which NATS-Bench has none of; leave "
                "--data nats out."
            )
        known = tuple(DATASETS if nats else slimmable.TASKS if slices else tables.names())
        usual = tuple(PUBLISHED) if nats else known[:1] if quick else known
        datasets, seeds = self.datasets or usual, self.seeds
        if seeds is None:
            seeds = 2 if quick else 10
        check_whole("seeds", seeds, 1)
        for name in datasets:
            if nats or slices or not name.endswith(".npz"):
                check_choice("dataset", name, known)
        out = self.out / "quick" if quick else self.out
        return replace(self, datasets=datasets, seeds=seeds, out=out)

    def command(self) -> str:
        """Return what makes the same results again."""
        words = [self.table, "--data", self.data, "--datasets", *self.datasets]
        words += ["--seeds", self.seeds]
        words += ["--preset", self.preset] if self.preset != "all" else []
        if self.data == "nats":
            words += ["--archives", self.archives, "--training-seed", self.training_seed]
            words += ["--split-file", self.split_file] if self.split_file else []
        return f"python benchmarks/paper.py {' '.join(map(str, words))}"


class Table(NamedTuple):
    """How a table is made.

    Attributes:
        title: what it is about.
        measure: returns "results", "gates" and whatever else is kept.
        metrics: the columns.
        setting: what results depend on, with what is "scaled down" in words.
        note: what has to be said about the metrics and the paper's own numbers.
    """

    title: str
    measure: Callable[[str, Options], dict]
    metrics: tuple[Metric, ...]
    setting: Callable[[str, Options], dict]
    note: str = ""


def surface(name: str, options: Options) -> tuple[Tabulated, Predict | None]:
    """Return cells with results, and what they predict for test images where that is apart."""
    if options.data == "nats":
        where = options.archives, options.training_seed, options.split_file
        return imported.from_store(name, *where)
    return tables.find(name), None


def losses(name: str, options: Options) -> tuple[Subset, Losses]:
    """Return cells with losses, which are enough for surrogates."""
    if options.data == "nats":
        where = options.archives, options.training_seed, options.split_file
        return imported.losses(name, *where)
    return tables.find(name)[:2]


def describe_table(name: str) -> dict:
    """Say what results depend on: how many cells, which of them, of how many images."""
    space, table, labels = tables.find(name)
    return {
        "cells": space.size,
        "images": [table.train_points, table.log_probs.shape[1], len(labels)],
        "trained again": [one.space.size for one in retrained.trainings(name)[1:]],
    }


def trainings(name: str, options: Options) -> tuple[Tabulated, ...]:
    """Return what there is of cells that were trained twice; of published ones there is nothing."""
    return retrained.trainings(name) if options.data == "live" else ()


def gates_of_cells(name: str, options: Options) -> list:
    """Measure whether cells can answer anything; published ones do as they are."""
    if options.data == "nats":
        return []
    tabulated, seeded = gates.read(name)
    return gates.as_lists(gates.measure(tabulated, seeded, search_config(tabulated.space.size), 5))


def make_setting(describe: Callable, scaled_down: Callable, **more: object):
    """Return a function that says what results on cells depend on."""

    def setting_of(name: str, options: Options) -> dict:
        setting = {"seeds": options.seeds, "data": options.data, **more}
        if options.data == "live":
            setting |= describe_table(name)
        else:
            where = options.archives, options.training_seed, options.split_file
            setting |= describe(name, *where)
        return setting | {"scaled down": scaled_down(name, setting)}

    return setting_of


setting_of_losses = make_setting(imported.describe_losses, scaled_down_surrogates)
setting_of_cells = make_setting(imported.describe_store, scaled_down_searches, ece=PAPER_ECE)


def measure_surrogates(name: str, options: Options) -> dict:
    def score(space: Subset, table: Losses) -> Results:
        config = search_config(space.size, options.data)
        keys = jax.random.split(jax.random.key(0), options.seeds)
        searched = jax.jit(make_repeats("us", config, space))(keys, evaluator(table, space))
        indices = space.index(searched.history.archs)
        temperature = float(searched.trace.temperature[0, -1])
        test = jnp.argsort(-table.log_likelihoods)[:: stride(space.size)]
        return {
            model: np.stack(
                surrogates.make_score(warp, space, test, temperature)(table, indices), axis=1
            )
            for model, warp in surrogates.MODELS.items()
        }

    twice = [score(*one[:2]) for one in trainings(name, options)]
    results = score(*losses(name, options))
    return {"results": results, "twice": twice, "gates": gates_of_cells(name, options)}


def measure_cells(names: dict[str, str]) -> Callable[[str, Options], dict]:
    """Compare algorithms, by the paper's names for them, on cells."""

    def measure(name: str, options: Options) -> dict:
        def compare(tabulated: Tabulated, predict: Predict | None = None) -> Results:
            rows = compare_on_table(
                tabulated,
                tuple(names.values()),
                SIZES,
                options.seeds,
                config=search_config(tabulated.space.size, options.data),
                report=lambda what: console.print(f"  {what}", style="dim"),
                predict=predict,
                ece_reference=PAPER_ECE,
            )
            called = {algorithm: name for name, algorithm in names.items()}
            return from_rows([row._replace(algorithm=called[row.algorithm]) for row in rows])

        twice = [compare(one) for one in trainings(name, options)]
        results = compare(*surface(name, options))
        return {"results": results, "twice": twice, "gates": gates_of_cells(name, options)}

    return measure


def of_slices(options: Options, kind: type):
    return kind(seeds=options.seeds, sizes=SIZES, stores=options.stores)


def setting_of_slices(name: str, options: Options) -> dict:
    return slimmable.setting_of(name, of_slices(options, slimmable.Options)) | {"supernets": 2}


def measure_slices(name: str, options: Options) -> dict:
    asked = of_slices(options, slimmable.Options)
    twice = [from_rows(slimmable.compare(name, asked, seed=seed)) for seed in (0, 1)]
    return {"results": twice[0], "twice": twice, "gates": gates_of_slices(name, options)}


def gates_of_slices(name: str, options: Options) -> list:
    benches = slimmable.open_twice(name, options.stores)
    return gates.as_lists(slimmable.measure_gates(benches, slimmable.SEARCH))


def measure_shift(name: str, options: Options) -> dict:
    found = *robustness.measure(name, of_slices(options, robustness.Options)), options.seeds
    return {
        "results": robustness.as_results(*found),
        "each": robustness.by_corruption(*found),
        "gates": gates_of_slices(name, options),
    }


TABLES = {
    "table1": Table(
        "surrogates",
        measure_surrogates,
        SURROGATES,
        setting_of_losses,
    ),
    "table2": Table(
        "candidate strategies, with re-weighted stacking",
        measure_cells({"RE": "evolution+restack", "EI": "ei+restack", "US": "us+restack"}),
        ENSEMBLES,
        setting_of_cells,
        CENTRES,
    ),
    "table3": Table(
        "selection methods, from candidates by uncertainty sampling",
        measure_cells(
            {"BS": "us+beam", "WS": "us+stack", "PR": "us+recombine", "RS": "us+restack"}
        ),
        ENSEMBLES,
        setting_of_cells,
        CENTRES + " The paper says that both ways of stacking are best in accuracy; in its table "
        "WS is behind BS at M = 3 on ImageNet16-120 (52.1 and 52.2).",
    ),
    "table4": Table(
        "the joint comparison",
        measure_cells(
            {name: name for name in ("Best single", "Random", "NES-RE", "NES-BS", "BQ-R", "BQ-S")}
        ),
        ENSEMBLES,
        setting_of_cells,
        CENTRES,
    ),
    "table5": Table(
        "slices of a supernet",
        measure_slices,
        ENSEMBLES,
        setting_of_slices,
        CONFIDENCES,
    ),
    "table6": Table(
        "robustness to dataset shift, means over 19 corruptions",
        measure_shift,
        ENSEMBLES,
        lambda name, options: robustness.setting_of(name, of_slices(options, robustness.Options)),
        f"{CONFIDENCES} {robustness.NOTE} Its BQ-S has the same ECE and log-likelihood for M = 3 "
        "and M = 10 on CIFAR-100 at severity 1, which looks like an error.",
    ),
}


def result_of(name: str, options: Options) -> dict:
    """Measure a data set, or read what has been measured."""
    table = TABLES[options.table]
    path = options.out / f"{options.table}-{options.data}-{Path(name).stem}.json"
    setting = table.setting(name, options)
    if options.again or kept(path, setting) is None:
        console.print(f"{options.table} on {name}")
        keep(path, setting, **table.measure(name, options))
    return kept(path, setting)


def report(name: str, content: dict, options: Options) -> str:
    """Print a data set's part of the table; return it as Markdown."""
    table = TABLES[options.table]
    results = as_arrays(content["results"])
    measured = gates.from_lists(content["gates"])
    if measured:
        show(f"{name}: gates", gates.COLUMNS, gates.lines(measured))
    likes = list(json.loads((Path(__file__).parent / "paper.json").read_text())[options.table])
    like = LIKE.get(Path(name).stem) if LIKE.get(Path(name).stem) in likes else likes[0]
    columns, rows = lines(results, table.metrics, published(options.table, like))
    show(f"{name} (paper: {like}), {content['seeds']} seeds", columns, rows)
    # Claims about another data set than the paper's own are about another.
    own = PUBLISHED.get(name) if options.data == "nats" else None
    claims = [claim for claim in CLAIMS[options.table] if own is None or own in claim.about]
    twice = [as_arrays(one) for one in content.get("twice", [])]
    verdicts = judge(claims, results, table.metrics, deviations(claims, twice))
    claimed = [
        [claim.says, "both" if claim.about == tuple(likes) else claim.about[0], *verdict]
        for claim, verdict in zip(claims, verdicts, strict=True)
    ]
    headings = ["claim", "about", "here", "ahead by"]
    failed = [gate.asks for gate in measured if not gate.passed]
    if failed:
        verdict = f"No verdict: {len(failed)} gates failed ({'; '.join(failed)}). Figures alone:\n"
        claimed = [[*row[:2], "–", row[3]] for row in claimed]
    else:
        held = tally(claims, [verdict for verdict, _ in verdicts])
        verdict = f"Claims of the paper that hold here: {held}.\n"
    show("what the paper claims", headings, claimed, names=3)
    console.print(verdict)
    scaled_down = f"Scaled down: {content['scaled down']}"
    console.print(scaled_down)
    return "\n".join(
        [
            f"## {name}\n",
            *([as_markdown(gates.COLUMNS, gates.lines(measured))] if measured else []),
            f"Mean ± standard error over {content['seeds']} seeds; beside it the paper's numbers "
            f"for {like}.\n",
            as_markdown(columns, rows),
            f"{scaled_down} {table.note}".rstrip() + "\n",
            verdict,
            as_markdown(headings, claimed, names=3),
        ]
    )


LEGEND = (
    "Claims: ahead by is the mean ± standard error of the difference, seed by seed; Student's t "
    f"decides, at {100 * LEVEL:g} % for all claims about a data set together (Holm's correction), "
    f'whether it is above zero or, for "not worse", above −{100 * MARGIN:g} % of the mean that it '
    "is compared with. Seeds are of the searches. Where some cells or a supernet were trained once "
    "more, the errors of claims are of searches and of trainings; elsewhere it is in none of them "
    "that networks would come out otherwise if they were trained again.\n"
)


def main(options: Options) -> None:
    options = options.completed()
    versions, parts = {}, []
    for name in options.datasets:
        content = result_of(name, options)
        versions = content["versions"]
        parts.append(report(name, content, options))
    heading = (
        f"# Table {options.table[-1]}: {TABLES[options.table].title}\n\n"
        f"Made by `{options.command()}`, with "
        f"{', '.join(f'{package} {number}' for package, number in versions.items())}.\n"
    )
    path = options.out / f"{options.table}-{options.data}.md"
    write_whole(path, "\n".join([heading, LEGEND, *parts]).encode())
    console.print(f"written to {path}")


if __name__ == "__main__":
    one_sentence(main, tyro.cli(Options, description=__doc__))
