"""What the ensembles of an algorithm reach on test points, one for each seed."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int, Int32

from bqnes_jax.compiling import jit_quickly
from bqnes_jax.files.text import count_members
from bqnes_jax.metrics import accuracy, ece, log_likelihood
from bqnes_jax.pooling import Pool, ensemble_log_probabilities
from bqnes_jax.spaces import Architectures
from bqnes_jax.types import Status

Predict = Callable[[Architectures], Float[Array, "M m classes"]]


class Row(NamedTuple):
    """What one algorithm with M members reached on the test points, for each seed.

    Calibrated is what a temperature after pooling makes of it, where that lowers the loss of
    validation points that were left out; None where their classes are not known. It changes no
    accuracy.
    """

    algorithm: str
    size: int
    accuracy: Float[np.ndarray, " seeds"]
    ece: Float[np.ndarray, " seeds"]
    log_likelihood: Float[np.ndarray, " seeds"]
    status: Status = Status.OK  # what went differently, for any seed
    effective_size: float = float("nan")  # of the posterior over the candidates, mean over seeds
    calibrated_ece: Float[np.ndarray, " seeds"] | None = None
    calibrated_log_likelihood: Float[np.ndarray, " seeds"] | None = None
    used: Int[np.ndarray, " seeds"] | None = None  # members with a weight; None if all have one

    @property
    def members(self) -> str:
        """How many members, as text: those in use, if they are fewer; their mean over seeds."""
        return count_members(self.size, self.size if self.used is None else float(self.used.mean()))


class Chosen(NamedTuple):
    """Ensembles of all seeds."""

    archs: Int32[np.ndarray | Array, "seeds M length"]
    weights: Float[np.ndarray | Array, "seeds M"]
    status: Int32[np.ndarray | Array, " seeds"]
    effective_size: Float[np.ndarray | Array, " seeds"]  # NaN where nothing was searched
    pool: Pool
    temperature: Float[np.ndarray | Array, " seeds"] | None = None  # after pooling


def measure_row(
    name: str,
    size: int,
    chosen: Chosen,
    predict: Predict,
    labels: Int[Array, " m"],
    *,
    ece_reference: str = "confidence",
) -> Row:
    """Measure the ensembles of an algorithm with M members on the test points.

    Args:
        name: of the algorithm.
        size: M.
        chosen: the ensembles.
        predict: returns the log-probabilities of architectures at the test points.
        labels: of the test points.
        ece_reference: as in `metrics.ece`.
    """
    ensembles = (jax.tree.map(lambda leaf, i=i: leaf[i], chosen) for i in range(len(chosen.archs)))
    measured = np.array(
        [
            _measure_both(one, predict(jnp.asarray(one.archs)), labels, ece_reference)
            for one in ensembles
        ],
        float,
    )
    status = Status(int(np.bitwise_or.reduce(np.asarray(chosen.status))))
    worth = float(np.mean(chosen.effective_size))
    accuracies, eces, log_likelihoods = measured[:, 0].T
    used = np.count_nonzero(np.asarray(chosen.weights) > 0, axis=1)
    row = Row(name, size, accuracies, eces, log_likelihoods, status, worth, used=used)
    if chosen.temperature is None:
        return row
    _, eces, log_likelihoods = measured[:, 1].T
    return row._replace(calibrated_ece=eces, calibrated_log_likelihood=log_likelihoods)


def _measure_both(
    chosen: Chosen,
    log_probs: Float[Array, "M m classes"],
    labels: Int[Array, " m"],
    ece_reference: str,
) -> list[Float[Array, " 3"]]:
    """Return the metrics without a temperature after pooling, and with it if there is one."""
    given = [] if chosen.temperature is None else [chosen.temperature]
    return [
        measure_ensemble(
            chosen.weights,
            log_probs,
            labels,
            pool=chosen.pool,
            ece_reference=ece_reference,
            temperature=np.asarray(temperature, chosen.weights.dtype),
        )
        for temperature in (1, *given)
    ]


@jit_quickly(("pool", "ece_reference"))
def measure_ensemble(
    weights: Float[np.ndarray | Array, " M"],
    log_probs: Float[Array, "M m classes"],
    labels: Int[Array, " m"],
    *,
    pool: Pool = Pool.MIXTURE,
    ece_reference: str = "confidence",
    temperature: ArrayLike = 1.0,
) -> Float[Array, " 3"]:
    """Return accuracy, ECE and log-likelihood of an ensemble, by what its members say."""
    said = ensemble_log_probabilities(weights, log_probs, pool=pool, temperature=temperature)
    return jnp.stack(
        [
            accuracy(said, labels, log=True),
            ece(said, labels, reference=ece_reference, log=True),
            log_likelihood(said, labels, log=True),
        ]
    )
