"""The pages of the API reference are built without a warning, and hold what is public."""

import subprocess
import sys
from pathlib import Path

import pytest

import bqnes_jax

pytestmark = pytest.mark.parametrize("precision", ["float32"], indirect=True)

ROOT = Path(__file__).parent.parent


@pytest.mark.slow
def test_the_pages_are_built_without_a_warning(tmp_path):
    for name in ("pdoc", "nbconvert"):
        reason = f"{name} is not installed; pip install -e '.[docs]' has it"
        pytest.importorskip(name, reason=reason)
    asked = [sys.executable, str(ROOT / ".ci" / "docs"), str(tmp_path)]
    done = subprocess.run(asked, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "bqnes_jax.html").read_text(encoding="utf-8")
    for name in bqnes_jax.__all__:
        assert f'id="{name}"' in page or (tmp_path / "bqnes_jax" / f"{name}.html").is_file()
    for notebook in (ROOT / "notebooks").glob("*.ipynb"):
        assert f'href="notebooks/{notebook.stem}.html"' in page
        assert (tmp_path / "notebooks" / f"{notebook.stem}.html").stat().st_size > 100_000
    equation = "<code>Σ_k w_k φ_t(i_k) = Σ_n μ_n φ_t(n)"
    assert equation in (tmp_path / "bqnes_jax" / "quadrature.html").read_text(encoding="utf-8")
