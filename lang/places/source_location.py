"""Lines of the user's program, and which of them is running."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import NamedTuple

from .notebook_cells import cell_name

_OWN_FOLDERS = (os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep, contextlib.__file__)


class SourceLocation(NamedTuple):
    """A line of a user's program."""

    file: str
    line: int

    def __str__(self) -> str:
        cell = cell_name(self.file)
        return f"{cell}, line {self.line}" if cell else f"{self.file}:{self.line}"


def is_own(file: str) -> bool:
    """True for files of this package."""
    return file.startswith(_OWN_FOLDERS)


def caller_place() -> SourceLocation | None:
    """The innermost line outside this package."""
    frame = sys._getframe(1)
    while frame is not None:
        if not is_own(frame.f_code.co_filename):
            return SourceLocation(frame.f_code.co_filename, frame.f_lineno)
        frame = frame.f_back  # type: ignore[assignment]
    return None
