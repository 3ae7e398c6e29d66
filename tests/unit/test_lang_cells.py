"""In a notebook an error names the cell, not the temporary file that stands for it."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import IPython
import pytest
from IPython.core.interactiveshell import InteractiveShell

from sgl.lang.places.source_location import SourceLocation

CELL = """
import sgl

@sgl.function
def number(s):
    s += sgl.gen("n", regex="[0-9]+")

try:
    number.run(backend=sgl.Scripted({"n": "four"})).text()
except sgl.ProgramError as error:
    said = str(error)
"""


@pytest.fixture
def shell(monkeypatch):
    made = InteractiveShell()
    monkeypatch.setattr(IPython, "get_ipython", lambda: made)
    yield made
    made.history_manager.end_session()


def test_an_error_names_the_cell_and_its_line(shell):
    shell.run_cell(CELL, store_history=True).raise_error()
    assert shell.user_ns["said"].startswith("Cell In[1], line 5: Gen('n') failed")


def test_other_files_keep_their_names(shell):
    assert str(SourceLocation("program.py", 3)) == "program.py:3"
    assert str(SourceLocation(__file__, 3)) == f"{__file__}:3"


@pytest.mark.parametrize(
    "shell", [None, object(), SimpleNamespace(compile=object())], ids=["none", "bare", "IPython 7"]
)
def test_shells_that_know_no_cells_leave_errors_as_they_are(monkeypatch, shell):
    monkeypatch.setattr(IPython, "get_ipython", lambda: shell)
    assert str(SourceLocation("program.py", 3)) == "program.py:3"


def test_a_half_imported_ipython_leaves_errors_as_they_are(monkeypatch):
    monkeypatch.setitem(sys.modules, "IPython", ModuleType("IPython"))
    assert str(SourceLocation("program.py", 3)) == "program.py:3"
