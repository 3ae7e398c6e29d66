"""Finding JSON in text that a model wrote. Nothing here raises on any text."""

from __future__ import annotations

import json
import re
from typing import Any

Found = tuple[str, dict[str, Any], str | None]
_DECODER = json.JSONDecoder()
_BLANK = re.compile(r"\s*")
NOTHING = object()


def skip_blanks(text: str, at: int) -> int:
    found = _BLANK.match(text, at)
    return found.end() if found else at


def json_at(text: str, at: int) -> tuple[Any, int]:
    """The JSON value that begins at `at`, blanks skipped, and where it ends; NOTHING if there is none."""
    start = skip_blanks(text, at)
    try:
        return _DECODER.raw_decode(text, start)
    except (ValueError, RecursionError):
        return NOTHING, at


def call_in(value: Any) -> Found | None:
    """The call that a JSON value stands for: its name, its arguments, its id."""
    if not isinstance(value, dict):
        return None
    about = value["function"] if isinstance(value.get("function"), dict) else value
    name = about.get("name")
    given = about.get("arguments", about.get("parameters", {}))
    if isinstance(given, str):
        given, _ = json_at(given, 0)
    if not isinstance(name, str) or not isinstance(given, dict):
        return None
    return name, given, value["id"] if isinstance(value.get("id"), str) else None


def joined(parts: list[str]) -> str:
    """What is left of a text once the calls are taken out; blanks around them do not count."""
    return "\n".join(part for part in (part.strip() for part in parts) if part)
