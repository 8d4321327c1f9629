"""No key is used twice, by any strategy, in spaces that are listed and in those that are not.

What `jax_debug_key_reuse` finds when a program runs is found here from the program alone, without
compiling it.
"""

import jax
import jax.numpy as jnp
import pytest
from jax.errors import KeyReuseError
from jax.experimental.key_reuse._core import check_key_reuse

from bqnes_jax import algorithms, candidates, drivers
from bqnes_jax.candidates import Outcome, SearchConfig
from bqnes_jax.data import AugmentConfig, augment
from bqnes_jax.spaces import Product, Seeded

pytestmark = pytest.mark.parametrize("precision", ["float32"], indirect=True)

SPACES = {
    "listed": Product(width=(1, 2, 3, 4, 5, 6), kind=("x", "y", "z")),
    "pooled": Product(**{f"width_{i}": tuple(range(1, 9)) for i in range(9)}),
}
SPACES |= {f"{name}, seeds": Seeded(space, 3) for name, space in SPACES.items()}
CONFIG = SearchConfig(
    initial=3,
    budget=8,
    batch=2,
    population=4,
    parents=2,
    pool=24,
    mutated=8,
    climbs=2,
    samples=16,
)


def evaluate(archs):
    log_probs = -0.1 - jnp.abs(jnp.sin(jnp.sum(archs, axis=1, keepdims=True) + jnp.arange(5.0)))
    classes = jnp.stack([log_probs, jnp.log1p(-jnp.exp(log_probs))], axis=2)
    return Outcome(archs, log_probs.sum(axis=1), log_probs, classes=classes)


@pytest.mark.slow
@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)
@pytest.mark.parametrize("name", candidates.strategies())
def test_a_search_uses_each_key_once(name, space):
    strategy = candidates.make(name, space, config=CONFIG)
    check_key_reuse(lambda key: drivers.scan(strategy, CONFIG, key, evaluate), jax.random.key(0))


def test_spaces_are_of_both_kinds():
    assert [space.size for space in SPACES.values()] == [18, None, 54, None]


@pytest.mark.slow
@pytest.mark.parametrize("name", algorithms.algorithms())
def test_an_algorithm_uses_each_key_once(name):
    run = algorithms.make(name, SPACES["listed, seeds"], 2, config=CONFIG)
    check_key_reuse(lambda key: run(key, evaluate), jax.random.key(0))


def test_augmentation_uses_each_key_once():
    images = jnp.zeros((2, 8, 8, 3))
    check_key_reuse(lambda key: augment(key, images, AugmentConfig()), jax.random.key(0))


def test_a_key_that_is_used_twice_is_noticed():
    """So that the tests above can fail: steps that ask twice with one key."""
    space, key = SPACES["pooled"], jax.random.key(0)
    strategy = candidates.make("random", space, config=CONFIG)
    twice = strategy._replace(ask=lambda key, state: strategy.ask(key, strategy.ask(key, state)[0]))
    with pytest.raises(KeyReuseError):
        check_key_reuse(lambda key: drivers.scan(twice, CONFIG, key, evaluate), key)
