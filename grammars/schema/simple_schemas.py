"""A short way for the schemas that need no combining, which are nine in ten: a type, plain members or items, a list
of texts, a reference. Each becomes an expression at once, without shapes; all else is left to the long way, which
gives the same expressions more slowly.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from sgl.grammars.algebra.expr import NEVER, Expr, ListMember
from sgl.grammars.schema.keyword_reader import is_annotation
from sgl.grammars.schema.schema_document import SchemaDocument
from sgl.grammars.schema.schema_shapes import NOWHERE, TYPES, Where

_SCALARS = frozenset(TYPES) - {"object", "array"}
_OBJECT = frozenset(("type", "properties", "required", "additionalProperties"))
_ARRAY = frozenset(("type", "items"))
_CONSTANTS = frozenset(("type", "enum"))
_LEAF = frozenset(
    ("type", "minLength", "maxLength", "pattern", "format", "multipleOf")
    + ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
)
_REFERENCE = frozenset(("$ref",))
Schema = dict[str, Any]
Keywords = tuple[tuple[str, type, Any], ...]  # with the types of the values, for 1 is True


class GeneralSchemaWriter(Protocol):
    """What the long way lends: values of any places, and how members and lists are written."""

    def value(self, places: Where) -> Expr: ...
    def leaf(self, keywords: Keywords) -> Expr | None: ...
    def texts(self, values: list[str]) -> Expr: ...
    def rule(self, places: Where, bracket: str, body: Callable[[], Expr]) -> Expr: ...
    def member(self, name: str, value: Expr) -> Expr: ...
    def other_member(self, names: list[str], value: Expr) -> Expr: ...
    def members(self, parts: list[ListMember], extra: Expr, place: str) -> Expr: ...
    def items(self, item: Expr) -> Expr: ...
    def long_body(self, places: Where) -> Expr: ...


class SimpleSchemas:
    """Expressions of simple schemas by place; None where the long way must be gone."""

    def __init__(self, document: SchemaDocument, forms: GeneralSchemaWriter, open_objects: bool) -> None:
        self._document, self._forms, self._open = document, forms, open_objects
        self._references: list[str] = []

    def value(self, place: str) -> Expr | None:
        schema = self._document.value(place) if place[0] == "#" else None  # other names are of negations
        return self.read(schema, place) if schema.__class__ is dict else None

    def read(self, schema: Schema, place: str) -> Expr | None:
        """The same of a schema that is at hand."""
        kind = schema.get("type")
        if kind is None:
            return self._untyped(schema, place)
        if "enum" in schema:
            return self._constants(schema) if kind == "string" else None
        if kind == "object":
            plain = _plain_object(schema)
            return self._forms.rule((place,), "{", lambda: self._members(schema, place)) if plain else None
        if kind == "array":
            plain = "items" in schema and _only(schema, _ARRAY) and _is_schema(schema["items"])
            return self._forms.rule((place,), "[", lambda: self._items(schema["items"], place)) if plain else None
        return self._leaf(schema, kind)

    def _leaf(self, schema: Schema, kind: Any) -> Expr | None:
        """A value that is neither object nor array, by its keywords."""
        kinds = kind if kind.__class__ is list else (kind,)
        if not kinds or not all(k.__class__ is str and k in _SCALARS for k in kinds) or not _only(schema, _LEAF):
            return None
        stated = [(k, v.__class__, tuple(v) if v.__class__ is list else v) for k, v in schema.items() if k in _LEAF]
        return self._forms.leaf(tuple(stated))

    def _untyped(self, schema: Schema, place: str) -> Expr | None:
        if "enum" in schema:
            return self._constants(schema)
        if "$ref" in schema and _only(schema, _REFERENCE) and place not in self._references:
            target = self._referred(schema, place)
            if target is not None:
                self._references.append(place)
                found = self._forms.value((target,))
                self._references.pop()
                return found
        return None

    def _referred(self, schema: Schema, place: str) -> str | None:
        """Where references that say nothing else lead in the end; None where they lead nowhere."""
        passed = {place}
        here: Any = schema
        while True:
            place = self._document.resolve(here["$ref"], place)
            if place in passed:
                return None
            here = self._document.value(place) if place[0] == "#" else None
            if here.__class__ is not dict or "$ref" not in here or not _only(here, _REFERENCE):
                return place
            passed.add(place)

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
            value = self._sub(sub, start + _token(name))
            if value == NEVER:
                return forms.long_body((place,))
            parts.append(ListMember(forms.member(name, value), name in required))
        names = list(properties)
        rest = schema.get("additionalProperties", self._open or "properties" not in schema)
        value = self._sub(rest, f"{place}/additionalProperties")
        return forms.members(parts, NEVER if value == NEVER else forms.other_member(names, value), place)

    def _items(self, schema: Any, place: str) -> Expr:
        return self._forms.items(self._sub(schema, f"{place}/items"))

    def _sub(self, schema: Schema | bool, place: str) -> Expr:
        found = self.read(schema, place) if schema and schema is not True else None
        return self._forms.value(_places(schema, place)) if found is None else found


def _only(schema: Schema, keywords: frozenset[str]) -> bool:
    """Whether all other keywords are annotations."""
    return all(map(is_annotation, schema.keys() - keywords))


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
    return schema.__class__ is dict or schema.__class__ is bool


def _places(schema: Mapping[str, Any] | bool, place: str) -> Where:
    if schema is False:
        return NOWHERE
    return () if schema is True or not schema else (place,)


def _token(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1") if "~" in name or "/" in name else name
