"""The notebooks run from top to bottom in a fresh kernel; what is committed of them is sound."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

pytestmark = pytest.mark.parametrize("precision", ["float32"], indirect=True)

FOLDER = Path(__file__).parent.parent / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=[path.stem for path in NOTEBOOKS])


def read(path):
    return nbformat.read(path, as_version=4)


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def outputs(notebook):
    return [output for cell in code_cells(notebook) for output in cell.outputs]


def test_there_are_notebooks():
    assert len(NOTEBOOKS) >= 4


@each_notebook
def test_committed_outputs_are_complete(path):
    notebook = read(path)
    nbformat.validate(notebook)
    counts = [cell.execution_count for cell in code_cells(notebook)]
    assert counts == list(range(1, len(counts) + 1)), "run it from top to bottom in a fresh kernel"
    assert path.stat().st_size < 400_000


@each_notebook
def test_committed_outputs_have_no_errors_or_warnings(path):
    for output in outputs(read(path)):
        assert output.output_type != "error"
        assert output.get("name") != "stderr", output.text
        # Nothing of the machine they were made on.
        assert "/home/" not in str(output) and "/tmp/" not in str(output)


@pytest.mark.slow
@each_notebook
# Of the sockets and the event loop of the kernel, which pytest would make errors.
@pytest.mark.filterwarnings("default")
def test_it_runs_in_a_fresh_kernel(path, tmp_path, monkeypatch):
    monkeypatch.setenv("MPLCONFIGDIR", str(tmp_path))
    notebook = read(path)
    for cell in code_cells(notebook):
        cell.outputs, cell.execution_count = [], None
    client = NotebookClient(
        notebook, timeout=600, kernel_name="python3", resources={"metadata": {"path": tmp_path}}
    )
    client.execute()  # raises the first error of a cell
    printed = [output.text for output in outputs(notebook) if output.get("name") == "stderr"]
    assert printed == []
