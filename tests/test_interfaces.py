"""What all floors but the command line have in common: how they are called."""

import enum
import inspect
import pkgutil
from importlib import import_module

import pytest

FLOORS = (
    *("spaces", "kernels", "surrogates", "quadrature", "pooling", "metrics", "selection"),
    "calibration",
    *("candidates", "drivers", "elastic", "algorithms", "identity", "registry"),
    *("files", "parallel", "data", "models", "training", "families", "storage", "nats_bench"),
    *("tables", "runs", "studies", "report"),
)
# What is a value, not an option; a recipe, which is given like the module that it is for; and what
# Flax adds to a module.
ALLOWED = {
    "bqnes_jax.data.examples.Split: name",
    "bqnes_jax.families.flax.from_flax: recipe",
    "bqnes_jax.models.cells.NATSNetwork: name",
    "bqnes_jax.models.darts.DARTSNetwork: name",
    "bqnes_jax.models.mobilenet.MobileNet: name",
    "bqnes_jax.runs.run.Ensemble: status",
    "bqnes_jax.runs.run.Run: _scratch",
    "bqnes_jax.runs.run.Ensemble: temperature",
}


def public_callables():
    """Yield the name and the signature of every public function, constructor and method."""
    for floor in FLOORS:
        top = import_module(f"bqnes_jax.{floor}")
        path, prefix = vars(top).get("__path__", ()), f"{top.__name__}."
        modules = [top, *(import_module(m.name) for m in pkgutil.walk_packages(path, prefix))]
        for module in modules:
            for name, value in vars(module).items():
                if name.startswith("_") or inspect.getmodule(value) is not module:
                    continue
                if inspect.isclass(value):
                    yield from signatures_of(value, f"{module.__name__}.{name}")
                elif inspect.isfunction(inspect.unwrap(value)):
                    yield f"{module.__name__}.{name}", inspect.signature(value)


def signatures_of(cls, path):
    values = tuple | enum.Enum | BaseException
    if not issubclass(cls, values) and "Protocol" not in str(cls.__bases__):
        yield path, inspect.signature(cls)
    for name, value in vars(cls).items():
        if inspect.isfunction(value) and not name.startswith("_"):
            parameters = list(inspect.signature(value).parameters.values())[1:]
            yield f"{path}.{name}", inspect.Signature(parameters)


CALLABLES = dict(public_callables())


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_options_are_keyword_only_after_the_second_argument():
    """So that calls say what their options are, and options can be added anywhere."""
    assert len(CALLABLES) > 100
    positional = [
        f"{path}: {parameter.name}"
        for path, signature in CALLABLES.items()
        for parameter in list(signature.parameters.values())[2:]
        if parameter.kind is parameter.POSITIONAL_OR_KEYWORD
        and parameter.default is not parameter.empty
    ]
    assert set(positional) == ALLOWED
