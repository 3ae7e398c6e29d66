"""What may be given as a schema: JSON text, a dict, a pydantic model, a dataclass or another Python type."""

from __future__ import annotations

import dataclasses
import enum
import json
import math
import typing
from collections.abc import Mapping
from typing import Any

from sgl.grammars.errors import InvalidGrammarError

_encode = json.JSONEncoder(allow_nan=False).encode


def canonical_schema(schema: Any) -> tuple[Any, str]:
    """A schema as JSON values, and as a text that only equal schemas have; the order of keys counts.

    Args:
        schema: JSON text, a dict or bool, a class with `model_json_schema()` such as a pydantic model, or, with
            pydantic installed, a dataclass, TypedDict, Enum or a type such as `list[int]` or `Literal["a", "b"]`.

    Raises:
        InvalidGrammarError: it is not JSON, or neither an object nor a boolean; or pydantic is needed and missing.
    """
    text = schema_text(schema)
    try:
        values = json.loads(text, parse_float=finite, parse_constant=finite)
    except ValueError as error:
        raise InvalidGrammarError(f"the schema is not JSON: {error}") from error
    if not isinstance(values, dict | bool):
        raise _no_schema(values)
    return values, text


def schema_text(schema: Any) -> str:
    """The same text; one that was given as text is not read."""
    if isinstance(schema, str):
        return str.__str__(schema)
    if hasattr(schema, "model_json_schema"):
        schema = schema.model_json_schema()
    elif _is_python_type(schema):
        schema = _of_python_type(schema)
    if not isinstance(schema, Mapping | bool):
        raise _no_schema(schema)
    try:
        return _encode(schema)
    except (TypeError, ValueError) as error:
        raise InvalidGrammarError(f"the schema is not JSON: {error}") from error


def _no_schema(value: Any) -> InvalidGrammarError:
    return InvalidGrammarError(
        f"a schema is a JSON object, true or false, not {value!r}; pass a dict, JSON text or a pydantic model"
    )


def finite(text: str) -> float:
    """A number as everybody reads it."""
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"the number {text[:40]} is too great for a double, or none")
    return value


def _is_python_type(schema: Any) -> bool:
    if typing.get_origin(schema) is not None:
        return True
    if not isinstance(schema, type):
        return False
    typed_dict = hasattr(schema, "__required_keys__")  # also those of typing_extensions
    named = typed_dict or dataclasses.is_dataclass(schema) or issubclass(schema, enum.Enum)
    return named or schema in (str, int, float, bool, list, dict, tuple, type(None))


def _of_python_type(kind: Any) -> Any:
    try:
        from pydantic import TypeAdapter
        from pydantic.errors import PydanticUserError
    except ImportError as error:
        hint = "install pydantic, or pass its JSON schema"
        raise InvalidGrammarError(f"{kind!r} becomes a schema by pydantic, which is not installed; {hint}") from error
    try:
        return TypeAdapter(kind).json_schema()
    except PydanticUserError as error:
        raise InvalidGrammarError(f"{kind!r} has no JSON schema: {error}") from error
