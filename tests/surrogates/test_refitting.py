"""What a step of a search fits, and how often: closed gradients, kept shapes, shorter histories."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bqnes_jax.candidates import Outcome, SearchConfig, make, tell
from bqnes_jax.candidates.base import State, is_among
from bqnes_jax.candidates.history import empty_history
from bqnes_jax.candidates.registry import stages
from bqnes_jax.drivers import scan
from bqnes_jax.errors import BQNESError
from bqnes_jax.kernels import RBF
from bqnes_jax.surrogates import FitConfig, fitting, gp, wsabi
from bqnes_jax.surrogates.base import Design
from bqnes_jax.surrogates.fitting import Shape, _thin, no_shape
from bqnes_jax.surrogates.solve import _cholesky, profile_loss, solve
from tests.helpers.toy import GRID, POINTS, Endless

ENDLESS = Endless()
KERNEL = RBF(GRID, np.array([0.6, 0.9]))
FIT = FitConfig((1e-3, 10.0), kernel_steps=4, mean="constant")
SEARCH = SearchConfig(
    initial=6, budget=16, temperature=1.0, fit=FIT, pool=24, mutated=8, samples=16, climbs=2
)


def surface(archs, np=np):
    x, y = archs[:, 0], archs[:, 1]
    return np.sin(x) + 0.3 * y - 0.05 * x * y


def design_of(n, padding=0):
    """Observations of a surface with noise, the first two of the same architecture."""
    rng = np.random.default_rng(0)
    archs = rng.integers(0, 6, (n + padding, 2))
    archs[:2] = 0
    mask = np.arange(n + padding) < n
    targets = np.where(mask, surface(archs) + rng.normal(size=n + padding) / 10, 0)
    return Design(*map(jnp.asarray, (archs.astype(np.int32), targets, mask)))


def test_a_fit_ends_where_nothing_is_gained(monkeypatch):
    tried = []

    def count(*given):
        jax.debug.callback(lambda: tried.append(given))
        return profile_loss(*given)

    monkeypatch.setattr(fitting, "profile_loss", count)
    config = FitConfig((1e-3, 10.0), kernel_steps=1000, mean="constant")
    fit = jax.jit(fitting._adapt_kernel, static_argnums=2)
    jax.block_until_ready(fit(KERNEL, design_of(20), config))
    jax.effects_barrier()
    assert 5 < len(tried) < 300


@pytest.mark.slow
@pytest.mark.parametrize("mean", [None, 0.3])
def test_the_loss_has_its_gradient_in_closed_form(mean, tolerance):
    design = design_of(20, padding=5)

    def loss(log_parameters, of=profile_loss):
        scales, ratio = jnp.exp(log_parameters[:2]), jnp.exp(log_parameters[2])
        return of(RBF(GRID, scales), design, ratio, mean)

    def through_the_factor(kernel, design, ratio, mean):
        solution = solve(kernel, design, ratio, mean)
        return 0.5 * (jnp.log(solution.quadratic / 20) + solution.log_determinant / 20)

    at = np.log([0.6, 0.9, 0.05])
    derive = jax.value_and_grad(loss)
    value, gradient = map(np.asarray, jax.jit(derive)(at))
    theirs = jax.jit(jax.value_and_grad(lambda at: loss(at, through_the_factor)))(at)
    np.testing.assert_allclose(value, theirs[0], rtol=tolerance(1e-4, 1e-10))
    np.testing.assert_allclose(gradient, theirs[1], rtol=tolerance(5e-3, 1e-8), atol=1e-5)
    near = at + 1e-6 * np.eye(4, 3, k=-1)  # at it, and a step away from it in each direction
    values, gradients = map(np.asarray, jax.jit(jax.vmap(derive))(near))
    np.testing.assert_allclose(gradients[0], gradient, rtol=tolerance(1e-3, 1e-10), atol=1e-6)
    if gradient.dtype == np.float64:
        np.testing.assert_allclose(gradient, (values[1:] - values[0]) / 1e-6, atol=1e-5)


def test_the_loss_of_constant_targets_has_a_finite_gradient():
    design = design_of(8)._replace(targets=jnp.asarray(np.ones(8)))
    slope = jax.jit(jax.grad(lambda ratio: profile_loss(KERNEL, design, ratio, None)))
    assert np.isfinite(slope(0.1))


def test_a_factor_with_jitter_is_differentiated_like_one_without(tolerance):
    half = np.random.default_rng(0).normal(size=(6, 6))
    change, regular = half + half.T, half @ half.T + np.eye(6)

    @jax.jit
    def derivatives(regular, change):
        factors = (lambda m: _cholesky(m)[0], jnp.linalg.cholesky)
        return [jax.jvp(factor, (regular,), (change,))[1] for factor in factors]

    ours, theirs = derivatives(regular, change)
    np.testing.assert_allclose(ours, theirs, atol=tolerance(1e-4, 1e-10))
    lower, jitter = jax.jit(_cholesky)(np.ones((3, 3)))  # of rank one
    assert 0 < jitter < 1e-4
    assert np.isfinite(lower).all()


@pytest.mark.slow("float64")
def test_rbf_derivatives_are_those_of_its_formula(tolerance):
    archs, others = POINTS[::5], POINTS[1::7]
    weights = np.random.default_rng(0).normal(size=(len(archs), len(others)))

    def plain(scales):
        difference = GRID.coordinates(archs)[:, None] - GRID.coordinates(others)
        return jnp.sum(weights * jnp.exp(-0.5 * jnp.sum((difference / scales) ** 2, axis=-1)))

    def ours(scales):
        return jnp.sum(weights * RBF(GRID, scales).cross(archs, others))

    @jax.jit
    def derivatives(at):
        kinds = (jax.grad, jax.jacfwd, jax.hessian)
        return [[derivative(f)(at) for f in (ours, plain)] for derivative in kinds]

    for found, wanted in derivatives(np.array([0.4, 1.3])):
        np.testing.assert_allclose(found, wanted, rtol=tolerance(1e-3, 1e-9), atol=1e-4)


@pytest.mark.slow("float64")
@pytest.mark.parametrize("mean", ["zero", "constant"])
def test_amplitude_and_mean_are_the_likeliest_for_a_shape(mean, tolerance):
    design = design_of(15, padding=3)
    shape = Shape(KERNEL, jnp.asarray(0.05), jnp.asarray(False), jnp.int32(15))
    found = gp.complete_design(shape, design, FitConfig(mean=mean))
    covariance = np.asarray(KERNEL.gram(design.archs), float)[:15, :15] + 0.05 * np.eye(15)
    targets, inverse = np.asarray(design.targets, float)[:15], np.linalg.inv(covariance)
    c = inverse.sum(axis=0) @ targets / inverse.sum() if mean == "constant" else 0.0
    a = (targets - c) @ inverse @ (targets - c) / 15
    wanted = (a, 0.05 * a, c)
    np.testing.assert_allclose(found.hyperparameters, wanted, rtol=tolerance(1e-3, 1e-9), atol=1e-6)
    again = gp.condition_design(KERNEL, design, found.hyperparameters)
    pair = (found.predict(design.archs), again.predict(design.archs))
    np.testing.assert_allclose(*pair, rtol=tolerance(1e-2, 1e-7), atol=tolerance(1e-4, 1e-9))


@pytest.mark.slow
def test_a_shape_is_kept_until_enough_has_been_added(tolerance):
    design = design_of(24)

    @functools.partial(jax.jit, static_argnums=2)
    def refit_masked(shape, mask, growth):
        config = FitConfig((1e-3, 10.0), kernel_steps=4, growth=growth)
        options = {"mask": mask, "temperature": 1.0, "fit_config": config}
        return (
            *wsabi.refit(shape, KERNEL, design.archs, design.targets, **options),
            wsabi.fit(KERNEL, design.archs, design.targets, **options),
        )

    def refit(shape, n, growth=0.25):
        return refit_masked(shape, np.arange(24) < n, growth)

    model, shape, fitted = refit(no_shape(KERNEL), 12)
    np.testing.assert_allclose(model.latent.coefficients, fitted.latent.coefficients)
    assert int(shape.points) == 12
    for n in (13, 14):
        model, kept, _ = refit(shape, n)
        np.testing.assert_array_equal(kept.kernel.length_scales, shape.kernel.length_scales)
        amplitude, noise, _ = map(np.asarray, model.latent.hyperparameters)
        np.testing.assert_allclose(noise / amplitude, shape.ratio, rtol=1e-5)
        assert int(model.design.mask.sum()) == n
    for n, growth in ((15, 0.25), (13, 0.0), (9, 0.25)):  # enough, always, fewer
        model, new, fitted = refit(shape, n, growth)
        assert int(new.points) == n
        np.testing.assert_allclose(new.kernel.length_scales, fitted.kernel.length_scales)
        np.testing.assert_allclose(model.latent.factor, fitted.latent.factor, rtol=1e-5)


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_more_targets_than_points_are_taken_evenly():
    design = Design(jnp.arange(20)[:, None], jnp.arange(20.0), jnp.arange(20) < 16)
    np.testing.assert_array_equal(_thin(design, 8).targets, np.arange(0, 16, 2))
    few = _thin(design._replace(mask=jnp.arange(20) % 4 == 1), 8)
    np.testing.assert_array_equal(few.targets[few.mask], [1, 5, 9, 13, 17])
    assert _thin(design, 20) is design


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_a_long_history_is_thinned_to_its_best_and_others():
    values = jnp.array([5.0, 1, jnp.nan, 7, 2, 3, 4, 6, 0, 0])  # the last two are padding
    archs = jnp.arange(10, dtype=jnp.int32)[:, None]
    history = empty_history(10, 1)._replace(archs=archs, log_likelihoods=values)
    kept = jax.jit(lambda history: history.thin(4))(history._replace(count=jnp.int32(8)))
    assert int(kept.count) == 4
    assert kept.archs.ravel().tolist() == [3, 0, 2, 5]  # the best; of 0 1 2 4 5 6 7, three
    few = history._replace(count=jnp.int32(3)).thin(8)
    assert sorted(few.archs[few.evaluated].ravel().tolist()) == [0, 1, 2]
    assert history.thin(10) is history


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_what_is_among_others_is_found_by_comparing_rows():
    rng = np.random.default_rng(0)
    archs, others = (rng.integers(0, 2, (40, 4), np.int32) for _ in range(2))
    counts = rng.random(40) < 0.3
    wanted = (archs[:, None] == others[counts]).all(axis=-1).any(axis=1)
    found = is_among(jnp.asarray(archs), jnp.asarray(others), jnp.asarray(counts))
    np.testing.assert_array_equal(found, wanted)
    assert wanted.any() and not wanted.all()


def strategy_of_us():
    return make("us", ENDLESS, kernel=RBF(ENDLESS, np.array([0.6, 0.9])), config=SEARCH)


def searched(keys=None):
    strategy = strategy_of_us()

    def run(key):
        return scan(strategy, SEARCH, key, lambda archs: Outcome(archs, surface(archs, jnp)))

    return jax.jit(run)(jax.random.key(0)) if keys is None else jax.jit(jax.vmap(run))(keys)


@functools.cache
def searched_at_once(precision):
    del precision  # only to compile once for each
    return searched()


@functools.cache
def kept_strategy(precision):
    del precision
    return strategy_of_us()


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float64"], indirect=True)
def test_shorter_histories_choose_the_same(monkeypatch, precision):
    at_once = searched_at_once(precision)
    monkeypatch.setattr("bqnes_jax.candidates.registry._STAGE", 7)
    assert stages(16) == (7, 14, 16)
    monkeypatch.setattr("bqnes_jax.candidates.registry._STAGE", 9)
    assert stages(16) == (9, 16)
    in_stages = searched()
    np.testing.assert_array_equal(at_once.history.archs, in_stages.history.archs)
    pair = (at_once.trace.evidence.log_evidence, in_stages.trace.evidence.log_evidence)
    np.testing.assert_allclose(*pair, rtol=1e-6)
    keys = jax.random.split(jax.random.key(5), 2).at[0].set(jax.random.key(0))
    together = searched(keys)
    np.testing.assert_array_equal(together.history.archs[0], at_once.history.archs)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float64"], indirect=True)
def test_a_search_refits_when_its_candidates_have_grown(precision):
    trace = searched_at_once(precision).trace  # 6, 7, … 16 candidates; a tenth more, rounded up
    scales = np.asarray(trace.kernel.length_scales)
    changed = [
        n for n, a, b in zip(range(7, 17), scales, scales[1:], strict=False) if (a != b).any()
    ]
    assert changed == [7, 8, 9, 10, 11, 13, 15]


@pytest.mark.slow
@pytest.mark.parametrize("told", ["failures", "one", "twins"])
def test_odd_histories_have_a_next_step(told, precision):
    archs = np.array([[0, 1], [2, 3], [4, 5], [1, 1]]) * (0 if told == "twins" else 1)
    values = np.full(4, np.nan) if told == "failures" else np.array([0.3, 0.1, -np.inf, 0.2])
    some = slice(0, 1) if told == "one" else slice(None)
    strategy = kept_strategy(precision)
    state = State(empty_history(16, 2), strategy.init(jax.random.key(0))[0].reference)
    state, info = strategy.ask(jax.random.key(1), tell(state, Outcome(archs[some], values[some])))
    assert all(np.isfinite(value) for value in info.hyperparameters)
    assert (np.asarray(info.archs) >= 0).all()
    again = strategy.ask(jax.random.key(1), state)[1]  # by the shape that was kept
    np.testing.assert_array_equal(again.archs, info.archs)


@pytest.mark.parametrize(
    ("fields", "message"),
    [({"growth": -0.1}, "growth is -0.1"), ({"points": 1}, "points is 1")],
)
@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_impossible_settings_are_refused(fields, message):
    with pytest.raises(BQNESError, match=message):
        FitConfig(**fields)
