"""Temperatures against a search along a line, and cross-fitting against loops."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax

from bqnes_jax.calibration import (
    calibrate,
    calibrate_ensemble,
    calibrated_log_likelihood,
    fit_temperature,
    left_out_predictions,
    select_calibrated,
)
from bqnes_jax.errors import BQNESError
from bqnes_jax.pooling import apply_temperature, ensemble_log_probabilities
from bqnes_jax.selection import select

POINTS, CLASSES = 60, 3


def draw(seed=0, sharpness=3.0, points=POINTS):
    """Predictions that are too sure by the factor `sharpness`, and labels."""
    rng = np.random.default_rng(seed)
    logits = 1.5 * rng.normal(size=(points, CLASSES))
    chances = np.exp(log_softmax(logits, axis=1))
    labels = np.array([rng.choice(CLASSES, p=row) for row in chances])
    said = log_softmax(sharpness * logits, axis=1)
    return np.maximum(said, -11).astype(jnp.result_type(float)), labels


def loss_at(temperature, log_probs, labels):
    tempered = log_softmax(np.asarray(log_probs, float) / temperature, axis=1)
    return -tempered[np.arange(len(labels)), labels].mean()


def by_search(log_probs, labels):
    found = minimize_scalar(
        lambda t: loss_at(np.exp(t), log_probs, labels),
        bounds=(-4, 4),
        method="bounded",
        options={"xatol": 1e-9},
    )
    return np.exp(found.x)


@pytest.mark.parametrize("sharpness", [0.3, 1.0, 4.0])
def test_temperature_is_that_of_a_search(sharpness, tolerance):
    log_probs, labels = draw(1, sharpness)
    found = fit_temperature(log_probs, labels)
    np.testing.assert_allclose(found, by_search(log_probs, labels), rtol=tolerance(1e-3, 1e-3))
    np.testing.assert_allclose(
        loss_at(float(found), log_probs, labels),
        loss_at(by_search(log_probs, labels), log_probs, labels),
        atol=tolerance(1e-6, 1e-8),
    )


@pytest.mark.slow("float64")
def test_one_temperature_per_member(tolerance):
    each = [draw(2, sharpness) for sharpness in (0.5, 3.0)]
    members, labels = np.stack([one for one, _ in each]), each[0][1]
    found = np.asarray(jax.jit(jax.vmap(fit_temperature, (0, None)))(members, labels))
    np.testing.assert_allclose(found[1] / found[0], 6, rtol=0.2)
    tempered = apply_temperature(members, found)
    for one, temperature, expected in zip(members, found, tempered, strict=True):
        np.testing.assert_allclose(
            apply_temperature(one, temperature), expected, rtol=tolerance(1e-5, 1e-12)
        )


def test_a_temperature_of_one_changes_nothing():
    log_probs = np.array([[0.0, -np.inf, -400.0]])
    np.testing.assert_array_equal(apply_temperature(log_probs, 1.0), log_probs)


def test_what_is_too_sure_is_calibrated(tolerance):
    log_probs, labels = draw(3)
    found = calibrate(log_probs, labels)
    assert found.temperature == found.fitted > 2 and found.after < found.before
    total, order = 0.0, np.random.default_rng(0).permutation(POINTS)
    for left in np.array_split(order, 5):
        kept = np.setdiff1d(order, left)
        temperature = by_search(log_probs[kept], labels[kept])
        total += len(left) * loss_at(temperature, log_probs[left], labels[left])
    np.testing.assert_allclose(found.after, total / POINTS, rtol=tolerance(1e-3, 1e-4))
    np.testing.assert_allclose(found.before, loss_at(1, log_probs, labels), rtol=1e-5)


def test_it_is_off_where_it_does_not_help():
    on = [calibrate(*draw(seed, 1.0)) for seed in range(8)]
    off = [one for one in on if one.after >= one.before]
    assert off and all(one.temperature == 1 for one in off)
    alone = calibrate(*draw(points=1))
    assert alone.temperature == 1 and alone.after == alone.before


def test_calibrated_likelihood_does_not_depend_on_the_temperature(tolerance):
    log_probs, labels = draw(4, 1.0)
    scores = [
        calibrated_log_likelihood(np.exp(log_softmax(s * log_probs, axis=1)), labels)
        for s in (0.5, 1.0, 2.0)
    ]
    np.testing.assert_allclose(scores, scores[1], rtol=tolerance(1e-2, 1e-3))
    certain = np.eye(CLASSES)[np.append(labels[:-1], (labels[-1] + 1) % CLASSES)]  # once wrong
    assert np.isfinite(calibrated_log_likelihood(certain, labels))


@pytest.mark.slow("float64")
@pytest.mark.parametrize("name", ["beam", "logpool"])
def test_points_are_predicted_by_what_they_did_not_choose(name, tolerance):
    each = [draw(seed, 1.0) for seed in range(4)]
    classes, labels = np.stack([one for one, _ in each]), each[0][1]
    log_probs = classes[:, np.arange(POINTS), labels]
    said = np.asarray(left_out_predictions(name, log_probs, 2, classes=classes, folds=2))
    order = np.random.default_rng(0).permutation(POINTS)
    left, kept = order[:30], np.tile(order[30:], 2)  # each of them counts twice
    chosen = select(name, log_probs[:, kept], 2, classes=classes[:, kept])
    members = log_softmax(classes[np.asarray(chosen.members)][:, left], axis=-1)
    expected = ensemble_log_probabilities(chosen.weights, members, pool=chosen.pool)
    np.testing.assert_allclose(said[left], expected, rtol=tolerance(1e-3, 1e-6), atol=1e-5)


@pytest.mark.slow("float64")
def test_folds_that_do_not_come_out_even():
    """Every point is left out at least once, and what predicts it has not seen it."""
    each = [draw(seed, 1.0, 7) for seed in range(3)]
    classes, labels = np.stack([one for one, _ in each]), each[0][1]
    log_probs = classes[:, np.arange(7), labels]
    said = np.asarray(left_out_predictions("top", log_probs, 1, classes=classes, folds=5))
    np.testing.assert_allclose(np.exp(said).sum(axis=1), 1, rtol=1e-5)
    worse = np.array([50.0, 0.0, 20.0])
    for point in range(7):  # whatever candidates say there, it does not choose between them
        pair = [
            np.asarray(left_out_predictions("top", true, 1, classes=classes, folds=5))
            for true in (
                log_probs - bad[:, None] * (np.arange(7) == point) for bad in (worse, 0 * worse)
            )
        ]
        np.testing.assert_allclose(pair[0][point], pair[1][point], rtol=1e-5)


@pytest.mark.slow("float64")
def test_selecting_and_calibrating_in_one(tolerance):
    each = [draw(seed, 4.0) for seed in range(4)]
    classes, labels = np.stack([one for one, _ in each]), each[0][1]
    classes[3] = np.nan  # one has failed
    log_probs = classes[:, np.arange(POINTS), labels]
    chosen, found = select_calibrated("beam", log_probs, 2, classes=classes)
    alone = select("beam", log_probs, 2)
    assert chosen.members.tolist() == alone.members.tolist()
    said = left_out_predictions("beam", log_probs, 2, classes=classes)
    expected = calibrate(said, labels)
    compiled = jax.jit(lambda p, c: select_calibrated("beam", p, 2, classes=c))
    both = compiled(log_probs, classes)
    np.testing.assert_allclose(both[1].fitted, found.fitted, rtol=tolerance(1e-4, 1e-9))
    assert both[0].members.tolist() == chosen.members.tolist()
    np.testing.assert_allclose(found.fitted, expected.fitted, rtol=tolerance(1e-4, 1e-9))
    assert [found.use(when) for when in ("auto", "on", "off")] == [
        found.temperature, found.fitted, 1
    ]  # fmt: skip
    with pytest.raises(BQNESError, match="calibrate is 'yes'; allowed are 'auto'"):
        found.use("yes")
    weights, pair = np.array([0.5, 0.5]), classes[:2]
    given = calibrate_ensemble(weights, pair[:, np.arange(POINTS), labels], pair)
    mixture = ensemble_log_probabilities(weights, log_softmax(pair, axis=-1))
    np.testing.assert_allclose(given.fitted, calibrate(mixture, labels).fitted, rtol=1e-5)
    with pytest.raises(BQNESError, match="at least two"):
        left_out_predictions("top", log_probs[:, :1], 1, classes=classes[:, :1])


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_bad_input_is_refused():
    log_probs, labels = draw()
    with pytest.raises(BQNESError, match="folds is 1"):
        calibrate(log_probs, labels, folds=1)
    with pytest.raises(BQNESError, match=r"labels\[0\] is 7"):
        fit_temperature(log_probs, np.full(POINTS, 7))
    with pytest.raises(BQNESError, match="log_probs holds NaN"):
        calibrate(log_probs * np.nan, labels)
    for temperature in (0.0, -1.0):
        with pytest.raises(BQNESError, match="temperature is"):
            apply_temperature(log_probs, temperature)
    with pytest.raises(BQNESError, match="at least one point"):
        calibrate(log_probs[:0], labels[:0])
