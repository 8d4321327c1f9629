"""What the benchmarks say about the paper: its numbers, its claims, and verdicts on them."""

import importlib
import json
import sys
from pathlib import Path

import numpy as np
import pytest

from bqnes_jax.data import Dataset, Images, fingerprint, split
from bqnes_jax.errors import BQNESError
from bqnes_jax.spaces import NATS
from bqnes_jax.store import Entry, Manifest, Store
from tests.pictures import images

pytestmark = pytest.mark.parametrize("precision", ["float32"], indirect=True)

FOLDER = Path(__file__).parent.parent / "benchmarks"


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
    claim = against.Claim("a is better", "a", "b", against.LL, strictly)
    said, by = against.judge(claim, found, against.ENSEMBLES)
    assert said == verdict and by.startswith(f"{ahead:+.1f} ± 0.1")


def test_lower_is_better_where_it_is(against):
    found = results(a=np.array([0.010, 0.011, 0.012]), b=np.full(3, 0.05))
    claim = against.Claim("a is better", "a", "b", against.ECE)
    assert against.judge(claim, found, against.ENSEMBLES)[0] == "holds"
    one_seed = {row: values[:1] for row, values in found.items()}
    assert against.judge(claim, one_seed, against.ENSEMBLES)[0] == "cannot be told"


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


def test_every_claim_is_about_rows_that_are_measured(paper, against):
    """What the paper's table has is what its claims are about, but for what only we compare."""
    for name, table in paper.TABLES.items():
        for like in json.loads((FOLDER / "paper.json").read_text())[name]:
            rows = against.published(name, like)
            assert all(len(cells) == len(table.metrics) for cells in rows.values())
            for claim in table.claims:
                assert {claim.better, claim.worse} <= set(rows), claim.says


def test_published_networks_are_taken_from_a_store(paper, tmp_path, monkeypatch):
    pictures, labels = images(30, classes=3)
    dataset = Dataset("cifar100", 3, Images(pictures, labels), Images(pictures, labels))
    monkeypatch.setattr(paper, "load", lambda name: dataset)
    data = split(dataset)
    shape = len(data.valid.labels), len(data.test.labels), 3
    recipe = {"images": fingerprint(data)}
    store = Store.open(tmp_path / "cifar100", Manifest("nats", "cifar100", recipe, *shape))
    draw = np.random.default_rng(0)
    numbers = [9504, 5, 777]
    said = {}
    for number in numbers:
        valid, test = (np.log(draw.dirichlet(np.ones(3), n)).astype(np.float32) for n in shape[:2])
        text = NATS.to_string(np.asarray(NATS.from_index(number)))
        said[number] = valid, test
        store.put([Entry(text, 777, "ok", valid, test)])
    options = paper.Options("table4", data="nats", archives=tmp_path)
    tabulated, predict, scaled = paper.surface("cifar100", options)
    assert tabulated.space.numbers == (5, 777, 9504) and scaled.startswith("15,622 architectures")
    of_labels = [said[n][0][np.arange(shape[0]), data.valid.labels] for n in sorted(numbers)]
    np.testing.assert_allclose(tabulated.table.log_probs, of_labels, rtol=2e-3)
    predicted = predict(tabulated.space.from_index(np.array([2])))
    np.testing.assert_allclose(predicted[0], np.exp(said[9504][1]), atol=2e-3)

    monkeypatch.setattr(paper, "fingerprint", lambda data: "other")
    with pytest.raises(BQNESError, match="is of other images than cifar100"):
        paper.surface("cifar100", options)
    with pytest.raises(BQNESError, match="table5 is about slices"):
        paper.main(paper.Options("table5", data="nats"))
