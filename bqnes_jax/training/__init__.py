"""Training many networks at once."""

from bqnes_jax.training.population import (
    Population,
    TrainConfig,
    Trained,
    chunk_size,
    make_train,
    train_population,
)

__all__ = [
    "Population",
    "TrainConfig",
    "Trained",
    "chunk_size",
    "make_train",
    "train_population",
]
