"""Gaussian-process regression against scikit-learn, scipy and itself in other forms."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process import kernels as sk

from bqnes_jax.errors import BQNESError
from bqnes_jax.kernels import RBF, WL, GeneralKernel
from bqnes_jax.spaces import NATS
from bqnes_jax.surrogates import FitConfig, Hyperparameters, gp, wsabi
from bqnes_jax.types import Status
from tests.helpers.toy import GRID, POINTS, Polynomial

HYPERPARAMETERS = Hyperparameters(amplitude=1.7, noise=0.03)
ELSEWHERE = np.stack(np.unravel_index(np.arange(0, NATS.size, 313), NATS.options), axis=-1)  # 50
CLOSED = FitConfig((1e-5, 10.0), kernel_steps=0)
GRID_TARGETS = np.sin(POINTS[:, 0])


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class PointsOnly(GeneralKernel):
    """A kernel of a user's own that does not say it is finite, around one that is."""

    kernel: WL

    space = None

    def features(self, archs):
        return self.kernel.features(archs)

    def cross(self, archs, others):
        return self.kernel.cross(archs, others)


def problem(n=150):
    """Return architectures, as a rule more than the 100 features of the kernel, and targets."""
    archs = np.array(NATS.sample(jax.random.key(0), n))
    return archs, np.random.default_rng(0).normal(size=n)


def drawn_from(kernel, archs, hyperparameters, seed, count=1):
    """Targets from the prior of the model itself."""
    gram = np.asarray(kernel.gram(archs), float)
    covariance = hyperparameters.amplitude * gram + hyperparameters.noise * np.eye(len(gram))
    rng = np.random.default_rng(seed)
    return rng.multivariate_normal(np.zeros(len(gram)), covariance, count)


def sklearn_regressor(kernel, archs, targets):
    """Return scikit-learn's process with the same kernel, and its inputs for architectures."""
    if isinstance(kernel, RBF):
        base, inputs = sk.RBF(np.asarray(kernel.length_scales, float)), kernel.space.coordinates
    else:
        base, inputs = sk.DotProduct(sigma_0=0, sigma_0_bounds="fixed"), kernel.features
    covariance = sk.ConstantKernel(HYPERPARAMETERS.amplitude) * base
    theirs = GaussianProcessRegressor(covariance, alpha=HYPERPARAMETERS.noise, optimizer=None)
    x = np.asarray(inputs(archs), float)
    return theirs.fit(x, targets), lambda others: np.asarray(inputs(others), float)


@pytest.mark.slow("float64")
@pytest.mark.parametrize("n", [40, 150])  # fewer and more points than the 100 features
@pytest.mark.parametrize("kernel", [WL(NATS), RBF(NATS, np.linspace(0.5, 2.0, 30))])
def test_posterior_and_marginal_likelihood_equal_sklearns(kernel, n, tolerance):
    archs, targets = problem(n)
    theirs, inputs = sklearn_regressor(kernel, archs, targets)
    ours = gp.condition(kernel, archs, targets, HYPERPARAMETERS)
    assert ours.weight_space == (isinstance(kernel, WL) and n == 150)

    mean, covariance = theirs.predict(inputs(ELSEWHERE), return_cov=True)
    atol = tolerance(2e-3, 1e-8)
    full = ours.predict(ELSEWHERE, full_covariance=True)
    np.testing.assert_allclose(full.mean, mean, atol=atol)
    np.testing.assert_allclose(full.variance, covariance, atol=atol)
    np.testing.assert_allclose(ours.predict(ELSEWHERE).variance, np.diag(covariance), atol=atol)
    expected = theirs.log_marginal_likelihood_value_
    np.testing.assert_allclose(ours.log_marginal_likelihood, expected, rtol=tolerance(1e-4, 1e-10))


@pytest.mark.slow("float64")
def test_weight_space_equals_the_points(tolerance):
    archs, targets = problem()
    weights = gp.condition(WL(NATS), archs, targets, HYPERPARAMETERS)
    points = gp.condition(PointsOnly(WL(NATS)), archs, targets, HYPERPARAMETERS)
    assert weights.weight_space and not points.weight_space
    for ours, theirs in zip(
        *(one.predict(ELSEWHERE, full_covariance=True) for one in (weights, points)), strict=True
    ):
        np.testing.assert_allclose(ours, theirs, atol=tolerance(1e-3, 1e-10))


@pytest.mark.parametrize("noise", [1e-5, 1e-3])
def test_unseen_directions_keep_the_prior_variance_in_float32(noise):
    """Squaring the features would drown small noise in rounding, and with it what is not known."""
    archs, targets = problem()
    archs[:, 0] = 0  # nothing on the first edge: many features are never seen
    posterior = gp.condition(WL(NATS), archs, targets, Hyperparameters(1.0, noise))
    assert posterior.weight_space
    features = np.asarray(WL(NATS).features(archs), np.float64)
    there = np.asarray(WL(NATS).features(ELSEWHERE), np.float64)
    inverse = np.linalg.inv(features.T @ features + noise * np.eye(100))
    expected = noise * np.einsum("ij,jk,ik->i", there, inverse, there)
    np.testing.assert_allclose(posterior.predict(ELSEWHERE).variance, expected, rtol=2e-3)


@pytest.mark.slow
@pytest.mark.parametrize("kernel", [WL(NATS), RBF(NATS, np.full(30, 1.5))])
@pytest.mark.parametrize("fitted", [True, False])
def test_padding_changes_nothing(kernel, fitted, tolerance):
    archs, targets = problem()
    mask = abs(np.arange(150) - 53) > 3  # all but seven
    junk = np.where(mask, targets, np.nan)
    act = gp.fit if fitted else functools.partial(gp.condition, hyperparameters=HYPERPARAMETERS)
    config = {"config": CLOSED} if fitted else {}
    plain, with_padding = (
        act(kernel, archs[mask], targets[mask], **config),
        act(kernel, archs, junk, mask=mask, **config),
    )
    assert with_padding.status == plain.status
    rtol = tolerance(2e-3, 1e-9)
    pairs = zip(with_padding.predict(ELSEWHERE), plain.predict(ELSEWHERE), strict=True)
    for ours, theirs in pairs:
        np.testing.assert_allclose(ours, theirs, rtol=rtol, atol=rtol / 10)
    np.testing.assert_allclose(
        with_padding.log_marginal_likelihood,
        plain.log_marginal_likelihood,
        rtol=tolerance(1e-4, 1e-10),
    )


@pytest.mark.slow
def test_padding_does_not_change_fitted_length_scales(tolerance):
    padded = np.where(np.arange(36) < 25, GRID_TARGETS, np.nan)
    plain = gp.fit(RBF(GRID, np.ones(2)), POINTS[:25], GRID_TARGETS[:25])
    ours = gp.fit(RBF(GRID, np.ones(2)), POINTS, padded, mask=np.arange(36) < 25)
    np.testing.assert_allclose(
        ours.log_marginal_likelihood, plain.log_marginal_likelihood, rtol=tolerance(0.05, 1e-4)
    )
    np.testing.assert_allclose(
        ours.predict(POINTS[:25]).mean, GRID_TARGETS[:25], atol=tolerance(0.02, 0.01)
    )


@pytest.mark.slow
def test_a_length_scale_at_its_bound_is_reported():
    posterior = gp.fit(RBF(GRID, np.ones(2)), POINTS, np.ones(36))
    assert Status(int(posterior.status)) & Status.AT_BOUND


def test_traced_nonsense_is_reported_not_silent():
    archs, targets = problem()
    posterior = jax.jit(
        lambda noise: gp.condition(WL(NATS), archs, targets, Hyperparameters(1.0, noise))
    )(np.nan)
    assert Status(int(posterior.status)) & Status.INFEASIBLE


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_predicting_an_operation_that_does_not_exist_is_refused():
    archs, targets = problem()
    posterior = gp.condition(WL(NATS), archs, targets, HYPERPARAMETERS)
    for act in (gp.Posterior.predict, gp.Posterior.fantasise):
        with pytest.raises(BQNESError, match="is 9; it must be from 0 to 4"):
            act(posterior, np.full((2, 6), 9))


@pytest.mark.slow("float64")
@pytest.mark.parametrize("kernel", [WL(NATS), RBF(NATS, np.full(30, 2.0))])
def test_fit_finds_scipys_maximum(kernel, tolerance):
    archs, _ = problem()
    targets = drawn_from(kernel, archs, Hyperparameters(2.0, 0.05), seed=3)[0]
    posterior = gp.fit(kernel, archs, targets, config=CLOSED)
    gram = np.asarray(kernel.gram(archs), float)

    def negative(log_parameters):
        covariance = np.exp(log_parameters[0]) * gram + np.exp(log_parameters[1]) * np.eye(150)
        _, log_determinant = np.linalg.slogdet(covariance)
        quadratic = targets @ np.linalg.solve(covariance, targets)
        return 0.5 * (quadratic + log_determinant + 150 * np.log(2 * np.pi))

    best = minimize(negative, [0.0, -3.0], tol=1e-10)
    rtol = tolerance(0.1, 1e-3)  # the top is flat: float32 finds its height, not quite its place
    np.testing.assert_allclose(posterior.hyperparameters[:2], np.exp(best.x), rtol=rtol)
    np.testing.assert_allclose(
        posterior.log_marginal_likelihood, -best.fun, rtol=tolerance(1e-4, 1e-9)
    )
    assert posterior.status == Status.OK


@pytest.mark.slow("float64")
def test_fitted_noise_recovers_a_known_one():
    """With the sign of the log-determinant wrong, the noise would run to a bound."""
    kernel, config = WL(NATS), FitConfig(noise_bounds=(1e-5, 10.0))
    archs, _ = problem(300)
    fit = jax.jit(jax.vmap(lambda y: gp.fit(kernel, archs, y, config=config).hyperparameters))
    for noise in (0.003, 0.03, 0.3):
        truth = Hyperparameters(1.5, noise)
        fitted = fit(drawn_from(kernel, archs, truth, seed=0, count=20))
        errors = np.log(np.asarray(fitted.noise) / noise)
        assert abs(errors.mean()) < 4 * errors.std() / np.sqrt(20) + 0.02
        assert errors.std() < 0.3


@pytest.mark.slow("float64")
def test_scaling_the_targets_scales_the_fit(tolerance):
    archs, targets = problem(20)
    one, thousand = (gp.fit(WL(NATS), archs, scale * targets) for scale in (1.0, 1000.0))
    for ours, theirs in zip(one.hyperparameters, thousand.hyperparameters, strict=True):
        np.testing.assert_allclose(1e6 * np.asarray(ours), theirs, rtol=tolerance(1e-3, 1e-9))


@pytest.mark.slow("float64")
def test_noise_stays_within_its_bounds_and_says_so():
    archs, targets = problem()  # pure noise
    posterior = gp.fit(WL(NATS), archs, targets, config=FitConfig(noise_bounds=(1e-4, 1e-2)))
    amplitude, noise, _ = posterior.hyperparameters
    np.testing.assert_allclose(float(noise) / float(amplitude), 1e-2, rtol=1e-3)
    assert Status(int(posterior.status)) == Status.AT_BOUND


def test_length_scales_tell_what_matters():
    """A function of the row alone: the length scale of the column grows, of the row does not."""
    start = RBF(GRID, np.ones(2))
    posterior = gp.fit(start, POINTS, GRID_TARGETS)
    row, column = np.asarray(posterior.kernel.length_scales)
    assert row < 1 < 10 < column
    unfitted = gp.fit(start, POINTS, GRID_TARGETS, config=FitConfig(kernel_steps=0))
    assert posterior.log_marginal_likelihood > unfitted.log_marginal_likelihood + 10


@pytest.mark.slow
def test_layer_weights_are_fitted_to_a_maximum(tolerance):
    archs, _ = problem()
    truth = WL(NATS, layer_weights=np.array([1.0, 0.2]))
    targets = drawn_from(truth, archs, Hyperparameters(1.0, 0.01), seed=0)[0]
    start = WL(NATS, layer_weights=np.ones(2))
    posterior = gp.fit(start, archs, targets)

    def evidence(ratio):
        kernel = WL(NATS, layer_weights=jnp.array([1.0, ratio]))
        return gp.fit(
            kernel, archs, targets, config=FitConfig(kernel_steps=0)
        ).log_marginal_likelihood

    best = max(float(evidence(ratio)) for ratio in np.geomspace(0.05, 5.0, 25))
    assert posterior.log_marginal_likelihood > best - 0.02
    assert posterior.log_marginal_likelihood > evidence(1.0) + 1


@pytest.mark.slow("float64")
@pytest.mark.parametrize("n", [40, 150])
def test_marginal_likelihood_is_differentiable(n, precision):
    archs, targets = problem(n)
    archs[1] = archs[0]

    @jax.jit
    def evidence(log_parameters):
        weights, amplitude, noise = jnp.split(jnp.exp(log_parameters), [2, 3])
        return gp.condition(
            WL(NATS, layer_weights=weights), archs, targets, Hyperparameters(amplitude[0], noise[0])
        ).log_marginal_likelihood

    at = np.array([0.1, -0.2, 0.3, -3.0])
    gradient = np.asarray(jax.jit(jax.grad(evidence))(at))
    assert np.isfinite(gradient).all()
    if precision == "float64":
        for i, unit in enumerate(np.eye(4)):
            above, below = (float(evidence(at + step * unit)) for step in (1e-5, -1e-5))
            np.testing.assert_allclose(gradient[i], (above - below) / 2e-5, rtol=1e-6)


def assert_finite(posterior, archs):
    mean, variance = map(np.asarray, posterior.predict(archs))
    for value in (*posterior.hyperparameters, posterior.log_marginal_likelihood, mean, variance):
        assert np.isfinite(value).all()
    assert (variance >= 0).all()


@pytest.mark.slow("float64")
@pytest.mark.parametrize("kernel", [WL(NATS), RBF(NATS, 1.0), PointsOnly(WL(NATS))])
@pytest.mark.parametrize(
    "case", ["duplicates", "one point", "zeros", "huge", "tiny", "no points", "contradiction"]
)
def test_degenerate_designs_stay_finite(kernel, case):
    archs, targets = problem()
    mask = np.ones(150, bool)
    if case == "duplicates":
        archs = np.tile(archs[:5], (30, 1))
        targets = np.tile(targets[:5], 30)
    elif case == "one point":
        archs, targets, mask = archs[:1], targets[:1], mask[:1]
    elif case == "zeros":
        targets = np.zeros(150)
    elif case in ("huge", "tiny"):
        targets = targets * (1e12 if case == "huge" else 1e-12)
    elif case == "no points":
        mask = np.zeros(150, bool)
    elif case == "contradiction":
        archs = np.tile(archs[:1], (150, 1))
    posterior = gp.fit(kernel, archs, targets, mask=mask, config=FitConfig(kernel_steps=5))
    assert_finite(posterior, ELSEWHERE)
    if case == "no points":
        assert Status(int(posterior.status)) & Status.EMPTY
        prediction = posterior.predict(ELSEWHERE)
        np.testing.assert_allclose(prediction.mean, 0)
        np.testing.assert_allclose(prediction.variance, 1, rtol=1e-5)
    if case == "zeros":
        assert Status(int(posterior.status)) & Status.AT_BOUND


@pytest.mark.slow("float64")
@pytest.mark.parametrize("kernel", [PointsOnly(WL(NATS)), WL(NATS)])
def test_vanishing_noise_on_duplicates_is_reported(kernel):
    archs, targets = problem()
    _, distinct = np.unique(np.asarray(WL(NATS).features(archs)), axis=0, return_index=True)
    some = np.sort(distinct)[:30]
    archs, targets = np.tile(archs[some], (5, 1)), np.tile(targets[some], 5)
    posterior = gp.condition(kernel, archs, targets, Hyperparameters(1.0, 1e-30))
    assert_finite(posterior, archs)
    assert Status(int(posterior.status)) == Status.JITTERED
    mean = np.asarray(posterior.predict(archs).mean)
    np.testing.assert_allclose(mean[:5], targets[:5], atol=0.05)


def test_traced_nan_is_left_out_and_reported(tolerance):
    archs, targets = problem()
    kept = np.arange(150) != 7
    broken = np.where(kept, targets, np.nan)
    posterior = jax.jit(lambda y: gp.condition(WL(NATS), archs, y, HYPERPARAMETERS))(broken)
    assert Status(int(posterior.status)) == Status.MASKED_TARGETS
    without = gp.condition(WL(NATS), archs, targets, HYPERPARAMETERS, mask=kept)
    np.testing.assert_allclose(
        posterior.predict(archs).mean, without.predict(archs).mean, atol=tolerance(1e-4, 1e-10)
    )


@pytest.mark.slow("float64")
def test_fantasies_keep_the_mean_and_shrink_the_variance(tolerance):
    hyperparameters = Hyperparameters(1.0, 0.01)
    posterior = gp.condition(Polynomial(), POINTS[:4], np.arange(4.0), hyperparameters)
    after = posterior.fantasise(POINTS[20:23], np.array([True, True, False]))
    mean, variance = map(np.asarray, posterior.predict(POINTS))
    now = after.predict(POINTS)
    np.testing.assert_allclose(now.mean, mean, atol=tolerance(1e-3, 1e-10))
    shrunk = np.asarray(now.variance)
    assert (shrunk <= variance + 1e-5).all()
    assert (shrunk[20:22] < 0.011).all()
    observed, targets = [0, 1, 2, 3, 20, 21], np.append(np.arange(4.0), mean[20:22])
    direct = gp.condition(Polynomial(), POINTS[observed], targets, hyperparameters)
    np.testing.assert_allclose(shrunk, direct.predict(POINTS).variance, atol=tolerance(1e-4, 1e-10))


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"targets": np.array([1.0, np.nan, 3.0])}, "targets holds nan at index 1"),
        ({"targets": np.array([1.0, np.inf, 3.0])}, "targets holds inf at index 1"),
        ({"targets": np.ones(4)}, r"targets has shape \(4,\); it must have shape \(3\)"),
        ({"targets": np.ones((3, 1))}, r"targets has shape \(3, 1\)"),
        ({"archs": np.zeros(6, int)}, r"architectures have shape \(6,\)"),
        ({"archs": np.zeros((3, 5), int)}, "last axis must have length 6"),
        ({"archs": np.full((3, 6), 9)}, "is 9; it must be from 0 to 4"),
        ({"mask": np.ones(2, bool)}, r"mask has shape \(2,\)"),
        ({"mask": np.ones(3)}, "mask has type .* bool"),
        ({"hyperparameters": Hyperparameters(-1.0, 0.1)}, "amplitude is -1.* positive"),
        ({"hyperparameters": Hyperparameters(1.0, np.nan)}, "noise is nan"),
    ],
)
def test_bad_input_is_refused_before_anything_is_compiled(change, says, compilations):
    arguments = {
        "kernel": WL(NATS),
        "archs": np.zeros((3, 6), np.int32),
        "targets": np.ones(3),
        "hyperparameters": HYPERPARAMETERS,
    } | change
    compilations()
    with pytest.raises(BQNESError, match=says):
        gp.condition(**arguments)
    if arguments.pop("hyperparameters") is HYPERPARAMETERS:
        says = says.replace("targets", "(targets|log_likelihoods)")
        targets = arguments.pop("targets")
        for fit, name in ((gp.fit, "targets"), (wsabi.fit, "log_likelihoods")):
            with pytest.raises(BQNESError, match=says):
                fit(**{name: targets}, **arguments)
    assert compilations() == 0


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"noise_bounds": (0.0, 1.0)}, r"noise_bounds is \(0.0, 1.0\)"),
        ({"noise_bounds": (1.0, 0.1)}, "noise_bounds"),
        ({"kernel_steps": -1}, "kernel_steps is -1"),
    ],
)
def test_bad_configuration_is_refused(options, says):
    with pytest.raises(BQNESError, match=says):
        FitConfig(**options)


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_configuration_and_posterior_are_immutable():
    with pytest.raises(dataclasses.FrozenInstanceError):
        FitConfig().kernel_steps = 3


@pytest.mark.slow("float64")
@pytest.mark.parametrize("mean", ["zero", "constant"])
@pytest.mark.parametrize("scale", [1e-30, 1e10, 1e19, 1e30, 3e37])
def test_targets_of_any_size_are_fitted_alike(scale, mean, precision):
    """Their squares need not be numbers of their type; beyond it the amplitude is at a bound."""
    archs, _ = problem(20)
    targets = (archs == 3).sum(axis=1) - 1.5
    config = FitConfig(mean=mean)
    usual = gp.fit(WL(NATS), archs, targets, config=config)
    found = gp.fit(WL(NATS), archs, targets * scale, config=config)
    mean, variance = map(np.asarray, found.predict(archs))
    np.testing.assert_allclose(mean / scale, usual.predict(archs).mean, rtol=1e-2, atol=1e-2)
    leave_one_out = found.leave_one_out()
    for array in (variance, *found.hyperparameters, found.log_marginal_likelihood, *leave_one_out):
        assert np.isfinite(array).all()
    too_much = 2 * np.log10(scale) > np.log10(np.finfo(precision).max) - 7
    assert bool(found.status & Status.AT_BOUND) == too_much
    assert not found.status & Status.INFEASIBLE


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_targets_near_the_end_of_their_type_are_not_fitted_unnoticed():
    archs, targets = problem(8)
    signs = np.where(np.asarray(targets) > np.median(targets), 1, -1)
    found = gp.fit(WL(NATS), archs, np.float32(3e38) * signs.astype(np.float32))
    assert not np.isfinite(found.predict(archs).mean).all()
    assert found.status & Status.INFEASIBLE
