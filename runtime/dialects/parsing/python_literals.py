"""Values as Python writes them."""

from __future__ import annotations

import ast
import json


def as_json(text: str) -> str | None:
    """A JSON value or a Python literal as JSON text; None for what is neither."""
    try:
        json.loads(text, parse_constant=_refuse)
        return text
    except (ValueError, RecursionError):
        pass
    try:
        return json_text(ast.literal_eval(text))
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return None


def json_text(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is no JSON")
