"""Comparisons: against the algorithms one by one, errors and ties, and how they are written."""

import csv
import io

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bqnes_jax import algorithms, tables
from bqnes_jax.calibration import apply_temperature, select_calibrated
from bqnes_jax.candidates import SearchConfig
from bqnes_jax.errors import BQNESError
from bqnes_jax.metrics import accuracy, ece, log_likelihood
from bqnes_jax.pooling import ensemble_log_probabilities
from bqnes_jax.studies import formats
from bqnes_jax.studies.comparison import compare_live, compare_on_table
from bqnes_jax.studies.formats import summarise
from bqnes_jax.studies.rows import Row
from bqnes_jax.types import Status

CONFIG = SearchConfig(initial=5, budget=12, batch=3, population=6)
SEEDS = 2


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_rows_are_those_of_the_algorithms(precision):
    digits = tables.load("digits")
    space, table, labels = digits
    names = ("Best single", "Random", "NES-RE")
    said = []
    rows = compare_on_table(digits, names, (2,), SEEDS, config=CONFIG, report=said.append)
    assert [(row.algorithm, row.size) for row in rows] == [
        (names[0], 1),
        (names[1], 2),
        (names[2], 2),
    ]
    assert said == ["Best single, 1 members", "Random, 2 members", "NES-RE, 2 members"]
    evaluate = tables.evaluator(table, space)
    for row in rows:
        run = algorithms.make(row.algorithm, space, row.size, config=CONFIG)
        for seed in range(SEEDS):
            result = run(jax.random.key(seed), evaluate)
            members = jnp.exp(table.test_log_probs[space.index(result.archs)])
            mixture = jnp.einsum("m,mnc->nc", result.weights, members)
            for metric in (accuracy, ece, log_likelihood):
                ours = getattr(row, metric.__name__)[seed]
                np.testing.assert_allclose(ours, metric(mixture, labels), rtol=1e-4)

    check_live(space, evaluate, table, labels, names[1:], rows[1:])
    assert np.isnan(rows[0].effective_size), "nothing is searched for the best of all"


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_a_log_pool_is_measured_as_one():
    """On a table that says something about all classes at the validation points."""
    digits = tables.load("digits")
    space, table, labels = digits
    names, without = ("random+logpool",), table._replace(classes=None)
    with pytest.raises(BQNESError, match="'logpool' needs the log-probabilities of all classes"):
        compare_on_table(digits._replace(table=without), names, (2,), SEEDS, config=CONFIG)
    rows = compare_on_table(digits, names, (2,), SEEDS, config=CONFIG)
    evaluate = tables.evaluator(table, space)
    result = algorithms.make(names[0], space, 2, config=CONFIG)(jax.random.key(1), evaluate)
    members = table.test_log_probs[space.index(result.archs)]
    scores = jnp.einsum("m,mnc->nc", result.weights, jnp.maximum(members, -12))
    expected = log_likelihood(jax.nn.softmax(scores), labels)
    np.testing.assert_allclose(rows[0].log_likelihood[1], expected, rtol=1e-3)
    check_live(space, evaluate, table, labels, names, rows)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_calibrated_metrics_stand_beside_the_others():
    """The temperature is that of points which did not select the members, if it helps them."""
    digits = tables.load("digits")
    space, table, labels = digits
    names = ("Random", "random+corrective")
    plain = compare_on_table(digits, names, (2,), SEEDS, config=CONFIG)
    rows = compare_on_table(digits, names, (2,), SEEDS, config=CONFIG, calibrated=True)
    for before, after in zip(plain, rows, strict=True):
        assert before.calibrated_ece is None and formats.metrics_of([after, before])[3:] == []
        np.testing.assert_allclose(before.log_likelihood, after.log_likelihood, rtol=1e-5)
    evaluate = tables.evaluator(table, space)
    for seed in range(SEEDS):
        run = algorithms.make("random+corrective", space, 2, config=CONFIG)
        result = run(jax.random.key(seed), evaluate)
        said = evaluate(result.history.archs)
        _, fitted = select_calibrated("corrective", said.log_probs, 2, classes=said.classes)
        members = table.test_log_probs[space.index(result.archs)]
        pooled = apply_temperature(
            ensemble_log_probabilities(result.weights, members), fitted.temperature
        )
        expected = log_likelihood(pooled, labels, log=True)
        np.testing.assert_allclose(rows[1].calibrated_log_likelihood[seed], expected, rtol=1e-4)
    check_live(space, evaluate, table, labels, names[1:], rows[1:], calibrated=True)
    text = formats.as_text(rows)
    assert "calibrated ECE" in text and len(text.splitlines()) == 3
    without = digits._replace(table=table._replace(classes=None))
    (row,) = compare_on_table(without, names[:1], (2,), 1, config=CONFIG, calibrated=True)
    assert row.calibrated_ece is None, "what is not known is left out"


def check_live(space, evaluate, table, labels, names, rows, **options):
    """What is trained when it is asked for gives the same rows."""
    live = compare_live(
        space,
        evaluate,
        lambda archs: table.test_log_probs[space.index(archs)],
        labels,
        names,
        (2,),
        SEEDS,
        config=CONFIG,
        **options,
    )
    for ours, theirs in zip(live, rows, strict=True):
        if options:
            ours, theirs = (one._replace(ece=one.calibrated_ece) for one in (ours, theirs))
        np.testing.assert_allclose(ours.ece, theirs.ece, atol=1e-3)
        np.testing.assert_allclose(ours.log_likelihood, theirs.log_likelihood, rtol=1e-4)
        np.testing.assert_allclose(ours.effective_size, theirs.effective_size, rtol=1e-3)
        assert 1 <= ours.effective_size <= CONFIG.budget


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_what_cannot_be_compared_is_refused():
    digits = tables.load("digits")
    with pytest.raises(BQNESError, match="seeds is 0"):
        compare_on_table(digits, ["Random"], (2,), 0)
    with pytest.raises(BQNESError, match="size is 0"):
        compare_on_table(digits, ["Random"], (0,), 1)
    with pytest.raises(BQNESError, match="algorithm is 'Magic'"):
        compare_on_table(digits, ["Magic"], (2,), 1)
    with pytest.raises(BQNESError, match="'NES-BS', which needs results of the whole space"):
        compare_live(digits.space, len, len, digits.test_labels, ["NES-BS"], (2,), 1)
    without = digits._replace(table=digits.table._replace(test_log_probs=None))
    with pytest.raises(BQNESError, match="no predictions"):
        compare_on_table(without, ["Random"], (2,), 1)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_what_went_differently_is_said_once(capsys):
    """Of searches and of selections, and in which rows."""
    from bqnes_jax.cli import main

    search = ["--initial", "4", "--budget", "10", "--fit.noise-bounds", "1e-5", "2e-5"]
    search += ["--fit.mean", "zero"]
    names = ["Best single", "NES-RE", "BQ-S"]
    assert main(["compare", "--algorithms", *names, "--seeds", "1", *search]) == 0
    said = capsys.readouterr().err.splitlines()
    assert [one for one in said if one.startswith("BQ-S")] == [
        f"BQ-S, {size} members" for size in (3, 5, 10)
    ], "it is said what is done, without a terminal too"
    (warning,) = [one for one in said if "warning: " in one]
    assert "BQ-S 3, BQ-S 5, BQ-S 10: " in warning and "Best single" not in warning
    assert "NES-RE" not in warning, "it does not ask the surrogate"
    assert warning.count(Status.AT_BOUND.explain()) == 1


def row(name, size, log_likelihoods, eces=(0.1, 0.1)):
    return Row(name, size, np.array([0.5, 0.5]), np.array(eces), np.array(log_likelihoods))


ROWS = [
    row("Best single", 1, (-5.0, -5.0), eces=(0.01, 0.01)),
    row("A_1", 3, (-1.0, -3.0)),  # −2 ± 1
    row("B", 3, (-3.0, -3.5)),  # −3.25 ± 0.25: as good as A within √(1 + 1/16)? 1.25 > 1.03
    row("C", 3, (-2.5, -3.4)),  # −2.95 ± 0.45: 0.95 < 1.10
    row("A_1", 5, (-9.0, -9.0)),
]


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_best_and_as_good_as_best():
    marks = [[cell.best for cell in cells] for cells in summarise(ROWS)]
    likelihood = [mark[2] for mark in marks]
    assert likelihood == [False, True, False, True, False], "with 5 members the best single is best"
    assert [mark[1] for mark in marks] == [True, False, False, False, False]
    alone = summarise([row("A", 3, (-1.0, -2.0))])[0]
    assert all(cell.best for cell in alone)
    np.testing.assert_allclose([alone[2].mean, alone[2].error], [-1.5, 0.5])
    one_seed = Row("A", 3, *np.array([[0.5], [0.1], [-1.0]]))
    assert formats.format_cell(summarise([one_seed])[0][0], 0) == "50.00"


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_how_it_is_written():
    read = list(csv.DictReader(io.StringIO(formats.as_csv(ROWS))))
    assert len(read) == 10 and read[2] == {
        "algorithm": "A_1",
        "members": "3",
        "seed": "0",
        "used": "3",
        "accuracy": "0.5",
        "ece": "0.1",
        "log_likelihood": "-1",
    }
    text = formats.as_text(ROWS).splitlines()
    assert len(text) == 6
    assert " ".join(text[2].split()) == "A_1 3 50.00 ± 0.00 * 0.1000 ± 0.0000 -2.0 ± 1.0 *"
    markdown = formats.as_markdown(ROWS).splitlines()
    assert len(markdown) == 7 and len({line.count("|") for line in markdown}) == 1
    assert r"| A\_1 | 3 | **50.00 ± 0.00** | 0.1000 ± 0.0000 | **-2.0 ± 1.0** |" in markdown
    latex = formats.as_latex(ROWS)
    assert r"A\_1 & 3 & $\mathbf{50.00 \pm 0.00}$ & $0.1000 \pm 0.0000$" in latex
    assert latex.count(r"\\") == 6 and latex.count("{") == latex.count("}")
