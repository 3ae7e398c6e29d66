"""Compiled grammars and the cache that shares them, and all their masks, between requests."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from sgl.grammars.algebra.expr import Expr
from sgl.grammars.automaton.automaton_work_budget import hasty
from sgl.grammars.automaton.grammar_automaton import Automaton
from sgl.grammars.automaton.grammar_matcher import Matcher
from sgl.grammars.compile_client import grammar_compile_policy
from sgl.grammars.compile_client.grammar_compile_client import CompileProcessDied
from sgl.grammars.compile_client.grammar_compile_messages import NO_VOCABULARY, RequestNotSent
from sgl.grammars.compile_client.remote_transition_network import RemoteNetwork
from sgl.grammars.errors import GrammarLimitError, UnsupportedGrammarError
from sgl.grammars.literal_choices import choices_expr
from sgl.grammars.network.grammar_disk_cache import WORTHWHILE, disk_cache
from sgl.grammars.network.transition_network import TransitionNetwork
from sgl.grammars.regex import parse_regex
from sgl.grammars.regex.plain_text_classes import mark_plain_text_classes
from sgl.grammars.schema.ignored_keywords import weakened
from sgl.grammars.schema.schema_builder import SchemaOptions, canonical_schema, schema_expr
from sgl.grammars.structural.structural_format import canonical_structural, format_expr, weakened_places
from sgl.grammars.tokens.vocabulary import Vocabulary

if TYPE_CHECKING:
    from sgl.grammars.ebnf import Syntax


class GrammarRecipe(NamedTuple):
    """What a grammar was compiled from: hashable, and small enough to be sent to where it is compiled once more."""

    kind: str
    source: Any
    shown: frozenset[int] = frozenset()  # special tokens that are text

    def compile(self, vocabulary: Vocabulary) -> Grammar:
        """The vocabulary's grammar of this recipe; cached. Raises what the `compile_` functions raise."""
        return _MAKERS[self.kind](self.source, vocabulary.spelling(self.shown))

    def prepare(self, vocabulary: Vocabulary) -> Grammar:
        """The same, with its first masks."""
        return self.compile(vocabulary).prepared()


class Grammar:
    """A grammar compiled for one vocabulary; thread-safe, shared by any number of matchers.

    Its source is an expression, a fully built network, or a function that returns fresh ones. `weakened` lists the JSON
    pointers of the keywords that the options ignore. `recipe` is None if no `compile_` function made the grammar.
    `network()` returns a fresh network.
    """

    def __init__(
        self,
        source: Expr | TransitionNetwork | Callable[[], TransitionNetwork],
        vocabulary: Vocabulary,
        core: str | None = None,
        weakened: Iterable[str] = (),
        recipe: GrammarRecipe | None = None,
    ) -> None:
        self.vocabulary = vocabulary
        self.weakened = tuple(weakened)
        self.recipe = recipe
        self.network = source if callable(source) else partial(_network, source)
        if vocabulary.masks:
            self._automaton = Automaton(self.network(), vocabulary, core, fresh=self.network)

    def matcher(self) -> Matcher:
        """Return a matcher at the start of a text."""
        return Matcher(self.automaton)

    def prepared(self) -> Grammar:
        """This grammar, with its first masks worked out, so that who decodes does not wait for them.

        Takes about as long as compiling. Raises GrammarLimitError where already the beginning of a text needs too much.
        """
        matcher = self.matcher()
        matcher.mask()
        forced = matcher.forced()
        if forced and (state := self.automaton.advance(self.automaton.start, forced)) >= 0:
            self.automaton.mask(state)
        return self

    @property
    def memory(self) -> int:
        """Bytes held by the automaton and its masks; grows with the texts that are matched."""
        return self._automaton.memory() if self.vocabulary.masks else 0

    @property
    def named_ends(self) -> frozenset[int]:
        """The end-of-sequence tokens that are terminals of the grammar: where one may come as such, it ends no text."""
        return self._automaton.named_ends

    @property
    def automaton(self) -> Automaton:
        """The one in use; a crowded one is left to its matchers and replaced, so that memory stays bounded.

        Who is in a hurry begins in the crowded one, which has room for some more texts.
        """
        if not hasty() and self._automaton.crowded():
            self._automaton = self._automaton.successor() or self._automaton
        return self._automaton


def _network(source: Expr | TransitionNetwork) -> TransitionNetwork:
    """A separate one for each automaton, unless it is fully built and so never changes."""
    return source if isinstance(source, TransitionNetwork) else TransitionNetwork(source)


def _cached(
    kind: str,
    source: Hashable,
    vocabulary: Vocabulary,
    expr: Callable[[], Expr],
    apart: Callable[[], str] = str,
    weakened: Callable[[], list[str]] = list,
) -> Grammar:
    """The vocabulary's one grammar of a source; `apart` distinguishes files of equal sources where they differ."""
    if not vocabulary.exact:
        raise UnsupportedGrammarError(
            "this kind of tokenizer", "the vocabulary", "its tokens read differently by what comes before them"
        )

    def make() -> Grammar:
        recipe = GrammarRecipe(kind, source, vocabulary.shown)
        with _limited(kind):
            if not (vocabulary.masks and grammar_compile_policy.process()):
                with grammar_compile_policy.here():
                    made = _kept(kind, lambda: f"{source!r} {apart()}", expr)
                    return Grammar(made, vocabulary, weakened=weakened(), recipe=recipe)
            return Grammar(partial(_elsewhere, recipe, vocabulary), vocabulary, weakened=weakened(), recipe=recipe)

    return vocabulary.compiled.get((kind, source), make) if _hashable(source) else make()


def _elsewhere(recipe: GrammarRecipe, vocabulary: Vocabulary) -> TransitionNetwork:
    """A fresh network, lowered in the compile process, or here without one, or where the recipe cannot be sent.

    That process may die of other requests, so it is asked twice.
    """
    try:
        return _network_of(recipe, vocabulary)
    except CompileProcessDied:
        return _network_of(recipe, vocabulary)


def _network_of(recipe: GrammarRecipe, vocabulary: Vocabulary) -> TransitionNetwork:
    process, disk = grammar_compile_policy.process(), disk_cache()
    with suppress(RequestNotSent):
        if process is not None:
            tokens = NO_VOCABULARY if recipe.kind in _OF_ANY_TOKENS else process.teach(vocabulary.base)
            return RemoteNetwork(process, *recipe, tokens, None if disk is None else str(disk.folder))
    return recipe.compile(vocabulary.bare).network()


@contextmanager
def _limited(kind: str) -> Iterator[None]:
    try:
        yield
    except RecursionError as error:
        raise GrammarLimitError(f"the {kind} is nested too deeply") from error


def _hashable(source: Hashable) -> bool:
    """What is not, such as a list in the place of a text, is refused when it is read."""
    try:
        hash(source)
    except TypeError:
        return False
    return True


def _kept(kind: str, source: Callable[[], str], expr: Callable[[], Expr]) -> Expr | TransitionNetwork:
    """An expression, or its network out of the disk cache, where what was slow to make is put."""
    disk = disk_cache()
    if disk is None:
        return expr()
    text = source()
    found = disk.load(kind, text)
    if found is not None:
        return found
    started = time.perf_counter()
    made = expr()
    if time.perf_counter() - started < WORTHWHILE:
        return made
    network = TransitionNetwork(made)
    return network if disk.store(kind, text, network) else made


def compile_regex(pattern: str, vocabulary: Vocabulary) -> Grammar:
    """Compile a grammar of the texts that match a regular expression in full.

    The syntax is that of Python's `re`, including the inline flags a, i, s, u and x (`(?i)`, `(?i:...)`). `\\d`,
    `\\w` and `\\s` are Unicode's; `(?a)` makes them ASCII. `\\p{...}` knows general categories and scripts.

    Raises:
        InvalidGrammarError: the pattern is malformed.
        UnsupportedGrammarError: it uses look-around, back-references, word boundaries, possessive quantifiers, atomic
            groups, conditionals, or anchors with the flag m; names the construct and its position.
    """
    pattern = _plain(pattern)
    return _cached("regex", pattern, vocabulary, lambda: mark_plain_text_classes(parse_regex(pattern)))


def compile_choices(choices: Iterable[str], vocabulary: Vocabulary) -> Grammar:
    """Compile a grammar that allows exactly the given texts.

    Raises:
        InvalidGrammarError: the list is empty or contains something other than text.
    """
    if isinstance(choices, Iterable) and not isinstance(choices, str):
        choices = tuple(map(_plain, choices))
    return _cached("choices", choices, vocabulary, lambda: choices_expr(choices))


def compile_json_schema(schema: Any, vocabulary: Vocabulary, **options: Any) -> Grammar:
    """Compile a grammar of the JSON texts that a schema allows.

    Args:
        schema: JSON text, a dict or bool, or a class with `model_json_schema()` such as a pydantic model.
        vocabulary: the tokens.
        **options: see `SchemaOptions`: `whitespace`, `order`, `additional_properties`, `weaken` ...

    Raises:
        InvalidGrammarError: the schema is malformed; names the value and its JSON pointer.
        UnsupportedGrammarError: a keyword cannot be enforced; names the keyword and its JSON pointer.
    """
    checked = SchemaOptions.of(options)
    with _limited("JSON schema"):
        parsed, text = canonical_schema(schema)
    return _cached(
        "JSON schema",
        (text, checked),
        vocabulary,
        lambda: schema_expr(parsed, checked, remember=True),
        weakened=lambda: weakened(parsed, checked)[1],
    )


def compile_ebnf(
    grammar: str,
    vocabulary: Vocabulary,
    *,
    syntax: Syntax = "auto",
    start: str | None = None,
    imports: Mapping[str, str] | None = None,
    declared: Mapping[str, str | int] | None = None,
) -> Grammar:
    """Compile a grammar in extended Backus-Naur form.

    Args:
        grammar: its text.
        vocabulary: the tokens.
        syntax: "lark" (rules with `:`), "gbnf" or "w3c" (both with `::=`); "auto" decides by the first rule.
        start: the rule of the whole text; by default `start` in Lark's syntax and `root` in the others.
        imports: the texts of other grammars by their paths, for `%import .path.NAME` in Lark's syntax.
        declared: what the terminals are that `%declare` names in Lark's syntax: texts, such as `{"_INDENT": ""}`, or
            the number of a token that is meant as such, whatever its bytes.

    Raises:
        InvalidGrammarError: the grammar is malformed; names line:column.
        UnsupportedGrammarError: the grammar uses a construct that cannot be enforced.
    """

    grammar, start = _plain(grammar), _plain(start)

    def expr() -> Expr:
        from sgl.grammars.ebnf import ebnf_expr

        return ebnf_expr(grammar, syntax, start, imports, declared, vocabulary)

    key = (grammar, syntax, start, _items(imports), _items(declared))
    return _cached("ebnf", key, vocabulary, expr, lambda: vocabulary.fingerprint if _may_name_tokens(key) else "")


def _may_name_tokens(source: Any) -> bool:
    """Whether a grammar may speak of tokens, which have other numbers in other vocabularies."""
    return "<" in repr(source) or any(isinstance(meant, int) for _, meant in source[4] or ())


def _plain(text: Any) -> Any:
    """A text as nothing else: a member of an enum, say, is of a class that another process need not have."""
    return str.__str__(text) if isinstance(text, str) else text


def _items(given: Any) -> Any:
    """A dict as what can be hashed."""
    return tuple(sorted(given.items())) if isinstance(given, Mapping) else given


def compile_structural(spec: Any, vocabulary: Vocabulary, **options: Any) -> Grammar:
    """Compile a grammar of free text with structured parts: tool calls, reasoning, any mixture of formats.

    Args:
        spec: `{"type": "structural_tag", ...}` as a dict or JSON text, with `structures` and `triggers` or with a
            `format` (see `structural_format.py`), or a bare format.
        vocabulary: the tokens.
        **options: see `SchemaOptions`; they apply to its JSON parts.

    Raises:
        InvalidGrammarError: the specification is malformed; names the value and its JSON pointer.
        UnsupportedGrammarError: a format, or a keyword of one of its schemas, cannot be enforced.
    """
    checked = SchemaOptions.of(options)
    with _limited("structural tag"):
        parsed, text = canonical_structural(spec)
    return _cached(
        "structural tag",
        (text, checked),
        vocabulary,
        lambda: format_expr(parsed, checked, vocabulary),
        lambda: vocabulary.fingerprint,
        lambda: weakened_places(parsed, checked),
    )


def _json_schema(source: tuple[str, SchemaOptions], vocabulary: Vocabulary) -> Grammar:
    return compile_json_schema(source[0], vocabulary, **asdict(source[1]))


def _ebnf(source: tuple[str, Syntax, str | None, Any, Any], vocabulary: Vocabulary) -> Grammar:
    grammar, syntax, start, *given = source
    imports, declared = (dict(items) if isinstance(items, tuple) else items for items in given)
    return compile_ebnf(grammar, vocabulary, syntax=syntax, start=start, imports=imports, declared=declared)


def _structural(source: tuple[str, SchemaOptions], vocabulary: Vocabulary) -> Grammar:
    return compile_structural(source[0], vocabulary, **asdict(source[1]))


_OF_ANY_TOKENS = ("regex", "choices", "JSON schema")  # kinds whose networks are the same for all vocabularies
_MAKERS: dict[str, Callable[[Any, Vocabulary], Grammar]] = {
    "regex": compile_regex,
    "choices": compile_choices,
    "JSON schema": _json_schema,
    "ebnf": _ebnf,
    "structural tag": _structural,
}
