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


CONTRIBUTING = README.with_name("CONTRIBUTING.md")
PYTHON = re.compile(r"```python\n(.*?)```", re.DOTALL)
SNIPPETS = PYTHON.findall(README.read_text())


@pytest.mark.slow
@pytest.mark.parametrize("snippet", SNIPPETS, ids=range(len(SNIPPETS)))
def test_snippets_of_the_readme(snippet, tmp_path, monkeypatch):
    tiny = PRESETS["tiny"]
    smaller = updated(tiny.train["nats"], {"steps": 2, "chunk": 10, "network": {"channels": 1}})
    monkeypatch.setitem(PRESETS, "tiny", tiny._replace(train={"nats": smaller}))
    monkeypatch.chdir(tmp_path)
    exec(compile(snippet, str(README), "exec"), {})


@pytest.mark.slow
@pytest.mark.usefixtures("own_names")
def test_a_strategy_and_a_method_of_ones_own(capsys):
    (snippet,) = PYTHON.findall(CONTRIBUTING.read_text())
    exec(compile(snippet, str(CONTRIBUTING), "exec"), {})
    assert capsys.readouterr().out.count("0.333") == 3


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"])
def test_pictures_and_pages_that_are_linked_to_exist(name):
    page = README.with_name(name)
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", page.read_text()):
        assert (page.parent / target).is_file(), target


def test_files_that_people_are_sent_to_exist():
    named = re.compile(r"`((?:bqnes_jax|tests|benchmarks|\.ci)/[\w./-]*|test_\w+\.py)`")
    for target in named.findall(CONTRIBUTING.read_text()):
        place = README.parent / ("tests/" * target.startswith("test_") + target)
        assert place.exists(), target
