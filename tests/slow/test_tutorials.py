"""The notebooks run from top to bottom in a real kernel, and are kept with their outputs."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

pytestmark = pytest.mark.slow

TUTORIALS = sorted((Path(__file__).parents[2] / "tutorials").glob("*.ipynb"))


@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_tutorial(path):
    notebook = nbformat.read(path, as_version=4)
    kept = [cell.outputs for cell in notebook.cells if cell.cell_type == "code"]
    assert all(kept), "a cell was kept without its output: make tutorials"
    NotebookClient(notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": str(path.parent)}}).execute()
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    assert not [output for output in outputs if output.output_type == "error"]


def test_there_are_tutorials():
    assert TUTORIALS
