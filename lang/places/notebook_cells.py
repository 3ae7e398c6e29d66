"""What a notebook calls the files of its cells."""

from __future__ import annotations

import sys


def cell_name(file: str) -> str | None:
    """`Cell In[5]` for the file that stands for a cell of the running notebook; None for other files."""
    running = getattr(sys.modules.get("IPython"), "get_ipython", None)  # absent while IPython is still being imported
    compiler = getattr(running(), "compile", None) if running else None
    format_code_name = getattr(compiler, "format_code_name", None)  # IPython 7 has none
    named = format_code_name(file) if format_code_name else None
    return " ".join(named) if named else None
