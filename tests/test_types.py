"""What a status says in words, and when it is thrown."""

import re

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bqnes_jax.errors import BQNESError
from bqnes_jax.kernels import RBF
from bqnes_jax.quadrature import recombine
from bqnes_jax.selection import select, stacking_weights
from bqnes_jax.spaces import enumerate_space
from bqnes_jax.surrogates import FitConfig, gp, wsabi
from bqnes_jax.types import Status, throw_if_failed
from tests.helpers.toy import GRID

once = pytest.mark.parametrize("precision", ["float32"], indirect=True)


@once
@pytest.mark.parametrize("status", Status)
def test_each_status_says_what_happened_and_what_to_do(status):
    happened, remedy = status.explain().split("; ")
    assert happened[0].isupper()
    assert remedy[0].islower() and remedy.endswith(".")


@once
def test_explanations_are_joined_and_ok_needs_none():
    assert Status.OK.explain() == ""
    both = (Status.AT_BOUND | Status.EMPTY).explain()
    assert both == f"{Status.AT_BOUND.explain()} {Status.EMPTY.explain()}"
    everything = Status(sum(Status)).explain()
    assert all(status.explain() in everything for status in Status)


@once
def test_what_is_thrown_names_the_function():
    throw_if_failed(jnp.int32(Status.OK), "fit")
    throw_if_failed(np.zeros(3, np.int32), "fit")
    with pytest.raises(BQNESError, match=r"^fit: A fitted hyper-parameter sits at its bound; "):
        throw_if_failed(jnp.int32(Status.AT_BOUND), "fit")
    with pytest.raises(BQNESError, match=r"^fit: A fitted .* Nothing usable was left"):
        throw_if_failed(np.array([0, Status.EMPTY, Status.AT_BOUND]), "fit")


POOL = enumerate_space(GRID)
VALUES = np.sin(np.sum(np.asarray(POOL), axis=1)) + np.random.default_rng(0).normal(size=36) / 4
WIDE, NARROW = (FitConfig(noise_bounds=pair, kernel_steps=0) for pair in ((1e-9, 1e9), (1e2, 2e2)))
LOG_PROBS = np.log([[0.9, 0.1], [0.1, 0.9], [0.4, 0.4]])
HOPELESS = np.array([[-0.1, -np.inf], [-0.2, -np.inf]])  # a point that no candidate explains
EQUAL = np.full(3, 1 / 3)


def fit_gp(values, config=WIDE, **options):
    return gp.fit(RBF(GRID, 0.4), POOL, values, config=config, **options)


def fit_wsabi(values, config=WIDE, **options):
    return wsabi.fit(RBF(GRID, 0.4), POOL, 99 * values, fit_config=config, **options)


def select_top(log_probs, **options):
    return select("top", log_probs, 2, **options)


def recombine_equal(functions, **options):
    return recombine(functions, EQUAL, **options)


def too_large():
    """Return numbers whose differences are not finite."""
    return jnp.finfo(jnp.result_type(float)).max * jnp.array([[-1.0], [1.0], [1.0]])


# name: (the function, what goes well, what makes it fail, what it then says)
THROWING = {
    "gp.fit": (fit_gp, VALUES, {"config": NARROW}, "sits at its bound"),
    "wsabi.fit": (fit_wsabi, VALUES, {"config": NARROW}, "sits at its bound"),
    "select('top')": (select_top, LOG_PROBS, {"log_probs": HOPELESS}, "gives probability 0"),
    "stacking_weights": (stacking_weights, LOG_PROBS, {"log_probs": HOPELESS}, "probability 0"),
    "recombine": (recombine_equal, np.eye(3)[:, :1], {"functions": too_large}, "could not be met"),
}


@pytest.mark.slow
@once
@pytest.mark.parametrize("name", THROWING)
def test_functions_throw_what_went_wrong(name):
    function, fine, change, says = THROWING[name]
    chex.assert_trees_all_equal(function(fine, throw=True), function(fine))
    change = {key: value() if callable(value) else value for key, value in change.items()}
    given = (fine,) if "config" in change else ()
    function(*given, **change)  # says nothing unless it is asked to
    with pytest.raises(BQNESError, match=f"^{re.escape(name)}: .*{says}"):
        function(*given, **change, throw=True)


@once
@pytest.mark.parametrize("name", THROWING)
def test_nothing_can_be_thrown_while_jax_traces(name):
    function, fine, _, _ = THROWING[name]
    with pytest.raises(BQNESError, match=f"^{re.escape(name)}: throw is True, but while JAX trace"):
        jax.jit(lambda given: function(given, throw=True))(jnp.asarray(fine))
