"""`x-copied`: strings that are pieces of a text, which `x-copied-from` at the root of the schema gives.

Its value is "words" or "characters": what is never cut. The option `copied_from` gives the text as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sgl.grammars.algebra.expr import Expr
from sgl.grammars.copied.text_boundaries import CHARACTERS, WORDS
from sgl.grammars.copied.text_pieces import copied_expr, text_pieces
from sgl.grammars.errors import InvalidGrammarError, UnsupportedGrammarError
from sgl.grammars.schema.schema_document import child
from sgl.grammars.schema.schema_options import SchemaOptions
from sgl.grammars.schema.schema_shapes import StringShape

KEYWORD = "x-copied"
FROM = "x-copied-from"
_UNITS = (WORDS, CHARACTERS)


def copying(options: SchemaOptions, schema: Any) -> SchemaOptions:
    """The options with `copied_from` as a document says."""
    said = schema.get(FROM) if isinstance(schema, Mapping) else None
    if said is None:
        return options
    if not isinstance(said, str):
        raise InvalidGrammarError(f"{FROM} must be a text, not {said!r}", child("#", FROM))
    return replace(options, copied_from=said)


def copied_of(schema: Mapping[str, Any], place: str, text: str | None) -> tuple[str, str] | None:
    """The text that a string is copied from, and of what the pieces are made; None for other strings."""
    unit = schema.get(KEYWORD)
    if unit is None:
        return None
    if unit not in _UNITS:
        raise InvalidGrammarError(f"{KEYWORD} must be one of {', '.join(_UNITS)}, not {unit!r}", child(place, KEYWORD))
    if text is None:
        raise UnsupportedGrammarError(KEYWORD, place, f"there is no text to copy from; give it as {FROM!r} at the root")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidGrammarError(
            f"the text has half of a surrogate pair at {error.start}", child("#", FROM)
        ) from error
    return text, unit


def copied_string(strings: StringShape) -> Expr:
    """A piece of the text of a shape, without the quotes; NEVER where the text has none."""
    assert strings.copied is not None
    if strings != StringShape(place=strings.place, copied=strings.copied):
        raise UnsupportedGrammarError(
            KEYWORD, strings.place, "other keywords of strings next to it are not supported; check the value when read"
        )
    return copied_expr(*strings.copied)


def is_piece(value: str, copied: tuple[str, str]) -> bool:
    """Whether a value is one of the pieces of a text."""
    text, unit = copied
    starts, ends, _ = text_pieces(text, unit).boundaries
    at = text.find(value) if value else -1
    while at >= 0:
        if starts[at] and ends[at + len(value)]:
            return True
        at = text.find(value, at + 1)
    return False
