"""Runs with a prior, by training likelihood and by quadrature: what is kept and refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bqnes_jax
from bqnes_jax.data import from_arrays
from bqnes_jax.errors import BQNESError
from bqnes_jax.families import from_functions
from bqnes_jax.runs import Run
from bqnes_jax.spaces import Product
from bqnes_jax.storage import Key
from bqnes_jax.surrogates import FitConfig

pytestmark = pytest.mark.parametrize("precision", ["float32"], indirect=True)

SPACE = Product(scale=(0.1, 0.3, 1.0, 3.0), shift=(0.0, 0.5, 1.0))


def train(key, choices, data):
    return {"scale": jnp.asarray(choices["scale"]), "shift": jnp.asarray(choices["shift"])}


def predict(variables, choices, inputs):
    return jax.nn.log_softmax(variables["scale"] * inputs + variables["shift"] * jnp.arange(3))


def no_shift(archs):
    return jnp.where(jnp.asarray(archs)[:, 1] == 0, 0.0, -jnp.inf)


def data():
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(70, 3)).astype(np.float32)
    labels = (inputs + rng.normal(size=(70, 3))).argmax(axis=1)
    return from_arrays(inputs, labels, split=(40, 15, 15))


@pytest.mark.slow
@pytest.mark.parametrize("jit", [True, False], ids=["compiled", "on the host"])
def test_a_run_keeps_how_well_its_networks_fit(tmp_path, jit):
    family, given = from_functions(SPACE, train, predict, jit=jit), data()
    fit = FitConfig(kernel_steps=0)  # half of a step's program
    options = {"initial": 2, "budget": 4, "batch": 2, "ensemble_size": 1, "fit": fit}
    run = bqnes_jax.search(
        family=family, data=given, out=tmp_path, prior=no_shift, algorithm="BQ-R",
        measure="train", **options,
    )  # fmt: skip
    assert {arch[1] for arch in run.record.archs.tolist()} == {0}  # what the prior allows
    fits = {}
    for arch in run.record.archs:
        text, choices = SPACE.to_string(arch), SPACE.decode(arch)
        said = np.asarray(predict(train(None, choices, None), choices, given.train.inputs), float)
        fits[text] = said[np.arange(40), np.asarray(given.train.labels)].sum()
        entry = run.store.get(*Key(text, 0))
        assert entry is not None
        assert entry.train_log_likelihood == pytest.approx(fits[text], rel=1e-4)
    assert run.ensemble().texts == [max(fits, key=fits.__getitem__)]
    again = Run.load(tmp_path, family=family)
    assert again.config.prior is not None and again.ensemble().texts == run.ensemble().texts
    assert run.ensemble(2, "quadrature").weights.sum() == pytest.approx(1)
    with pytest.raises(BQNESError, match=r"has prior = '<.*>', not None"):
        bqnes_jax.search(family=family, data=given, out=tmp_path, algorithm="BQ-R", **options)
    # Entries that were written before fits were kept are read, and say so when asked.
    for text in fits:
        entry = run.store.get(text, 0)
        assert entry is not None
        run.store.put(entry._replace(train_log_likelihood=float("nan")))
    assert not np.isnan(run.store.predictions(list(fits), 0).valid_losses).any()
    with pytest.raises(BQNESError, match="measure is 'train', but the store or table was made"):
        Run.load(tmp_path, family=family).ensemble()
