"""How good predictions are: accuracy, likelihood, calibration, diversity, and surrogate errors.

Classification metrics take `probabilities` (n, C) and integer `labels` (n,), or with `log=True` the
logarithms of probabilities, of which none is too small. They compute in the floating type of what
is given (half precision in float32). Where classes tie for the highest probability, the first of
them is the predicted one. What an eager call refuses, a compiled one answers with NaN: it has no
other way to report.
"""

from bqnes_jax.metrics.bootstrap import Interval, bootstrap_interval
from bqnes_jax.metrics.calibration import (
    REFERENCES,
    BrierDecomposition,
    ReliabilityCurve,
    adaptive_ece,
    brier_decomposition,
    classwise_ece,
    ece,
    reliability_curve,
)
from bqnes_jax.metrics.classification import (
    accuracy,
    aurc,
    brier_score,
    log_likelihood,
    mean_log_likelihood,
    per_member,
)
from bqnes_jax.metrics.diversity import Disagreement, disagreement, mutual_information
from bqnes_jax.metrics.regression import nlpd, rmse

__all__ = [
    "REFERENCES",
    "BrierDecomposition",
    "Disagreement",
    "Interval",
    "ReliabilityCurve",
    "accuracy",
    "adaptive_ece",
    "aurc",
    "bootstrap_interval",
    "brier_decomposition",
    "brier_score",
    "classwise_ece",
    "disagreement",
    "ece",
    "log_likelihood",
    "mean_log_likelihood",
    "mutual_information",
    "nlpd",
    "per_member",
    "reliability_curve",
    "rmse",
]
