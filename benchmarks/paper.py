"""The six tables of the paper, with its own numbers beside and its claims put to the test.

    python benchmarks/paper.py table4                       # networks that were trained here
    python benchmarks/paper.py table4 --data nats --archives nats   # the published benchmark

`--data live` takes networks from stores (and trains what is missing there: minutes for each data
set of cells, a supernet for tables 5 and 6): 8×8 digits, and CIFAR-10 and CIFAR-100 shrunk to 8×8
from BQNES_DATA_DIR. `--data nats` takes what `bqnes nats import` has read from the archives of
NATS-Bench. Stop it whenever you like: data sets that are finished are not measured again. Results
are a JSON file for each data set and one Markdown file.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import networks
import numpy as np
import robustness
import slimmable
import surrogates
import tyro
from against_paper import (
    ACCURACY,
    ECE,
    ENSEMBLES,
    HOLDS,
    LL,
    NLPD,
    RMSE,
    SURROGATES,
    Claim,
    Metric,
    as_markdown,
    from_rows,
    judge,
    keep,
    kept,
    lines,
    published,
)
from jax import lax
from shared import RESULTS, console, one_sentence, show

from bqnes_jax import tables
from bqnes_jax.algorithms import search
from bqnes_jax.candidates import SearchConfig, make
from bqnes_jax.comparison import compare_on_table
from bqnes_jax.data import fingerprint, load, split
from bqnes_jax.errors import BQNESError
from bqnes_jax.live import Predict, stored_predictor
from bqnes_jax.robustness import PAPER_SEVERITIES
from bqnes_jax.spaces import NATS, Subset
from bqnes_jax.store import Store
from bqnes_jax.tables import Tabulated, evaluator

SIZES = (3, 5, 10)
CELLS = ("digits", "cifar10_subset", "cifar100_subset")
PUBLISHED = {"cifar100": "CIFAR-100", "imagenet16-120": "ImageNet16-120"}


@dataclass(frozen=True)
class Options:
    """Make one of the tables."""

    table: tyro.conf.Positional[Literal["table1", "table2", "table3", "table4", "table5", "table6"]]
    """Which: surrogates, candidate strategies, selection methods, the joint comparison, the
    slimmable space, robustness."""
    data: Literal["live", "nats"] = "live"
    """Networks that were trained here, or those of the published benchmark."""
    datasets: tuple[str, ...] | None = None
    """Which data sets; by default all there are of that kind."""
    seeds: int = 10
    """Searches of each algorithm."""
    preset: Literal["all", "quick"] = "all"
    """quick is digits with two seeds: a few minutes."""
    cells: int = 128
    """Cells trained on each CIFAR, live; of digits the package has 1,024."""
    stores: Path = Path("stores")
    """Where networks trained here are kept."""
    archives: Path = Path("nats")
    """Where `bqnes nats import --store` has put a store <dataset>/ of each data set."""
    split_file: Path | None = None
    """The split file that they were imported with, if there was one."""
    out: Path = RESULTS
    """Where to write the results."""
    again: bool = False
    """Measure what has been measured."""


class Surface(NamedTuple):
    """Cells with results, and what they predict for the test images."""

    tabulated: Tabulated
    predict: Predict | None
    scaled_down: str


class Table(NamedTuple):
    """How a table is made, and what the paper says about it.

    Attributes:
        title: what it is about.
        measure: returns "results" and whatever else is kept.
        metrics: the columns.
        claims: what the paper says.
        setting: all that results depend on.
        note: what has to be said about the paper's own numbers.
    """

    title: str
    measure: Callable[[str, Options], dict]
    metrics: tuple[Metric, ...]
    claims: tuple[Claim, ...]
    setting: Callable[[str, Options], dict]
    note: str = ""


def surface(name: str, options: Options) -> Surface:
    if options.data == "nats":
        return nats_surface(name, options)
    train, valid, test = networks.TASKS[name].data.split
    config = networks.TASKS[name].train
    used = networks.Options(count=options.cells, stores=options.stores)
    tabulated = networks.tabulated(name, used)
    return Surface(
        tabulated,
        None,
        f"{tabulated.space.size:,} cells instead of 15,625; 8×8 pixels; {train} images to train "
        f"on, {valid} to validate, {test} to test; C = {config.network.channels}, N = "
        f"{config.network.cells} instead of 16 and 5; {config.steps} steps of {config.batch}.",
    )


def nats_surface(name: str, options: Options) -> Surface:
    """Take predictions from a store, those of test images only when they are asked for."""
    data = split(load(name), file=options.split_file)
    store = Store.open(options.archives / name)
    if store.manifest.config["images"] != fingerprint(data):
        raise BQNESError(
            f"{options.archives / name} is of other images than {name}, or split otherwise; give "
            "the --split-file that it was imported with."
        )
    stored = store.keys()
    numbers = np.asarray(NATS.index(jnp.stack([NATS.from_string(key.arch) for key in stored])))
    order = np.argsort(numbers)
    space, seed = Subset(NATS, tuple(numbers[order].tolist())), stored[0].seed
    texts = [stored[i].arch for i in order]
    log_probs, right = [], []
    for start in range(0, len(texts), 64):  # all of them, with every class, would fill the memory
        said = store.load(texts[start : start + 64], seed).valid_log_probs
        log_probs.append(said[:, np.arange(len(data.valid.labels)), data.valid.labels])
        right.append((said.argmax(-1) == data.valid.labels).mean(axis=1))
    log_probs = jnp.asarray(np.concatenate(log_probs), jnp.float32)
    table = tables.Table(log_probs.sum(axis=1), jnp.asarray(np.concatenate(right)), log_probs)
    tabulated = Tabulated(space, table, jnp.asarray(data.test.labels))
    left_out = NATS.size - space.size
    return Surface(
        tabulated,
        stored_predictor(store, NATS, seed),
        f"{left_out:,} architectures are not in the store." if left_out else "nothing.",
    )


def search_config(tabulated: Tabulated) -> SearchConfig:
    return SearchConfig(budget=min(150, tabulated.space.size // 2))


def setting_of_cells(name: str, options: Options) -> dict:
    setting = {"seeds": options.seeds, "data": options.data}
    return setting | ({"cells": options.cells} if options.data == "live" else {})


def measure_surrogates(name: str, options: Options) -> dict:
    tabulated, _, scaled_down = surface(name, options)
    space, table, _ = tabulated
    config = search_config(tabulated)
    strategy = make("us", space, config=config)
    keys = jax.random.split(jax.random.key(0), options.seeds)
    look_up = evaluator(table, space)
    found = jax.jit(lambda keys: lax.map(lambda key: search(strategy, config, key, look_up), keys))
    indices = space.index(found(keys)[0].archs)
    every = 25 if space.size >= 1000 else 5
    test = jnp.argsort(-table.log_likelihoods)[::every]
    results = {
        model: np.stack(surrogates.make_score(warp, space, test)(table, indices), axis=1)
        for model, warp in surrogates.MODELS.items()
    }
    return {"results": results, "scaled down": scaled_down}


def measure_cells(names: dict[str, str]) -> Callable[[str, Options], dict]:
    """Compare algorithms, by the paper's names for them, on cells."""

    def measure(name: str, options: Options) -> dict:
        tabulated, predict, scaled_down = surface(name, options)
        rows = compare_on_table(
            tabulated,
            tuple(names.values()),
            SIZES,
            options.seeds,
            search_config(tabulated),
            lambda what: console.print(f"  {what}", style="dim"),
            predict,
        )
        called = {algorithm: name for name, algorithm in names.items()}
        rows = [row._replace(algorithm=called[row.algorithm]) for row in rows]
        return {"results": from_rows(rows), "scaled down": scaled_down}

    return measure


def of_slices(options: Options, kind: type):
    return kind(seeds=options.seeds, sizes=SIZES, stores=options.stores)


def measure_slices(name: str, options: Options) -> dict:
    return {"results": from_rows(slimmable.compare(name, of_slices(options, slimmable.Options)))}


def measure_shift(name: str, options: Options) -> dict:
    found = *robustness.measure(name, of_slices(options, robustness.Options)), options.seeds
    return {"results": robustness.as_results(*found), "each": robustness.by_corruption(*found)}


def each_size(says: str, better: str, worse: str, metric: int, strictly: bool = True, sizes=SIZES):
    return tuple(
        Claim(f"{says}, M = {m}", f"{better}, {m}", f"{worse}, {m}", metric, strictly)
        for m in sizes
    )


TABLES = {
    "table1": Table(
        "surrogates",
        measure_surrogates,
        SURROGATES,
        (
            Claim("WSABI-L has a lower RMSE than a GP", "WSABI-L", "GP", RMSE),
            Claim("WSABI-L has a lower NLPD than a GP", "WSABI-L", "GP", NLPD),
        ),
        setting_of_cells,
    ),
    "table2": Table(
        "candidate strategies, with re-weighted stacking",
        measure_cells({"RE": "evolution+restack", "EI": "ei+restack", "US": "us+restack"}),
        ENSEMBLES,
        (
            *each_size("US beats RE in LL (ImageNet16-120)", "US", "RE", LL),
            *each_size("US beats RE in accuracy (ImageNet16-120)", "US", "RE", ACCURACY),
            *each_size("RE beats US in LL (CIFAR-100)", "RE", "US", LL),
            *each_size("RE beats US in ECE (both)", "RE", "US", ECE),
            *each_size("US beats EI in LL (both)", "US", "EI", LL),
        ),
        setting_of_cells,
    ),
    "table3": Table(
        "selection methods, from candidates by uncertainty sampling",
        measure_cells(
            {"BS": "us+beam", "WS": "us+stack", "PR": "us+recombine", "RS": "us+restack"}
        ),
        ENSEMBLES,
        (
            *each_size("RS beats BS in LL (both)", "RS", "BS", LL),
            *each_size("RS is not worse than WS in LL (both)", "RS", "WS", LL, False),
            *each_size("RS is not worse than WS in accuracy (both)", "RS", "WS", ACCURACY, False),
            *each_size("RS beats PR in LL (both)", "RS", "PR", LL),
            *each_size("PR beats RS in ECE (both)", "PR", "RS", ECE, sizes=(10,)),
        ),
        setting_of_cells,
    ),
    "table4": Table(
        "the joint comparison",
        measure_cells(
            {name: name for name in ("Best single", "Random", "NES-RE", "NES-BS", "BQ-R", "BQ-S")}
        ),
        ENSEMBLES,
        (
            *each_size("BQ-S beats NES-RE in LL (ImageNet16-120)", "BQ-S", "NES-RE", LL),
            *each_size("NES-RE beats BQ-S in LL (CIFAR-100)", "NES-RE", "BQ-S", LL),
            *each_size("BQ-S beats NES-BS in LL (both)", "BQ-S", "NES-BS", LL),
            *each_size("BQ-S beats Random in LL (both)", "BQ-S", "Random", LL),
            *each_size("BQ-R beats BQ-S in ECE (both)", "BQ-R", "BQ-S", ECE, sizes=(10,)),
            *(
                Claim(
                    f"BQ-S beats Best single in LL (both), M = {m}",
                    f"BQ-S, {m}",
                    "Best single, 1",
                    LL,
                )
                for m in SIZES
            ),
        ),
        setting_of_cells,
    ),
    "table5": Table(
        "slices of a supernet",
        measure_slices,
        ENSEMBLES,
        (
            *each_size("BQ-S beats NES-RE in LL (both)", "BQ-S", "NES-RE", LL),
            *each_size("BQ-S beats NES-RE in ECE (CIFAR-100)", "BQ-S", "NES-RE", ECE),
            *each_size("BQ-S is not worse in accuracy (both)", "BQ-S", "NES-RE", ACCURACY, False),
        ),
        lambda name, options: slimmable.setting_of(name, of_slices(options, slimmable.Options)),
    ),
    "table6": Table(
        "robustness to dataset shift, means over 19 corruptions",
        measure_shift,
        ENSEMBLES,
        tuple(
            claim
            for severity in PAPER_SEVERITIES
            for metric, what, strictly in (
                (LL, "BQ-S beats NES-RE in LL", True),
                (ECE, "BQ-S beats NES-RE in ECE", True),
                (ACCURACY, "BQ-S is not worse in accuracy", False),
            )
            for claim in each_size(
                f"{what}, severity {severity}",
                f"severity {severity}: BQ-S",
                f"severity {severity}: NES-RE",
                metric,
                strictly,
            )
        ),
        lambda name, options: robustness.setting_of(name, of_slices(options, robustness.Options)),
        robustness.NOTE + " Its BQ-S has the same ECE and log-likelihood for M = 3 and M = 10 on "
        "CIFAR-100 at severity 1, which looks like an error.",
    ),
}


def result_of(name: str, options: Options) -> dict:
    """Measure a data set, or read what has been measured."""
    table = TABLES[options.table]
    path = options.out / f"{options.table}-{options.data}-{name}.json"
    setting = table.setting(name, options)
    if options.again or kept(path, setting) is None:
        console.print(f"{options.table} on {name}")
        keep(path, setting, **table.measure(name, options))
    return kept(path, setting)


def report(name: str, content: dict, options: Options) -> str:
    """Print a data set's part of the table; return it as Markdown."""
    table = TABLES[options.table]
    results = {row: np.array(values, float) for row, values in content["results"].items()}
    likes = list(json.loads((Path(__file__).parent / "paper.json").read_text())[options.table])
    called = {"cifar100_subset": "CIFAR-100", "cifar10_subset": "CIFAR-10"} | PUBLISHED
    like = called.get(name) if called.get(name) in likes else likes[0]
    columns, rows = lines(results, table.metrics, published(options.table, like))
    show(f"{name} (paper: {like}), {content['seeds']} seeds", columns, rows)
    verdicts = [(claim.says, *judge(claim, results, table.metrics)) for claim in table.claims]
    show("what the paper claims", ["claim", "here", "ahead by"], [list(v) for v in verdicts])
    console.print(f"Scaled down: {content['scaled down']}")
    held = sum(verdict == HOLDS for _, verdict, _ in verdicts)
    return "\n".join(
        [
            f"## {name}\n",
            f"Mean ± standard error over {content['seeds']} seeds; beside it the paper's numbers "
            f"for {like}.\n",
            as_markdown(columns, rows),
            f"Scaled down: {content['scaled down']} {table.note}\n",
            f"What the paper claims ({held} of {len(verdicts)} hold here; ahead by: mean ± "
            "standard error of the difference, seed by seed; Student's t at 95 % decides):\n",
            as_markdown(["claim", "here", "ahead by"], verdicts, names=2),
        ]
    )


def main(options: Options) -> None:
    if options.preset == "quick":
        options = replace(options, datasets=("digits",), seeds=2, out=options.out / "quick")
    if options.data == "nats" and options.table in ("table5", "table6"):
        raise BQNESError(
            f"{options.table} is about slices of a supernet, which NATS-Bench has none of; leave "
            "--data nats out."
        )
    datasets = options.datasets or (tuple(PUBLISHED) if options.data == "nats" else CELLS)
    versions, parts = {}, []
    for name in datasets:
        content = result_of(name, options)
        versions = content["versions"]
        parts.append(report(name, content, options))
    command = f"python benchmarks/paper.py {options.table} --data {options.data}"
    command += f" --datasets {' '.join(datasets)}"
    heading = (
        f"# Table {options.table[-1]}: {TABLES[options.table].title}\n\n"
        f"Made by `{command} --seeds {options.seeds}`, with "
        f"{', '.join(f'{package} {number}' for package, number in versions.items())}.\n"
    )
    path = options.out / f"{options.table}-{options.data}.md"
    path.write_text("\n".join([heading, *parts]))
    console.print(f"written to {path}")


if __name__ == "__main__":
    one_sentence(main, tyro.cli(Options, description=__doc__))
