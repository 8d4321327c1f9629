"""Libraries with the same pieces give the same numbers; a test is skipped where its library is not.

`pip install -e '.[oracles]'` has them all.
"""

import importlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bqnes_jax import metrics
from bqnes_jax.calibration import fit_temperature
from bqnes_jax.kernels import RBF
from bqnes_jax.quadrature import choose_landmarks, nystrom_test_functions, recombine
from bqnes_jax.surrogates import FitConfig, Hyperparameters, gp
from tests.helpers.toy import GRID, POINTS

pytestmark = [
    pytest.mark.parametrize("precision", ["float64"], indirect=True),
    # Of the libraries, which are not ours to mend.
    pytest.mark.filterwarnings("default"),
]


def needs(name):
    """Return a module, or skip the test and say what is missing."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        pytest.skip(f"{error}; pip install -e '.[oracles]' has it")


@pytest.fixture
def process():
    """Return tinygp's process on the points of the grid, as a function of its numbers."""
    tinygp = needs("tinygp")
    inputs = jnp.asarray(GRID.coordinates(POINTS))

    def make(scales, hyperparameters):
        scaled = tinygp.transforms.Linear(1 / scales, tinygp.kernels.ExpSquared())
        amplitude, noise, mean = hyperparameters
        return tinygp.GaussianProcess(amplitude * scaled, inputs, diag=noise, mean=mean)

    return make


def targets():
    row, column = POINTS.T
    return (
        np.sin(row) + np.cos(0.7 * column) + 0.1 * np.random.default_rng(0).normal(size=len(POINTS))
    )


def test_a_posterior_is_tinygps(process):
    numbers, scales = Hyperparameters(1.7, 0.03, 0.4), np.array([0.5, 0.8])
    theirs = process(scales, numbers)
    ours = gp.condition(RBF(GRID, scales), POINTS, targets(), numbers)
    expected = theirs.log_probability(jnp.asarray(targets()))
    np.testing.assert_allclose(ours.log_marginal_likelihood, expected, rtol=1e-9)
    there = POINTS[:5]
    _, posterior = theirs.condition(jnp.asarray(targets()), GRID.coordinates(there), diag=0.0)
    predicted = ours.predict(there, full_covariance=True)
    np.testing.assert_allclose(predicted.mean, posterior.mean, atol=1e-9)
    np.testing.assert_allclose(predicted.variance, posterior.covariance, atol=1e-9)


def test_a_fit_ends_where_tinygps_gradient_is_zero(process):
    config = FitConfig((1e-5, 10.0), kernel_steps=100, mean="constant")
    fitted = gp.fit(RBF(GRID, np.ones(2)), POINTS, targets(), config=config)

    def loss(logs, mean):
        amplitude, noise, *scales = jnp.exp(logs)
        made = process(jnp.stack(scales), (amplitude, noise, mean))
        return -made.log_probability(jnp.asarray(targets()))

    amplitude, noise, mean = fitted.hyperparameters
    logs = jnp.log(jnp.stack([amplitude, noise, *fitted.kernel.length_scales]))
    for gradient in jax.grad(loss, (0, 1))(logs, mean):
        np.testing.assert_allclose(gradient, 0, atol=2e-2)  # the likelihood is some tens of nats
    start = jnp.log(jnp.array([1.0, 1e-2, 1.0, 1.0]))
    assert loss(logs, mean) < loss(start, 0.0)


def moments(count=40, functions=5):
    rng = np.random.default_rng(1)
    return rng.normal(size=(count, functions)), rng.dirichlet(np.ones(count))


@pytest.mark.parametrize("name", ["CaratheodoryRecombination", "TreeRecombination"])
def test_recombined_points_are_coreaxs_when_the_points_are(name):
    """Which points carry the moments is free; on given ones that do there is one answer."""
    coreax = needs("coreax")
    solver = getattr(needs("coreax.solvers"), name)()
    functions, mass = moments()

    def theirs(rows, weights):
        coreset, _ = solver.reduce(coreax.Data(jnp.asarray(rows), jnp.asarray(weights)))
        return np.asarray(coreset.unweighted_indices), np.asarray(coreset.points.weights)

    def ours(rows, weights):
        found = recombine(rows, weights)
        return np.asarray(found.indices), np.asarray(found.weights)

    for one, other in ((theirs, ours), (ours, theirs)):
        chosen, weights = one(functions, mass)
        assert len(chosen) == 6 and (weights >= 0).all()
        np.testing.assert_allclose(weights @ functions[chosen], mass @ functions, atol=1e-9)
        again, same = other(functions[chosen], weights / weights.sum())
        np.testing.assert_allclose(same[np.argsort(again)], weights, atol=1e-9)


def test_recombined_points_are_as_near_to_all_of_them_as_goodpoints_thinned_ones():
    """Eight of 128 in the space of a smooth kernel, where seven functions say most of it."""
    kt = needs("goodpoints.kt")
    rng = np.random.default_rng(2)
    points, even = rng.normal(size=(128, 2)), np.full(128, 1 / 128)

    def kernel(one, others):
        return np.exp(-((one - others) ** 2).sum(axis=1) / 8)

    gram = np.stack([kernel(point[None], points) for point in points])

    def distance(chosen, weights):
        difference = np.bincount(chosen, weights, minlength=128) - even
        return difference @ gram @ difference

    thinned = kt.thin(points, 4, kernel, kernel, seed=0, store_K=True)
    theirs = kt.squared_emp_rel_mmd_X(points, thinned, kernel) + gram.mean()
    assert distance(thinned, np.full(8, 1 / 8)) == pytest.approx(theirs)

    landmarks = choose_landmarks(gram, even, 7)
    found = recombine(nystrom_test_functions(gram, landmarks), even)
    ours = distance(np.asarray(found.indices), np.asarray(found.weights))
    drawn = [distance(rng.choice(128, 8), np.full(8, 1 / 8)) for _ in range(100)]
    assert ours < 2 * theirs < np.mean(drawn) / 5


@pytest.fixture
def predictions():
    rng = np.random.default_rng(3)
    logits = rng.normal(size=(500, 4))
    labels = rng.integers(0, 4, 500)
    logits[np.arange(500), labels] += 1.0
    return 2 * logits, labels


def test_metrics_are_probmetrics(predictions):
    theirs, torch = needs("probmetrics.metrics"), needs("torch")
    logits, labels = predictions
    log_probs = jax.nn.log_softmax(jnp.asarray(logits))

    def of(metric):
        return float(metric.compute_from_labels_logits(torch.tensor(labels), torch.tensor(logits)))

    for ours, metric in (
        (metrics.accuracy, theirs.Accuracy()),
        (metrics.brier_score, theirs.BrierLoss()),
        (lambda *given, log: -metrics.mean_log_likelihood(*given, log=log), theirs.LogLoss()),
        (lambda *given, log: metrics.ece(*given, log=log, bins=15), theirs.CalibrationError()),
    ):
        np.testing.assert_allclose(ours(log_probs, labels, log=True), of(metric), atol=2e-6)


def test_a_temperature_is_probmetrics(predictions):
    calibrators, torch = needs("probmetrics.calibrators"), needs("torch")
    logits, labels = predictions
    theirs = calibrators.TemperatureScalingCalibrator(max_bisection_steps=50)
    given = needs("probmetrics.distributions").CategoricalLogits(torch.tensor(logits))
    theirs.fit_torch(given, torch.tensor(labels))
    ours = fit_temperature(jax.nn.log_softmax(jnp.asarray(logits)), labels)
    np.testing.assert_allclose(1 / ours, theirs.invtemp_, rtol=1e-4)
    assert ours > 1.1  # the predictions are too sure
