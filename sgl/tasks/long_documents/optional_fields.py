"""A type whose fields a piece of a document may leave out."""

from __future__ import annotations

import json
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any, NotRequired, Optional, Required, get_args, get_origin

from sgl.lang.errors import BadValueError
from sgl.lang.typed import reading_of
from sgl.lang.typed.pydantic_typed_dicts import typed_dict
from sgl.lang.typed.type_constraint import type_name
from sgl.lang.typed.typed_json import JsonTextParser
from sgl.lang.typed.typed_text_writing import text_of_value

VALUE = "value"  # the field of a type that has none, such as a list
_PRESENCE = (Required, NotRequired)


@dataclass(frozen=True)
class OptionalFields:
    """`kind` with each field optional, under the names that its JSON has.

    partial: a TypedDict of the fields, each of which may be missing or None. hints: the type of each field.
    lists: the fields that are lists. required: those that `kind` needs. wrapped: `kind` has no fields; it is the type
    of the field "value".
    """

    kind: Any
    partial: Any
    hints: Mapping[str, Any]
    lists: frozenset[str]
    required: tuple[str, ...]
    wrapped: bool

    def example(self, text: str, value: Any) -> str:
        """A value of `kind`, read from a text, as JSON of `partial`. Raises BadValueError for what is none."""
        kind, whole = (_wrapper(self.kind), {VALUE: value}) if self.wrapped else (self.kind, value)
        fields = json.loads(text_of_value(kind, whole, text))
        return json.dumps({name: one for name, one in fields.items() if one is not None}, ensure_ascii=False)

    def value(self, fields: Mapping[str, Any], backend: Any) -> Any:
        """The value of `kind` that has these fields, in JSON. Raises ValueError, with what is wrong."""
        text = json.dumps({name: fields[name] for name in self.hints if name in fields}, ensure_ascii=False)
        if self.wrapped:
            return reading_of(_wrapper(self.kind)).read(text, backend)[VALUE]
        return reading_of(self.kind).read(text, backend)

    def only(self, names: typing.Iterable[str]) -> Any:
        """The partial type with some of the fields."""
        return _partial(self.kind, {name: self.hints[name] for name in names})


def optional_fields(kind: Any) -> OptionalFields:
    """The fields of a type. Raises BadValueError for what `gen` refuses."""
    try:
        hash(kind)
    except TypeError:
        return _made(kind)
    return _cached(kind)


def _made(kind: Any) -> OptionalFields:
    schema = _schema(kind)
    root = _resolved(schema, schema)
    hints = _hints(kind, list(root["properties"])) if "properties" in root else None
    if hints is None:
        hints, schema = {VALUE: kind}, _schema(_wrapper(kind))
        root = schema
    lists = frozenset(name for name in hints if _is_list(root["properties"][name], schema))
    required = tuple(root.get("required", ()))
    return OptionalFields(kind, _partial(kind, hints), hints, lists, required, hints.get(VALUE) is kind)


_cached = lru_cache(maxsize=128)(_made)


def _schema(kind: Any) -> Mapping[str, Any]:
    """The JSON Schema of a type; empty for one whose text is no JSON."""
    reading = reading_of(kind)
    return reading.schema if isinstance(reading, JsonTextParser) else {}


def _wrapper(kind: Any) -> Any:
    return typed_dict("Found", {VALUE: Required[kind]})


def _partial(kind: Any, hints: Mapping[str, Any]) -> Any:
    return typed_dict(type_name(kind), {name: NotRequired[_optional(hint)] for name, hint in hints.items()})


def _optional(hint: Any) -> Any:
    """`hint | None`. What describes the field stays outside, what constrains its values inside."""
    if get_origin(hint) is not Annotated:
        return Optional[hint]  # noqa: UP045  (a hint may be a text)
    plain, *marks = get_args(hint)
    outside = [mark for mark in marks if getattr(mark, "description", None)]
    inside = [mark for mark in marks if not getattr(mark, "description", None)]
    inner = Annotated[(plain, *inside)] if inside else plain
    return Annotated[(Optional[inner], *outside)] if outside else Optional[inner]  # noqa: UP045


def _hints(kind: Any, properties: list[str]) -> dict[str, Any] | None:
    """The type of each property; None for a type whose properties are not the fields of a class."""
    if fields := getattr(kind, "model_fields", None):
        hints = {name: _pydantic_hint(field) for name, field in fields.items()}
    elif isinstance(kind, type):
        hints = {name: _bare(hint) for name, hint in typing.get_type_hints(kind, include_extras=True).items()}
    else:
        return None
    if set(properties) <= hints.keys():
        return {name: hints[name] for name in properties}
    if len(fields or ()) == len(properties):  # fields with aliases are in the same order
        return dict(zip(properties, hints.values(), strict=True))
    raise BadValueError(
        f"extract_document: the fields of {type_name(kind)} are {', '.join(hints)}, those of its JSON are "
        f"{', '.join(properties)}; give a type where both are the same"
    )


def _pydantic_hint(field: Any) -> Any:
    from pydantic import Field

    plain = Annotated[(field.annotation, *field.metadata)] if field.metadata else field.annotation
    return Annotated[plain, Field(description=field.description)] if field.description else plain


def _bare(hint: Any) -> Any:
    while get_origin(hint) in _PRESENCE:
        hint = get_args(hint)[0]
    return hint


def _is_list(schema: Any, root: Mapping[str, Any]) -> bool:
    schema = _resolved(schema, root)
    choices = [_resolved(one, root) for one in schema.get("anyOf", ())]
    kinds = {one.get("type") for one in choices or [schema]} - {"null"}
    return kinds == {"array"} and "prefixItems" not in schema


def _resolved(schema: Any, root: Mapping[str, Any]) -> Any:
    while "$ref" in schema:
        schema = root["$defs"][schema["$ref"].rpartition("/")[2]]
    return schema
