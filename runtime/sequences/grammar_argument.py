"""What a caller may give as the grammar of a text: a compiled one, a type, or a JSON schema."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, get_origin

from ..errors import ConfigError

if TYPE_CHECKING:
    from sgl.grammars import Vocabulary


def compile_grammar_argument(grammar: Any, vocabulary: Vocabulary, json_options: dict[str, Any] | None = None) -> Any:
    """A grammar as it is; of a type (class, Literal, list[...]) or a JSON schema (dict), that of its JSON texts.

    Raises ConfigError for text, which may be of several kinds; GrammarError for what cannot be enforced.
    """
    if isinstance(grammar, str):
        raise ConfigError(
            f"grammar is the text {grammar[:60]!r}; give a type or a JSON schema as a dict, or compile it: "
            f"grammar=sgl.grammars.compile_regex(text, engine.vocabulary), or compile_ebnf, or compile_json_schema"
        )
    if isinstance(grammar, type) or get_origin(grammar) is not None:
        grammar = _schema(grammar)
    if not isinstance(grammar, dict):
        return grammar
    from sgl.grammars import compile_json_schema

    return compile_json_schema(grammar, vocabulary, **json_options or {})


@lru_cache(maxsize=512)
def _schema(kind: Any) -> dict[str, Any]:
    from pydantic import TypeAdapter
    from pydantic.errors import PydanticUserError

    try:
        return TypeAdapter(kind).json_schema()
    except PydanticUserError as error:
        raise ConfigError(f"grammar is {kind!r:.80}, which has no JSON schema: {error.message}") from error
