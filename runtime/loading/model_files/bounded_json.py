"""JSON objects of untrusted files: bounded in depth and in size, no name twice."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from ...common.argument_checks import MOST_VALUES, require_little_json
from ...errors import CheckpointError
from ...models.spec.json_fields import shown

DEEPEST = 40  # of objects and lists in each other
MOST_JSON = 4 * 2**20  # bytes of a file, but for those that may have more


def read_json(path: Path, most: int = MOST_JSON) -> dict[str, Any]:
    """The object in a file of at most `most` bytes. Raises CheckpointError for any other file, saying what is wrong."""
    if not path.exists():
        raise CheckpointError(f"{path} is missing; {path.parent} must be a Hugging Face model directory")
    try:
        value = parse_object(_bounded(path, most))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read as JSON ({error}); restore the file") from error
    return value


def _bounded(path: Path, most: int) -> bytes:
    """Of a regular file: a pipe could make the reader wait for ever."""
    if not path.is_file():
        raise ValueError("it is not a regular file")
    with open(path, "rb") as stream:
        data = stream.read(most + 1)
    if len(data) > most:
        raise ValueError(f"it has {path.stat().st_size:,} bytes, at most {most:,} are read")
    return data


def parse_object(data: bytes, most: int = MOST_VALUES) -> dict[str, Any]:
    """most: values that it may hold. Raises ValueError for what is no JSON object, holds more, nests too deep or has a
    name twice.
    """
    require_little_json(data, most)
    try:
        value = json.loads(data, object_pairs_hook=_once)
    except RecursionError:
        raise ValueError(f"it nests deeper than {DEEPEST} levels") from None
    if not isinstance(value, dict):
        raise ValueError(f"it must hold a JSON object, not {type(value).__name__}")
    _require_flat(value)
    return value


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        counts = Counter(name for name, _ in pairs)
        twice = next(name for name in counts if counts[name] > 1)
        raise ValueError(f"it has the name {shown(twice)} twice")
    return found


def _require_flat(value: Any) -> None:
    level = [value]
    for _ in range(DEEPEST):
        level = [part for parent in level for part in (parent.values() if isinstance(parent, dict) else parent)]
        level = [part for part in level if isinstance(part, dict | list)]
        if not level:
            return
    raise ValueError(f"it nests deeper than {DEEPEST} levels")
