"""Bayesian Quadrature for Neural Ensemble Search, JAX-native and functional.

Packages and names load when they are first used: `import bqnes_jax.kernels` loads JAX and little
else.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bqnes_jax.combination import Combination, combine
    from bqnes_jax.errors import BQNESError
    from bqnes_jax.runs import Ensemble, Run, RunConfig, configure, search
    from bqnes_jax.types import Status

__version__ = "0.2.0"  # the one place; CITATION.cff and CHANGELOG.md repeat it

_PACKAGES = (
    "algorithms",
    "calibration",
    "candidates",
    "combination",
    "data",
    "drivers",
    "elastic",
    "families",
    "files",
    "kernels",
    "metrics",
    "models",
    "nats_bench",
    "parallel",
    "pooling",
    "quadrature",
    "report",
    "runs",
    "selection",
    "sklearn",
    "spaces",
    "storage",
    "studies",
    "surrogates",
    "tables",
    "training",
)
_NAMES = {
    "BQNESError": "errors",
    "Combination": "combination",
    "Ensemble": "runs",
    "Run": "runs",
    "RunConfig": "runs",
    "Status": "types",
    "combine": "combination",
    "configure": "runs",
    "search": "runs",
}

__all__ = [  # pyright: ignore[reportUnsupportedDunderAll] (packages come when asked for)
    "BQNESError",
    "Combination",
    "Ensemble",
    "Run",
    "RunConfig",
    "Status",
    "combine",
    "configure",
    "search",
    *_PACKAGES,
]


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return importlib.import_module(f"bqnes_jax.{name}")
    if name in _NAMES:
        return getattr(importlib.import_module(f"bqnes_jax.{_NAMES[name]}"), name)
    raise AttributeError(f"module 'bqnes_jax' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
