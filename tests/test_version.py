"""What says which version this is says the same, and what tells people about it can be read."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml

import bqnes_jax
from tests.helpers.commands import call

pytestmark = pytest.mark.parametrize("precision", ["float32"], indirect=True)

ROOT = Path(__file__).parent.parent
CITATION = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
RELEASES = re.findall(
    r"^## (\d+\.\d+\.\d+) – (\d{4}-\d{2}-\d{2})$",
    (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"),
    re.MULTILINE,
)


def test_the_version_is_one_everywhere(tmp_path):
    assert call(tmp_path, "--version") == (0, f"bqnes {bqnes_jax.__version__}\n", "")
    assert RELEASES[0] == (bqnes_jax.__version__, CITATION["date-released"])
    assert CITATION["version"] == bqnes_jax.__version__


def test_the_package_takes_its_version_from_the_code():
    with open(ROOT / "pyproject.toml", "rb") as file:
        settings = tomllib.load(file)
    assert "version" not in settings["project"] and "version" in settings["project"]["dynamic"]
    assert settings["tool"]["hatch"]["version"]["path"] == "bqnes_jax/__init__.py"


def test_versions_only_grow():
    numbers = [tuple(map(int, version.split("."))) for version, _ in RELEASES]
    dates = [date for _, date in RELEASES]
    assert numbers == sorted(set(numbers), reverse=True) and len(numbers) >= 2
    assert dates == sorted(dates, reverse=True)


def test_a_citation_names_all_authors_of_the_paper():
    paper = CITATION["preferred-citation"]
    families = [author["family-names"] for author in paper["authors"]]
    assert families == ["Hamid", "Wan", "Jørgensen", "Ru", "Osborne"]
    assert all(author["given-names"] for author in paper["authors"])
    assert paper["year"] == 2023 and paper["title"]
