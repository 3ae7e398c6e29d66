"""What a notebook calls the files of its cells."""

from __future__ import annotations

import sys


def cell_name(file: str) -> str | None:
    """`Cell In[5]` for the file that stands for a cell of the running notebook; None for other files."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    named = shell.compile.format_code_name(file) if shell else None
    return " ".join(named) if named else None
