"""What `bqnes --help` and `bqnes --version` show, without importing the commands and JAX."""

import ast
import dataclasses
import inspect
from pathlib import Path
from typing import Annotated, Any, Union

import tyro

import bqnes_jax

DESCRIPTION = """Bayesian Quadrature for Neural Ensemble Search: a small, weighted, calibrated
ensemble of different architectures. Start with: bqnes run. With --debug an error shows where it
came from. For the completion of commands and flags: eval "$(bqnes --completion bash)", or zsh."""
GROUPS = {
    "data": "List data sets, or prepare one.",
    "nats": "Import the published archives of NATS-Bench, or check a table.",
}
_COMMANDS = {
    "run": ("run.py", "RunCommand"),
    "compare": ("compare.py", "CompareCommand"),
    "combine": ("combine.py", "CombineCommand"),
    "reselect": ("run.py", "ReselectCommand"),
    "predict": ("run.py", "PredictCommand"),
    "report": ("run.py", "ReportCommand"),
    "robustness": ("robustness.py", "RobustnessCommand"),
    "tabulate": ("compare.py", "TabulateCommand"),
    "data": None,
    "nats": None,
    "families": ("data.py", "FamiliesCommand"),
}


def show(arguments: list[str]) -> int:
    """Print the version if that alone is asked for, and otherwise which commands there are."""
    if "--version" in arguments and not {"--help", "-h"} & set(arguments):
        print(f"bqnes {bqnes_jax.__version__}")
        return 0
    commands: Any = Union[tuple(_outline(*command) for command in _COMMANDS.items())]  # noqa: UP007
    tyro.cli(commands, prog="bqnes", description=DESCRIPTION, args=["--help"])
    return 0


def _outline(name: str, place: tuple[str, str] | None) -> Any:
    """Return a command without flags, described as the real one is."""
    text = GROUPS[name] if place is None else _docstring(*place)
    kind = dataclasses.make_dataclass(name, [])
    return Annotated[kind, tyro.conf.subcommand(name, description=text)]


def _docstring(file: str, name: str) -> str:
    """Return what the docstring of a class says before its arguments, read from the source."""
    tree = ast.parse(Path(__file__).with_name(file).read_text(encoding="utf-8"))
    found = next(n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == name)
    return inspect.cleandoc((ast.get_docstring(found) or "").partition("Args:")[0])
