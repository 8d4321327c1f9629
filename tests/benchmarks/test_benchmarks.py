"""What the benchmarks say about the paper: its numbers, its claims, and verdicts on them."""

import importlib
import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import ttest_1samp

from bqnes_jax import nats_bench, tables
from bqnes_jax.candidates import SearchConfig
from bqnes_jax.data import Dataset, Examples, fingerprint, split
from bqnes_jax.errors import BQNESError
from bqnes_jax.metrics import ece
from bqnes_jax.spaces import NATS
from bqnes_jax.storage import Entry, Manifest, Store
from bqnes_jax.studies.comparison import compare_on_table
from tests.helpers.pictures import images

pytestmark = pytest.mark.parametrize("precision", ["float32"], indirect=True)

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module", autouse=True)
def importable():
    sys.path.insert(0, str(FOLDER))
    yield
    sys.path.remove(str(FOLDER))


@pytest.fixture
def against(importable):
    return importlib.import_module("against_paper")


@pytest.fixture
def paper(importable):
    return importlib.import_module("paper")


@pytest.fixture
def scaled_down(importable):
    return importlib.import_module("scaled_down")


def results(**rows):
    return {row: np.stack([values] * 3, axis=1) for row, values in rows.items()}


NOISE = np.linspace(-0.5, 0.5, 10)


@pytest.mark.parametrize(
    ("ahead", "strictly", "verdict"),
    [
        (0.5, True, "holds"),
        (-0.5, True, "does not hold"),
        (0.1, True, "cannot be told"),
        (0.1, False, "holds"),  # not worse by more than a hundredth of 100
        (-0.9, False, "cannot be told"),
        (-1.5, False, "does not hold"),
    ],
)
def test_verdicts(against, ahead, strictly, verdict):
    found = results(a=100 + ahead + NOISE, b=np.full(10, 100.0))
    claim = against.Claim("a is better", "a", "b", against.LL, (), strictly)
    ((said, by),) = against.judge([claim], found, against.ENSEMBLES)
    assert said == verdict and by.startswith(f"{ahead:+.1f} ± 0.1")


def test_lower_is_better_where_it_is(against):
    found = results(a=np.array([0.010, 0.011, 0.012]), b=np.full(3, 0.05))
    claim = against.Claim("a is better", "a", "b", against.ECE, ())
    assert against.judge([claim], found, against.ENSEMBLES)[0][0] == "holds"
    one_seed = {row: values[:1] for row, values in found.items()}
    assert against.judge([claim], one_seed, against.ENSEMBLES)[0][0] == "cannot be told"


def test_many_claims_are_corrected_for(against):
    """The verdicts are those of Holm's procedure, done by hand on p-values of scipy."""
    rng = np.random.default_rng(0)
    rows = {f"row {i}": 100 + rng.normal(0.2 * i, 1, 10) for i in range(8)}
    found = results(base=np.full(10, 100.0), **rows)
    claims = [against.Claim("", row, "base", against.LL, ()) for row in rows]
    p_values = [ttest_1samp(values - 100, 0).pvalue for values in rows.values()]
    expected, left = {}, len(rows)
    for row in sorted(range(len(rows)), key=lambda i: p_values[i]):
        if p_values[row] > 0.05 / left:
            break
        expected[row] = "holds"
        left -= 1
    said = [verdict for verdict, _ in against.judge(claims, found, against.ENSEMBLES)]
    assert said == [expected.get(i, "cannot be told") for i in range(len(rows))]
    alone = [against.judge([claim], found, against.ENSEMBLES)[0][0] for claim in claims]
    assert said.count("holds") < alone.count("holds")


def test_tables_have_the_paper_beside_them(against):
    found = results(**{"BQ-S, 3": np.array([0.4, 0.6]), "mine": np.array([0.1, 0.1])})
    columns, rows = against.lines(
        found, against.ENSEMBLES, against.published("table4", "CIFAR-100")
    )
    assert rows[0][1:4] == ["50.00 ± 10.00", "0.5000 ± 0.1000", "0.5 ± 0.1"]
    assert rows[0][4:] == ["76.6 ± 0.2", "0.021 ± 0.001", "-4417 ± 35.85"]
    assert rows[1][4:] == ["–"] * 3
    lines = against.as_markdown(columns, rows).splitlines()
    assert len(lines) == 4 and {line.count("|") for line in lines} == {8}


PAPER = json.loads((FOLDER / "paper.json").read_text())
# What the paper says in words, and its own table does not show: behind, or the same to its digits.
ONLY_IN_WORDS = {
    ("RE beats US in ECE, M = 3", "ImageNet16-120"),
    ("WS beats BS in accuracy, M = 3", "ImageNet16-120"),
    ("RS beats BS in accuracy, M = 3", "ImageNet16-120"),
    ("RS beats WS in accuracy, M = 5", "ImageNet16-120"),
    ("NES-RE beats BQ-S in accuracy, M = 3", "CIFAR-100"),
}


def test_every_claim_is_what_the_paper_reports(paper, against):
    different = set()
    for name, claims in paper.CLAIMS.items():
        metrics = paper.TABLES[name].metrics
        assert {like for claim in claims for like in claim.about} == set(PAPER[name])
        for claim in claims:
            for like in claim.about:
                rows = against.published(name, like)
                one, other = (rows[row][claim.metric][0] for row in (claim.better, claim.worse))
                ahead = metrics[claim.metric].sign * (one - other)
                if not (ahead > 0 if claim.strictly else ahead >= -against.MARGIN * abs(other)):
                    different.add((claim.says, like))
    assert different == ONLY_IN_WORDS


def test_claims_have_the_variance_of_training_too(against):
    ahead = ("a, 3", "c, 5")  # of b: claims about other algorithms have a variance of their own

    def leads(*means):
        ours = {row: 100 + mean + NOISE for row, mean in zip(ahead, means, strict=True)}
        return results(**ours, **{f"b, {size}": np.full(10, 100.0) for size in (3, 5)})

    claims = [against.Claim("", row, f"b, {row[-1]}", against.LL, ()) for row in ahead]
    assert against.deviations(claims, []) is None
    between = against.deviations(claims, [leads(1.0, 1.0), leads(1.0, 5.0)])
    assert between == pytest.approx([0.0, np.sqrt(16 / 2 - NOISE.var(ddof=1) / 10)])
    said = against.judge(claims, leads(3.0, 3.0), against.ENSEMBLES, between)
    assert [verdict for verdict, _ in said] == ["holds", "cannot be told"]
    assert said[0][1] == "+3.0 ± 0.1" and said[1][1] == "+3.0 ± 2.8"
    same = [claims[0], against.Claim("", "b, 5", "a, 5", against.LL, ())]
    twice = [leads(1.0, 1.0) | results(**{"a, 5": 100 - d + NOISE}) for d in (0.0, 4.0)]
    assert len(set(against.deviations(same, twice))) == 1  # one variance for two sizes


def test_claims_that_contradict_each_other_are_counted_apart(against):
    both, one, other = ("A", "B"), ("A",), ("B",)
    claims = [against.Claim("", "", "", 0, about) for about in (both, one, other, both)]
    verdicts = [against.HOLDS, against.FAILS, against.HOLDS, against.UNKNOWN]
    assert against.tally(claims, verdicts) == (
        "1 of 2 about A and B, 0 of 1 about A alone, 1 of 1 about B alone"
    )


def as_reported(table, like):
    """Return the paper's own numbers as if every seed had given them."""
    rows = {name: [[mean for mean, _ in cells]] * 3 for name, cells in PAPER[table][like].items()}
    counts = {"architectures": 15_000, "failed": 25}
    return {"seeds": 3, "data": "nats", "results": rows, "gates": []} | counts


LIVE = {"data": "live", "cells": 128, "images": [4000, 500, 600]}


def test_the_papers_own_data_is_judged_by_what_is_said_about_it(paper, scaled_down):
    content = as_reported("table2", "CIFAR-100") | {"training seed": 777}
    content["scaled down"] = scaled_down.scaled_down_searches("cifar100", content)
    said = paper.report("cifar100", content, paper.Options("table2", data="nats"))
    assert "US beats RE" not in said and "RE beats US in accuracy, M = 10" in said
    assert "hold here: 6 of 6 about CIFAR-100 alone, 6 of 6 about CIFAR-100 and Im" in said
    assert "600 architectures have no training with seed 777 here; 25 are left out" in said
    assert "centre of the bin" in said and "evolution" not in said
    content = as_reported("table2", "CIFAR-100") | LIVE
    content["scaled down"] = scaled_down.scaled_down_searches("cifar10", content)
    said = paper.report("tables/cifar10.npz", content, paper.Options("table2"))
    assert "US beats RE in LL, M = 3 | ImageNet16-120 | does not hold" in said
    assert "64 cells instead of 150, so that evolution with its population of 50 makes 14" in said
    assert "one training of each cell" in said and "12×12 pixels" in said


def test_no_verdict_where_a_gate_fails(paper):
    content = as_reported("table2", "CIFAR-100") | {"scaled down": ""}
    options = paper.Options("table2", data="nats")
    passed, failed = ["fit", 0.4, 0.5], ["noise", None, 0.5]  # what is not known does not pass
    said = paper.report("cifar100", content | {"gates": [passed]}, options)
    assert "| fit | 0.400 | ≤ 0.5 | passed |" in said and "that hold here: 6 of 6" in said
    said = paper.report("cifar100", content | {"gates": [passed, failed]}, options)
    assert "| noise | nan | ≤ 0.5 | failed |" in said and "hold here" not in said
    assert "No verdict: 1 gates failed (noise)" in said and "| holds |" not in said
    assert "RE beats US in accuracy, M = 10 | CIFAR-100 | – |" in said


def test_what_is_scaled_down_in_surrogates(scaled_down):
    said = scaled_down.scaled_down_surrogates("mine.npz", LIVE)
    assert "; 4,000 images to train on, 500 to validate, 600 to test; one training" in said
    assert said.endswith(
        "a search sees 64 cells instead of 150; tested on every 5th cell of the ranking instead of "
        "every 25th; tested on 26 cells, which are left out of the fit."
    )
    whole = {"data": "nats", "architectures": 15_625, "failed": 0, "training seed": 888}
    said = scaled_down.scaled_down_surrogates("cifar100", whole)
    assert said == "one training of each architecture, with seed 888."


@pytest.mark.slow
def test_ece_is_the_papers(importable):
    digits = tables.load("digits")
    (row,) = compare_on_table(digits, ["Best single"], (1,), 1, ece_reference="centre")
    best = digits.table.test_log_probs[np.argmax(digits.table.log_likelihoods)]
    expected = ece(best, digits.test_labels, reference="centre", log=True)
    np.testing.assert_allclose(row.ece, [expected], rtol=1e-4)
    assert abs(row.ece[0] - ece(best, digits.test_labels, log=True)) > 1e-3


def test_a_preset_fills_in_only_what_was_not_said(paper, tmp_path):
    quick = paper.Options("table4", preset="quick", out=tmp_path).completed()
    assert (quick.datasets, quick.seeds, quick.out) == (("digits",), 2, tmp_path / "quick")
    nats = paper.Options("table4", data="nats", preset="quick").completed()
    assert (nats.datasets, nats.seeds) == (("cifar100", "imagenet16-120"), 2)
    said = paper.Options("table4", datasets=("cifar10",), seeds=5, preset="quick")
    assert (said.completed().datasets, said.completed().seeds) == (("cifar10",), 5)
    assert paper.Options("table4").completed().datasets == tables.names()
    assert "cifar10_subset" in paper.Options("table5").completed().datasets
    assert paper.Options("table4").completed().seeds == 10


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"datasets": ("foo",)}, "dataset is 'foo'; allowed are 'digits'"),
        ({"datasets": ("foo.npz",)}, "foo.npz is not there; make one with: bqnes tabulate"),
        ({"datasets": ("digits",), "data": "nats"}, "dataset is 'digits'; allowed are 'cifar10'"),
        ({"seeds": 0}, "seeds is 0; it must be a whole number"),
        ({"table": "table5", "data": "nats"}, "table5 is about slices"),
    ],
)
def test_what_cannot_be_is_refused(paper, options, says):
    with pytest.raises(BQNESError, match=says):
        paper.main(paper.Options(**{"table": "table4"} | options))


def test_commands_are_written_with_all_that_results_depend_on(paper):
    nats = paper.Options("table4", data="nats", archives=Path("a"), split_file=Path("s.txt"))
    assert nats.completed().command() == (
        "python benchmarks/paper.py table4 --data nats --datasets cifar100 imagenet16-120 "
        "--seeds 10 --archives a --training-seed 777 --split-file s.txt"
    )
    own = paper.Options("table1", datasets=("digits", "mine.npz")).completed()
    assert own.command().endswith("--datasets digits mine.npz --seeds 10")


def test_results_that_cannot_be_read_count_as_none(against, tmp_path):
    path = tmp_path / "r.json"
    against.keep(path, {"seeds": 2}, {"a": np.zeros((2, 3))})
    assert against.kept(path, {"seeds": 2})["results"]["a"] == [[0.0] * 3] * 2
    assert against.kept(path, {"seeds": 3}) is None
    for content in (path.read_bytes()[:-9], b"", b"[1]", b"\xff"):
        path.write_bytes(content)
        assert against.kept(path, {"seeds": 2}) is None
    assert against.kept(tmp_path / "none.json", {}) is None


def test_another_setting_does_not_overwrite_what_was_measured(paper, tmp_path, monkeypatch):
    module, calls = paper.robustness, []

    def study(shifted, missing):
        calls.append(len(missing))
        yield from ((condition, np.zeros((1, 3))) for condition in missing)

    monkeypatch.setattr(module, "shifted_test_images", lambda task: None)
    (tmp_path / "slimmable-digits").mkdir()
    for members in (["a"], ["b"], ["a"]):
        module.measure_what_is_missing("digits", study, {"members": members}, tmp_path)
    assert calls == [58, 58, 0]


NUMBERS = (9504, 5, 777)


@pytest.fixture
def published_store(paper, tmp_path, monkeypatch):
    """Three networks of seed 777, one that failed, and one of seed 888; what those three say."""
    pictures, labels = images(30, classes=3)
    dataset = Dataset("cifar100", 3, Examples(pictures, labels), Examples(pictures, labels))
    monkeypatch.setattr(paper.imported, "load", lambda name: dataset)
    data = split(dataset)
    shape = len(data.valid.labels), len(data.test.labels), 3
    recipe = {"inputs": fingerprint(data)}
    store = Store.open(tmp_path / "cifar100", Manifest("nats", "cifar100", recipe, *shape))
    draw = np.random.default_rng(0)
    said = {}
    for number in NUMBERS:
        valid, test = (np.log(draw.dirichlet(np.ones(3), n)).astype(np.float32) for n in shape[:2])
        said[number] = valid, test
        store.put([Entry(text_of(number), 777, "ok", valid, test)])
    store.put([Entry(text_of(6), 777, "failed"), Entry(text_of(7), 888, "ok", valid, test)])
    return store, data, said


def text_of(number):
    return NATS.to_string(np.asarray(NATS.from_index(number)))


def test_published_networks_are_taken_from_a_store(
    paper, scaled_down, published_store, monkeypatch
):
    store, data, said = published_store
    options = paper.Options("table4", data="nats", archives=store.directory.parent)
    tabulated, predict = paper.surface("cifar100", options)
    assert tabulated.space.numbers == (5, 777, 9504)
    points = np.arange(len(data.valid.labels))
    of_labels = [said[n][0][points, data.valid.labels] for n in sorted(NUMBERS)]
    np.testing.assert_allclose(tabulated.table.log_probs, of_labels, rtol=2e-3)
    predicted = predict(tabulated.space.from_index(np.array([2])))
    np.testing.assert_allclose(predicted[0], said[9504][1], rtol=2e-3, atol=2e-3)
    where = options.archives, 777, None
    setting = {"data": "nats"} | paper.imported.describe_store("cifar100", *where)
    assert scaled_down.what_cells_lack("cifar100", setting)[1] == [
        "15,621 architectures have no training with seed 777 here",
        "1 are left out for other losses than published",
        "images are split into validation and test here, not as the benchmark did",
        "one training of each architecture, with seed 777",
    ]
    with pytest.raises(BQNESError, match="3 cells are too few to search in; it takes 20"):
        scaled_down.search_config(tabulated.space.size)
    other = replace(options, training_seed=888)
    assert paper.surface("cifar100", other)[0].space.numbers == (7,)

    monkeypatch.setattr(paper.imported, "fingerprint", lambda data: "other")
    with pytest.raises(BQNESError, match="is of other images than cifar100"):
        paper.surface("cifar100", options)


def test_results_belong_to_what_the_store_holds(
    paper, scaled_down, published_store, tmp_path, monkeypatch
):
    store, _, said = published_store
    measured = []

    def measure(name, options):
        measured.append(name)
        return {"results": {}}

    monkeypatch.setattr(scaled_down, "search_config", lambda size, data="live": SearchConfig())
    table = paper.TABLES["table4"]._replace(measure=measure)
    monkeypatch.setitem(paper.TABLES, "table4", table)
    options = paper.Options("table4", data="nats", archives=tmp_path, out=tmp_path / "out", seeds=2)
    for _ in range(2):
        paper.result_of("cifar100", options)
    assert len(measured) == 1
    store.put([Entry(text_of(8), 777, "ok", *said[5])])
    paper.result_of("cifar100", options)
    assert len(measured) == 2
    paper.result_of("cifar100", replace(options, training_seed=888))
    assert len(measured) == 3
    with pytest.raises(BQNESError, match="no network trained with it, only with 777, 888"):
        paper.result_of("cifar100", replace(options, training_seed=999))
    store.directory.rename(tmp_path / "elsewhere")
    with pytest.raises(BQNESError, match="is not a store of predictions; make it with: bqnes nats"):
        paper.result_of("cifar100", options)


def test_losses_alone_are_enough_for_surrogates(paper, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    results = nats_bench.results.empty("cifar100")
    numbers = np.arange(0, 15_625, 97)
    results.valid_losses[numbers, 0] = np.linspace(1, 2, len(numbers))
    options = paper.Options("table1", data="nats", archives=tmp_path / "nats", seeds=2)
    with pytest.raises(BQNESError, match=r"no table .*nats-cifar100.npz; make one with: bqnes"):
        paper.setting_of_losses("cifar100", options)
    nats_bench.write_results(tmp_path / "nats" / "nats-cifar100.npz", results)
    space, table = paper.losses("cifar100", options)
    assert space.numbers == tuple(numbers.tolist())
    np.testing.assert_allclose(table.log_likelihoods, np.linspace(-5000, -10_000, len(numbers)))
    setting = paper.setting_of_losses("cifar100", options)
    assert setting["architectures"] == len(numbers)
    results.valid_losses[numbers[0], 0] = 3.0
    nats_bench.write_results(tmp_path / "nats" / "nats-cifar100.npz", results)
    assert paper.setting_of_losses("cifar100", options) != setting
    with pytest.raises(BQNESError, match=r"training-seed is 888, but .* only with 777"):
        paper.setting_of_losses("cifar100", replace(options, training_seed=888))
    nats_bench.write_results(Path("nats-imagenet16-120.npz"), results)
    with pytest.raises(BQNESError, match="is of cifar100, and not of imagenet16-120"):
        paper.setting_of_losses("imagenet16-120", options)
    with pytest.raises(BQNESError, match="is not a store of predictions"):
        paper.setting_of_cells("cifar100", replace(options, table="table4"))
