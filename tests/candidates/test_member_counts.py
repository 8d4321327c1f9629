"""No ensemble has more members than there are candidates, and tables say how many are in use."""

import csv
import io

import jax.numpy as jnp
import numpy as np
import pytest

import bqnes_jax
from bqnes_jax import algorithms, tables
from bqnes_jax.candidates import SearchConfig
from bqnes_jax.cli import main
from bqnes_jax.errors import BQNESError
from bqnes_jax.pooling import Pool
from bqnes_jax.sklearn import EnsembleClassifier
from bqnes_jax.studies import formats
from bqnes_jax.studies.comparison import _compare, compare_live, compare_on_table
from bqnes_jax.studies.rows import Chosen, Row
from tests.helpers.toy import GRID

pytestmark = pytest.mark.parametrize("precision", ["float32"], indirect=True)

CONFIG = SearchConfig(initial=2, budget=6, batch=2)
SAID = np.random.default_rng(0).dirichlet(np.ones(3), (2, 30))
LABELS = np.arange(30) % 3
MIXTURE = Pool.MIXTURE


def never(*_):
    pytest.fail("it began")


class Lazy:
    """A classifier that must not be trained."""

    predict_proba = fit = never

    def get_params(self, deep=False):
        return {}


def on_table(size):
    made = tables.load("digits")
    return compare_on_table(made, ["Random"], (2, size), 1, config=CONFIG, report=never)


TOO_MANY = {
    "combine": (lambda size: bqnes_jax.combine(SAID, LABELS, size=size), 2),
    "EnsembleClassifier": (
        lambda size: EnsembleClassifier([Lazy(), Lazy()], size=size).fit(SAID[0], LABELS),
        2,
    ),
    "make": (lambda size: algorithms.make("BQ-S", GRID, size, config=CONFIG), 6),
    "make, small space": (lambda size: algorithms.make("Random", GRID, size), GRID.size),
    "compare_on_table": (on_table, 6),
    "compare_live": (
        lambda size: compare_live(
            GRID, never, never, jnp.asarray(LABELS), ["Random"], (2, size), 1, config=CONFIG
        ),
        6,
    ),
    "search": (
        lambda size: bqnes_jax.search(ensemble_size=size, budget=6, initial=2, progress=never),
        6,
    ),
}


@pytest.mark.parametrize("size", [None, 10**9])
@pytest.mark.parametrize("name", TOO_MANY)
def test_more_members_than_candidates_are_refused_before_anything_is_done(name, size):
    call, most = TOO_MANY[name]
    size = most + 1 if size is None else size
    with pytest.raises(BQNESError, match=rf"size is {size}; .* from 1 to {most}\.$"):
        call(size)


@pytest.mark.parametrize(
    "typed",
    [
        "combine models.npz --size 3 --out out",
        "compare --sizes 2 151 --out out",
        "compare --live --sizes 2 151 --out out",
        "run --ensemble-size 31 --budget 30 --out out",
    ],
)
def test_commands_refuse_more_members_than_candidates(typed, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    np.savez(tmp_path / "models.npz", valid=SAID, valid_labels=LABELS)
    assert main(typed.split()) == 1
    said = capsys.readouterr().err
    assert "it must be a whole number, from 1 to" in said and len(said.splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_two_models_need_no_size():
    found = bqnes_jax.combine(SAID, LABELS, method="beam", calibrate="off")
    assert found.study.size == 2


def row(used):
    return Row("BQ-S", 5, *(np.array([0.5, 0.7]),) * 3, used=used)


def test_tables_say_how_many_members_are_in_use():
    rows = [row(None), row(np.array([5, 5])), row(np.array([3, 3])), row(np.array([3, 4]))]
    expected = ["5", "5", "3 of 5", "3.5 of 5"]
    assert [row.members for row in rows] == expected
    for write, cut, skip in (
        (formats.as_markdown, "|", 2),
        (formats.as_latex, "&", 4),
    ):
        lines = write(rows).splitlines()[skip:]
        cells = [[cell.strip() for cell in line.split(cut)] for line in lines if cut in line]
        assert [text for line in cells for text in line if text in expected] == expected
    for text, members in zip(formats.as_text(rows).splitlines()[1:], expected, strict=True):
        assert text.removeprefix("BQ-S").split("  0.")[0].strip().startswith(members)
    read = list(csv.DictReader(io.StringIO(formats.as_csv(rows))))
    assert [line["used"] for line in read] == ["5", "5", "5", "5", "3", "3", "3", "4"]
    assert {line["members"] for line in read} == {"5"}


def test_a_comparison_counts_the_members_that_have_a_weight():
    weights = np.array([[0.5, 0.5, 0.0], [0.0, 1.0, 0.0]], np.float32)
    worth = np.ones(2, np.float32)
    chosen = Chosen(np.zeros((2, 3, 2), np.int32), weights, np.zeros(2, np.int32), worth, MIXTURE)
    said = jnp.log(jnp.asarray(np.stack([SAID[0]] * 3), jnp.float32))
    labels = jnp.asarray(LABELS)
    (found,) = _compare(
        ["BQ-S"], lambda name: (3,), 2, lambda *_: chosen, lambda archs: said, labels, None
    )
    assert found.used.tolist() == [2, 1] and found.members == "1.5 of 3"
