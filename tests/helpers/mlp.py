"""Families of small networks on scikit-learn's breast_cancer, as a user would write them."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from sklearn.datasets import load_breast_cancer

from bqnes_jax.data import from_arrays
from bqnes_jax.families import from_flax, from_functions
from bqnes_jax.spaces import Product
from bqnes_jax.training import Recipe

SPACE = Product(depth=(1, 2), width=(8, 16, 32), activation=("relu", "tanh"), dropout=(0.0, 0.2))
STEPS = 60


class MLP(nn.Module):
    depth: int
    width: int
    activation: str
    dropout: float

    @nn.compact
    def __call__(self, x, train):
        for _ in range(self.depth):
            x = getattr(nn, self.activation)(nn.Dense(self.width)(x))
            x = nn.Dropout(self.dropout, deterministic=not train)(x)
        return nn.Dense(2)(x)


def scale(inputs):
    return jnp.log1p(jnp.abs(inputs))  # their ranges go from thousandths to thousands


def train(key, choices, data):
    module, x, y = MLP(**choices), scale(data.train.inputs), data.train.labels
    init_key, noise_key = jax.random.split(key)
    params = module.init(init_key, x[:1], train=False)
    optimiser = optax.adam(1e-2)

    def loss(params, noise):
        logits = module.apply(params, x, train=True, rngs={"dropout": noise})
        return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()

    def step(carry, noise):
        params, memory = carry
        updates, memory = optimiser.update(jax.grad(loss)(params, noise), memory)
        return (optax.apply_updates(params, updates), memory), None

    start = (params, optimiser.init(params))
    return jax.lax.scan(step, start, jax.random.split(noise_key, STEPS))[0][0]


def predict(params, choices, inputs):
    return jax.nn.log_softmax(MLP(**choices).apply(params, scale(inputs), train=False))


def cancer(split=(300, 100, 169)):
    return from_arrays(*load_breast_cancer(return_X_y=True), split=split, seed=0, name="cancer")


def write_cancer(path):
    x, y = load_breast_cancer(return_X_y=True)
    np.savez(path, x=x, y=y)


family = from_functions(SPACE, train, predict, name="mlp")
flax_family = from_flax(SPACE, lambda choices: MLP(**choices), Recipe(epochs=5), name="flax-mlp")
