"""What the constraint of a gen says of a finished text: the grammars that engines use, over single bytes."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from .options import SamplingOptions

Constraint = tuple[str, str]  # its kind and its source


def constraint_of(options: SamplingOptions) -> Constraint | None:
    """The one constraint of a gen."""
    if options.pattern is not None:
        return "regex", options.pattern
    for kind, source in (
        ("JSON schema", options.json_schema),
        ("ebnf", options.ebnf),
        ("structural tag", options.structural_tag),
    ):
        if source is not None:
            return kind, source
    return None


def byte_matcher(constraint: Constraint) -> Any:
    """A matcher at the beginning, whose tokens are bytes. Raises sgl.grammars.GrammarError."""
    return _grammar(*constraint).matcher()


def matches_constraint(text: str, options: SamplingOptions) -> Any:
    """The matcher after the text; None without a constraint, and where the text does not follow it."""
    from sgl.grammars.errors import GrammarError

    constraint = constraint_of(options)
    if constraint is None:
        return None
    try:
        matcher = byte_matcher(constraint)
        return matcher if all(map(matcher.accept, text.encode("utf-8", "surrogatepass"))) else None
    except GrammarError:
        return None


@lru_cache(maxsize=256)
def _grammar(kind: str, source: str) -> Any:
    from sgl.grammars import compile_ebnf, compile_json_schema, compile_regex, compile_structural

    compilers: dict[str, Callable[[str, Any], Any]] = {
        "regex": compile_regex,
        "JSON schema": compile_json_schema,
        "ebnf": compile_ebnf,
        "structural tag": compile_structural,
    }
    return compilers[kind](source, _bytes())


@lru_cache(maxsize=1)
def _bytes() -> Any:
    from sgl.grammars import Vocabulary

    return Vocabulary.from_bytes([bytes([byte]) for byte in range(256)] + [b""], [256])
