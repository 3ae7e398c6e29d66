"""Tables of letters, whose columns are straight with wide characters too."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from unicodedata import category, east_asian_width

from sgl.lang.report.value_text import seen

WIDEST = 48  # of a cell
UNSEEN = ("Mn", "Me", "Cf")  # categories of characters that take no place


def text_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Lines of cells; the first column is at the left, the others at the right. Long cells are cut."""
    cells = [[cut(cell) for cell in row] for row in (head, *rows)]
    widths = [max(map(width, column)) for column in zip(*cells, strict=True)]
    lines = [
        "  ".join(padded(*pair, left=i == 0) for i, pair in enumerate(zip(row, widths, strict=True))) for row in cells
    ]
    return "\n".join(line.rstrip() for line in [lines[0], "─" * (sum(widths) + 2 * len(widths) - 2), *lines[1:]])


def width(text: str) -> int:
    """Columns of a terminal: two for Chinese, Japanese and Korean characters and for emoji, none for combining ones."""
    return sum(map(_columns, text))


def cut(text: str, most: int = WIDEST) -> str:
    """One line of at most so many columns."""
    text = seen(" ".join(text.split()))
    if width(text) <= most:
        return text
    kept = sum(end < most for end in accumulate(map(_columns, text)))
    return f"{text[:kept]}…"


def padded(text: str, columns: int, left: bool = True) -> str:
    room = " " * (columns - width(text))
    return text + room if left else room + text


def _columns(character: str) -> int:
    return 0 if category(character) in UNSEEN else 2 if east_asian_width(character) in "WF" else 1
