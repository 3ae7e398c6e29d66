"""The lines of the user's programs that a page shows."""

from __future__ import annotations

import linecache
import os
from typing import Any

from ..places.source_location import SourceLocation

AROUND = 3  # lines shown before and after


class ReportSources:
    """Files by number, and of each the lines around those that were asked for.

    `since`: seconds since the epoch. A file that was changed after that is marked: its lines may not be those
    that ran.
    """

    def __init__(self, since: float) -> None:
        self._since = since
        self._numbers: dict[str, int] = {}
        self._wanted: list[set[int]] = []

    def place(self, where: SourceLocation | None) -> list[int] | None:
        """[file, line] of a place; its line will be on the page."""
        if where is None:
            return None
        number = self._numbers.setdefault(where.file, len(self._numbers))
        if number == len(self._wanted):
            self._wanted.append(set())
        self._wanted[number].add(where.line)
        return [number, where.line]

    def data(self) -> list[dict[str, Any]]:
        return [
            {"path": path, "lines": _around(path, self._wanted[number]), **self._changed(path)}
            for path, number in self._numbers.items()
        ]

    def _changed(self, path: str) -> dict[str, bool]:
        try:
            return {"changed": True} if os.path.getmtime(path) > self._since else {}
        except OSError:
            return {}


def _around(path: str, wanted: set[int]) -> dict[str, str]:
    lines = linecache.getlines(path)
    numbers = sorted({near for line in wanted for near in range(line - AROUND, line + AROUND + 1)})
    return {str(number): lines[number - 1].rstrip("\n") for number in numbers if 1 <= number <= len(lines)}
