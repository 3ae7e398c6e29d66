"""Rows of tables as lines of text."""

from __future__ import annotations

from collections.abc import Sequence

CELL_GAP = " | "


def row_line(cells: Sequence[str]) -> str:
    """The cells of a row on one line, with a bar between two of them; empty cells at the end are left out."""
    flat = [" ".join(cell.split()) for cell in cells]
    while flat and not flat[-1]:
        flat.pop()
    return CELL_GAP.join(flat)
