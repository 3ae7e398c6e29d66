"""Keywords that a user asks to ignore, cut out of the schema before it is read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from sgl.grammars.errors import UnsupportedGrammarError
from sgl.grammars.schema.schema_document import child, schemas
from sgl.grammars.schema.schema_options import SchemaOptions

_MOST_REFUSALS = 50
Made = TypeVar("Made")


def weakened(schema: Any, options: SchemaOptions) -> tuple[Any, list[str]]:
    """The schema without the keywords that are not to be enforced, and where the ones of `weaken` stood."""
    ignored = set(options.weaken) | ({"format"} if options.formats == "annotation" else set())
    if not ignored:
        return schema, []
    cut, places = without(schema, lambda place, keyword: keyword in ignored)
    return cut, [place for place in places if place.rpartition("/")[2] in options.weaken]


def without(schema: Any, drop: Callable[[str, str], bool]) -> tuple[Any, list[str]]:
    """The schema without the keywords for which `drop(place of their schema, keyword)` holds, and their pointers."""
    inside = {place for place, _ in schemas("#", schema)}
    places: list[str] = []

    def copied(value: Any, place: str) -> Any:
        if isinstance(value, list):
            return [copied(v, child(place, i)) for i, v in enumerate(value)]
        if not isinstance(value, dict):
            return value
        dropped = {k for k in value if place in inside and drop(place, k)}
        places.extend(child(place, keyword) for keyword in value if keyword in dropped)
        return {k: copied(v, child(place, k)) for k, v in value.items() if k not in dropped}

    return copied(schema, "#"), places


def without_refused(
    schema: Any, make: Callable[[Any], Made]
) -> tuple[Made | None, dict[tuple[str, str], UnsupportedGrammarError]]:
    """What is made of a schema without the keywords that are in the way, and those by place: each is cut out before the
    next is looked for.

    Nothing is made where one of them cannot be cut out, or they are too many. Raises what `make` raises of other kinds.
    """
    found: dict[tuple[str, str], UnsupportedGrammarError] = {}
    for _ in range(_MOST_REFUSALS):
        try:
            return make(schema), found
        except UnsupportedGrammarError as error:
            found[_schema_and_keyword(error)] = error
            schema, dropped = without(schema, lambda at, k: (at, k) in found)
            if not dropped:
                break
    return None, found


def _schema_and_keyword(error: UnsupportedGrammarError) -> tuple[str, str]:
    """Errors within a pattern name the construct, and the pattern's own place."""
    place = error.where.partition(",")[0]
    parent, _, last = place.rpartition("/")
    return (parent, last) if last in ("pattern", "patternProperties") else (place, error.keyword)
