"""Every example in a docstring runs, and everything that is exported is documented."""

import doctest
import importlib
import pkgutil

import pytest

import bqnes_jax

MODULES = sorted(module.name for module in pkgutil.walk_packages(bqnes_jax.__path__, "bqnes_jax."))


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings(name):
    result = doctest.testmod(importlib.import_module(name))
    assert result.failed == 0


@pytest.mark.parametrize("name", [name for name in MODULES if name.count(".") == 1])
def test_exports_exist(name):
    module = importlib.import_module(name)
    for export in getattr(module, "__all__", []):
        assert hasattr(module, export)
