"""By which likelihood the posterior over candidates is formed."""

from typing import Literal

import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from bqnes_jax.errors import BQNESError, check_choice

Measure = Literal["valid", "train", "both"]
MEASURES: tuple[Measure, ...] = ("valid", "train", "both")


def measure_candidates(
    measure: Measure,
    valid: ArrayLike,
    valid_points: int,
    train: ArrayLike | None,
    train_points: int | None,
) -> Float[Array, " N"]:
    """Return the log-likelihoods that a posterior over N candidates is formed by.

    They are those of the validation points (as in the published code), of the training points (as
    in the paper's discussion), or of both together,

        valid: L_v    train: L_t · n_v / n_t    both: (L_v + L_t) · n_v / (n_v + n_t),

    each as large as if it were of n_v points: one temperature T leaves the same effective number
    of observations n_v / T, whichever is chosen.

    Example:
        >>> measure_candidates("both", jnp.array([-4.0]), 10, jnp.array([-2.0]), 30).tolist()
        [-1.5]
    """
    check_choice("measure", measure, MEASURES)
    if measure == "valid":
        return jnp.asarray(valid, float)
    if train is None or train_points is None:
        raise BQNESError(
            f"measure is {measure!r}, but the store or table was made before training "
            "log-likelihoods were kept; use measure 'valid', or train in a new directory."
        )
    if measure == "train":
        return jnp.asarray(train, float) * (valid_points / train_points)
    share = valid_points / (valid_points + train_points)
    return share * (jnp.asarray(valid, float) + jnp.asarray(train, float))
