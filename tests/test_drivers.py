"""Both drivers take the same steps, for every strategy, and a recorded search is continued."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bqnes_jax import candidates
from bqnes_jax.candidates import SearchConfig
from bqnes_jax.drivers import Recorded, loop, loop_all, scan
from bqnes_jax.spaces import Product
from bqnes_jax.surrogates import FitConfig
from bqnes_jax.tables import evaluator
from tests.algorithms.test_algorithms import table
from tests.conftest import all_but_slow
from tests.helpers.toy import GRID, Polynomial

WIDE = Product(**{f"c{i}": (0, 1, 2, 3, 4) for i in range(12)})  # cannot be listed
SETTING = {"initial": 4, "batch": 2, "population": 5, "temperature": 1.0}
SMALL = {"pool": 24, "mutated": 8, "samples": 16, "climbs": 2, "parents": 3}


def evaluate_wide(archs):
    log_probs = -jnp.exp(-jnp.asarray(archs, float) / 4) * jnp.arange(1, 13) / 12
    return candidates.Outcome(archs, jnp.sum(log_probs, axis=1), log_probs)


@functools.cache
def setting_of(name, space, precision, budget=9):  # of 9 candidates the last batch has one
    del precision  # only to compile once for each
    if space is GRID:
        config = SearchConfig(budget=budget, **SETTING)
        return candidates.make(name, space, kernel=Polynomial(), config=config), config
    # One strategy fits its kernel, which is half of a step's program.
    fit = FitConfig() if name == "us" else FitConfig(kernel_steps=0)
    config = SearchConfig(budget=budget, fit=fit, **SETTING, **SMALL)
    return candidates.make(name, space, config=config), config


@pytest.mark.parametrize("name", all_but_slow(candidates.strategies(), "us"))
# Many programs to compile: one space in each precision.
@pytest.mark.parametrize(
    ("space", "precision"),
    [(GRID, "float64"), (WIDE, "float32")],
    indirect=["precision"],
    ids=["listed", "drawn"],
)
def test_scan_and_loop_choose_the_same_candidates(name, space, precision, tolerance):
    strategy, config = setting_of(name, space, precision)
    look_up = evaluator(table(), GRID) if space is GRID else evaluate_wide
    key = jax.random.key(3)
    scanned = jax.jit(lambda key: scan(strategy, config, key, look_up))(key)
    looped = loop(strategy, config, key, look_up)
    np.testing.assert_array_equal(scanned.history.archs, looped.history.archs)
    np.testing.assert_array_equal(scanned.trace.count, looped.trace.count)
    np.testing.assert_array_equal(looped.trace.count, [4, 6, 8, 9])
    scores = scanned.history.scores, looped.history.scores
    np.testing.assert_allclose(*scores, rtol=tolerance(1e-3, 1e-8), atol=tolerance(1e-4, 1e-9))
    together = loop_all(strategy, config, [key, jax.random.key(4)], look_up)
    np.testing.assert_array_equal(together[0].history.archs, looped.history.archs)
    assert (together[1].history.archs != looped.history.archs).any()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["us", "evolution"])
@pytest.mark.parametrize("budget", [8, 9])
@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_a_recorded_search_is_continued(name, budget, precision):
    """Where the record ends with a batch, the result is that of one long search."""
    short, config = setting_of(name, GRID, precision, budget)
    look_up, key = evaluator(table(), GRID), jax.random.key(1)
    before = loop(short, config, key, look_up).history
    longer, config = setting_of(name, GRID, precision, 12)
    evaluated = []

    def count(archs):
        evaluated.append(len(archs))
        return look_up(archs)

    recorded = Recorded(before.archs, before.scores)
    after = loop(longer, config, key, count, recorded=recorded)
    assert sum(evaluated) == 12 == int(after.history.count)
    np.testing.assert_array_equal(after.history.archs[:budget], before.archs)
    np.testing.assert_array_equal(after.history.scores[:budget], before.scores)
    counts = [4, 6, 8, 10, 12] if budget == 8 else [4, 6, 8, 9, 11, 12]
    np.testing.assert_array_equal(after.trace.count, counts)
    if budget == 8:
        whole = loop(longer, config, key, look_up).history
        np.testing.assert_array_equal(after.history.archs, whole.archs)
