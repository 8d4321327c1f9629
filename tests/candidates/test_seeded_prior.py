import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bqnes_jax import candidates
from bqnes_jax.candidates import Outcome, SearchConfig
from bqnes_jax.drivers import scan
from bqnes_jax.spaces import NATS, Seeded


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32"], indirect=True)
@pytest.mark.parametrize("strategy", ["us", "replicate", "random"])
def test_a_prior_is_over_architectures_whatever_their_seeds(strategy, key):
    def prior(archs):  # no cell with an operation "none"
        assert archs.shape[-1] == len(NATS.options)
        return jnp.where(jnp.any(archs == 0, axis=1), -jnp.inf, 0.0)

    def evaluate(archs):
        return Outcome(archs, -100.0 * jnp.sum(archs[:, :-1] != 3, axis=1) - archs[:, -1])

    config = SearchConfig(initial=4, budget=9)
    made = candidates.make(strategy, Seeded(NATS, 2), config=config, prior=prior)
    searched = jax.jit(lambda key: scan(made, config, key, evaluate))(key)
    assert np.all(np.asarray(searched.history.archs)[:, :-1] > 0)
