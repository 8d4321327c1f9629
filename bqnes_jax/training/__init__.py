"""Training many networks at once."""

from bqnes_jax.training.population import (
    Population,
    TrainConfig,
    Trained,
    chunk_size,
    in_batches,
    make_train,
    train_population,
    unravel_weights,
    weight_count,
)

__all__ = [
    "Population",
    "TrainConfig",
    "Trained",
    "chunk_size",
    "in_batches",
    "make_train",
    "train_population",
    "unravel_weights",
    "weight_count",
]
