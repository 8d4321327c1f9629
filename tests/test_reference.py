"""The choices of the published code, as options of their own."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bqnes_jax.candidates import Outcome, SearchConfig, make
from bqnes_jax.runs import preset_config
from bqnes_jax.selection import select
from bqnes_jax.spaces import NATS
from bqnes_jax.types import Status
from tests.helpers.toy import GRID, Polynomial


@pytest.mark.slow
@pytest.mark.parametrize("padding", [0, 3])
def test_the_smallest_eigenvectors_keep_their_expectations(padding, tolerance):
    rng = np.random.default_rng(0)
    log_probs = jnp.asarray(-np.exp(rng.normal(size=(12, 9)) - 1))
    features = rng.normal(size=(12, 20))
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    gram = features @ features.T
    values, vectors = np.linalg.eigh(gram)
    assert values[0] > 1e-3  # no ties, so that the eigenvectors are unique
    posterior = np.exp(np.asarray(log_probs, float).sum(axis=1) / 3)
    posterior /= posterior.sum()
    widths = ((0, padding), (0, padding))
    found = select(
        "recombine_smallest",
        jnp.pad(log_probs, ((0, padding), (0, 0))),
        4,
        kernel=jnp.asarray(np.pad(gram, widths)),
        mask=jnp.arange(12 + padding) < 12,
        temperature=3.0,
    )
    assert Status(int(found.info.status)) == Status.OK
    chosen = vectors[np.asarray(found.members)][:, :3].T @ np.asarray(found.weights, float)
    np.testing.assert_allclose(chosen, posterior @ vectors[:, :3], atol=tolerance(1e-4, 1e-10))
    single = select("recombine_smallest", log_probs, 1, kernel=jnp.asarray(gram), temperature=3.0)
    assert int(single.members[0]) == int(np.argmax(posterior))


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_a_pool_can_be_scored_where_a_space_can_be_listed():
    config = SearchConfig(
        initial=6, budget=12, exhaustive=False, pool=8, mutated=2, climbs=0, samples=32,
        temperature=1.0,
    )  # fmt: skip
    strategy = make("us", GRID, kernel=Polynomial(), config=config)
    state, info = strategy.init(jax.random.key(0))
    values = -jnp.sum(info.archs, axis=1) / 3.0
    state, after = strategy.step(jax.random.key(1), state, Outcome(info.archs, values))
    assert float(after.evidence.sampling_sd) > 0  # by draws
    seen = {tuple(arch) for arch in info.archs.tolist()}
    assert not seen & {tuple(arch) for arch in after.archs.tolist()}
    asked = jax.jit(jax.vmap(lambda key: strategy.ask(key, state)[1].archs[0]))(
        jax.random.split(jax.random.key(2), 12)
    )
    assert len({tuple(arch) for arch in asked.tolist()}) > 1  # by the pool that was drawn


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_the_preset_makes_these_choices():
    config = preset_config("reference")
    search = config.search
    assert config.algorithm == "us+recombine_smallest" and not search.exhaustive
    assert (search.pool, search.mutated, search.climbs, search.samples) == (1024, 128, 0, 2048)
    assert (search.initial, search.budget) == (10, 150)
    assert make("us", NATS, config=search).prior is None
