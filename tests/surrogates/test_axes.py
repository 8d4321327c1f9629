"""Axes that grow by a point at a time, and the searches that use them."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bqnes_jax.candidates import SearchConfig, make
from bqnes_jax.drivers import scan
from bqnes_jax.kernels import WL
from bqnes_jax.quadrature import acquisition
from bqnes_jax.spaces import NATS
from bqnes_jax.surrogates import FitConfig, gp
from bqnes_jax.surrogates.axes import find_axes, grow_axes, no_axes
from bqnes_jax.surrogates.fitting import no_shape
from bqnes_jax.surrogates.wsabi import fit, refit
from bqnes_jax.tables import Table, evaluator

DRAW = np.random.default_rng(0).normal
COUNTED = np.random.default_rng(1).integers(0, 3, (40, 9))
POINTS = {
    "drawn": DRAW(size=(40, 12)),
    "counted": np.repeat(COUNTED, 2, axis=0),
    "the same": np.tile(DRAW(size=8), (20, 1)),
    "nearly the same": DRAW(size=8) + 1e-7 * DRAW(size=(20, 8)),
    "orthogonal": np.tile(np.eye(6), (3, 1)),
    "in one plane": DRAW(size=(30, 2)) @ DRAW(size=(2, 10)),
    "zero at first": np.concatenate([np.zeros((3, 5)), DRAW(size=(9, 5))]),
    "zero": np.zeros((10, 5)),
    "of all sizes": DRAW(size=(40, 12)) * 10.0 ** -np.arange(12),
    "large": 1e6 * DRAW(size=(30, 10)),
    "small": 1e-8 * DRAW(size=(30, 10)),
    "numbers": DRAW(size=(9, 1)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", POINTS)
def test_axes_are_the_singular_vectors_after_every_point(name, precision):
    points = POINTS[name].astype(precision)
    eps, exact = np.finfo(precision).eps, points.astype(float)
    grow, axes = jax.jit(grow_axes), no_axes(points.shape[1])
    for n in range(1, len(points) + 1):
        axes = grow(axes, points, jnp.int32(n))
        vectors, lengths = np.asarray(axes.vectors, float), np.asarray(axes.lengths, float)
        expected = np.zeros(points.shape[1])
        singular = np.linalg.svd(exact[:n], compute_uv=False)
        expected[: len(singular)] = singular
        # Where lengths are equal their roots are found to fewer digits.
        close = eps**0.75 * (expected[0] or 1.0)
        assert (np.diff(lengths) >= 0).all()
        assert np.abs(vectors.T @ vectors - np.eye(len(vectors))).max() < 50 * eps
        assert np.abs(lengths[::-1] - expected).max() < close
        # Seen along its axes, the matrix is as long as it should be: no direction is lost.
        assert np.abs(np.linalg.norm(exact[:n] @ vectors, axis=0) - lengths).max() < 2 * close
    assert int(axes.points) == len(points)


@pytest.mark.slow("float64")
def test_axes_may_grow_by_any_number_of_points_and_begin_again(tolerance):
    points = jnp.asarray(POINTS["drawn"], float)
    close = {"rtol": tolerance(1e-5, 1e-13)}
    known = find_axes(points, jnp.int32(40)).lengths
    step = grow_axes(no_axes(12), points, jnp.int32(7))
    np.testing.assert_allclose(grow_axes(step, points, jnp.int32(40)).lengths, known, **close)
    # Of fewer points than before, nothing is known.
    again = grow_axes(grow_axes(step, points, jnp.int32(40)), points, jnp.int32(7))
    np.testing.assert_allclose(again.lengths, step.lengths, **close)
    each = jax.vmap(functools.partial(grow_axes, no_axes(12)), (None, 0))
    np.testing.assert_allclose(each(points, jnp.array([7, 40])).lengths[1], known, **close)


@functools.cache
def features():
    return np.asarray(WL(NATS).features(NATS.sample(jax.random.key(3), 130)))


@pytest.mark.slow
@pytest.mark.parametrize("noise", [1e-5, 1e-1])
def test_what_is_fitted_along_axes_is_what_solving_gives(noise, tolerance):
    archs = NATS.sample(jax.random.key(0), 130)
    targets = jnp.sum(archs == 3, axis=1) + jnp.sin(jnp.arange(130.0))
    config = FitConfig((noise, 1.001 * noise), mean="constant")
    found = gp.fit(WL(NATS), archs, targets, config=config)
    solved = gp.condition(WL(NATS), archs, targets, found.hyperparameters)
    assert found.axes is not None and solved.axes is None
    others = NATS.sample(jax.random.key(1), 200)
    ours, theirs = found.predict(others), solved.predict(others)
    scale = float(found.hyperparameters.amplitude)
    np.testing.assert_allclose(ours.mean, theirs.mean, atol=tolerance(2e-3, 1e-9) * scale**0.5)
    np.testing.assert_allclose(ours.variance, theirs.variance, atol=tolerance(2e-4, 1e-10) * scale)


@pytest.mark.slow
def test_an_outlook_is_never_below_what_is_predicted():
    archs, others = NATS.sample(jax.random.key(0), 120), NATS.sample(jax.random.key(1), 500)
    model = fit(WL(NATS), archs, -300.0 * jnp.sum(archs != 3, axis=1))
    outlook, prediction = model.outlook(others), model.predict(others)
    assert outlook is not None
    np.testing.assert_allclose(outlook.mean, prediction.mean, rtol=1e-5)
    assert (outlook.variance >= prediction.variance).all()
    assert model.fantasise(others[:1]).outlook(others) is None


@pytest.mark.slow
def test_a_fit_that_grows_is_the_fit_to_all(tolerance):
    kernel, archs = WL(NATS), NATS.sample(jax.random.key(0), 130)
    values = -200.0 * jnp.sum(archs != 3, axis=1) + 50 * jnp.cos(jnp.arange(130.0))
    shape = no_shape(kernel, features().shape[1])
    for n in (30, 31, 90, 130):
        mask = jnp.arange(130) < n
        grown, shape = refit(shape, kernel, archs, values, mask=mask)
        whole = fit(kernel, archs, values, mask=mask)
        close = {"rtol": tolerance(5e-3, 1e-6), "atol": tolerance(1e-3, 1e-8)}
        np.testing.assert_allclose(grown.predict(archs).mean, whole.predict(archs).mean, **close)
        np.testing.assert_allclose(
            grown.latent.hyperparameters.noise, whole.latent.hyperparameters.noise, **close
        )


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float64"], indirect=True)
@pytest.mark.parametrize("name", ["us", "ei"])
def test_a_search_chooses_what_it_would_from_scratch(name, monkeypatch):
    config = SearchConfig(initial=6, budget=112)
    scratch = dataclasses.replace(config, fit=dataclasses.replace(config.fit, growth=0.0))
    draw = np.random.default_rng(0)
    smooth = np.asarray(WL(NATS).features(NATS.from_index(jnp.arange(NATS.size))))
    smooth = smooth @ draw.normal(size=smooth.shape[1])
    surface = 128 * (4 * smooth / smooth.std() + 0.3 * draw.normal(size=NATS.size))
    evaluate = evaluator(Table(jnp.asarray(surface), jnp.zeros(NATS.size)), NATS)
    fast = make(name, NATS, config=config)

    def search(strategy, key):
        return NATS.index(scan(strategy, config, key, evaluate).history.archs)

    keys = jax.random.split(jax.random.key(0), 2)
    found = jax.jit(lambda: jax.lax.map(functools.partial(search, fast), keys))()

    # Every cell is scored, and nothing is remembered from one step to the next.
    monkeypatch.setattr(acquisition, "_SHORTLIST", NATS.size)
    slow = make(name, NATS, config=scratch)
    expected = jax.jit(lambda: jax.lax.map(functools.partial(search, slow), keys))()
    np.testing.assert_array_equal(found, expected)
