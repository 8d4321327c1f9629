"""Metrics against scikit-learn, brute force and cases worked out by hand."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from scipy.special import softmax
from sklearn.calibration import calibration_curve
from sklearn.metrics import accuracy_score, brier_score_loss, log_loss, root_mean_squared_error

from bqnes_jax import metrics
from bqnes_jax.errors import BQNESError

CLASSIFICATION = [
    metrics.accuracy,
    metrics.log_likelihood,
    metrics.mean_log_likelihood,
    metrics.brier_score,
    metrics.ece,
    functools.partial(metrics.ece, bins=7, reference="centre"),
    metrics.reliability_curve,
]
SCALAR = CLASSIFICATION[:-1]
DERIVED = [metrics.mean_log_likelihood, metrics.ece]  # of log_likelihood; ece with other options


def draw(seed, points, classes, members=(), sharpness=2.0):
    """Random predictions that are right more often than not, in JAX's current precision."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(classes, size=points)
    logits = sharpness * rng.normal(size=(*members, points, classes))
    logits[..., np.arange(points), labels] += sharpness
    return softmax(logits, axis=-1).astype(jnp.result_type(float)), labels


def top_class(confidences, hits, classes=10):
    """Predictions with these confidences in class 0, and labels that make them hits or not."""
    confidences = np.asarray(confidences, dtype=jnp.result_type(float))
    rest = (1 - confidences[:, None].astype(float)) / (classes - 1)
    probabilities = np.repeat(rest, classes, axis=1).astype(confidences.dtype)
    probabilities[:, 0] = confidences
    return probabilities, np.where(np.broadcast_to(hits, confidences.shape), 0, 1)


@pytest.mark.slow("float64")
@pytest.mark.parametrize(("points", "classes"), [(37, 2), (300, 120)])
def test_as_scikit_learn(points, classes, tolerance):
    probabilities, labels = draw(0, points, classes)
    wide = probabilities.astype(float)
    wide = wide / wide.sum(axis=1, keepdims=True)
    classes = np.arange(classes)
    close = functools.partial(np.testing.assert_allclose, rtol=tolerance(2e-5, 1e-12))
    close(metrics.accuracy(probabilities, labels), accuracy_score(labels, wide.argmax(axis=1)))
    loss = log_loss(labels, wide, labels=classes)
    close(metrics.mean_log_likelihood(probabilities, labels), -loss)
    close(metrics.log_likelihood(probabilities, labels), -loss * points)
    brier = brier_score_loss(labels, wide, labels=classes, scale_by_half=False)
    close(metrics.brier_score(probabilities, labels), brier)
    if len(classes) == 2:
        half = brier_score_loss(labels, wide[:, 1], labels=classes, pos_label=1)
        close(metrics.brier_score(probabilities, labels), 2 * half)


@pytest.mark.parametrize("bins", [10, 15])
def test_curve_as_scikit_learn(bins, tolerance):
    rng = np.random.default_rng(1)
    positive = rng.uniform(0.5, 1, size=400).astype(jnp.result_type(float))
    probabilities = np.stack([1 - positive, positive], axis=1)
    labels = (rng.uniform(size=400) < positive**2).astype(int)
    curve = jax.tree.map(np.asarray, metrics.reliability_curve(probabilities, labels, bins=bins))
    fraction, mean = calibration_curve(labels, probabilities[:, 1], n_bins=bins)
    filled = curve.count > 0
    np.testing.assert_allclose(curve.accuracy[filled], fraction, rtol=tolerance(1e-6, 1e-13))
    np.testing.assert_allclose(curve.confidence[filled], mean, rtol=tolerance(1e-6, 1e-13))
    assert (curve.accuracy[~filled] == 0).all() and (curve.confidence[~filled] == 0).all()
    assert curve.count.sum() == 400


@pytest.mark.slow("float64")
@pytest.mark.parametrize("bins", [7, 25, 100])
def test_a_confidence_at_an_edge_is_in_the_bin_below_it(bins):
    confidences = np.arange(1, bins + 1) / bins
    probabilities, labels = top_class(confidences, True, classes=bins + 1)
    curve = metrics.reliability_curve(probabilities, labels, bins=bins)
    assert curve.count.tolist() == [1] * bins
    # The next number after an edge is one bin further up; beyond 1 there is no further bin.
    above, labels = top_class(np.nextafter(probabilities[:, 0], 2), True, classes=bins + 1)
    curve = metrics.reliability_curve(np.maximum(above, 0), labels, bins=bins)
    assert curve.count.tolist() == [0] + [1] * (bins - 2) + [2]


def test_curve_by_hand(tolerance):
    probabilities, labels = top_class([0.3, 0.3, 0.35, 0.4, 1.0], [1, 0, 0, 1, 1])
    curve = metrics.reliability_curve(probabilities, labels)
    assert curve.count.tolist() == [0, 0, 2, 2, 0, 0, 0, 0, 0, 1]
    atol = tolerance(1e-7, 1e-15)
    np.testing.assert_allclose(curve.confidence, [0, 0, 0.3, 0.375, 0, 0, 0, 0, 0, 1], atol=atol)
    np.testing.assert_allclose(curve.accuracy, [0, 0, 0.5, 0.5, 0, 0, 0, 0, 0, 1], atol=atol)
    standard = (2 * 0.2 + 2 * 0.125 + 0) / 5
    centre = (2 * 0.25 + 2 * 0.15 + 0.05) / 5
    np.testing.assert_allclose(metrics.ece(probabilities, labels), standard, atol=atol)
    np.testing.assert_allclose(
        metrics.ece(probabilities, labels, bins=10, reference="centre"), centre, atol=atol
    )


@pytest.mark.slow("float64")
def test_ece_by_brute_force(tolerance):
    probabilities, labels = draw(2, 700, 12)
    confidence = probabilities.max(axis=1)
    hits = probabilities.argmax(axis=1) == labels
    for bins in (1, 33):
        standard = centre = 0.0
        for b in range(bins):
            inside = (confidence > b / bins) & (confidence <= (b + 1) / bins)
            if inside.any():
                share, correct = inside.mean(), hits[inside].mean()
                standard += share * abs(correct - confidence[inside].mean(dtype=float))
                centre += share * abs(correct - (b + 0.5) / bins)
        close = functools.partial(np.testing.assert_allclose, rtol=tolerance(1e-5, 1e-12))
        close(metrics.ece(probabilities, labels, bins=bins), standard)
        close(metrics.ece(probabilities, labels, bins=bins, reference="centre"), centre)


def test_perfect_and_worst_predictions():
    probabilities, labels = np.eye(3), np.arange(3)  # integers of a one-hot are fine, too
    assert metrics.accuracy(probabilities, labels) == 1
    assert metrics.log_likelihood(probabilities, labels) == 0
    assert metrics.brier_score(probabilities.astype(int), labels) == 0
    assert metrics.ece(probabilities, labels) == 0
    wrong = np.roll(labels, 1)
    assert metrics.accuracy(probabilities, wrong) == 0
    assert metrics.mean_log_likelihood(probabilities, wrong) == -np.inf
    assert metrics.brier_score(probabilities, wrong) == 2
    assert metrics.ece(probabilities, wrong) == 1


def test_one_zero_probability_among_many_is_minus_infinity_not_nan():
    probabilities, labels = draw(3, 10_000, 5)
    probabilities[77] = np.eye(5)[(labels[77] + 1) % 5]
    assert metrics.log_likelihood(probabilities, labels) == -np.inf


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_ties_go_to_the_first_class():
    probabilities = np.full((4, 4), 0.25)
    assert metrics.accuracy(probabilities, np.arange(4)) == 0.25
    np.testing.assert_allclose(metrics.ece(probabilities, np.zeros(4, int)), 0.75)


def test_one_point_and_one_class():
    assert metrics.accuracy(np.ones((1, 1)), np.zeros(1, int)) == 1
    assert metrics.ece(np.ones((1, 1)), np.zeros(1, int)) == 0


def test_sums_are_accurate_in_single_precision(tolerance):
    points = 30_001
    # Equal summands are the worst case of a running sum: every rounding goes the same way.
    probabilities, labels = top_class(np.full(points, 0.1), True, classes=10)
    exact = points * np.log(probabilities[0, 0].astype(float))
    rtol = tolerance(5e-7, 1e-14)
    np.testing.assert_allclose(metrics.log_likelihood(probabilities, labels), exact, rtol=rtol)
    gap = 1 - probabilities[0, 0].astype(float)
    np.testing.assert_allclose(metrics.ece(probabilities, labels), gap, rtol=rtol)
    brier = gap**2 + (probabilities[0, 1:].astype(float) ** 2).sum()
    np.testing.assert_allclose(metrics.brier_score(probabilities, labels), brier, rtol=rtol)
    targets = np.full(points, 0.1, dtype=probabilities.dtype)
    plain = metrics.rmse(np.zeros_like(targets), targets, normalised=False)
    np.testing.assert_allclose(plain, float(targets[0]), rtol=rtol)


@pytest.mark.slow("float64")
@given(seed=st.integers(0, 2**31), sharpness=st.floats(0, 30))
def test_bounds_and_order_of_points(seed, sharpness):
    points = 20
    probabilities, labels = draw(seed, points, classes=4, sharpness=sharpness)
    order = np.random.default_rng(seed).permutation(points)
    for metric in SCALAR:
        value, shuffled = metric(probabilities, labels), metric(probabilities[order], labels[order])
        np.testing.assert_allclose(value, shuffled, rtol=1e-5, atol=1e-6)
    assert 0 <= metrics.accuracy(probabilities, labels) <= 1
    assert metrics.log_likelihood(probabilities, labels) <= 1e-4
    assert 0 <= metrics.brier_score(probabilities, labels) <= 2
    standard = metrics.ece(probabilities, labels)
    assert 0 <= standard <= 1
    # A mean confidence is within half a bin of the centre; so are the two errors.
    assert abs(metrics.ece(probabilities, labels, reference="centre") - standard) <= 0.05 + 1e-6


@pytest.mark.slow("float64")
@pytest.mark.parametrize("metric", [m for m in CLASSIFICATION if m not in DERIVED])
def test_compiled_mapped_and_eager_agree(metric, precision, compilations):
    members, labels = draw(4, 64, 5, members=(3,))
    eager = [metric(probabilities, labels) for probabilities in members]
    for leaf in jax.tree.leaves(eager):
        assert leaf.dtype in (precision, "int32", "int64")
    compiled = jax.jit(metric)
    jax.tree.map(np.testing.assert_allclose, compiled(members[1], jnp.asarray(labels)), eager[1])
    mapped = metrics.per_member(metric, members, labels)
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *eager)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), mapped, stacked)
    others, other_labels = draw(5, 64, 5, members=(3,))
    first = others[0]
    assert compilations() > 0
    metric(first, other_labels)
    metrics.per_member(metric, others, other_labels)
    assert compilations() == 0


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_per_member_passes_options_on():
    members, labels = draw(6, 20, 4, members=(3,))
    mapped = metrics.per_member(metrics.ece, members, labels, bins=3, reference="centre")
    alone = [
        metrics.ece(probabilities, labels, bins=3, reference="centre") for probabilities in members
    ]
    np.testing.assert_allclose(mapped, alone, rtol=1e-5)


@pytest.mark.slow("float64")
@pytest.mark.parametrize("metric", [metrics.log_likelihood, metrics.brier_score, metrics.ece])
def test_gradients_are_finite(metric):
    probabilities, labels = draw(7, 20, 4)
    gradient = jax.jit(jax.grad(metric))(probabilities, labels)
    assert np.isfinite(gradient).all() and (gradient != 0).any()


def test_half_precision_is_computed_in_single():
    probabilities, labels = top_class([0.5, 0.75], True, classes=2)
    value = metrics.log_likelihood(probabilities.astype(np.float16), labels)
    assert value.dtype == "float32"
    np.testing.assert_allclose(value, np.log(0.5) + np.log(0.75), rtol=1e-6)


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_small_unsigned_labels_with_many_classes():
    probabilities = np.full((2, 300), 1 / 300)
    labels = np.array([0, 255], dtype=np.uint8)
    assert metrics.accuracy(probabilities, labels) == 0.5
    np.testing.assert_allclose(metrics.mean_log_likelihood(probabilities, labels), -np.log(300))


BAD_PROBABILITIES = {
    r"probabilities\[1, 0\] holds nan": [[0.5, 0.5], [np.nan, 1.0]],
    r"probabilities\[0, 1\] holds -0.5": [[1.5, -0.5], [0.5, 0.5]],
    r"probabilities\[0, 0\] holds inf": [[np.inf, -np.inf], [0.5, 0.5]],
    r"probabilities\[1\] sums to 0.9": [[0.5, 0.5], [0.5, 0.4]],
    r"probabilities\[0\] sums to 1.001": [[0.5, 0.501], [0.5, 0.5]],
}


@pytest.mark.slow("float64")
@pytest.mark.parametrize("metric", CLASSIFICATION)
def test_bad_probabilities_are_refused_or_nan(metric):
    labels = np.array([0, 1])
    for message, probabilities in BAD_PROBABILITIES.items():
        with pytest.raises(BQNESError, match=message):
            metric(np.array(probabilities), labels)
        result = jax.jit(metric)(np.array(probabilities), labels)
        floats = [x for x in jax.tree.leaves(result) if jnp.issubdtype(x.dtype, jnp.floating)]
        assert all(np.isnan(x).any() for x in floats)
        with pytest.raises(BQNESError, match="member_" + message.replace(r"\[", r"\[0, ")):
            metrics.per_member(metric, np.array([probabilities]), labels)


@pytest.mark.slow("float64")
@pytest.mark.parametrize("metric", SCALAR)
@pytest.mark.parametrize("label", [-1, 2])
def test_labels_out_of_range_are_refused_or_nan(metric, label):
    probabilities, labels = np.full((3, 2), 0.5), np.array([0, 1, label])
    with pytest.raises(BQNESError, match=rf"labels\[2\] is {label} .*from 0 to 1"):
        metric(probabilities, labels)
    assert np.isnan(jax.jit(metric)(probabilities, labels))


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
@pytest.mark.parametrize("metric", CLASSIFICATION)
def test_wrong_shapes_and_types_are_refused(metric):
    good, labels = np.full((3, 2), 0.5), np.zeros(3, int)
    for probabilities, wrong, message in [
        (good[0], labels, r"probabilities has shape \(2,\)"),
        (good[None], labels, r"probabilities has shape \(1, 3, 2\)"),
        (good, labels[:2], r"labels has shape \(2,\); it must have shape \(3\)"),
        (good, labels[:, None], r"labels has shape \(3, 1\)"),
        (good, labels.astype(float), "labels are float.*must be integers"),
        (good, labels.astype(bool), "labels are bool.*must be integers"),
        (good[:0], labels[:0], "at least one point"),
        (good[:, :0], labels, "at least one point"),
    ]:
        with pytest.raises(BQNESError, match=message):
            metric(probabilities, wrong)
    for shape in [(3, 2), (0, 3, 2), (1, 0, 2)]:
        with pytest.raises(BQNESError, match="member_probabilities"):
            metrics.per_member(metric, np.full(shape, 0.5), labels)


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_unknown_options_are_refused():
    probabilities, labels = np.full((3, 2), 0.5), np.zeros(3, int)
    with pytest.raises(BQNESError, match="bins is 0"):
        metrics.ece(probabilities, labels, bins=0)
    with pytest.raises(BQNESError, match="bins is -1"):
        metrics.reliability_curve(probabilities, labels, bins=-1)
    with pytest.raises(BQNESError, match="reference is 'center'; allowed are 'confidence'"):
        metrics.ece(probabilities, labels, reference="center")


def test_values_computed_in_single_precision_pass_when_widened():
    logits = 10 * np.random.default_rng(8).normal(size=(1000, 1000)).astype(np.float32)
    exponentials = np.exp(logits - logits.max(axis=1, keepdims=True))
    probabilities = exponentials / exponentials.sum(axis=1, keepdims=True)
    assert np.isfinite(metrics.ece(probabilities.astype(np.float64), np.zeros(1000, int)))


@pytest.mark.slow("float64")
@pytest.mark.parametrize(("members", "points", "classes"), [(1, 5, 3), (6, 50, 4)])
def test_disagreement_by_brute_force(members, points, classes, tolerance):
    probabilities, _ = draw(9, points, classes, members=(members,))
    predicted = probabilities.argmax(axis=-1)
    pairs = np.array([[np.mean(a != b) for b in predicted] for a in predicted])
    result = metrics.disagreement(probabilities)
    rtol = tolerance(1e-6, 1e-14)
    np.testing.assert_allclose(result.pairwise, pairs, rtol=rtol)
    others = [np.delete(row, i).mean() if members > 1 else 0 for i, row in enumerate(pairs)]
    np.testing.assert_allclose(result.per_member, others, rtol=rtol)
    batch = np.stack([probabilities, probabilities[::-1]])
    mapped = jax.jit(jax.vmap(metrics.disagreement))(batch)
    np.testing.assert_allclose(mapped.pairwise[1], pairs[::-1, ::-1], rtol=rtol)


def test_disagreement_of_identical_and_of_opposed_members():
    members = np.array([np.eye(2), np.eye(2), np.eye(2)[::-1]])
    result = metrics.disagreement(members)
    assert result.pairwise.tolist() == [[0, 0, 1], [0, 0, 1], [1, 1, 0]]
    assert result.per_member.tolist() == [0.5, 0.5, 1]


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_disagreement_with_a_failed_member_is_refused_or_nan():
    members = np.array([np.eye(2), np.eye(2), np.full((2, 2), np.nan)])
    with pytest.raises(BQNESError, match=r"member_probabilities\[2, 0, 0\] holds nan"):
        metrics.disagreement(members)
    pairwise = jax.jit(metrics.disagreement)(members).pairwise
    np.testing.assert_array_equal(np.isnan(pairwise), [[0, 0, 1], [0, 0, 1], [1, 1, 1]])


def test_surrogate_errors_against_scipy_and_scikit_learn(tolerance):
    rng = np.random.default_rng(10)
    means, targets = rng.normal(3, 1, size=(2, 625))
    variances = rng.uniform(0.1, 4, size=625)
    close = functools.partial(np.testing.assert_allclose, rtol=tolerance(2e-6, 1e-13))
    plain = root_mean_squared_error(targets, means)
    close(metrics.rmse(means, targets, normalised=False), plain)
    close(metrics.rmse(means, targets), plain / targets.mean())
    density = stats.norm.logpdf(targets, means, np.sqrt(variances))
    close(metrics.nlpd(means, variances, targets), -density.mean())
    columns = [np.stack([x, x]) for x in (means, variances, targets)]
    close(jax.jit(jax.vmap(metrics.nlpd))(*columns), [-density.mean()] * 2)
    close(jax.jit(jax.vmap(metrics.rmse))(columns[0], columns[2]), [plain / targets.mean()] * 2)


def test_rmse_of_negative_targets_is_positive():
    targets = np.array([-2.0, -6.0])
    assert metrics.rmse(targets + 1, targets) == 0.25


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_rmse_of_any_scale(scale, tolerance):
    targets = scale * np.array([1.0, 2.0, 3.0])
    expected = np.sqrt(np.mean(np.array([1, 2, 3]) ** 2)) / 2
    value = metrics.rmse(np.zeros(3), targets)
    np.testing.assert_allclose(value, expected, rtol=tolerance(1e-6, 1e-14))


def test_rmse_of_perfect_predictions_has_a_gradient():
    targets = jnp.array([1.0, 2.0])
    value, gradient = jax.jit(jax.value_and_grad(metrics.rmse))(targets, targets)
    assert value == 0 and gradient.tolist() == [0, 0]
    errors = jnp.array([3.0, -4.0])
    slope = jax.grad(lambda p: metrics.rmse(p, targets, normalised=False))
    gradient = jax.jit(slope)(targets + errors)
    np.testing.assert_allclose(gradient, errors / (2 * np.sqrt(12.5)), rtol=1e-6)


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_surrogate_errors_refuse_bad_input():
    good = np.ones(3)
    for call, message in [
        (lambda: metrics.rmse(good, good[:2]), r"predictions has shape \(3,\)"),
        (lambda: metrics.rmse(good[:, None], good), r"predictions has shape \(3, 1\)"),
        (lambda: metrics.rmse(good[:0], good[:0]), "at least one point"),
        (lambda: metrics.rmse(good, np.array([1, np.nan, 1])), "targets holds nan at index 1"),
        (lambda: metrics.rmse(np.ones(2), np.array([-1.0, 1.0])), "mean 0.*normalised=False"),
        (lambda: metrics.rmse(np.ones(1), np.array([1e-320])), "mean 0.*normalised=False"),
        (lambda: metrics.nlpd(good, np.array([1.0, 0.0, 1.0]), good), "variances .* positive"),
        (lambda: metrics.nlpd(good, -good, good), "variances .* positive"),
        (lambda: metrics.nlpd(good, good[:2], good), r"variances has shape \(2,\)"),
    ]:
        with pytest.raises(BQNESError, match=message):
            call()
    assert metrics.rmse(np.ones(2), np.array([-1.0, 1.0]), normalised=False) == np.sqrt(2)
    assert np.isnan(jax.jit(metrics.nlpd)(good, np.array([1.0, 0.0, 1.0]), good))
    assert np.isnan(jax.jit(metrics.nlpd)(good, -good, good))
