"""The numbers of a report: intervals, rivals, what an ensemble costs, and what luck would do."""

import itertools

import jax
import numpy as np
import pytest

from bqnes_jax.metrics import accuracy, bootstrap_interval, ece, log_likelihood
from bqnes_jax.report import cost, luck
from bqnes_jax.report.members import losses_without
from bqnes_jax.report.rivals import compare
from bqnes_jax.report.surrogate import interval_of_correlation
from bqnes_jax.report.uncertainty import compare_losses, measure_each
from tests.helpers.reported import TEST, make_run

pytestmark = pytest.mark.parametrize("precision", ["float32"], indirect=True)


def predictions(sets=1, points=300, classes=4, skill=1.0, seed=0):
    random = np.random.default_rng(seed)
    labels = random.integers(0, classes, points)
    logits = random.normal(size=(sets, points, classes))
    logits[:, np.arange(points), labels] += skill
    return logits - np.log(np.exp(logits).sum(axis=2, keepdims=True)), labels


def test_intervals_are_those_of_the_bootstrap():
    said, labels = predictions()
    (found,) = measure_each([said], labels)
    for name, metric, sign in (
        ("error", accuracy, -1),
        ("loss", log_likelihood, -1 / len(labels)),
        ("ece", ece, 1),
    ):
        own = getattr(found, name)
        value = float(metric(said[0], labels, log=True))
        assert own.value == pytest.approx(1 - value if name == "error" else sign * value, rel=1e-4)
        assert own.low < own.value < own.high
        if name != "ece":  # whose draws have more of it than all points
            other = bootstrap_interval(jax.random.key(0), metric, said[0], labels, log=True)
            width = abs(float(other.high - other.low) * sign)
            assert own.high - own.low == pytest.approx(width, rel=0.15)


def test_differences_are_of_the_same_draws():
    said, labels = predictions(skill=2.0)
    worse = np.log(0.9 * np.exp(said) + 0.1 / 4)
    first, same, other = measure_each([said, said, worse], labels)
    assert first.beyond == same.beyond == (0, 0, 0)
    assert other.beyond.low > 0 and other.loss.low < first.loss.high
    gap = other.beyond.high - other.beyond.low
    assert gap < (other.loss.high - other.loss.low) / 2, "they vary together"
    shifted = np.full(len(labels), 0.25)
    (found,) = compare_losses(shifted, [2 * shifted])
    assert found == pytest.approx((0.25, 0.25, 0.25))


def test_a_probability_of_zero_is_an_infinite_loss():
    with np.errstate(divide="ignore"):
        said = np.log(np.array([[[1.0, 0.0], [0.5, 0.5], [0.9, 0.1]]]))
    (found,) = measure_each([said], np.array([1, 0, 0]))
    assert found.loss.value == found.loss.high == np.inf and np.isnan(found.beyond.value)


def test_several_sets_are_averaged():
    said, labels = predictions(sets=3)
    alone = [measure_each([one[None]], labels)[0] for one in said]
    (together,) = measure_each([said], labels)
    for name in ("error", "loss", "ece"):
        each = [getattr(one, name).value for one in alone]
        assert getattr(together, name).value == pytest.approx(np.mean(each))


def test_the_best_of_random_draws_is_that_of_all_subsets():
    values = np.array([0.3, -1.0, 2.0, 2.0, 0.7])
    expected = [
        np.mean([max(chosen) for chosen in itertools.combinations(values, size)])
        for size in range(1, 6)
    ]
    np.testing.assert_allclose(luck.expected_best(values), expected)
    assert luck.expected_best(values[:0]).size == 0


def test_chance_is_told_from_a_search():
    random = np.random.default_rng(0)
    values = np.concatenate([random.normal(size=20), random.normal(size=60)])
    alike = luck.judge(values, 20)
    assert alike.wins.low < 0.5 < alike.wins.high and alike.expected == pytest.approx(60 / 21)
    better = luck.judge(np.concatenate([values[:20], values[20:] + 5]), 20)
    assert better.wins.low > 0.5 and better.ahead > 40
    failed = luck.judge(np.array([1.0, np.nan, np.nan]), 2)
    assert failed.ahead == 0 and failed.wins.value == 0.25
    assert luck.judge(values, 0) is None and luck.judge(values, 80) is None


def test_the_evidence_of_draws_is_their_average():
    tempered = np.array([-1.0, -3.0, -np.inf, np.nan])
    found = luck.evidence_of_draws(tempered)
    assert found.value == pytest.approx(np.log((np.exp(-1) + np.exp(-3)) / 4))
    assert found.low < found.value < found.high
    assert np.isnan(luck.evidence_of_draws(np.full(3, np.nan)).value)


def test_a_rank_correlation_of_few_pairs_has_no_interval():
    assert np.isnan(interval_of_correlation(0.5, 3).low)
    value, low, high = interval_of_correlation(1.0, 50)
    assert value == 1 and 0.9 < low <= high <= 1


@pytest.mark.slow
def test_a_deep_ensemble_is_a_rival_where_its_seeds_were_trained(tmp_path):
    run = make_run(tmp_path / "seeds", seeds=3)
    ensemble = run.saved_ensemble()
    found = {one.rival.name: one for one in compare(ensemble)}
    deep, record = found["Deep ensemble"], run.record
    best = record.archs[record.log_likelihoods.argmax(), :-1]
    own = np.flatnonzero((record.archs[:, :-1] == best).all(axis=1))
    assert deep.rival.members == len(own) == 3
    said = np.asarray(run.test_log_probs(own), float)
    right = np.exp(said).mean(axis=0).argmax(axis=1) == record.test_labels
    assert deep.measured.error.value == pytest.approx(1 - right.mean())
    few = make_run(tmp_path / "few", seeds=3, failed=own[:1])
    without = {one.rival.name: one for one in compare(few.saved_ensemble())}["Deep ensemble"]
    assert without.measured is None or without.rival.members == 3
    assert found["Random ensemble"].rival.members == len(ensemble.members)


@pytest.mark.slow
def test_what_a_member_adds_is_what_is_lost_without_it(tmp_path):
    run = make_run(tmp_path)
    ensemble = run.saved_ensemble().without_temperature()
    said, labels = np.asarray(run.test_log_probs(ensemble.members), float), run.record.test_labels
    found = losses_without(ensemble, said.astype(np.float32))
    weights = np.where(np.arange(3) == 1, 0, ensemble.weights)
    mixed = np.log(np.einsum("m,mnc->nc", weights / weights.sum(), np.exp(said)))
    whole = np.asarray(ensemble.test_log_probs)
    lost = (whole - mixed)[np.arange(TEST), labels].mean()
    assert found[1].value == pytest.approx(lost, abs=1e-5)
    assert losses_without(run.ensemble(1, "top"), said[:1].astype(np.float32)) is None


@pytest.mark.slow
def test_what_is_not_known_of_the_cost_says_why(tmp_path):
    ensemble = make_run(tmp_path).saved_ensemble()
    timed = cost.prepare_timing(ensemble)()
    assert np.isnan(timed.seconds) and "shared" in timed.why
    part = cost.at_which_cost(ensemble, timed)
    assert f"is not known: {timed.why.rstrip('.')}" in part.section.sentence
    known = cost.at_which_cost(ensemble, cost.Timed(0.002))
    assert "2 ms for each image, 667 µs for each member" in known.section.sentence
    counts = cost.count_numbers(ensemble.run, ensemble.members)
    assert f"{counts.sum():,} parameters" in known.section.sentence
