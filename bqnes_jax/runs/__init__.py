"""Runs: everything that decides one, the search itself, and the ensembles that come out of it."""

from bqnes_jax.runs.config import RunConfig, TaskConfig, load_data, make_family, make_prior
from bqnes_jax.runs.launch import search
from bqnes_jax.runs.presets import PRESETS, configure, preset_config
from bqnes_jax.runs.record import Record
from bqnes_jax.runs.run import Ensemble, Metrics, Run, measure
from bqnes_jax.runs.workbench import Workbench, open_workbench

__all__ = [
    "PRESETS",
    "Ensemble",
    "Metrics",
    "Record",
    "Run",
    "RunConfig",
    "TaskConfig",
    "Workbench",
    "configure",
    "load_data",
    "make_family",
    "make_prior",
    "measure",
    "open_workbench",
    "preset_config",
    "search",
]
