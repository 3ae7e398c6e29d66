"""Numbers of JSON with all their digits, where a type asks for a Decimal.

pydantic's JSON reader makes a double of every number with a point before a Decimal is made of it. From a string it
reads all digits. So a number that a double changes is put in quotes, but only where the type wants a Decimal.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

Schema = dict[str, Any]
MARK = "x-decimal"  # in the schema of a Decimal; never sent


class DecimalDigits(float):
    """A number that keeps its text."""

    text: str

    @classmethod
    def of(cls, text: str) -> DecimalDigits:
        number = cls(text)
        number.text = text
        return number

    @property
    def changed(self) -> bool:
        """Whether the double is another number than the text."""
        return Decimal(self.text) != Decimal(float.__repr__(self))


def marked(schema: Any) -> bool:
    """Whether a schema asks for a Decimal anywhere."""
    if isinstance(schema, dict):
        return schema.get(MARK) is True or any(marked(inner) for inner in schema.values())
    return isinstance(schema, list) and any(marked(inner) for inner in schema)


def unmarked(schema: Any) -> Any:
    """The schema as others may read it."""
    if isinstance(schema, dict):
        return {key: unmarked(inner) for key, inner in schema.items() if not (key == MARK and inner is True)}
    return [unmarked(inner) for inner in schema] if isinstance(schema, list) else schema


def with_all_digits(text: str, schema: Schema) -> str:
    """The same JSON with quotes around the numbers that a double would change. Raises ValueError if it is not JSON."""
    value = json.loads(text, parse_float=DecimalDigits.of)
    quoted = _Quoting(schema.get("$defs", {})).of(value, (schema,))
    return text if quoted is value else _written(quoted)


def _written(value: Any) -> str:
    """JSON in which numbers are as they were written."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(name)}:{_written(member)}" for name, member in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_written, value)) + "]"
    return value.text if isinstance(value, DecimalDigits) else json.dumps(value)


class _Quoting:
    """Walks a value along the schemas that may apply to it. What changes nothing comes back as the same object."""

    def __init__(self, definitions: Mapping[str, Schema]) -> None:
        self._definitions = definitions

    def of(self, value: Any, schemas: tuple[Any, ...]) -> Any:
        found = [inner for schema in schemas for inner in self._alternatives(schema)]
        if isinstance(value, DecimalDigits):
            return self._number(value, found)
        if isinstance(value, str):
            return self._text(value, found)
        if isinstance(value, dict):
            return self._object(value, found)
        return self._list(value, found) if isinstance(value, list) else value

    def _alternatives(self, schema: Any) -> list[Schema]:
        """The schemas without references and choices that a schema stands for."""
        if not isinstance(schema, dict):
            return []
        found = [schema]
        if "$ref" in schema:
            found += self._alternatives(self._definitions.get(schema["$ref"].rpartition("/")[2]))
        for key in ("anyOf", "oneOf", "allOf"):
            found += [inner for one in schema.get(key, ()) for inner in self._alternatives(one)]
        return found

    def _number(self, value: DecimalDigits, schemas: list[Schema]) -> Any:
        """A type that also reads other numbers than Decimal keeps what it is given."""
        kinds = [schema for schema in schemas if schema.get("type") == "number"]
        wants = bool(kinds) and all(MARK in schema for schema in kinds)
        return value.text if wants and value.changed else value

    def _text(self, value: str, schemas: list[Schema]) -> str:
        """JSON within a text."""
        inner = tuple(schema["contentSchema"] for schema in schemas if "contentSchema" in schema)
        if not inner or not marked(list(inner)):
            return value
        try:
            held = json.loads(value, parse_float=DecimalDigits.of)
        except ValueError:
            return value
        quoted = self.of(held, inner)
        return value if quoted is held else _written(quoted)

    def _object(self, value: dict[str, Any], schemas: list[Schema]) -> dict[str, Any]:
        made = {name: self.of(member, tuple(_members(schemas, name))) for name, member in value.items()}
        return value if all(made[name] is member for name, member in value.items()) else made

    def _list(self, value: list[Any], schemas: list[Schema]) -> list[Any]:
        made = [self.of(item, tuple(_items(schemas, index))) for index, item in enumerate(value)]
        return value if all(new is old for new, old in zip(made, value, strict=True)) else made


def _members(schemas: list[Schema], name: str) -> list[Any]:
    found = []
    for schema in schemas:
        if name in schema.get("properties", {}):
            found.append(schema["properties"][name])
        else:
            found += [schema.get("additionalProperties"), *schema.get("patternProperties", {}).values()]
    return found


def _items(schemas: list[Schema], index: int) -> list[Any]:
    found = []
    for schema in schemas:
        first = schema.get("prefixItems", ())
        found.append(first[index] if index < len(first) else schema.get("items"))
    return found
