"""Constrained decoding: JSON Schema, regexes, EBNF, choices and structural tags as token masks.

vocabulary = Vocabulary.from_tokenizer(tokenizer)
grammar = compile_json_schema(schema, vocabulary)      # cached; shared by all requests
matcher = grammar.matcher()
matcher.mask()                                         # int32 [ceil(V / 32)], bit set: the token may come next
matcher.accept(token_id)
"""

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
    "UnsupportedGrammarError",
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
]
