"""Predictions that are too sure for probabilities: 500 nats below certainty, on the whole way."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bqnes_jax
from bqnes_jax import metrics, tables
from bqnes_jax.data import from_arrays
from bqnes_jax.errors import BQNESError
from bqnes_jax.families import from_functions
from bqnes_jax.runs import open_workbench
from bqnes_jax.spaces import NATS, Product, Subset, enumerate_space
from bqnes_jax.studies.comparison import compare_live, compare_on_table

single = pytest.mark.parametrize("precision", ["float32"], indirect=True)

OF_CLASSES = (
    metrics.accuracy,
    metrics.log_likelihood,
    metrics.mean_log_likelihood,
    metrics.brier_score,
    metrics.ece,
    metrics.reliability_curve,
)
LABELS = np.arange(40) % 3


@pytest.mark.slow("float64")
@pytest.mark.parametrize("metric", OF_CLASSES)
def test_a_metric_takes_logarithms_too(metric, tolerance):
    logs = jax.nn.log_softmax(3 * jax.random.normal(jax.random.key(0), (40, 3)))
    close = functools.partial(np.testing.assert_allclose, rtol=tolerance(1e-5, 1e-12))
    expected = metric(jnp.exp(logs), LABELS)
    jax.tree.map(close, metric(logs, LABELS, log=True), expected)
    jax.tree.map(close, jax.jit(functools.partial(metric, log=True))(logs, LABELS), expected)
    both = metrics.per_member(metric, jnp.stack([logs, logs[::-1]]), LABELS, log=True)
    jax.tree.map(lambda two, one: close(two[0], one), both, expected)


def test_members_disagree_in_logarithms_as_in_probabilities():
    logs = jax.nn.log_softmax(jax.random.normal(jax.random.key(0), (4, 40, 3)))
    ours, theirs = metrics.disagreement(logs, log=True), metrics.disagreement(jnp.exp(logs))
    jax.tree.map(np.testing.assert_array_equal, ours, theirs)


@pytest.mark.slow("float64")
def test_what_is_below_every_probability_counts():
    logs = jnp.array([[0.0, -500.0], [0.0, -jnp.inf], [-1000.0, 0.0]])
    each = [float(metrics.log_likelihood(row[None], np.array([1]), log=True)) for row in logs]
    assert each == [-500.0, -np.inf, 0.0]
    assert float(metrics.mean_log_likelihood(logs, np.array([1, 0, 0]), log=True)) == -500.0
    assert float(metrics.accuracy(logs, np.array([1, 0, 0]), log=True)) == pytest.approx(1 / 3)
    total = functools.partial(metrics.log_likelihood, labels=np.array([1, 0, 0]), log=True)
    gradient = jax.jit(jax.grad(total))(logs)
    np.testing.assert_array_equal(gradient, [[0, 1], [1, 0], [1, 0]])


@single
def test_what_are_no_logarithms_is_refused():
    with pytest.raises(BQNESError, match=r"exp\(probabilities\)\[0\] sums to 2"):
        metrics.accuracy(jnp.zeros((1, 2)), np.array([0]), log=True)
    with pytest.raises(BQNESError, match=r"exp\(member_probabilities\).* holds nan"):
        metrics.disagreement(jnp.full((1, 1, 2), jnp.nan), log=True)
    compiled = jax.jit(lambda x: metrics.log_likelihood(x, jnp.array([0]), log=True))
    assert jnp.isnan(compiled(jnp.zeros((1, 2)))), "compiled code cannot raise"


def sure(nats):
    """Return log-probabilities of two classes, the second that many nats below the first."""
    return jax.nn.log_softmax(jnp.stack([jnp.zeros_like(nats), -nats], axis=-1))


@pytest.mark.slow
@single
def test_comparisons_do_not_underflow():
    """Of two networks, always both are taken: the mixture of what they say is known."""
    space, nats = Subset(NATS, (7, 9504)), jnp.array([[500.0, 1.0], [800.0, 2.0]])
    said, labels = sure(nats), jnp.ones(2, jnp.int32)
    log_probs = said[:, :, 1]
    table = tables.Table(log_probs.sum(axis=1), jnp.zeros(2), log_probs, said)
    config = bqnes_jax.candidates.SearchConfig(initial=2, budget=2)
    expected = float(jnp.sum(jax.nn.logsumexp(log_probs, axis=0) - jnp.log(2)))
    evaluate = tables.evaluator(table, space)
    (row,) = compare_on_table(
        tables.Tabulated(space, table, labels), ["random+top"], (2,), 1, config=config
    )
    (live,) = compare_live(
        space,
        evaluate,
        lambda archs: said[space.index(archs)],
        labels,
        ["random+top"],
        (2,),
        1,
        config=config,
    )
    np.testing.assert_allclose([row.log_likelihood, live.log_likelihood], expected, rtol=1e-6)


def train(key, choices, data):
    return jnp.float32(choices["nats"])


def predict(nats, choices, inputs):  # sure of the first class, everywhere
    return sure(jnp.full(len(inputs), nats))


@pytest.mark.slow
@single
def test_a_run_does_not_underflow(tmp_path):
    space = Product(nats=(400.0, 500.0, 600.0))
    family = from_functions(space, train, predict)
    data = from_arrays(np.eye(12), np.arange(12) % 2, split=(4, 4, 4), seed=0)
    run = bqnes_jax.search(
        family=family,
        data=data,
        budget=3,
        initial=3,
        batch=1,
        ensemble_size=1,
        calibrate="off",
        out=tmp_path,
    )
    best = run.ensemble(1, "top")
    wrong = int(np.sum(run.record.test_labels == 1))
    assert best.texts == ["nats=400.0"] and wrong > 0
    assert best.metrics.log_likelihood == pytest.approx(-400 * wrong, rel=1e-3)  # float16 stored
    bench = open_workbench(family, data, tmp_path)
    said = bench.test_log_probs(enumerate_space(space))
    np.testing.assert_allclose(said[:, 0, 1], [-400, -500, -600], rtol=1e-3)


@single
def test_a_packed_table_keeps_what_is_very_unlikely(tmp_path):
    nats = np.array([[0.5, 500.0, 30_000.0, np.inf]])
    said = np.stack([np.log(-np.expm1(-nats)), -nats], axis=-1).astype(np.float32)
    none = np.zeros(1)
    stored = bqnes_jax.storage.Predictions(np.ones(1, bool), said, said, *[none] * 5)
    data = from_arrays(np.eye(12), np.arange(12) % 2, split=(4, 4, 4), seed=0)
    tables.pack(tmp_path / "table.npz", np.array([7]), stored, data)
    table = tables.read(tmp_path / "table.npz").table
    of_labels = said[0, np.arange(4), data.valid.labels]
    np.testing.assert_allclose(table.log_probs[0], of_labels, rtol=0.03, atol=1e-6)
    np.testing.assert_allclose(table.test_log_probs[0, 1:, 1], -nats[0, 1:], rtol=0.5)
    finite = table.test_log_probs[0, :3]
    assert metrics.log_likelihood(finite, np.ones(3, int), log=True) > -np.inf
