"""A pydantic model for a schema of optional fields, as a user would declare it."""

from __future__ import annotations

import datetime
from typing import Any, Literal

from pydantic import BaseModel, Field, create_model

KINDS: dict[str, Any] = {"string": str, "integer": int, "number": float, "boolean": bool, "array": list[str]}


def model_of(schema: dict[str, Any]) -> type[BaseModel]:
    """All fields of the schema, None where the text does not say them."""
    fields: dict[str, Any] = {
        name: (_type(value) | None, Field(None, description=value.get("description") or None))
        for name, value in schema["properties"].items()
    }
    return create_model("Facts", **fields)


def _type(schema: dict[str, Any]) -> Any:
    if "enum" in schema:
        return Literal[tuple(schema["enum"])]
    return datetime.date if schema.get("format") == "date" else KINDS[schema["type"]]
