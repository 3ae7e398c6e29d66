"""Regular expressions as outlines-core's index reads them, and JSON Schema as it turns it into one.

The index is one over single bytes. It takes the first of two alternatives that match, and no text that goes on from
there. So each text ends with a mark, which no alternative has, and all of them are tried.
"""

from __future__ import annotations

from collections.abc import Callable

from sgl.grammars.schema.schema_options import SchemaOptions
from sgl.grammars.second_opinion.no_verdict_error import NoVerdictError
from sgl.grammars.second_opinion.regex_engines import without_outer_anchors

_END = "\U0010ffff"
_BLANKS = {"compact": "", "free": r"[ \t\n\r]*"}  # of `whitespace`; for others its default, which is most like ours


def index_recogniser(pattern: str) -> Callable[[str], bool]:
    """Raises NoVerdictError where outlines-core does not know the syntax."""
    from outlines_core import Index, Vocabulary

    every_byte = Vocabulary(256, {bytes([byte]): [byte] for byte in range(256)})
    try:
        index = Index(f"(?:{without_outer_anchors(pattern)}){_END}", every_byte)
    except ValueError as error:
        raise NoVerdictError(f"outlines-core cannot read it: {error}") from error
    moves, start = index.get_transitions(), index.get_initial_state()

    def accepts(text: str) -> bool:
        if _END in text:
            raise NoVerdictError(f"the text has {_END!r} in it, which marks its end")
        state: int | None = start
        for byte in (text + _END).encode("utf-8", "surrogatepass"):
            state = moves.get(state, {}).get(byte)
        return state is not None and bool(index.is_final_state(state))

    return accepts


def schema_recogniser(schema: str, options: SchemaOptions) -> Callable[[str], bool]:
    """JSON Schema: options but `whitespace` are ours alone, so that it reads what the schema means without them."""
    from outlines_core.json_schema import build_regex_from_schema

    try:
        pattern = build_regex_from_schema(schema, _BLANKS.get(options.whitespace))
    except (ValueError, TypeError) as error:
        raise NoVerdictError(f"outlines-core cannot read it: {error}") from error
    return index_recogniser(pattern)
