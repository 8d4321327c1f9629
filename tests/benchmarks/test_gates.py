"""Gates of experiments, and which pair of strategy and method wins."""

import importlib
import sys
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bqnes_jax.candidates import SearchConfig
from bqnes_jax.errors import BQNESError
from bqnes_jax.runs.fields import replace_fields
from bqnes_jax.spaces import DARTS, NATS, Seeded, Subset
from bqnes_jax.spaces.base import as_listed
from bqnes_jax.studies.rows import Row
from bqnes_jax.tables import Table, Tabulated
from bqnes_jax.types import Status
from tests.spaces.test_darts import histogram

pytestmark = pytest.mark.parametrize("precision", ["float32"], indirect=True)

FOLDER = Path(__file__).parents[2] / "benchmarks"
POINTS = 39  # so that the temperature is about 1


@pytest.fixture
def benchmark(monkeypatch):
    """Return a function that imports a benchmark."""
    monkeypatch.syspath_prepend(FOLDER)
    yield importlib.import_module
    for name in ("gates", "winner", "collisions", "retrained", "slimmable", "sources"):
        sys.modules.pop(name, None)


def a_table(values, seeds=1, train=None, accuracy=0.9):
    """Return a table with these log-likelihoods, of cells with several seeds one after another."""
    values = jnp.asarray(values, float)
    space = Subset(NATS, tuple(range(7_000, 7_000 + len(values) // seeds)))
    table = Table(
        values,
        jnp.full(len(values), accuracy),
        log_probs=jnp.broadcast_to(values[:, None] / POINTS, (len(values), POINTS)),
        test_log_probs=jnp.zeros((len(values), 2, 10)),
        train_log_likelihoods=None if train is None else jnp.full(len(values), train),
        train_points=None if train is None else 10,
    )
    return Tabulated(space if seeds == 1 else as_listed(Seeded(space, seeds)), table, jnp.zeros(2))


def test_networks_that_do_not_fit_are_seen(benchmark):
    gates = benchmark("gates")
    values = np.full(4, -2.0 * POINTS)  # a loss of 2
    assert gates.fitted(a_table(values, train=-5.0)) == pytest.approx(0.25)
    assert np.isnan(gates.fitted(a_table(values))) and not gates.Gate("", np.nan, 1.0).passed


def test_noise_is_told_from_cells(benchmark):
    gates, draw = benchmark("gates"), np.random.default_rng(0)
    cells = draw.normal(size=(400, 1))
    for own in (0.25, 1.0):
        values = -100 + cells + own * draw.normal(size=(400, 4))
        assert gates.noise(a_table(values.ravel(), seeds=4)) == pytest.approx(own, rel=0.1)
    only_noise = -100 + np.tile([[1.0, -1.0]], (50, 1))
    assert gates.noise(a_table(only_noise.ravel(), seeds=2)) == np.inf
    assert np.isnan(gates.noise(None))


def test_a_flat_posterior_is_seen(benchmark):
    gates, config = benchmark("gates"), SearchConfig()
    assert gates.sharpness(a_table(np.full(50, -7.0)), config) == pytest.approx(1.0)
    assert gates.sharpness(a_table([0.0] + [-500.0] * 49), config) == pytest.approx(0.02)


@pytest.mark.slow
def test_a_surrogate_that_knows_nothing_is_no_better_than_a_constant(benchmark):
    gates = benchmark("gates")
    config = SearchConfig(initial=10, budget=40)
    archs = np.asarray(NATS.from_index(np.arange(7_000, 7_300)))
    told = gates.misfit(a_table(-2.0 * np.sum(archs != 3, axis=1)), config, 2)
    noise = np.random.default_rng(0).normal(size=300)
    assert told < 0.9 < gates.misfit(a_table(2 * noise), config, 2)


def a_result(names, ahead, sizes, seeds=10):
    draw = np.random.default_rng(0)
    return {
        f"{name}, {size} of 150": {
            "log-likelihood": (-100 + lead + size / 100 + draw.normal(size=seeds)).tolist(),
            "ECE": (0.05 - lead / 1000 + draw.normal(size=seeds) / 1000).tolist(),
            "calibrated log-likelihood": (-99 + draw.normal(size=seeds)).tolist(),
            "calibrated ECE": (0.04 + draw.normal(size=seeds) / 1000).tolist(),
        }
        for name, lead in zip(names, ahead, strict=True)
        for size in sizes
    }


def test_a_winner_is_ahead_of_both_everywhere(benchmark):
    winner = benchmark("winner")
    names = ("evolution+beam", "us+restack", "us+logpool")
    results = a_result(names, (0.0, 0.0, 9.0), winner.SIZES)
    alone, calibrated, likelihood = winner.JUDGED.values()
    won = winner.wins(results, "us+logpool", 150, alone)
    assert len(won) == 10 and all(won.values())
    assert not all(winner.wins(results, "us+logpool", 150, calibrated).values())
    assert set(likelihood) < set(calibrated)
    assert not any(winner.wins(results, "us+restack", 150, alone).values())
    results["us+restack, 5 of 150"]["ECE"] = [0.0] * 10
    won = winner.wins(results, "us+logpool", 150, alone)
    assert [what for what, each in won.items() if not each] == ["BQ-S, M = 5"]
    goal = "calibrated log-likelihood"
    results["us+logpool, 3 of 150"][goal] = [-90.0] * 10
    better = {key.replace("150", "50"): value for key, value in results.items()}
    assert winner.needed(results | better, "us+logpool", 3, (150, 50)) == "50"
    results["us+logpool, 3 of 150"][goal] = [-110.0] * 10
    assert winner.needed(results, names[2], 3, (150,)) == "> 150"


def test_a_lead_has_the_variance_of_training_too(benchmark):
    retrained, draw = benchmark("retrained"), np.random.default_rng(0)
    truth, noise = draw.normal(size=(400, 1)), 0.5
    for own in (0.0, 2.0):
        first, second = (
            truth + own * draw.normal(size=(400, 1)) + noise * draw.normal(size=(400, 10))
            for _ in range(2)
        )
        assert retrained.deviation(first, second) == pytest.approx(own, rel=0.1, abs=0.1)
    winner = benchmark("winner")
    names = ("evolution+beam", "us+restack", "us+logpool")
    results = a_result(names, (0.0, 0.0, 9.0), winner.SIZES)
    judged = winner.JUDGED["as they are"]
    assert all(winner.wins(results, names[2], 150, judged).values())
    noisy = {(judged[0], 3): 10.0}
    won = winner.wins(results, names[2], 150, judged, noisy)
    lost = [what for what, each in won.items() if not each]
    assert len(lost) == 4 and all("M = 3" in what for what in lost)
    one, other = (a_result(names, (0.0, 0.0, lead), winner.SIZES) for lead in (4.0, 12.0))
    found = winner.deviations([one, other], 150)
    # Of three leads over each of two rivals two differ by 8 and the others not at all.
    assert found[judged[0], 3] == pytest.approx(np.sqrt(64 / 2 / 2), rel=0.05)
    # Two pairs that chose the same by one training and not by the other have a lead all the same.
    same = {key: dict(one[key.replace("us+logpool", "us+restack")]) for key in one}
    assert winner.deviations([same, other], 150)[judged[0], 3] > 0


def test_cells_that_were_trained_twice_have_both_trainings(benchmark, monkeypatch):
    retrained = benchmark("retrained")
    numbers = tuple(np.arange(7_000, 7_020).tolist())
    draw = np.random.default_rng(0)

    def trained(numbers):
        size = len(numbers)
        classes = jnp.asarray(jax.nn.log_softmax(draw.normal(size=(size, 12, 3))))
        own = classes[:, jnp.arange(12), jnp.arange(12) % 3]
        table = Table(own.sum(1), jnp.full(size, 0.5), own, classes, classes)
        return Tabulated(Subset(NATS, numbers), table, jnp.arange(12) % 3)

    whole, again = trained(numbers), trained(numbers[3:18:2])
    part = retrained.restrict(whole, again.space)
    for i, number in enumerate(numbers[3:18:2]):
        place = numbers.index(number)
        np.testing.assert_array_equal(part.table.classes[i], whole.table.classes[place])
    monkeypatch.setattr(retrained, "companion", lambda name, kind: None)
    assert retrained.trainings("digits") == ()
    monkeypatch.setattr(retrained, "companion", lambda name, kind: Path(f"{name}-{kind}.npz"))
    monkeypatch.setattr(retrained.tables, "find", lambda name: whole)
    monkeypatch.setattr(retrained.tables, "read", lambda path: again)
    first, second = retrained.trainings("mine")
    assert first.space == second.space == again.space and second is again
    np.testing.assert_array_equal(first.table.classes, part.table.classes)
    with pytest.raises(BQNESError, match="1 of the 2 cells that were trained again"):
        retrained.restrict(whole, Subset(NATS, (7_000, 9_000)))


def test_collisions_are_counted_as_by_hand(benchmark):
    collisions = benchmark("collisions")
    archs = np.array(DARTS.sample(jax.random.key(0), 40))
    archs[1] = archs[0]
    labels = collisions.label_exactly(archs)
    counts = [histogram(arch, 1) for arch in archs]
    known = sorted(set().union(*counts), key=str)
    assert len(np.unique(labels)) == len(known)
    assert collisions.count_different(labels) == 39
    shared = np.array([[sum(a[x] * b[x] for x in a) for b in counts] for a in counts[:5]])
    length = np.sqrt([sum(n**2 for n in a.values()) for a in counts])
    expected = shared / length[:5, None] / length
    np.testing.assert_allclose(collisions.exact_gram(labels)[:5], expected, rtol=1e-6)
    none = collisions.count_collisions(jnp.asarray(archs), labels, 2**20)
    assert none[1:5] == (len(known), 0, 39, 39) and none.largest_error < 1e-5
    two = collisions.count_collisions(jnp.asarray(archs), labels, 2)
    assert two.sharing == len(known) and two.hashed <= 39 and two.mean_error > 0.01


def test_few_points_have_an_ece_of_their_own(benchmark):
    """Fair coins in one bin: the mean of |k/n − ½| over k, by the formula for a normal variable."""
    winner = benchmark("winner")

    def by_chance(log_probs):
        return winner.ece_by_chance(jnp.broadcast_to(jnp.log(jnp.array(log_probs)), (5, 400, 2)))

    assert by_chance((0.5, 0.5)).mean() == pytest.approx(np.sqrt(0.25 / 400 * 2 / np.pi), rel=0.15)
    assert by_chance((1.0, 0.0)).max() < 1e-6


def test_what_was_measured_is_not_measured_again(benchmark, tmp_path):
    """Rivals are compared in any case; the first of two trainings is that of the results."""
    winner, calls = benchmark("winner"), []

    def comparing(training):
        def compare(names, sizes, seeds, budget):
            calls.append((training, *names))

            def row(name, size):
                value, ece = np.full(seeds, -training * len(name)), np.full(seeds, len(name) / 99)
                return Row(name, size, ece, ece, value, Status.OK, 1.0, ece, value)

            return [row(name, size) for name in names for size in sizes]

        return compare

    first, second = comparing(1), comparing(2)
    source = benchmark("sources").Source(
        "toy",
        {"cells": 500},
        lambda budget: [],
        first,
        lambda count: jnp.log(jnp.full((count, 20, 2), 0.5)),
        (first, second),
    )
    options = winner.Options(
        seeds=2, budgets=(150,), strategies=("us",), methods=("logpool",), out=tmp_path
    )
    for _ in range(2):
        content = winner.measure(source, options, tmp_path / "winner-toy.json")
    theirs, ours = (("evolution+beam",), ("us+logpool", "us+restack"))
    assert calls == [(1, *theirs), (1, *ours), (2, *theirs), (2, *ours)]
    assert content["results"] == content["twice"][0]
    assert winner.deviations(content["twice"], 150)["ECE", 3] == 0.0
    said = winner.report(source, "toy-slices", content, options)
    given = "--seeds 2 --budgets 150 --strategies us --methods logpool"
    assert f"`python winner.py toy-slices {given}`, 2 searches" in said
    assert "No pair wins" in said
    wider = replace(options, methods=("logpool", "beam"), budgets=(200,))
    content = winner.measure(source, wider, tmp_path / "winner-toy.json")
    both = "us+beam", "us+logpool", "us+restack"
    assert calls[4:] == [(1, *theirs), (1, *both), (2, *theirs), (2, *both)]
    assert winner.deviations(content["twice"], 200)["log-likelihood", 3] > 0
    calls.clear()
    winner.measure(source, replace(wider, budgets=(150,)), tmp_path / "winner-toy.json")
    assert calls == [(1, "us+beam"), (2, "us+beam")]
    once = source._replace(trainings=())
    known = winner.measure(once, options, tmp_path / "winner-toy.json")
    assert len(known["twice"]) == 2  # kept, though the second training is not there now
    assert "from training to training" not in winner.report(once, "toy", known, options)


@pytest.mark.slow
def test_slices_of_two_supernets(benchmark, tmp_path, monkeypatch):
    sources, slimmable = benchmark("sources"), benchmark("slimmable")
    task = replace_fields(slimmable.TASKS["digits"], {"train": {"steps": 20}})
    monkeypatch.setitem(slimmable.TASKS, "digits", task)
    monkeypatch.setattr(slimmable, "_DRAWS", 12)
    monkeypatch.setattr(slimmable, "SEARCH", SearchConfig(initial=2, budget=4, batch=2))
    source = sources.find("digits-slices", tmp_path)
    asked = ["evolution+beam", "us+logpool"], (1, 2), 2, 4
    rows = source.compare(*asked)
    assert [(row.algorithm, row.size) for row in rows] == [(n, m) for n in asked[0] for m in (1, 2)]
    assert all(np.isfinite(row.calibrated_log_likelihood).all() for row in rows)
    first, second = source.trainings
    assert source.largest(4) == 4 and first is source.compare
    found = [[row.log_likelihood for row in compare(*asked)] for compare in (first, second)]
    np.testing.assert_array_equal(found[0], [row.log_likelihood for row in rows])
    assert not np.isclose(*found).any()
    labels = slimmable.open_slices("digits", tmp_path).data.test.labels
    assert source.best(3).shape == (3, len(labels), 10)
    measured = {gate.asks: gate.value for gate in source.gates(4)}
    assert len(measured) == 5 and np.isfinite(list(measured.values())).all()
    sharper = sources.find("digits-slices", tmp_path, observations=1000.0)
    assert sharper.name == "digits-slices-1000-observations"
    worth = "effective sample size / uniform draws"
    assert {gate.asks: gate.value for gate in sharper.gates(4)}[worth] < measured[worth]
    with pytest.raises(BQNESError, match="data set of slices is 'dogs'; allowed are 'digits'"):
        sources.find("dogs-slices", tmp_path)
