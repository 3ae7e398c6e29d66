"""A short way for the schemas that need no combining, which are nine in ten: a type, plain members or items, a list
of texts, a reference. Each becomes an expression at once, without shapes; all else is left to the long way, which
gives the same expressions more slowly.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from sgl.grammars.expr import NEVER, Expr, Part
from sgl.grammars.schema.document import Document
from sgl.grammars.schema.keywords import is_annotation
from sgl.grammars.schema.shapes import NOWHERE, TYPES, Where

_SCALARS = frozenset(TYPES) - {"object", "array"}
_TYPE = frozenset(("type",))
_OBJECT = frozenset(("type", "properties", "required", "additionalProperties"))
_ARRAY = frozenset(("type", "items"))
_CONSTANTS = frozenset(("type", "enum"))
_REFERENCE = frozenset(("$ref",))
Schema = dict[str, Any]


class Forms(Protocol):
    """What the long way lends: values of any places, and how members and lists are written."""

    def value(self, places: Where) -> Expr: ...
    def scalar(self, kind: str) -> Expr: ...
    def texts(self, values: list[str]) -> Expr: ...
    def rule(self, places: Where, bracket: str, body: Callable[[], Expr]) -> Expr: ...
    def member(self, name: str, value: Expr) -> Expr: ...
    def other_member(self, names: list[str], value: Expr) -> Expr: ...
    def members(self, parts: list[Part], extra: Expr) -> Expr: ...
    def items(self, item: Expr) -> Expr: ...
    def long_body(self, places: Where) -> Expr: ...


class SimpleSchemas:
    """Expressions of simple schemas by place; None where the long way must be gone."""

    def __init__(self, document: Document, forms: Forms, open_objects: bool) -> None:
        self._document, self._forms, self._open = document, forms, open_objects
        self._references: list[str] = []

    def value(self, place: str) -> Expr | None:
        schema = self._document.value(place) if place[0] == "#" else None  # other names are of negations
        if schema.__class__ is not dict:
            return None
        kind = schema.get("type")
        if kind.__class__ is not str:
            return self._untyped(schema, place) if kind is None else None
        if "enum" in schema:
            return self._constants(schema) if kind == "string" else None
        if kind in _SCALARS:
            return self._forms.scalar(kind) if _only(schema, _TYPE) else None
        if kind == "object" and _plain_object(schema):
            return self._forms.rule((place,), "{", lambda: self._members(schema, place))
        if kind == "array" and "items" in schema and _only(schema, _ARRAY) and _is_schema(schema["items"]):
            return self._forms.rule((place,), "[", lambda: self._items(schema["items"], place))
        return None

    def _untyped(self, schema: Schema, place: str) -> Expr | None:
        if "enum" in schema:
            return self._constants(schema)
        if "$ref" in schema and _only(schema, _REFERENCE) and place not in self._references:
            self._references.append(place)
            found = self._forms.value((self._document.resolve(schema["$ref"], place),))
            self._references.pop()
            return found
        return None

    def _constants(self, schema: Schema) -> Expr | None:
        values = schema["enum"]
        texts = values.__class__ is list and values and all(v.__class__ is str for v in values)
        return self._forms.texts(values) if texts and _only(schema, _CONSTANTS) else None

    def _members(self, schema: Schema, place: str) -> Expr:
        """The members of an object; the long way where one of them can have no value."""
        forms, required = self._forms, frozenset(schema.get("required", ()))
        properties, parts = schema.get("properties", {}), []
        start = f"{place}/properties/"
        for name, sub in properties.items():
            value = forms.value(_places(sub, start + _token(name)))
            if value is NEVER:
                return forms.long_body((place,))
            parts.append(Part(forms.member(name, value), name in required))
        names = list(properties)
        rest = schema.get("additionalProperties", self._open or not properties)
        value = forms.value(_places(rest, f"{place}/additionalProperties"))
        return forms.members(parts, NEVER if value == NEVER else forms.other_member(names, value))

    def _items(self, schema: Any, place: str) -> Expr:
        return self._forms.items(self._forms.value(_places(schema, f"{place}/items")))


def _only(schema: Schema, keywords: frozenset[str]) -> bool:
    """Whether all other keywords are annotations."""
    return all(key in keywords or is_annotation(key) for key in schema)


def _plain_object(schema: Schema) -> bool:
    properties, required = schema.get("properties", {}), schema.get("required", [])
    return (
        _only(schema, _OBJECT)
        and isinstance(properties, dict)
        and all(map(_is_schema, properties.values()))
        and isinstance(required, list)
        and all(name.__class__ is str and name in properties for name in required)
        and _is_schema(schema.get("additionalProperties", True))
    )


def _is_schema(schema: Any) -> bool:
    return isinstance(schema, dict | bool)


def _places(schema: Mapping[str, Any] | bool, place: str) -> Where:
    if schema is False:
        return NOWHERE
    return () if schema is True or not schema else (place,)


def _token(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1") if "~" in name or "/" in name else name
