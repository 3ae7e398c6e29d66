"""Constrained decoding: JSON Schema, regexes, EBNF, choices and structural tags as token masks.

vocabulary = Vocabulary.from_tokenizer(tokenizer)
grammar = compile_json_schema(schema, vocabulary)      # cached; shared by all requests
matcher = grammar.matcher()
matcher.mask()                                         # int32 [ceil(V / 32)], bit set: the token may come next
matcher.accept(token_id)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sgl.grammars.automaton.automaton_core_selection import core_name
    from sgl.grammars.automaton.batch_token_masks import fill_masks
    from sgl.grammars.automaton.grammar_matcher import Matcher
    from sgl.grammars.compile import (
        Grammar,
        compile_choices,
        compile_ebnf,
        compile_json_schema,
        compile_regex,
        compile_structural,
    )
    from sgl.grammars.errors import GrammarError, GrammarLimitError, InvalidGrammarError, UnsupportedGrammarError
    from sgl.grammars.network.grammar_disk_cache import set_cache_dir
    from sgl.grammars.schema.explain_schema import Finding, explain
    from sgl.grammars.schema.schema_options import SchemaOptions
    from sgl.grammars.second_opinion import TextVerdicts, Verdict, Verification, verify
    from sgl.grammars.structural.structural_format import reasoning
    from sgl.grammars.tokens.vocabulary import Vocabulary

__all__ = [
    "Finding",
    "Grammar",
    "GrammarError",
    "GrammarLimitError",
    "InvalidGrammarError",
    "Matcher",
    "SchemaOptions",
    "TextVerdicts",
    "UnsupportedGrammarError",
    "Verdict",
    "Verification",
    "Vocabulary",
    "compile_choices",
    "compile_ebnf",
    "compile_json_schema",
    "compile_regex",
    "compile_structural",
    "core_name",
    "explain",
    "fill_masks",
    "reasoning",
    "set_cache_dir",
    "verify",
]

_HOMES = {
    "automaton.automaton_core_selection": ("core_name",),
    "automaton.batch_token_masks": ("fill_masks",),
    "automaton.grammar_matcher": ("Matcher",),
    "compile": (
        "Grammar",
        "compile_choices",
        "compile_ebnf",
        "compile_json_schema",
        "compile_regex",
        "compile_structural",
    ),
    "errors": ("GrammarError", "GrammarLimitError", "InvalidGrammarError", "UnsupportedGrammarError"),
    "network.grammar_disk_cache": ("set_cache_dir",),
    "schema.explain_schema": ("Finding", "explain"),
    "schema.schema_options": ("SchemaOptions",),
    "second_opinion": ("TextVerdicts", "Verdict", "Verification", "verify"),
    "structural.structural_format": ("reasoning",),
    "tokens.vocabulary": ("Vocabulary",),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Names are loaded when they are first used: a program without grammars imports no builder of them."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
