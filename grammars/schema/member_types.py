"""Which JSON types the members of an object may have: for readers of texts that do not say the type of a value."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Any

from sgl.grammars.errors import GrammarError, GrammarLimitError
from sgl.grammars.schema.ignored_keywords import without_refused
from sgl.grammars.schema.instance_validator import InstanceValidator
from sgl.grammars.schema.keyword_reader import APPLICATORS
from sgl.grammars.schema.schema_document import SchemaDocument, SchemaOptions
from sgl.grammars.schema.schema_resolver import SchemaResolver
from sgl.grammars.schema.schema_shapes import TYPES, NumberShape, SchemaShape

ALL_TYPES = frozenset(TYPES)
MOST_WORK = 2000  # some tenths of a second
_NOTHING = SchemaShape(False, frozenset(), None, None, None, None)


def type_of(value: Any) -> str:
    """The JSON type of a value; a whole number is an integer, also as a float."""
    if isinstance(value, float):
        return "integer" if value.is_integer() else "number"
    names = {bool: "boolean", int: "integer", str: "string", list: "array", dict: "object"}
    return names.get(type(value), "null")


def member_types(schema: Any, name: str) -> frozenset[str]:
    """The JSON types that values of a member may have in objects that satisfy a schema, "integer" also where any number
    may come.

    All types where the schema is malformed, or does not say. Keywords that grammars refuse do not count. The work is
    bounded, since this is asked while texts are read: an object whose schemas have too many alternatives is taken for
    what
    its own `properties` say.
    """
    try:
        return _member_types(json.dumps(schema), name)
    except (GrammarError, RecursionError, TypeError, ValueError):  # the last two of what is no JSON
        return ALL_TYPES


@lru_cache(maxsize=256)
def _member_types(text: str, name: str) -> frozenset[str]:
    schema = json.loads(text)
    try:
        found = without_refused(schema, lambda cut: frozenset(_of_member(cut, name)))[0]
    except GrammarLimitError:
        own = {keyword: value for keyword, value in schema.items() if keyword not in APPLICATORS}
        found = without_refused(own, lambda cut: frozenset(_of_member(cut, name)))[0]
    return found or ALL_TYPES


def _of_member(schema: Any, name: str) -> Iterator[str]:
    resolver = SchemaResolver(SchemaDocument(schema), SchemaOptions(), MOST_WORK)
    validator = InstanceValidator(resolver.shapes)
    for whole in resolver.shapes(("#",)):
        if whole.values is not None:
            yield from (
                type_of(v[name]) for v in whole.values if isinstance(v, dict) and name in v and validator.fits(v, whole)
            )
        elif whole.objects is not None:
            for shape in resolver.shapes(whole.objects.member(name)):
                yield from _types(shape, validator)


def _types(shape: SchemaShape, validator: InstanceValidator) -> Iterator[str]:
    if shape.values is not None:
        yield from (type_of(v) for v in shape.values if validator.fits(v, shape))
        return
    yield from ["null"] * shape.null + ["boolean"] * bool(shape.booleans)
    for kind, part in {"strings": "string", "arrays": "array", "objects": "object", "numbers": "number"}.items():
        found = getattr(shape, kind)
        if found is not None and not validator.empty(replace(_NOTHING, **{kind: found})):
            yield from _numeric(found) if kind == "numbers" else (part,)


def _numeric(numbers: NumberShape) -> Iterator[str]:
    if not numbers.fractional:
        yield "integer"
    if not numbers.integer:
        yield "number"
