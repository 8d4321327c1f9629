"""Calibration by bins of equal mass and by class, risk–coverage, information, intervals."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import softmax
from scipy.stats import entropy

from bqnes_jax.errors import BQNESError
from bqnes_jax.metrics import (
    accuracy,
    adaptive_ece,
    aurc,
    bootstrap_interval,
    brier_decomposition,
    brier_score,
    classwise_ece,
    ece,
    mutual_information,
)

POINTS, CLASSES = 57, 4


def draw(seed=0, points=POINTS):
    rng = np.random.default_rng(seed)
    probabilities = softmax(2 * rng.normal(size=(points, CLASSES)), axis=1)
    labels = np.array([rng.choice(CLASSES, p=row) for row in probabilities])
    return probabilities.astype(jnp.result_type(float)), labels


def adaptive_by_loop(probabilities, labels, bins):
    confidence, right = probabilities.max(1), probabilities.argmax(1) == labels
    order, total, n = np.argsort(confidence, kind="stable"), 0.0, len(labels)
    for b in range(bins):
        inside = [i for r, i in enumerate(order) if r * bins // n == b]
        if inside:
            total += len(inside) / n * abs(right[inside].mean() - confidence[inside].mean())
    return total


def class_bins(probabilities, labels, bins):
    """Yield (share, mean probability, frequency, frequency overall) of every bin of every class."""
    edges = (np.arange(1, bins) / bins).astype(probabilities.dtype)
    for c in range(probabilities.shape[1]):
        column, truth = probabilities[:, c], labels == c
        for b in range(bins):
            low = -1 if b == 0 else edges[b - 1]
            high = 2 if b == bins - 1 else edges[b]
            inside = (column > low) & (column <= high)
            if inside.any():
                yield inside.mean(), column[inside].mean(), truth[inside].mean(), truth.mean()


@pytest.mark.slow
@pytest.mark.parametrize("bins", [1, 3, 10, 200])
def test_by_loops(bins, tolerance):
    """Also with more bins than points."""
    probabilities, labels = draw()
    close = {"rtol": tolerance(1e-4, 1e-9), "atol": tolerance(1e-6, 1e-12)}
    expected = adaptive_by_loop(probabilities, labels, bins)
    np.testing.assert_allclose(adaptive_ece(probabilities, labels, bins=bins), expected, **close)
    parts = list(class_bins(probabilities, labels, bins))
    expected = sum(share * abs(mean - hit) for share, mean, hit, _ in parts) / CLASSES
    np.testing.assert_allclose(classwise_ece(probabilities, labels, bins=bins), expected, **close)
    found = brier_decomposition(probabilities, labels, bins=bins)
    expected = sum(share * (mean - hit) ** 2 for share, mean, hit, _ in parts)
    np.testing.assert_allclose(found.reliability, expected, **close)
    expected = sum(share * (hit - base) ** 2 for share, _, hit, base in parts)
    np.testing.assert_allclose(found.resolution, expected, **close)
    frequencies = np.bincount(labels, minlength=CLASSES) / POINTS
    np.testing.assert_allclose(found.uncertainty, 1 - (frequencies**2).sum(), **close)
    total = found.reliability - found.resolution + found.uncertainty + found.within
    np.testing.assert_allclose(total, brier_score(probabilities, labels), **close)


def test_the_decomposition_is_exact_where_bins_hold_one_probability(tolerance):
    said = np.array([[0.7, 0.3], [0.3, 0.7], [0.95, 0.05]])[np.arange(30) % 3]
    labels = np.random.default_rng(0).integers(0, 2, 30)
    assert abs(brier_decomposition(said, labels).within) < tolerance(1e-6, 1e-14)


def test_one_bin_of_equal_mass_is_one_bin():
    probabilities, labels = draw()
    for metric in (ece, adaptive_ece):
        np.testing.assert_allclose(
            metric(probabilities, labels, bins=1),
            abs(accuracy(probabilities, labels) - probabilities.max(1).mean()),
            rtol=1e-4,
        )


@pytest.mark.slow("float64")
def test_a_confidence_of_exactly_one():
    certain, labels = np.eye(3)[[0, 1, 2, 0]], np.array([0, 1, 2, 1])
    for metric in (ece, adaptive_ece):
        np.testing.assert_allclose(metric(certain, labels, bins=1), 0.25, rtol=1e-6)
    assert ece(certain, labels) == 0.25 and adaptive_ece(certain[:3], labels[:3], bins=50) == 0
    # Of class 0 one of two is wrong, of class 1 one of three.
    np.testing.assert_allclose(classwise_ece(certain, labels), (0.25 + 0.25) / 3, rtol=1e-6)
    parts = brier_decomposition(certain, labels)
    np.testing.assert_allclose(parts.within, 0, atol=1e-6)


def test_risk_and_coverage_by_a_loop():
    probabilities, labels = draw(1)
    order = np.argsort(-probabilities.max(1), kind="stable")
    wrong = (probabilities.argmax(1) != labels)[order]
    expected = np.mean([wrong[:k].mean() for k in range(1, POINTS + 1)])
    np.testing.assert_allclose(aurc(probabilities, labels), expected, rtol=1e-5)
    assert aurc(np.eye(2)[[0, 1]], np.array([0, 1])) == 0
    assert aurc(np.eye(2)[[0, 1]], np.array([1, 0])) == 1


def test_information_is_the_divergence_from_the_mean(tolerance):
    members = np.stack([draw(seed)[0] for seed in range(3)])
    mean = members.mean(axis=0)
    expected = np.mean([entropy(m.astype(float), mean.astype(float), axis=1) for m in members], 0)
    np.testing.assert_allclose(mutual_information(members), expected, atol=tolerance(1e-5, 1e-12))
    certain = np.eye(3)[[[0, 1], [1, 1], [2, 1]]]
    np.testing.assert_allclose(mutual_information(certain), [np.log(3), 0], atol=1e-6)
    assert mutual_information(members[:1]).tolist() == [0] * POINTS
    assert np.isnan(jax.jit(mutual_information)(2 * members)).all()


@pytest.mark.slow("float64")
def test_intervals_cover_as_often_as_they_say(key):
    probabilities, labels = draw(2, 400)
    found = bootstrap_interval(key, accuracy, probabilities, labels, draws=500)
    rate = float(accuracy(probabilities, labels))
    error = np.sqrt(rate * (1 - rate) / 400)
    assert found.estimate == rate
    np.testing.assert_allclose(
        [found.low, found.high], rate + 1.96 * error * np.array([-1, 1]), atol=0.4 * error
    )
    narrow = bootstrap_interval(key, accuracy, probabilities, labels, draws=500, level=0.5)
    assert found.low < narrow.low <= narrow.high < found.high
    one = bootstrap_interval(key, ece, probabilities[:1], labels[:1], draws=3, bins=5)
    assert one.low == one.high == one.estimate


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_bad_options_are_refused(key):
    probabilities, labels = draw()
    with pytest.raises(BQNESError, match="bins is 0"):
        adaptive_ece(probabilities, labels, bins=0)
    with pytest.raises(BQNESError, match="bins is -1"):
        classwise_ece(probabilities, labels, bins=-1)
    with pytest.raises(BQNESError, match=r"level is 1\.0; it must be between 0 and 1"):
        bootstrap_interval(key, accuracy, probabilities, labels, level=1.0)
    with pytest.raises(BQNESError, match="draws is 0"):
        bootstrap_interval(key, accuracy, probabilities, labels, draws=0)
