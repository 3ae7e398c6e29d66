"""The keywords of one schema object, checked and read into the shape that they allow."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from decimal import Decimal
from functools import lru_cache
from typing import Any

from sgl.grammars.algebra.expr import Expr
from sgl.grammars.errors import InvalidGrammarError, UnsupportedGrammarError
from sgl.grammars.regex import parse_regex
from sgl.grammars.schema.content_encoding import encoded, encoding_of, holds_json
from sgl.grammars.schema.copied_strings import copied_of
from sgl.grammars.schema.schema_document import SchemaOptions, child
from sgl.grammars.schema.schema_shapes import (
    NOWHERE,
    TYPES,
    ArrayShape,
    ContainsShape,
    NumberShape,
    ObjectShape,
    PropertyLayer,
    SchemaShape,
    StringShape,
    Where,
    as_decimal,
)
from sgl.grammars.schema.string_formats import ENFORCED, format_expr, longest_format

_ANNOTATIONS = frozenset(
    [
        "title",
        "description",
        "default",
        "examples",
        "example",
        "$comment",
        "$schema",
        "$id",
        "id",
        "$anchor",
        "$defs",
        "definitions",
        "readOnly",
        "writeOnly",
        "deprecated",
        "$vocabulary",
        "$dynamicAnchor",
        "$recursiveAnchor",
    ]
)
_APPLIED = frozenset(
    [
        "type",
        "nullable",
        "enum",
        "const",
        "minimum",
        "maximum",
        "exclusiveMinimum",
        "exclusiveMaximum",
        "multipleOf",
        "minLength",
        "maxLength",
        "pattern",
        "format",
        "properties",
        "patternProperties",
        "additionalProperties",
        "required",
        "minProperties",
        "maxProperties",
        "propertyNames",
        "items",
        "prefixItems",
        "additionalItems",
        "minItems",
        "maxItems",
        "anyOf",
        "oneOf",
        "allOf",
        "not",
        "$ref",
        "uniqueItems",
        "contains",
        "$dynamicRef",
        "$recursiveRef",
        "unevaluatedProperties",
        "unevaluatedItems",
        "dependentRequired",
        "dependentSchemas",
        "dependencies",
        "if",
        "then",
        "else",
        "minContains",
        "maxContains",
        "contentEncoding",
        "contentMediaType",
        "contentSchema",
        "x-copied",
    ]
)
_REFUSED = ("extends", "disallow", "divisibleBy")
APPLICATORS = frozenset(
    [
        "$ref",
        "$dynamicRef",
        "$recursiveRef",
        "anyOf",
        "oneOf",
        "allOf",
        "not",
        "if",
        "dependentRequired",
        "dependentSchemas",
        "dependencies",
        "unevaluatedProperties",
        "unevaluatedItems",
    ]
)
_BOTH = frozenset((True, False))
Schema = Mapping[str, Any]


def check_keywords(schema: Schema, place: str) -> None:
    """Refuse what is not enforced, and what looks like a slip of the pen for something that is."""
    for keyword in schema:
        if keyword in _APPLIED or keyword in _ANNOTATIONS:
            continue
        if keyword in _REFUSED:
            raise UnsupportedGrammarError(keyword, place)
        meant = _misspelt(keyword)
        if meant:
            raise UnsupportedGrammarError(keyword, place, f"did you mean {meant!r}?")


@lru_cache(maxsize=4096)
def is_annotation(keyword: str) -> bool:
    """Whether a keyword says nothing about which values are allowed."""
    return keyword in _ANNOTATIONS or not (keyword in _APPLIED or keyword in _REFUSED or _misspelt(keyword))


@lru_cache(maxsize=4096)
def _misspelt(keyword: str) -> str:
    """The enforced keyword that an unknown one differs from in case or by a letter; else empty."""
    if keyword.startswith(("x-", "$", "_")):
        return ""
    for known in _APPLIED:
        if known.lower() == keyword.lower():
            return known
    close = difflib.get_close_matches(keyword, _APPLIED, 1, 0.88)
    return close[0] if close and len(keyword) > 5 else ""


class KeywordReader:
    """Reads the keywords that speak of the value itself; the applicators are the resolver's."""

    def __init__(self, options: SchemaOptions) -> None:
        self._options = options

    def shape(self, schema: Schema, place: str) -> SchemaShape:
        """What the direct keywords of a schema allow; those of types that it excludes say nothing."""
        types = _types(schema, place)
        numeric = "number" in types or "integer" in types
        return SchemaShape(
            null="null" in types,
            booleans=_BOTH if "boolean" in types else frozenset(),
            numbers=_numbers(schema, place, "number" not in types) if numeric else None,
            strings=_strings(schema, place, self._options) if "string" in types else None,
            arrays=_arrays(schema, place) if "array" in types else None,
            objects=self._objects(schema, place) if "object" in types else None,
            values=_values(schema, place),
        )

    def _objects(self, schema: Schema, place: str) -> ObjectShape:
        layers: tuple[PropertyLayer, ...] = ()
        if schema.keys() & {"properties", "patternProperties", "additionalProperties"}:
            layers = (self._layer(schema, place),)
        return ObjectShape(
            layers,
            _required(schema, place),
            _count(schema, "minProperties", place) or 0,
            _count(schema, "maxProperties", place),
            _names(schema, place),
            place,
        )

    def _layer(self, schema: Schema, place: str) -> PropertyLayer:
        properties = _mapping(schema, "properties", place)
        patterns = _mapping(schema, "patternProperties", place)
        return PropertyLayer(
            {name: where(properties[name], child(place, "properties", name)) for name in properties},
            tuple(
                (_pattern(p, place, "patternProperties"), where(s, child(place, "patternProperties", p)))
                for p, s in patterns.items()
            ),
            _rest(schema, "additionalProperties", place) or (),
            rest="additionalProperties" in schema,
            closes="properties" in schema,
        )


def where(schema: Any, place: str) -> Where:
    """The set of just this place; nothing for a schema that says nothing."""
    if not isinstance(schema, Mapping | bool):
        raise InvalidGrammarError(f"a schema is an object or a boolean, not {schema!r}", place)
    if schema is False:
        return NOWHERE
    return () if schema is True or not schema else (place,)


def _rest(schema: Schema, keyword: str, place: str) -> Where | None:
    return where(schema[keyword], child(place, keyword)) if keyword in schema else None


def _types(schema: Schema, place: str) -> list[str]:
    found = schema.get("type", list(TYPES))
    types = found if isinstance(found, list) else [found]
    for name in types:
        if name not in TYPES:
            near = difflib.get_close_matches(str(name), TYPES, 1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; types are {', '.join(TYPES)}"
            raise InvalidGrammarError(f"type {name!r} is unknown{hint}", child(place, "type"))
    return [*types, "null"] if schema.get("nullable") is True and "type" in schema else types


def _values(schema: Schema, place: str) -> tuple[Any, ...] | None:
    if "const" in schema:
        return (schema["const"],)
    if "enum" not in schema:
        return None
    if not isinstance(schema["enum"], list):
        raise InvalidGrammarError(f"enum must be a list, not {schema['enum']!r}", child(place, "enum"))
    return tuple(schema["enum"])


_LIMITS = frozenset(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"))
_BEYOND = 10**500


def _number(schema: Schema, keyword: str, place: str) -> Decimal | None:
    value = schema.get(keyword)
    if value is None and keyword not in schema:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidGrammarError(f"{keyword} must be a number, not {value!r}", child(place, keyword))
    if keyword in _LIMITS and abs(value) >= _BEYOND:
        raise UnsupportedGrammarError(keyword, place, "numbers of more than 500 digits are not compared; leave it out")
    return as_decimal(value)


def _count(schema: Schema, keyword: str, place: str) -> int | None:
    value = _number(schema, keyword, place)
    if value is None:
        return None
    if value < 0 or value != int(value):
        raise InvalidGrammarError(f"{keyword} must be a count, not {schema[keyword]!r}", child(place, keyword))
    return min(int(value), 2**31 - 1)


def _bound(schema: Schema, end: str, place: str, tighter: Callable[..., Any]) -> tuple[Decimal, bool] | None:
    """(value, strict) of one end; draft 4 has a boolean next to the bound, later drafts a separate bound."""
    strict_name = "exclusive" + end.capitalize()
    bound, strict = _number(schema, end, place), schema.get(strict_name)
    if isinstance(strict, bool):
        return None if bound is None else (bound, strict)
    found = [] if bound is None else [(bound, False)]
    if strict_name in schema:
        found.append((_number(schema, strict_name, place) or Decimal(0), True))
    return tighter(found) if found else None


def _numbers(schema: Schema, place: str, integer: bool) -> NumberShape:
    multiple = _number(schema, "multipleOf", place)
    if multiple is not None and multiple <= 0:
        raise InvalidGrammarError(f"multipleOf must be above 0, not {multiple}", child(place, "multipleOf"))
    return NumberShape(
        integer,
        _bound(schema, "minimum", place, max),
        _bound(schema, "maximum", place, lambda found: min(found, key=lambda b: (b[0], not b[1]))),
        () if multiple is None else (multiple,),
        place,
    )


def _strings(schema: Schema, place: str, options: SchemaOptions) -> StringShape:
    content = options.content == "enforced"
    languages: list[Expr] = []
    if "pattern" in schema:
        languages.append(_pattern(schema["pattern"], place, "pattern"))
    least, most = _count(schema, "minLength", place) or 0, _count(schema, "maxLength", place)
    if (name := format_name(schema, place)) in ENFORCED:
        languages.append(format_expr(name))
        most = min((m for m in (most, longest_format(name)) if m is not None), default=None)
    held = None
    if content and (encoding := encoding_of(schema, place)):
        languages.append(encoded(encoding))
    if content and holds_json(schema, place):
        if encoding:
            hint = f"JSON within {encoding} is not supported; weaken contentMediaType to enforce the encoding alone"
            raise UnsupportedGrammarError("contentMediaType", place, hint)
        held = _rest(schema, "contentSchema", place) or ()
    copied = copied_of(schema, place, options.copied_from)
    return StringShape(least, most, tuple(languages), (), place, content=held, copied=copied)


def format_name(schema: Schema, place: str) -> str:
    """The format of a schema, empty where there is none."""
    found = schema.get("format", "")
    if not isinstance(found, str):
        raise InvalidGrammarError(f"format must be a string, not {found!r}", child(place, "format"))
    return found


def _pattern(pattern: Any, place: str, keyword: str) -> Expr:
    """A pattern as JSON Schema means it: found anywhere, unless it is anchored."""
    try:
        return _searched(pattern) if isinstance(pattern, str) else parse_regex(pattern, "ecma", search=True)
    except InvalidGrammarError as error:
        raise InvalidGrammarError(f"{error.what}, {error.where}", child(place, keyword)) from error
    except UnsupportedGrammarError as error:
        at = f"{child(place, keyword)}, {error.where}"
        raise UnsupportedGrammarError(error.keyword, at) from error


@lru_cache(maxsize=256)
def _searched(pattern: str) -> Expr:
    """One expression for all places of a pattern: expressions are compared by identity."""
    return parse_regex(pattern, "ecma", search=True)


def _arrays(schema: Schema, place: str) -> ArrayShape:
    items = schema.get("items", True)
    prefix_name, rest_name = ("items", "additionalItems") if isinstance(items, list) else ("prefixItems", "items")
    prefix = schema.get(prefix_name, [])
    if not isinstance(prefix, list):
        raise InvalidGrammarError(f"{prefix_name} must be a list, not {prefix!r}", child(place, prefix_name))
    return ArrayShape(
        tuple(where(s, child(place, prefix_name, i)) for i, s in enumerate(prefix)),
        _rest(schema, rest_name, place) or (),
        _count(schema, "minItems", place) or 0,
        _count(schema, "maxItems", place),
        _contained(schema, place),
        schema.get("uniqueItems") is True,
        None if rest_name in schema else len(prefix),
        place,
    )


def _contained(schema: Schema, place: str) -> tuple[ContainsShape, ...]:
    if "contains" not in schema:
        return ()
    places = where(schema["contains"], child(place, "contains"))
    least, most = _count(schema, "minContains", place), _count(schema, "maxContains", place)
    return (ContainsShape(places, 1 if least is None else least, most, spoken=True),)


def _mapping(schema: Schema, keyword: str, place: str) -> Mapping[str, Any]:
    found = schema.get(keyword, {})
    if not isinstance(found, Mapping):
        raise InvalidGrammarError(f"{keyword} must be an object, not {found!r}", child(place, keyword))
    return found


def _required(schema: Schema, place: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(check_names(schema.get("required", []), "required", place)))


def check_names(found: Any, keyword: str, place: str) -> list[str]:
    """The value of a keyword that lists names."""
    if not isinstance(found, list) or not all(isinstance(name, str) for name in found):
        raise InvalidGrammarError(f"{keyword} must list names, not {found!r}", child(place, keyword))
    return found


def _names(schema: Schema, place: str) -> tuple[Where, ...]:
    if "propertyNames" not in schema:
        return ()
    found = where(schema["propertyNames"], child(place, "propertyNames"))
    return (found,) if found else ()
