"""Every example in a docstring and in the README runs, and every export exists."""

import doctest
import importlib
import pkgutil
import re
from pathlib import Path

import pytest

import bqnes_jax

MODULES = sorted(module.name for module in pkgutil.walk_packages(bqnes_jax.__path__, "bqnes_jax."))
README = Path(bqnes_jax.__file__).parents[1] / "README.md"


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings(name):
    result = doctest.testmod(importlib.import_module(name))
    assert result.failed == 0


@pytest.mark.parametrize("name", [name for name in MODULES if name.count(".") == 1])
def test_exports_exist(name):
    module = importlib.import_module(name)
    for export in getattr(module, "__all__", []):
        assert hasattr(module, export)


def test_snippets_of_the_readme():
    snippets = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert snippets
    for snippet in snippets:
        exec(compile(snippet, str(README), "exec"), {})
