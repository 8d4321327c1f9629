"""Training many networks at once."""

from bqnes_jax.training.population import (
    DARTSTrainConfig,
    Population,
    TrainConfig,
    Trained,
    choose_chunk,
    draw_variables,
    in_batches,
    make_train,
    population_trainer,
    train_population,
    unravel_weights,
    weight_count,
)
from bqnes_jax.training.recipe import Recipe, count_steps
from bqnes_jax.training.supernet import (
    SharedCellsConfig,
    Slices,
    Supernet,
    SupernetConfig,
    SupernetState,
    make_supernet,
    predict_slices,
    train_supernet,
    unravel_params,
)

__all__ = [
    "DARTSTrainConfig",
    "Population",
    "Recipe",
    "SharedCellsConfig",
    "Slices",
    "Supernet",
    "SupernetConfig",
    "SupernetState",
    "TrainConfig",
    "Trained",
    "choose_chunk",
    "count_steps",
    "draw_variables",
    "in_batches",
    "make_supernet",
    "make_train",
    "population_trainer",
    "predict_slices",
    "train_population",
    "train_supernet",
    "unravel_params",
    "unravel_weights",
    "weight_count",
]
