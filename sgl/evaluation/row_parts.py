"""Which rows are examples, which choose among programs, and which test the choice."""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

from sgl.lang.errors import BadValueError

TRAIN, VALIDATION = 0.5, 0.8  # of the rows: up to here examples, then the scores of tries, then the test

Pair = tuple[Any, Any]  # a row and its gold value


def split_rows(pairs: list[Pair]) -> tuple[list[Pair], list[Pair], list[Pair]]:
    """Examples, validation and test. Equal rows are in the same part."""
    parts: tuple[list[Pair], list[Pair], list[Pair]] = ([], [], [])
    for row, gold in pairs:
        place = int.from_bytes(blake2b(repr(row).encode(), digest_size=8).digest()) / 2**64
        parts[(place >= TRAIN) + (place >= VALIDATION)].append((row, gold))
    if not all(parts):
        raise BadValueError(f"{len(pairs)} rows are too few for examples, validation and test; give more")
    return parts


def columns(pairs: list[Pair]) -> tuple[list[Any], list[Any]]:
    return [row for row, _ in pairs], [gold for _, gold in pairs]


def as_shown(row: Any) -> Any:
    """A row as an example has it: one argument without its name."""
    values = list(row.values()) if isinstance(row, dict) else list(row) if isinstance(row, tuple) else [row]
    return values[0] if len(values) == 1 else row
