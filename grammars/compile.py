"""Compiled grammars and the cache that shares them, and all their masks, between requests."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Any

from sgl.grammars.automaton import Automaton
from sgl.grammars.choices import choices_expr
from sgl.grammars.errors import GrammarLimitError
from sgl.grammars.expr import Expr
from sgl.grammars.schema.builder import SchemaOptions, canonical_schema, schema_expr
from sgl.grammars.matcher import Matcher
from sgl.grammars.network import Network
from sgl.grammars.regex import parse_regex
from sgl.grammars.vocabulary import Vocabulary


class Grammar:
    """A grammar over one vocabulary; thread-safe, shared by any number of matchers."""

    def __init__(self, expr: Expr, vocabulary: Vocabulary, core: str | None = None) -> None:
        self.vocabulary = vocabulary
        self._expr = expr
        self._core = core
        self._automaton = Automaton(Network(expr), vocabulary, core)

    def matcher(self) -> Matcher:
        """A matcher at the start of a text."""
        return Matcher(self, self.automaton)

    @property
    def automaton(self) -> Automaton:
        """The one in use; a crowded one is left to its matchers and replaced, so that memory stays bounded."""
        if self._automaton.crowded():
            self._automaton = Automaton(Network(self._expr), self.vocabulary, self._core)
        return self._automaton


def _cached(kind: str, source: Hashable, vocabulary: Vocabulary, expr: Callable[[], Expr]) -> Grammar:
    def make() -> Grammar:
        try:
            return Grammar(expr(), vocabulary)
        except RecursionError as error:
            raise GrammarLimitError(f"the {kind} is nested too deeply") from error

    return vocabulary.compiled.get((kind, source), make)


def compile_regex(pattern: str, vocabulary: Vocabulary) -> Grammar:
    """A grammar of the texts that match a regular expression as a whole.

    Raises:
        InvalidGrammarError: the pattern is malformed.
        UnsupportedGrammarError: it uses look-around, back-references, word boundaries or flags.
    """
    return _cached("regex", pattern, vocabulary, lambda: parse_regex(pattern))


def compile_choices(choices: Iterable[str], vocabulary: Vocabulary) -> Grammar:
    """A grammar of a list of literal texts.

    Raises:
        InvalidGrammarError: the list is empty or holds something that is not text.
    """
    if not isinstance(choices, str):
        choices = tuple(choices)
    return _cached("choices", choices, vocabulary, lambda: choices_expr(choices))


def compile_json_schema(schema: Any, vocabulary: Vocabulary, **options: Any) -> Grammar:
    """A grammar of the JSON texts that a schema allows.

    Args:
        schema: JSON text, a dict or bool, or a class with `model_json_schema()` such as a pydantic model.
        vocabulary: the tokens.
        **options: see `SchemaOptions`: `whitespace`, `additional_properties`.

    Raises:
        InvalidGrammarError: the schema is malformed; says value and JSON pointer.
        UnsupportedGrammarError: a keyword cannot be enforced; says keyword and JSON pointer.
    """
    checked = SchemaOptions.of(options)
    parsed, text = canonical_schema(schema)
    return _cached("json", (text, checked), vocabulary, lambda: schema_expr(parsed, checked))
