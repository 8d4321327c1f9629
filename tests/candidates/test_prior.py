"""Priors other than uniform, against brute force on a space of 36 points."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import log_softmax, logsumexp

from bqnes_jax import algorithms
from bqnes_jax.candidates import Outcome, SearchConfig, make, strategies
from bqnes_jax.drivers import scan
from bqnes_jax.errors import BQNESError
from bqnes_jax.quadrature import drawn_evidence, exact_evidence, log_posterior, sampled_evidence
from bqnes_jax.runs import configure, make_prior
from bqnes_jax.spaces import Subset
from bqnes_jax.surrogates import wsabi
from bqnes_jax.tables import Table, evaluator
from tests.candidates.test_candidates import ENDLESS
from tests.helpers.toy import GRID, POINTS, Polynomial

CONFIG = SearchConfig(
    initial=6, budget=14, batch=2, population=6, samples=64, pool=32, mutated=8, climbs=2,
    temperature=1.0,
)  # fmt: skip
SOME = POINTS[[0, 7, 13, 20, 26, 33]].astype(np.int32)
EVEN = tuple(range(0, 36, 2))


def tilted(archs):
    """Favour one side, by far more than a likelihood can say; rule one column out."""
    archs = jnp.asarray(archs)
    return jnp.where(archs[..., 1] == 5, -jnp.inf, 2.0 * archs[..., 0] - archs[..., 1])


def only_even(archs):
    return jnp.where(GRID.index(jnp.asarray(archs)) % 2 == 0, 3.7, -jnp.inf)


def likelihoods(archs):
    x, y = jnp.moveaxis(GRID.coordinates(archs), -1, 0)
    return -3 * (x - 0.3) ** 2 - 2 * (y - 0.6) ** 2


def told(strategy, archs):
    """Tell a strategy what some architectures gave, and return what it asks and believes."""

    @jax.jit
    def step(archs):
        state, _ = strategy.init(jax.random.key(3))
        return strategy.step(jax.random.key(4), state, Outcome(archs, likelihoods(archs)))[1]

    return step(archs)


@functools.cache
def told_without_a_prior(precision):
    del precision  # only to compile once for each
    return told(make("us", GRID, kernel=Polynomial(), config=CONFIG), SOME)


def evaluate_grid(archs):
    """Give each point of the grid predictions for eight validation points."""
    noise = jnp.sin(jnp.arange(8) * (1 + GRID.index(archs)[:, None]))
    log_probs = likelihoods(archs)[:, None] / 8 - 0.3 - 0.2 * noise
    return Outcome(archs, jnp.sum(log_probs, axis=1), log_probs)


@pytest.mark.slow
def test_evidence_and_acquisition_are_those_of_the_definition(precision, tolerance):
    strategy = make("us", GRID, kernel=Polynomial(), config=CONFIG, prior=tilted)
    info = told(strategy, SOME)
    log_prior = np.asarray(jax.jit(tilted)(POINTS))
    model = wsabi.fit(
        Polynomial(),
        SOME,
        jax.jit(likelihoods)(SOME),
        temperature=CONFIG.temperature,
        fit_config=CONFIG.fit,
    )
    exact = exact_evidence(model, GRID, log_prior=log_prior)
    close = {"rtol": tolerance(1e-2, 1e-8), "atol": tolerance(1e-2, 1e-8)}
    for ours, theirs in zip(info.evidence[:3], exact[:3], strict=True):
        np.testing.assert_allclose(ours, theirs, **close)
    masses = np.exp(log_prior.astype(float))
    masses /= masses.sum()
    variance = np.asarray(model.predict(POINTS).variance, float)
    fresh = ~np.isin(np.arange(36), SOME @ [6, 1])
    scores = np.where(fresh, variance * masses**2, 0)
    np.testing.assert_allclose(info.scores[0], np.log(scores.max()), **close)
    chosen = np.asarray(info.archs)[0] @ [6, 1]
    assert scores[chosen] >= (1 - tolerance(2e-2, 1e-8)) * scores.max()
    uniform = told_without_a_prior(precision)
    assert abs(float(uniform.evidence.log_evidence) - float(exact.log_evidence)) > 0.1


@pytest.mark.slow("float64")
def test_a_constant_prior_is_none(precision, tolerance):
    def constant(archs):
        return jnp.full(len(archs), -7.0)

    known = told_without_a_prior(precision)
    given = told(make("us", GRID, kernel=Polynomial(), config=CONFIG, prior=constant), SOME)
    np.testing.assert_array_equal(known.archs, given.archs)
    np.testing.assert_allclose(
        given.evidence.log_evidence, known.evidence.log_evidence, rtol=tolerance(1e-4, 1e-10)
    )


@pytest.mark.slow
def test_a_prior_that_is_uniform_on_a_part_is_a_search_of_the_part(tolerance):
    part = Subset(GRID, EVEN)
    archs = POINTS[list(EVEN[:6])].astype(np.int32)
    by_prior = told(make("us", GRID, kernel=Polynomial(), config=CONFIG, prior=only_even), archs)
    of_part = told(make("us", part, kernel=Polynomial(), config=CONFIG), archs)
    np.testing.assert_array_equal(by_prior.archs, of_part.archs)
    for ours, theirs in zip(by_prior.evidence[:3], of_part.evidence[:3], strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=tolerance(2e-3, 1e-9), atol=1e-6)


@functools.cache
def searches_of(name, space, prior, precision):
    del precision  # only to compile once for each
    kernel = Polynomial() if space is GRID else Polynomial(ENDLESS)
    strategy = make(name, space, kernel=kernel, config=CONFIG, prior=prior)
    return jax.jit(jax.vmap(lambda key: scan(strategy, CONFIG, key, evaluate_grid)))


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32"], indirect=True)
@pytest.mark.parametrize("name", ["random", "evolution", "ei", "us", "posterior"])
@pytest.mark.parametrize("space", [GRID, ENDLESS], ids=["listed", "drawn"])
def test_what_is_ruled_out_is_never_evaluated(name, space, precision):
    assert name in strategies()
    keys = jax.random.split(jax.random.key(0), 3)
    history, trace = searches_of(name, space, only_even, precision)(keys)
    index = np.asarray(history.archs) @ [6, 1]
    assert (index % 2 == 0).all()
    if space is GRID:
        assert all(len(set(row)) == len(row) for row in index.tolist())
    assert np.isfinite(trace.evidence.log_evidence).all()


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32"], indirect=True)
@pytest.mark.parametrize("name", ["random", "posterior"])
def test_draws_estimate_the_evidence_of_the_prior_without_bias(name, precision):
    keys = jax.random.split(jax.random.key(0), 400)
    history, _ = searches_of(name, GRID, tilted, precision)(keys)
    log_prior = log_softmax(jax.jit(tilted)(POINTS))

    @jax.jit
    @jax.vmap
    def estimate(values, scores, prior):
        return drawn_evidence(values, scores, 36, log_prior=prior, temperature=1.0)

    prior = log_prior[np.asarray(history.archs) @ [6, 1]]
    evidence = estimate(history.log_likelihoods, history.scores, prior)
    values = np.asarray(jax.jit(lambda archs: evaluate_grid(archs).log_likelihoods)(POINTS))
    exact = logsumexp(values.astype(float) + log_prior)
    ratios = np.exp(np.asarray(evidence.log_evidence, float) - exact)
    error = ratios.std() / np.sqrt(len(keys))
    assert abs(ratios.mean() - 1) < 4 * error + 1e-5
    assert error < 0.05


@pytest.mark.slow("float64")
def test_weighted_draws_estimate_the_sum(key):
    known = jax.jit(likelihoods)(POINTS[::5])
    model = wsabi.fit(Polynomial(), POINTS[::5], known, temperature=CONFIG.temperature)
    exact = exact_evidence(model, GRID, log_prior=jax.jit(tilted)(POINTS))
    each = jax.jit(
        jax.vmap(lambda one: sampled_evidence(one, model, GRID, samples=256, prior=tilted))
    )(jax.random.split(key, 100))
    errors = np.asarray(each.log_evidence, float) - float(exact.log_evidence)
    assert abs(errors.mean()) < 5 * errors.std() / 10 + 0.02
    np.testing.assert_allclose(np.mean(each.sampling_sd), errors.std(), rtol=0.35)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_recombination_has_the_prior_in_its_posterior():
    config = dataclasses.replace(CONFIG, budget=12)
    run = algorithms.make("BQ-R", GRID, 1, kernel=Polynomial(), config=config, prior=tilted)
    results = jax.jit(jax.vmap(run, (0, None)), static_argnums=1)(
        jax.random.split(jax.random.key(1), 3), evaluate_grid
    )
    for archs, values, member in zip(
        *map(np.asarray, (results.history.archs, results.history.log_likelihoods, results.archs)),
        strict=True,
    ):
        posterior = log_posterior(values, jax.jit(tilted)(archs), temperature=1.0)
        assert member[0].tolist() == archs[np.argmax(posterior)].tolist()


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_what_is_refused(tmp_path, monkeypatch):
    table = Table(jnp.zeros(36), jnp.zeros(36))
    with pytest.raises(BQNESError, match="budget is 19; the prior allows 18 architectures"):
        make("us", GRID, config=SearchConfig(4, 19), prior=only_even)
    with pytest.raises(BQNESError, match=r"prior returned an array of shape \(1,\)"):
        make("us", GRID, config=CONFIG, prior=lambda archs: jnp.zeros(1))
    with pytest.raises(BQNESError, match="not all −inf"):
        make("us", GRID, config=CONFIG, prior=lambda archs: jnp.full(len(archs), -jnp.inf))
    with pytest.raises(BQNESError, match="'NES-BS', in which a prior plays no part"):
        algorithms.make("NES-BS", GRID, 2, prior=tilted)(jax.random.key(0), evaluator(table, GRID))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_prior.py").write_text("by_name = lambda archs: archs[:, 0] * 1.0\nother = 3\n")
    prior = make_prior("own_prior:by_name")
    assert prior is not None and prior(POINTS).shape == (36,)
    with pytest.raises(BQNESError, match="prior is 'own_prior:other', which is no function"):
        make_prior("own_prior:other")
    with pytest.raises(BQNESError, match="there is no module 'nowhere'"):
        make_prior("nowhere:prior")
    named = configure("tiny", prior="own_prior:by_name")
    assert named.identity() != configure("tiny").identity()
