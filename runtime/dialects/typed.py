"""Values that stand in a text without quotes: which JSON each of them is, by the schema of its parameter."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from .python_text import as_json

TYPES = frozenset({"null", "boolean", "integer", "number", "string", "array", "object"})
TEXT = frozenset({"string"})
MOST_LINKS = 40  # references and branches inside each other
_PYTHON = {"True": "true", "False": "false", "None": "null"}


def types_of(schema: Any, key: str) -> frozenset[str]:
    """The JSON types that a parameter may have, all of them where its schema does not tell."""
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    found = properties.get(key) if isinstance(properties, Mapping) else None
    return _types(found, schema, MOST_LINKS)


def json_of(text: str, types: frozenset[str], python: bool = False) -> str:
    """A value as JSON text.

    A text that is JSON of a type that the parameter may have, other than a string, is that value. Any other text is a
    string, word for word, where the parameter may be one. Where it may not, any JSON counts, and only what is none is a
    string. With `python`, lists, objects, true, false and null may be as Python writes them.
    """
    written = text.strip()
    written = _from_python(written) if python else written
    kind = _kind(written)
    if kind is None or ("string" in types and (kind == "string" or not _fits(kind, types))):
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


def _fits(kind: str, types: frozenset[str]) -> bool:
    return kind in types or (kind == "integer" and "number" in types)


def _kind(text: str) -> str | None:
    """The type of a JSON text; None for what is none."""
    try:
        return _type(json.loads(text, parse_constant=_refuse))
    except (ValueError, RecursionError):
        return None


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _type(value: Any) -> str:
    if isinstance(value, float):
        return "integer" if value.is_integer() else "number"
    names = {bool: "boolean", int: "integer", str: "string", list: "array", dict: "object"}
    return names.get(type(value), "null")


def _types(schema: Any, root: Any, left: int) -> frozenset[str]:
    if not isinstance(schema, Mapping) or not left:
        return TYPES
    found = _named(schema.get("type"))
    if isinstance(schema.get("$ref"), str):
        found &= _types(_target(schema["$ref"], root), root, left - 1)
    if "const" in schema or isinstance(schema.get("enum"), list):
        found &= {_type(value) for value in (schema.get("enum") or [schema.get("const")])}
    for keyword in ("anyOf", "oneOf"):
        if isinstance(schema.get(keyword), list):
            found &= frozenset().union(*(_types(branch, root, left - 1) for branch in schema[keyword]))
    for branch in schema.get("allOf") or ():
        found &= _types(branch, root, left - 1)
    return found or TYPES


def _named(given: Any) -> frozenset[str]:
    names = {given} if isinstance(given, str) else set(given) if isinstance(given, list) else TYPES
    return frozenset(names) | ({"integer"} if "number" in names else frozenset())


def _target(ref: str, root: Any) -> Any:
    found = root
    for part in ref.removeprefix("#").split("/")[1:]:
        found = found.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(found, Mapping) else None
    return found
