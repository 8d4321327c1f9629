"""Strategies that ask no surrogate need not fit one, and bounds that rule candidates out."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bqnes_jax import algorithms
from bqnes_jax.candidates import Outcome, SearchConfig, make
from bqnes_jax.drivers import scan
from bqnes_jax.kernels import WL
from bqnes_jax.quadrature.acquisition import choose_greedily, uncertainty_sampling
from bqnes_jax.selection import select
from bqnes_jax.spaces import NATS, enumerate_space
from bqnes_jax.surrogates import wsabi
from bqnes_jax.surrogates.fitting import FitConfig, no_shape
from bqnes_jax.types import Status

CONFIG = SearchConfig(initial=4, budget=9, population=6)


def evaluate(archs):
    log_probs = -jnp.abs(0.5 * (archs != 3) @ jax.random.normal(jax.random.key(1), (6, 20)))
    return Outcome(archs, 100 * log_probs.sum(axis=1), log_probs)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32"], indirect=True)
@pytest.mark.parametrize("name", ["random", "evolution"])
def test_candidates_are_the_same_without_beliefs(name, precision):
    def search(beliefs):
        strategy = make(name, NATS, config=CONFIG, beliefs=beliefs)
        return jax.jit(lambda key: scan(strategy, CONFIG, key, evaluate))(jax.random.key(0))

    told, untold = search(True), search(False)
    np.testing.assert_array_equal(untold.history.archs, told.history.archs)
    np.testing.assert_array_equal(untold.trace.effective_size, told.trace.effective_size)
    assert np.isfinite(told.trace.hyperparameters.noise).all()
    assert np.isnan(untold.trace.evidence.log_evidence).all()
    assert np.isnan(untold.trace.hyperparameters.noise).all()
    assert (untold.trace.evidence.status == Status.EMPTY).all()


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_a_strategy_that_asks_a_surrogate_fits_it_in_any_case(precision):
    strategy = make("us", NATS, config=CONFIG, beliefs=False)
    found = jax.jit(lambda key: scan(strategy, CONFIG, key, evaluate))(jax.random.key(0))
    assert np.isfinite(found.trace.hyperparameters.noise).all()


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_members_are_the_same_whether_the_kernel_is_there_or_not(precision):
    run = algorithms.make("evolution+beam", NATS, 3, config=CONFIG)
    strategy = make("evolution", NATS, config=CONFIG)
    key = jax.random.key(0)
    chosen = jax.jit(lambda key: run(key, evaluate))(key)
    history = jax.jit(lambda key: scan(strategy, CONFIG, key, evaluate))(key).history
    gram = strategy.gram(strategy.init(key)[1], history.archs)
    wanted = select("beam", history.log_probs, 3, kernel=gram)
    np.testing.assert_array_equal(chosen.archs, history.archs[wanted.members])


@pytest.mark.slow
def test_bounds_are_above_variances_and_choose_what_scoring_everything_chooses():
    archs, kernel = NATS.sample(jax.random.key(0), 130), WL(NATS)
    config = FitConfig((1e-5, 10.0), mean="constant")
    view, on_rows = kernel.split()
    rows = view(archs)
    shape = no_shape(on_rows, rows.shape[1])
    log_likelihoods = -800.0 * jnp.sum(archs != 3, axis=1)
    model, _ = wsabi.refit(shape, on_rows, rows, log_likelihoods, fit_config=config)
    every = view(enumerate_space(NATS))
    outlook, exact = model.latent.outlook(every), model.latent.predict(every)
    assert (outlook.variance >= exact.variance).all()
    np.testing.assert_allclose(outlook.mean, exact.mean, rtol=1e-4, atol=1e-5)

    def choose(logarithmic, eligible):
        return choose_greedily(
            model,
            every,
            uncertainty_sampling,
            eligible,
            1,
            lambda best: jnp.arange(len(every)) == best,
            logarithmic=logarithmic,
        )

    masks = jax.random.bernoulli(jax.random.key(1), 0.5, (3, len(every)))
    bounded = jax.jit(jax.vmap(lambda mask: choose(True, mask)))(masks)
    for i, mask in enumerate(masks):
        alone, plain = choose(True, mask), choose(False, mask)
        assert int(bounded[0][i, 0]) == int(alone[0][0])
        np.testing.assert_allclose(alone[1], plain[1], rtol=1e-3, atol=1e-3)
