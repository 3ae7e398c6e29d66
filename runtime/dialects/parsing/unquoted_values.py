"""Values that stand in a text without quotes: which JSON each of them is, by the schema of its parameter."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from sgl.grammars.schema.member_types import ALL_TYPES, member_types, type_of

from .python_literals import as_json

TYPES = ALL_TYPES
TEXT = frozenset({"string"})
_PYTHON = {"True": "true", "False": "false", "None": "null"}


def types_of(schema: Any, key: str) -> frozenset[str]:
    """The JSON types that a parameter may have, "integer" also where any number may come; all types where its schema
    does not tell.
    """
    return member_types(schema, key) if isinstance(schema, Mapping) else TYPES


def json_of(text: str, types: frozenset[str], python: bool = False) -> str:
    """A value as JSON text.

    A text that is JSON of a type that the parameter may have, other than a string, is that value. Any other text is a
    string, word for word, where the parameter may be one. Where it may not, any JSON counts, and only what is none is a
    string. With `python`, lists, objects, true, false and null may be as Python writes them.
    """
    written = text.strip()
    written = _from_python(written) if python else written
    kind = _kind(written)
    if kind is None or ("string" in types and (kind == "string" or kind not in types)):
        return quoted(text)
    return written


def _from_python(text: str) -> str:
    """JSON for a list, a dict or a word of Python's, the text itself for all else."""
    if text[:1] not in ("[", "{"):
        return _PYTHON.get(text, text)
    found = as_json(text)
    return text if found is None else found


def quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _kind(text: str) -> str | None:
    """The type of a JSON text; None for what is none."""
    try:
        return type_of(json.loads(text, parse_constant=_refuse))
    except (ValueError, RecursionError):
        return None


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is no JSON")
