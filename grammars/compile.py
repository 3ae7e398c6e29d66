"""Compiled grammars and the cache that shares them, and all their masks, between requests."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple

from sgl.grammars.algebra.expr import Expr
from sgl.grammars.automaton.automaton_core_selection import prepare_vocabulary
from sgl.grammars.automaton.automaton_work_budget import hasty
from sgl.grammars.automaton.grammar_automaton import Automaton
from sgl.grammars.automaton.grammar_matcher import Matcher
from sgl.grammars.compile_client import grammar_compile_policy
from sgl.grammars.compile_client.grammar_compile_client import CompileProcessDied
from sgl.grammars.compile_client.grammar_compile_messages import NO_VOCABULARY, RequestNotSent
from sgl.grammars.compile_client.remote_transition_network import RemoteNetwork
from sgl.grammars.errors import GrammarLimitError, UnsupportedGrammarError
from sgl.grammars.literal_choices import choices_expr
from sgl.grammars.network.grammar_disk_cache import disk_cache
from sgl.grammars.network.transition_network import TransitionNetwork
from sgl.grammars.regex import parse_regex
from sgl.grammars.regex.plain_text_classes import mark_plain_text_classes
from sgl.grammars.schema.ignored_keywords import weakened
from sgl.grammars.schema.schema_builder import SchemaOptions, canonical_schema, schema_expr
from sgl.grammars.schema.schema_source import schema_text
from sgl.grammars.structural.structural_format import format_expr, read_structural, structural_text, weakened_places
from sgl.grammars.tokens.vocabulary import Vocabulary

if TYPE_CHECKING:
    from sgl.grammars.ebnf import Syntax


class GrammarRecipe(NamedTuple):
    """What a grammar is compiled from: hashable, and small enough to be sent to where it is compiled once more."""

    kind: str
    source: Any
    shown: frozenset[int] = frozenset()  # special tokens that are text

    @classmethod
    def of(cls, kind: str, source: Any, options: SchemaOptions | None = None) -> GrammarRecipe:
        """kind: one of `_KINDS`. options: of the kinds with schemas. A source that is a text is not read yet."""
        try:
            key = _KINDS[kind].key(source)
        except RecursionError as error:
            raise _nested_too_deeply(kind) from error
        return cls(kind, key if options is None else (key, options))

    def compile(self, vocabulary: Vocabulary) -> Grammar:
        """The vocabulary's one grammar of this recipe. Raises what the `compile_` functions raise."""
        own, vocabulary = self._in(vocabulary)
        found: Grammar = vocabulary.compiled.get(own, lambda: own.make(vocabulary))
        return found

    def reserve(self, vocabulary: Vocabulary) -> tuple[Future[Grammar], Callable[[], None] | None]:
        """The future of the same; and what makes it with its first masks, unless another caller has it made."""
        own, vocabulary = self._in(vocabulary)
        future, mine = vocabulary.compiled.reserve(own)
        fill = partial(vocabulary.compiled.fill, own, future, lambda: own.make(vocabulary).prepared())
        return future, fill if mine else None

    def make(self, vocabulary: Vocabulary) -> Grammar:
        """Compile it anew, by a separate process if there is one."""
        if not vocabulary.exact:
            raise UnsupportedGrammarError(
                "this kind of tokenizer", "the vocabulary", "its tokens read differently by what comes before them"
            )
        try:
            if vocabulary.masks and grammar_compile_policy.process():
                return Grammar(partial(_network_elsewhere, self, vocabulary), vocabulary, recipe=self)
            prepare_vocabulary(vocabulary)
            with grammar_compile_policy.here():
                return Grammar(self._stored(vocabulary), vocabulary, recipe=self)
        except RecursionError as error:
            raise _nested_too_deeply(self.kind) from error

    def _in(self, vocabulary: Vocabulary) -> tuple[GrammarRecipe, Vocabulary]:
        """The vocabulary in which the special tokens are text, and this as a recipe for it."""
        spelled = vocabulary.spelling(self.shown)
        own = self if self.shown == spelled.shown else self._replace(shown=spelled.shown)
        try:
            hash(own)
        except TypeError:  # of a list in the place of a text, say, which is refused when it is read
            own.make(spelled)
        return own, spelled

    def _stored(self, vocabulary: Vocabulary) -> Expr | TransitionNetwork:
        """Its expression, or its network out of the disk cache."""
        kind, disk = _KINDS[self.kind], disk_cache()
        expr = partial(kind.expr, self.source, vocabulary)
        if disk is None:
            return expr()
        tokens = vocabulary.fingerprint if kind.of_tokens(self.source) else ""
        return disk.get(self.kind, f"{self.source!r} {tokens}", expr)


class Grammar:
    """A grammar compiled for one vocabulary; thread-safe, shared by any number of matchers.

    Its source is an expression, a fully built network, or a function that returns fresh ones. `recipe` is None if no
    `compile_` function made the grammar. `network()` returns a fresh network.
    """

    def __init__(
        self,
        source: Expr | TransitionNetwork | Callable[[], TransitionNetwork],
        vocabulary: Vocabulary,
        core: str | None = None,
        recipe: GrammarRecipe | None = None,
    ) -> None:
        self.vocabulary = vocabulary
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

    @cached_property
    def weakened(self) -> tuple[str, ...]:
        """The JSON pointers of the keywords that the options ignore."""
        return () if self.recipe is None else tuple(_KINDS[self.recipe.kind].weakened(self.recipe.source))

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


def _network_elsewhere(recipe: GrammarRecipe, vocabulary: Vocabulary) -> TransitionNetwork:
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
            of_tokens = _KINDS[recipe.kind].of_tokens(recipe.source)
            tokens = process.teach(vocabulary.base) if of_tokens else NO_VOCABULARY
            return RemoteNetwork(process, *recipe, tokens, None if disk is None else str(disk.folder))
    return recipe.compile(vocabulary.bare).network()


def _nested_too_deeply(kind: str) -> GrammarLimitError:
    return GrammarLimitError(f"the {kind} is nested too deeply")


def compile_regex(pattern: str, vocabulary: Vocabulary) -> Grammar:
    """Compile a grammar of the texts that match a regular expression in full.

    The syntax is that of Python's `re`, including the inline flags a, i, s, u and x (`(?i)`, `(?i:...)`). `\\d`,
    `\\w` and `\\s` are Unicode's; `(?a)` makes them ASCII. `\\p{...}` knows general categories and scripts.

    Raises:
        InvalidGrammarError: the pattern is malformed.
        UnsupportedGrammarError: it uses look-around, back-references, word boundaries, possessive quantifiers, atomic
            groups, conditionals, or anchors with the flag m; names the construct and its position.
    """
    return GrammarRecipe.of("regex", pattern).compile(vocabulary)


def compile_choices(choices: Iterable[str], vocabulary: Vocabulary) -> Grammar:
    """Compile a grammar that allows exactly the given texts.

    Raises:
        InvalidGrammarError: the list is empty or contains something other than text.
    """
    return GrammarRecipe.of("choices", choices).compile(vocabulary)


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
    return GrammarRecipe.of("JSON schema", schema, SchemaOptions.of(options)).compile(vocabulary)


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
    source = _plain(grammar), syntax, _plain(start), _items(imports), _items(declared)
    return GrammarRecipe("ebnf", source).compile(vocabulary)


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
    return GrammarRecipe.of("structural tag", spec, SchemaOptions.of(options)).compile(vocabulary)


class _Kind(NamedTuple):
    """How the sources of a kind are read.

    key: what can be hashed and sent, of what a caller gives. expr: what it means.
    weakened: the JSON pointers of the keywords that their options ignore.
    of_tokens: whether the network may be another one for another vocabulary.
    """

    key: Callable[[Any], Any]
    expr: Callable[[Any, Vocabulary], Expr]
    weakened: Callable[[Any], list[str]] = lambda source: []
    of_tokens: Callable[[Any], bool] = lambda source: False


def _choices(choices: Any) -> Any:
    return tuple(map(_plain, choices)) if isinstance(choices, Iterable) and not isinstance(choices, str) else choices


def _ebnf_expr(source: tuple[str, Syntax, str | None, Any, Any], vocabulary: Vocabulary) -> Expr:
    from sgl.grammars.ebnf import ebnf_expr

    grammar, syntax, start, *given = source
    imports, declared = (dict(items) if isinstance(items, tuple) else items for items in given)
    return ebnf_expr(grammar, syntax, start, imports, declared, vocabulary)


_KINDS = {
    "regex": _Kind(_plain, lambda pattern, _: mark_plain_text_classes(parse_regex(pattern))),
    "choices": _Kind(_choices, lambda choices, _: choices_expr(choices)),
    "JSON schema": _Kind(
        schema_text,
        lambda source, _: schema_expr(canonical_schema(source[0])[0], source[1], remember=True),
        lambda source: weakened(canonical_schema(source[0])[0], source[1])[1],
    ),
    "ebnf": _Kind(lambda grammar: (_plain(grammar), "auto", None, None, None), _ebnf_expr, of_tokens=_may_name_tokens),
    "structural tag": _Kind(
        structural_text,
        lambda source, vocabulary: format_expr(read_structural(source[0]), source[1], vocabulary),
        lambda source: weakened_places(read_structural(source[0]), source[1]),
        lambda source: True,
    ),
}
