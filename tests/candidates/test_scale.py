"""The scale of the likelihood: one temperature, by the number of points, for everything."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bqnes_jax import algorithms, candidates
from bqnes_jax.candidates import Outcome, SearchConfig
from bqnes_jax.cli import main
from bqnes_jax.cli.compare import CompareCommand
from bqnes_jax.drivers import loop, scan
from bqnes_jax.errors import BQNESError
from bqnes_jax.identity import identity
from bqnes_jax.kernels import RBF
from bqnes_jax.quadrature import (
    OBSERVATIONS,
    choose_temperature,
    effective_size,
    log_posterior,
    scale_temperature,
)
from bqnes_jax.runs import preset_config
from bqnes_jax.runs.fields import replace_fields
from bqnes_jax.selection import select
from bqnes_jax.surrogates import FitConfig, wsabi
from bqnes_jax.tables import Table, evaluator
from tests.helpers.toy import GRID
from tests.helpers.toy import POINTS as EVERYTHING

POINTS = 20
SEARCH = {"initial": 4, "budget": 8, "batch": 2, "fit": FitConfig(kernel_steps=0)}


def table(predictions=True):
    log_probs = -np.random.default_rng(0).gamma(0.5, size=(GRID.size, POINTS)) - 0.01
    summed, nothing, log_probs = map(
        jnp.asarray, (log_probs.sum(axis=1), np.zeros(GRID.size), log_probs)
    )
    return Table(summed, nothing, log_probs if predictions else None)


@pytest.fixture
def searched(precision):
    """Return a function that searches, once for each setting and precision, and gives arrays."""
    return functools.partial(search, precision)


@functools.cache
def search(precision, driver=scan, predictions=True, **changes):
    config = SearchConfig(**{**SEARCH, **changes})
    strategy = candidates.make("us", GRID, kernel=RBF(GRID, 0.4), config=config)

    def run(key):
        return driver(strategy, config, key, evaluator(table(predictions), GRID))

    found = (jax.jit(run) if driver is scan else run)(jax.random.key(0))
    return jax.tree.map(np.asarray, found)


# ── how much a posterior is worth ────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("ratio", [1.0, 0.5, 1e-3, 0.0])
def test_two_candidates_have_a_closed_form(ratio, tolerance):
    """(1 + r)² / (1 + r²), r being how much less likely the second is."""
    with np.errstate(divide="ignore"):
        found = effective_size(np.array([7.0, 7.0 + np.log(ratio)]))
    expected = (1 + ratio) ** 2 / (1 + ratio**2)
    np.testing.assert_allclose(found, expected, rtol=tolerance(1e-5, 1e-13))


def test_the_effective_size_is_one_over_the_sum_of_squares(tolerance):
    for n in (1, 2, 7, 100):
        posterior = np.random.default_rng(n).dirichlet(np.ones(n))
        for shift in (0.0, -400.0, 5_000.0):  # exp of it is 0, or infinite
            found = effective_size(np.log(posterior) + shift)
            expected = 1 / np.sum(posterior**2)
            np.testing.assert_allclose(found, expected, rtol=tolerance(5e-3, 1e-9))


def test_no_candidates_are_worth_nothing():
    assert effective_size(np.zeros(0)) == effective_size(np.full(3, -np.inf)) == 0
    assert effective_size(np.array([-np.inf, -3.0, -np.inf])) == 1
    assert effective_size(np.full(3, -1e4)) == 3


# ── a temperature by the number of points, or for an effective size ──────────────────────────────


def test_the_published_temperature_is_that_of_5000_points():
    assert OBSERVATIONS == 39.0625
    assert scale_temperature(5_000) == scale_temperature(None) == wsabi.TEMPERATURE == 128
    assert scale_temperature(600) == 15.36 and scale_temperature(600, observations=100.0) == 6


@pytest.mark.parametrize("effective", [0.05, 0.3, 0.9, 0.999])
@pytest.mark.parametrize("span", [1e-3, 3.0, 2e4])
def test_a_temperature_gives_the_effective_size_that_was_asked_for(effective, span, tolerance):
    values = -5e3 - span * np.random.default_rng(0).random(40)
    values = jnp.asarray(values if span > 1 else values + 5e3)  # float32 has no such small steps
    found = choose_temperature(values, effective=effective)
    worth = effective_size(values / found) / 40
    np.testing.assert_allclose(worth, effective, rtol=tolerance(2e-3, 1e-9))


def test_a_temperature_for_two_candidates_has_a_closed_form(tolerance):
    """With ESS = 2e, r = exp(−d/T) solves (1 + r)² = 2e (1 + r²)."""
    effective, gap = 0.8, 37.0
    a = 2 * effective - 1
    ratio = (1 - np.sqrt(1 - a**2)) / a
    found = choose_temperature(np.array([-gap, 0.0]), effective=effective)
    np.testing.assert_allclose(found, -gap / np.log(ratio), rtol=tolerance(1e-4, 1e-12))


def test_a_temperature_is_that_of_a_fine_grid():
    values = -30 * np.random.default_rng(3).gamma(1.0, size=12)
    grid = np.geomspace(0.1, 1e3, 20_000)
    weights = np.exp((values - values.max()) / grid[:, None])
    worth = weights.sum(axis=1) ** 2 / (weights**2).sum(axis=1)
    expected = grid[np.argmin(np.abs(worth - 0.3 * 12))]
    np.testing.assert_allclose(choose_temperature(values), expected, rtol=1e-3)


def test_failures_and_padding_do_not_count():
    values = np.array([-3.0, -40.0, -9.0, -55.0])
    longer = np.concatenate([values, [np.nan, -np.inf, 7.0]])
    mask = np.arange(7) < 6
    found = choose_temperature(longer, effective=0.5, mask=mask)
    np.testing.assert_allclose(found, choose_temperature(values, effective=0.5), rtol=1e-6)


@pytest.mark.slow("float64")
@pytest.mark.parametrize(
    "values", [[], [-5.0], [-2.0] * 9, [np.nan] * 3, [-np.inf, -4.0], [-1.0, -1.0, -5.0]]
)
def test_without_an_answer_the_temperature_is_another(values):
    """Of three with two alike at the top, the posterior is always worth more than 30 %."""
    assert choose_temperature(np.array(values, float), otherwise=11.0) == 11


def test_both_work_under_jit_and_vmap(tolerance):
    values = -50 * np.random.default_rng(0).random((5, 12))
    values[0], values[1, 3] = -1.0, np.nan
    for function in (choose_temperature, effective_size):
        each = [function(row) for row in values]
        together = jax.jit(jax.vmap(function))(values)
        np.testing.assert_allclose(together, each, rtol=tolerance(1e-4, 1e-12))


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (lambda: choose_temperature(np.zeros(3), effective=1.0), "effective is 1.0; it must be"),
        (lambda: choose_temperature(np.zeros((3, 1))), r"log_likelihoods has shape \(3, 1\)"),
        (lambda: choose_temperature(np.zeros(3), otherwise=0.0), "otherwise is 0.0"),
        (lambda: scale_temperature(5, observations=-1.0), "observations is -1.0"),
        (lambda: SearchConfig(temperature=0.0), "temperature is 0.0; it must be positive"),
        (
            lambda: replace_fields(SearchConfig(), {"temperature": "cold"}),
            "'cold'; it must be a number or",
        ),
        (lambda: SearchConfig(observations=0.0), "observations is 0.0; it must be positive"),
        (lambda: SearchConfig(effective=1.5), "effective is 1.5; it must be between 0 and 1"),
    ],
)
def test_bad_input_is_refused(bad, message):
    with pytest.raises(BQNESError, match=message):
        bad()


# ── one temperature for a whole search ───────────────────────────────────────────────────────────


@pytest.mark.slow
@pytest.mark.parametrize("driver", [scan, loop])
def test_a_search_says_its_temperature_and_what_the_posterior_is_worth(driver, searched, tolerance):
    history, trace = searched(driver)
    np.testing.assert_allclose(trace.temperature, POINTS / OBSERVATIONS, rtol=1e-6)
    for count, worth in zip(trace.count, trace.effective_size, strict=True):
        values = history.log_likelihoods[:count].astype(float)
        weights = np.exp((values - values.max()) * OBSERVATIONS / POINTS)
        expected = weights.sum() ** 2 / (weights**2).sum()
        np.testing.assert_allclose(worth, expected, rtol=tolerance(1e-3, 1e-10))


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_without_predictions_the_published_temperature_stays(searched):
    np.testing.assert_array_equal(searched(predictions=False).trace.temperature, 128)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_the_number_of_observations_and_a_number_decide(searched):
    np.testing.assert_allclose(searched(observations=5.0).trace.temperature, 4, rtol=1e-6)
    np.testing.assert_allclose(searched(temperature=3.0).trace.temperature, 3, rtol=1e-6)


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_auto_chooses_on_the_first_architectures_and_stays(searched):
    history, trace = searched(temperature="auto", effective=0.5)
    expected = choose_temperature(history.log_likelihoods[:4], effective=0.5)
    np.testing.assert_allclose(trace.temperature, expected, rtol=1e-5)
    np.testing.assert_allclose(trace.effective_size[0], 2, rtol=1e-2)


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_auto_falls_back_on_the_number_of_points(searched):
    """A first architecture alone, or first ones that all failed, say nothing of a spread."""
    found = searched(temperature="auto", initial=1).trace.temperature
    np.testing.assert_allclose(found, POINTS / OBSERVATIONS, rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32"], indirect=True)
@pytest.mark.parametrize(
    "options", [{}, {"temperature": 3.0}, {"temperature": "auto", "effective": 0.5}]
)
def test_both_drivers_resolve_the_same_temperature(options, searched):
    here, there = searched(**options), searched(loop, **options)
    np.testing.assert_allclose(here.trace.temperature, there.trace.temperature, rtol=1e-6)
    np.testing.assert_array_equal(here.history.archs, there.history.archs)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_the_temperature_decides_what_is_searched(searched):
    warm, cold = searched(temperature=1e3).history.archs, searched().history.archs
    np.testing.assert_array_equal(warm[:4], cold[:4])
    assert (warm != cold).any()


@pytest.mark.slow("float64")
def test_the_surrogate_sees_the_temperature_of_the_trace(searched, tolerance):
    history, trace = searched()
    model = wsabi.fit(
        RBF(GRID, 0.4),
        history.archs,
        history.log_likelihoods,
        temperature=trace.temperature[-1],
        fit_config=FitConfig(kernel_steps=0),
    )
    expected = model.latent.hyperparameters
    for found, wanted in zip(trace.hyperparameters, expected, strict=True):
        np.testing.assert_allclose(found[-1], wanted, rtol=tolerance(5e-2, 1e-6))


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float64"], indirect=True)
@pytest.mark.parametrize("temperature", [None, 2.0, "auto"])
def test_recombination_uses_the_temperature_of_the_search(temperature):
    config = SearchConfig(**SEARCH, temperature=temperature)
    strategy = candidates.make("us", GRID, kernel=RBF(GRID, 0.4), config=config)
    run = algorithms.make("BQ-R", GRID, 3, kernel=RBF(GRID, 0.4), config=config)
    result = jax.jit(run)(jax.random.key(1), evaluator(table(), GRID))
    assert result.trace is not None
    last = jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf)[-1]), result.trace)
    expected = select(
        "recombine",
        result.history.log_probs,
        3,
        kernel=strategy.gram(last, result.history.archs),
        temperature=last.temperature,
    )
    np.testing.assert_allclose(result.weights, expected.weights, atol=1e-9)


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_select_counts_points_unless_a_temperature_is_given():
    log_probs = table().log_probs
    kernel = RBF(GRID, 0.4).gram(EVERYTHING)
    pick = functools.partial(select, "recombine", log_probs, 4, kernel=kernel)
    same, counted = pick(temperature=POINTS / OBSERVATIONS), pick()
    np.testing.assert_array_equal(counted.members, same.members)
    np.testing.assert_array_equal(counted.weights, same.weights)
    assert (np.asarray(pick(temperature=1e6).weights) != np.asarray(same.weights)).any()


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
@pytest.mark.parametrize("temperature", [None, 2.0, "auto"])
def test_the_variational_distribution_uses_it_too(temperature, monkeypatch):
    class AskedError(Exception):
        pass

    def ask(*_, temperature):
        raise AskedError(temperature)

    monkeypatch.setattr(algorithms.whole_space, "fit_mean_field", ask)
    run = algorithms.make("NES-BS", GRID, 2, config=SearchConfig(**SEARCH, temperature=temperature))
    with pytest.raises(AskedError) as asked:
        run(jax.random.key(0), evaluator(table(), GRID))
    expected = {
        None: POINTS / OBSERVATIONS,
        2.0: 2.0,
        "auto": choose_temperature(table().log_likelihoods),
    }[temperature]
    np.testing.assert_allclose(asked.value.args[0], expected, rtol=1e-5)


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_searches_with_auto_can_be_repeated_over_keys():
    config = SearchConfig(**SEARCH, temperature="auto", effective=0.5)
    strategy = candidates.make("us", GRID, kernel=RBF(GRID, 0.4), config=config)
    found = jax.jit(jax.vmap(lambda key: scan(strategy, config, key, evaluator(table(), GRID))))(
        jax.random.split(jax.random.key(0), 3)
    )
    temperature, worth = map(np.asarray, (found.trace.temperature, found.trace.effective_size))
    assert temperature.shape == (3, 3)
    assert len(np.unique(temperature[:, 0])) == 3
    np.testing.assert_allclose(worth[:, 0], 2, rtol=1e-2)


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_outcomes_with_and_without_points_resolve_alike_in_ask_and_tell():
    config = SearchConfig(**SEARCH)
    strategy = candidates.make("us", GRID, kernel=RBF(GRID, 0.4), config=config)
    state, info = strategy.init(jax.random.key(0))
    assert np.isnan(info.temperature) and info.effective_size == 0
    outcome = Outcome(info.archs, jnp.arange(4.0), jnp.zeros((4, 78)) - 0.1)
    _, info = strategy.step(jax.random.key(1), state, outcome)
    np.testing.assert_allclose(info.temperature, 78 / OBSERVATIONS, rtol=1e-6)


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
@pytest.mark.parametrize(("preset", "temperature"), [("tiny", None), ("paper", 128.0)])
def test_a_comparison_has_the_temperature_of_its_preset(preset, temperature, monkeypatch):
    seen = []
    monkeypatch.setattr(CompareCommand, "__call__", lambda self: seen.append(self.search))
    assert main(["compare", "--preset", preset]) == main(["compare", "--temperature", "auto"]) == 0
    assert (seen[0].temperature, seen[0].budget, seen[1].temperature) == (temperature, 150, "auto")


# ── in configs ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_the_paper_keeps_its_temperature():
    assert preset_config("paper").search.temperature == 128
    assert preset_config("tiny").search.temperature is None


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
@pytest.mark.parametrize("change", [{"temperature": 3}, {"observations": 9}, {"effective": 0.5}])
def test_what_decides_the_temperature_decides_who_a_run_is(change):
    plain = preset_config()
    other = replace_fields(plain, {"search": change})
    assert identity(plain.search) != identity(other.search)
    assert plain.identity() != other.identity()


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
@pytest.mark.parametrize("value", [64, 0.5, "auto", None])
def test_a_file_may_say_any_of_them(value):
    assert replace_fields(SearchConfig(), {"temperature": value}).temperature == value
    with pytest.raises(BQNESError, match="temperature is True; it must be a number or 'auto' or"):
        replace_fields(SearchConfig(), {"temperature": True})


@pytest.mark.slow("float64")
def test_the_posterior_is_the_one_that_is_recombined(searched, tolerance):
    """`effective_size` of `log_posterior` is that of the trace."""
    history, trace = searched()
    posterior = log_posterior(history.log_likelihoods, temperature=trace.temperature[-1])
    found = effective_size(posterior)
    np.testing.assert_allclose(found, trace.effective_size[-1], rtol=tolerance(1e-3, 1e-10))
