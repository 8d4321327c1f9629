"""Every example in docstrings, README and guide runs, and every export exists."""

import doctest
import importlib
import pkgutil
import re
from pathlib import Path

import pytest

import bqnes_jax
from bqnes_jax.runs import PRESETS
from bqnes_jax.runs.fields import replace_fields
from tests.conftest import all_but_slow

pytestmark = pytest.mark.parametrize("precision", ["float32"], indirect=True)

MODULES = sorted(module.name for module in pkgutil.walk_packages(bqnes_jax.__path__, "bqnes_jax."))
NETWORKS = {
    f"bqnes_jax.{name}" for name in ("training.population", "models.mobilenet", "models.cells")
}
ROOT = Path(bqnes_jax.__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "notebooks" / "README.md"]


@pytest.mark.parametrize("name", all_but_slow(MODULES, *set(MODULES) - NETWORKS))
def test_examples_in_docstrings(name):
    result = doctest.testmod(importlib.import_module(name))
    assert result.failed == 0


@pytest.mark.parametrize("name", [name for name in MODULES if name.count(".") == 1])
def test_exports_exist(name):
    module = importlib.import_module(name)
    for export in getattr(module, "__all__", []):
        assert hasattr(module, export)


CONTRIBUTING = ROOT / "CONTRIBUTING.md"
PYTHON = re.compile(r"```python\n(.*?)```", re.DOTALL)
SNIPPETS = [(page, snippet) for page in PAGES for snippet in PYTHON.findall(page.read_text())]


@pytest.mark.slow
@pytest.mark.parametrize(("page", "snippet"), SNIPPETS, ids=range(len(SNIPPETS)))
def test_snippets(page, snippet, tmp_path, monkeypatch):
    tiny = PRESETS["tiny"]
    smaller = replace_fields(
        tiny.train["nats"], {"steps": 2, "chunk": 10, "network": {"channels": 1}}
    )
    monkeypatch.setitem(PRESETS, "tiny", tiny._replace(train={"nats": smaller}))
    monkeypatch.chdir(tmp_path)
    exec(compile(snippet, str(page), "exec"), {})


LINKED = [*PAGES, CONTRIBUTING, ROOT / "CHANGELOG.md", ROOT / "benchmarks" / "README.md"]


@pytest.mark.parametrize("page", LINKED, ids=lambda page: str(page.relative_to(ROOT)))
def test_pictures_pages_and_headings_that_are_linked_to_exist(page):
    for target in re.findall(r"\]\((?!http)([^)]+)\)", page.read_text()):
        name, _, anchor = target.partition("#")
        found = page.parent / name if name else page
        assert found.is_file(), target
        headings = re.findall(r"^#+ (.*)", found.read_text(), re.M) if anchor else []
        slugs = [re.sub(r"[^\w -]", "", one.lower()).replace(" ", "-") for one in headings]
        assert not anchor or anchor in slugs, target


@pytest.mark.slow
@pytest.mark.usefixtures("own_names")
def test_a_strategy_and_a_method_of_ones_own(capsys):
    (snippet,) = PYTHON.findall(CONTRIBUTING.read_text())
    exec(compile(snippet, str(CONTRIBUTING), "exec"), {})
    assert capsys.readouterr().out.count("0.333") == 3


def test_files_that_people_are_sent_to_exist():
    named = re.compile(r"`((?:bqnes_jax|tests|benchmarks|\.ci)/[\w./-]*|test_\w+\.py)`")
    for target in named.findall(CONTRIBUTING.read_text()):
        assert [*ROOT.glob(target), *(ROOT / "tests").rglob(target)], target
