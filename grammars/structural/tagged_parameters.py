"""The properties of an object as parameters between marks: strings as they are, all other values as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sgl.grammars.algebra import charset
from sgl.grammars.algebra.counted_texts import CountedTexts
from sgl.grammars.algebra.expr import (
    EMPTY,
    NEVER,
    ByteClass,
    CharClass,
    Expr,
    GrammarRule,
    ListMember,
    Repeat,
    RuleCall,
    SeparatedList,
    alt,
    optional,
    repeat,
    seq,
    words,
)
from sgl.grammars.algebra.language_operations import combine, determined, texts
from sgl.grammars.errors import GrammarLimitError, InvalidGrammarError, UnsupportedGrammarError
from sgl.grammars.regex import parse_regex
from sgl.grammars.schema.closed_objects import KEYWORD, closing
from sgl.grammars.schema.ignored_keywords import weakened
from sgl.grammars.schema.scalar_schemas import sure
from sgl.grammars.schema.schema_builder import SchemaOptions, schema_expr
from sgl.grammars.schema.schema_document import SchemaDocument, child
from sgl.grammars.schema.schema_resolver import SchemaResolver
from sgl.grammars.schema.schema_shapes import SchemaShape, StringShape
from sgl.grammars.structural.free_text import literal, until
from sgl.grammars.structural.parameter_styles import ParameterStyle
from sgl.grammars.tokens.vocabulary import Vocabulary

MOST_BLANKS = 4  # between marks
SHARED = ("$defs", "definitions", "$schema", "$id", KEYWORD)
SUPPORTED = frozenset(
    {
        "type",
        "properties",
        "required",
        "additionalProperties",
        "title",
        "description",
        "default",
        "examples",
        "$comment",
        "strict",
        *SHARED,
    }
)
OTHER_TYPES = ["null", "boolean", "number", "array", "object"]
_NAME = r"[A-Za-z_][A-Za-z0-9_.\-]*"
_ANY_CHARS = Repeat(CharClass(charset.ANY), 0, None)
_LINE = optional(literal("\n"))
_PYTHON = {True: b"True", False: b"False", None: b"None"}


def parameters_expr(
    schema: Any,
    style: ParameterStyle,
    options: SchemaOptions,
    vocabulary: Vocabulary | None,
    most_blanks: int | None = None,
) -> Expr:
    """The grammar of an object's properties in a style, with blanks before, between and after them.

    Raises:
        InvalidGrammarError: the schema is malformed or is not of an object.
        UnsupportedGrammarError: it says of the object as a whole what cannot be enforced here.
    """
    return _Parameters(schema, style, options, vocabulary, most_blanks).expr()


class _Parameters:
    def __init__(
        self,
        schema: Any,
        style: ParameterStyle,
        options: SchemaOptions,
        vocabulary: Vocabulary | None,
        most_blanks: int | None,
    ) -> None:
        self._schema = _checked(weakened(schema, options)[0])
        options = closing(options, self._schema)
        self._style, self._options, self._vocabulary = style, options, vocabulary
        self._blanks = repeat(
            ByteClass(sum(1 << ord(c) for c in " \t\n\r")),
            0,
            MOST_BLANKS if most_blanks is None else min(MOST_BLANKS, most_blanks),
        )
        others = {uri: weakened(json.loads(text), options)[0] for uri, text in options.resources}
        self._resolver = SchemaResolver(SchemaDocument(self._schema, others), options)

    def expr(self) -> Expr:
        properties = self._schema.get("properties") or {}
        required = set(self._schema.get("required") or ())
        if missing := sorted(required - properties.keys()):
            raise UnsupportedGrammarError(
                "required", "#/required", f"{missing[0]!r} is none of the properties; describe it there"
            )
        parts = [ListMember(self._parameter(name), name in required) for name in properties]
        ordered = self._options.order == "schema"
        return seq(
            self._blanks,
            SeparatedList(tuple(parts), self._extra(sorted(properties)), EMPTY, ordered=ordered or not parts),
        )

    def _extra(self, known: list[str]) -> Expr | None:
        """A parameter of another name, where there may be some."""
        more = self._schema.get(
            "additionalProperties", self._options.additional_properties or "properties" not in self._schema
        )
        if more is False:
            return None
        name = combine([parse_regex(_NAME)], [texts(known)] if known else [])
        value = self._value(("#/additionalProperties",), more) if isinstance(more, dict) else self._value((), True)
        return seq(literal(self._style.opening), name, value, self._blanks)

    def _parameter(self, name: str) -> Expr:
        place = child("#/properties", name)
        value = self._value((place,), self._schema["properties"][name])
        key = self._style.key(name)
        if any(mark in key for mark in (self._style.naming[0], "<", '"', "\n")):
            raise UnsupportedGrammarError(f"the name {name!r}", place, "it could be taken for a mark")
        body = seq(literal(self._style.opening + key), value, self._blanks)
        return RuleCall(GrammarRule(f"parameter {name}", lambda: body))

    def _value(self, places: tuple[str, ...], schema: Any) -> Expr:
        """What follows the key: marks, the value, and the closing mark."""
        shapes = self._resolver.written(places)
        strings = [self._string(shape) for shape in shapes]
        text = alt(*strings)
        if self._style.typed is None and self._is_free(shapes):  # any text is in order, that of other values too
            return seq(self._named(self._style.naming), text)
        found = [seq(self._named(self._style.naming), text)] if text != NEVER else []
        found += self._others(schema, shapes, text != NEVER)
        if not found:
            raise InvalidGrammarError("the schema allows no value at all", places[0] if places else "#")
        return alt(*found)

    def _others(self, schema: Any, shapes: Any, mixed: bool) -> list[Expr]:
        """The values that are no strings: of every type by itself, where the marks tell it."""
        types = [one for one in OTHER_TYPES if any(one in _other_types(shape) for shape in shapes)]
        pieces = self._style.typed or self._style.naming
        if not self._style.tells_types:
            return (
                [seq(self._named(pieces), self._other(schema, shapes, OTHER_TYPES if mixed else None))] if types else []
            )
        return [
            seq(self._named(tuple(p.format(one) for p in pieces)), self._other(schema, shapes, one)) for one in types
        ]

    def _named(self, pieces: tuple[str, ...]) -> Expr:
        return seq(literal(pieces[0]), *(part for piece in pieces[1:] for part in (self._blanks, literal(piece))))

    def _is_free(self, shapes: Any) -> bool:
        return any(shape.values is None and shape.strings == StringShape() for shape in map(_unplaced, shapes))

    def _string(self, shape: SchemaShape) -> Expr:
        """The strings of a shape, and the closing mark."""
        closing = self._style.closing
        if shape.values is not None:
            found = [value for value in shape.values if isinstance(value, str) and closing not in value]
            return self._closed(words([value.encode() for value in found])) if found else NEVER
        if shape.strings is None:
            return NEVER
        if _unplaced(shape).strings == StringShape():
            return until([closing], self._vocabulary)
        text = _text(shape.strings, closing)
        return NEVER if text == NEVER else self._closed(text)

    def _other(self, schema: Any, shapes: Any, types: str | list[str] | None) -> Expr:
        """A value that is no string, of some types, and the closing mark."""
        shared = {key: self._schema[key] for key in SHARED if key in self._schema}
        narrowed: Any = {"allOf": [schema], "type": types} if types or not isinstance(schema, dict) else schema
        value = schema_expr({**narrowed, **shared}, self._options)
        if self._style.python:
            value = alt(value, words(sorted(_PYTHON[one] for one in _singles(shapes))))
        return self._closed(value)

    def _closed(self, value: Expr) -> Expr:
        pad = _LINE if self._style.padded else EMPTY
        return seq(pad, value, pad, literal(self._style.closing))


def _checked(schema: Any) -> dict[str, Any]:
    """The schema of an object that says nothing of its properties together."""
    if schema is True:
        return {}
    if not isinstance(schema, dict):
        raise InvalidGrammarError(f"parameters are those of an object schema, not {schema!r:.100}", "#")
    if schema.get("type", "object") != "object":
        raise InvalidGrammarError(f"parameters are those of an object, not of {schema['type']!r}", "#/type")
    joint = next((key for key in schema if key not in SUPPORTED), None)
    if joint is not None:
        raise UnsupportedGrammarError(joint, child("#", joint), "parameters between marks are enforced one by one")
    for key, kind in (("properties", Mapping), ("required", list)):
        if schema.get(key) is not None and not isinstance(schema[key], kind):
            raise InvalidGrammarError(f"{key} is {schema[key]!r:.100}", child("#", key))
    return schema


def _unplaced(shape: SchemaShape) -> SchemaShape:
    """The shape without the place of its strings, which is no part of their meaning."""
    return shape if shape.strings is None else replace(shape, strings=replace(shape.strings, place=""))


def _other_types(shape: SchemaShape) -> set[str]:
    """The types that a shape allows, besides strings."""
    if shape.values is not None:
        return {_type_of(value) for value in shape.values} - {"string"}
    parts = {
        "null": shape.null,
        "boolean": bool(shape.booleans),
        "number": shape.numbers,
        "array": shape.arrays,
        "object": shape.objects,
    }
    return {name for name, part in parts.items() if part is not None and part is not False}


def _type_of(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return "null" if value is None else "boolean"
    kinds: dict[type, str] = {str: "string", dict: "object", list: "array"}
    return kinds.get(type(value), "number")


def _singles(shapes: Any) -> set[bool | None]:
    """Which of true, false and null the shapes allow."""
    found: set[bool | None] = set()
    for shape in shapes:
        if shape.values is not None:
            found |= {value for value in shape.values if value is None or isinstance(value, bool)}
        else:
            found |= {*shape.booleans, *([None] if shape.null else [])}
    return found


def _text(strings: StringShape, closing: str) -> Expr:
    """The characters of strings that keep to something and do not hold the closing mark."""
    strings = sure(strings)
    holds = seq(_ANY_CHARS, *(CharClass(charset.of(char)) for char in closing), _ANY_CHARS)
    included = strings.languages or (_ANY_CHARS,)
    excluded = (*strings.excluded, *((texts(sorted(strings.forbidden)),) if strings.forbidden else ()), holds)
    if strings.most is not None and strings.most < len(closing):
        excluded = excluded[:-1]
    try:
        return combine(included, excluded, strings.least, strings.most)
    except GrammarLimitError as error:
        return _counted(strings, included, excluded, error)


def _counted(
    strings: StringShape, included: tuple[Expr, ...], excluded: tuple[Expr, ...], error: GrammarLimitError
) -> Expr:
    """The same by states and counts that are made on the way."""
    try:
        graph = determined(included, excluded)
    except GrammarLimitError:
        graph = None
    if graph is None or len(graph.edges) * max(strings.least, strings.most or 0) > 5_000_000:
        raise UnsupportedGrammarError("pattern", strings.place, f"with the keywords next to it: {error}") from error
    counted = CountedTexts(graph, strings.least, strings.most, CharClass, _spelled)
    return counted.expr(f"text at {strings.place}")


def _spelled(chars: charset.CharSet) -> bytes:
    return chr(chars[0][0]).encode()
