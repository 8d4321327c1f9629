"""Every example in a docstring and in the README runs, and every export exists."""

import doctest
import importlib
import pkgutil
import re
from pathlib import Path

import pytest

import bqnes_jax
from bqnes_jax.runs import PRESETS
from bqnes_jax.runs.fields import updated
from tests.conftest import all_but_slow

pytestmark = pytest.mark.parametrize("precision", ["float32"], indirect=True)

MODULES = sorted(module.name for module in pkgutil.walk_packages(bqnes_jax.__path__, "bqnes_jax."))
NETWORKS = {
    f"bqnes_jax.{name}" for name in ("training.population", "models.mobilenet", "models.cells")
}
README = Path(bqnes_jax.__file__).parents[1] / "README.md"


@pytest.mark.parametrize("name", all_but_slow(MODULES, *set(MODULES) - NETWORKS))
def test_examples_in_docstrings(name):
    result = doctest.testmod(importlib.import_module(name))
    assert result.failed == 0


@pytest.mark.parametrize("name", [name for name in MODULES if name.count(".") == 1])
def test_exports_exist(name):
    module = importlib.import_module(name)
    for export in getattr(module, "__all__", []):
        assert hasattr(module, export)


SNIPPETS = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)


@pytest.mark.slow
@pytest.mark.parametrize("snippet", SNIPPETS, ids=range(len(SNIPPETS)))
def test_snippets_of_the_readme(snippet, tmp_path, monkeypatch):
    tiny = PRESETS["tiny"]
    smaller = updated(tiny.train["nats"], {"steps": 2, "chunk": 10, "network": {"channels": 1}})
    monkeypatch.setitem(PRESETS, "tiny", tiny._replace(train={"nats": smaller}))
    monkeypatch.chdir(tmp_path)
    exec(compile(snippet, str(README), "exec"), {})


@pytest.mark.slow
def test_pictures_and_pages_that_the_readme_links_to_exist():
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", README.read_text()):
        assert (README.parent / target).is_file(), target
