"""JSON objects of files that nobody vouches for: bounded in depth, no name twice."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from ..models.fields import shown

DEEPEST = 40  # of objects and lists in each other


def parse_object(data: bytes) -> dict[str, Any]:
    """Raises ValueError for what is no JSON object, nests too deep or has a name twice."""
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
