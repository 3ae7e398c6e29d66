"""How an answer is compared with the right one."""

from __future__ import annotations

import json


def same(expected: str, given: str) -> bool:
    """Whether two answers say the same: equal JSON, or equal text."""
    try:
        return bool(json.loads(expected) == json.loads(given))
    except ValueError:
        return expected == given


def fields_right(expected: str, given: str) -> tuple[int, int]:
    """(right, all) over the fields that either answer names; a missing or extra field is wrong."""
    try:
        wanted, got = json.loads(expected), json.loads(given)
    except ValueError:
        return int(expected == given), 1
    if not isinstance(wanted, dict) or not isinstance(got, dict):
        return int(wanted == got), 1
    names = {**wanted, **got}
    right = sum(name in wanted and name in got and wanted[name] == got[name] for name in names)
    return right, len(names)
