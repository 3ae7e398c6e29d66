"""JSON Schema as a grammar: the shapes of every value become expressions, objects and arrays become rules."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

from sgl.grammars.algebra import charset
from sgl.grammars.algebra.byte_marks import BEGIN
from sgl.grammars.algebra.expr import (
    EMPTY,
    NEVER,
    ByteClass,
    CharClass,
    CopiedText,
    Expr,
    GrammarRule,
    ListMember,
    Literal,
    RuleCall,
    SeparatedList,
    Seq,
    alt,
    nullable,
    seq,
    words,
)
from sgl.grammars.algebra.marked_expressions import ended, opened, remembered
from sgl.grammars.copied.text_pieces import text_pieces
from sgl.grammars.errors import GrammarError, InvalidGrammarError, UnsupportedGrammarError
from sgl.grammars.schema.array_schemas import ArrayBuilder
from sgl.grammars.schema.closed_objects import closing
from sgl.grammars.schema.content_encoding import in_string, settled
from sgl.grammars.schema.copied_strings import KEYWORD as COPIED
from sgl.grammars.schema.copied_strings import copied_string, copying
from sgl.grammars.schema.distinct_items_error import TooManyDistinctError
from sgl.grammars.schema.dynamic_scopes import identified_by_pointer
from sgl.grammars.schema.grammar_rewriting import GrammarRewriting, called
from sgl.grammars.schema.ignored_keywords import weakened
from sgl.grammars.schema.json_spelling import QUOTE, WHITESPACE, constant, other_than, spellings
from sgl.grammars.schema.keyword_reader import KeywordReader
from sgl.grammars.schema.object_schemas import ObjectBuilder
from sgl.grammars.schema.scalar_schemas import number_expr, string_expr
from sgl.grammars.schema.schema_document import SchemaDocument, SchemaOptions, canonical_schema
from sgl.grammars.schema.schema_resolver import SchemaResolver
from sgl.grammars.schema.schema_shapes import ANYTHING, ArrayShape, ObjectShape, SchemaShape, StringShape, Where
from sgl.grammars.schema.simple_schemas import Keywords, SimpleSchemas
from sgl.grammars.schema.unproductive_rules import unproductive_rules

__all__ = ["SchemaOptions", "canonical_schema", "schema_expr"]

_OPENING = {"{": Literal(b"{"), "[": Literal(b"[")}
_MOST_ORDERED = 600  # members that may be absent; more come in any order, for which a text needs fewer threads
_MOST_FREE = 1200  # members in any order; the threads of a text grow with the square
_MOST_COUNTED = 10_000  # places of an ordered list whose members are counted: members times counts
Key = tuple[Where, int, str]
_ASCII: charset.CharSet = ((0, 0x7F),)
_BEGIN = bytes((BEGIN,))


def schema_expr(schema: Any, options: SchemaOptions, remember: bool = False) -> Expr:
    """The grammar of the JSON texts that a schema allows.

    With `remember` it may be one whose texts are remembered as they are written, for items that must differ; such a
    grammar must be all of a text.

    Raises:
        InvalidGrammarError: the schema is malformed or allows nothing.
        UnsupportedGrammarError: a keyword cannot be enforced.
    """
    schema, _ = weakened(schema, options)
    others = {uri: weakened(json.loads(text), options)[0] for uri, text in options.resources}
    document = SchemaDocument(schema, others)
    if document.draft_4:
        options = replace(options, integers="plain")
    options = copying(settled(closing(options, schema), schema), schema)
    with identified_by_pointer():
        expr = _expr(document, options, remember)
    if expr == NEVER:
        raise InvalidGrammarError("the schema allows no value at all", "#")
    return ascii_only(expr) if options.ascii else expr


def _expr(document: SchemaDocument, options: SchemaOptions, remember: bool) -> Expr:
    try:
        return _built(document, options)
    except TooManyDistinctError:
        if not remember:
            raise
        found = _built(document, options, marked=True)
        return NEVER if found == NEVER else remembered(found)


def _built(document: SchemaDocument, options: SchemaOptions, marked: bool = False) -> Expr:
    builder = _Builder(document, options, marked)
    try:
        return builder.root(("#",))
    finally:
        builder.end()


class _Builder:
    def __init__(self, document: SchemaDocument, options: SchemaOptions, marked: bool = False) -> None:
        self._marked = marked
        self._document = document
        self._resolver = SchemaResolver(document, options)
        self._simple = SimpleSchemas(document, self, options.additional_properties)
        self._options = options
        self._blanks = WHITESPACE[options.whitespace]
        self._plain = options.integers == "plain"
        self._arrays = ArrayBuilder(self._resolver, self, self._blanks, marked, options.digits)
        self._objects = ObjectBuilder(self._resolver, self, options.order == "any", marked)
        self._dead: set[Key] = set()
        self._reset()

    def _reset(self) -> None:
        self._values: dict[Where, Expr] = {}
        self._members: dict[tuple[str, int], Expr] = {}
        self._rules: dict[Key, GrammarRule] = {}
        self._held: dict[GrammarRule, tuple[Expr, str]] = {}  # JSON in strings: the value as such, and whose it is
        self._pieces: set[GrammarRule] = set()  # rules of copied texts
        self._calls: dict[Key, Expr] = {}
        self._queue: deque[tuple[GrammarRule, Callable[[], Expr]]] = deque()

    def root(self, places: Where) -> Expr:
        """The expression of the whole text, after rules that no text can satisfy are cut out."""
        while True:
            expr = self.value(places)
            hopeful = self._make_bodies() and not self._document.referred
            dead = set() if hopeful else unproductive_rules(list(self._rules.values()))
            if not dead:
                self._check_held()
                return expr
            self._dead |= {key for key, rule in self._rules.items() if rule in dead}
            self._reset()

    def end(self) -> None:
        """Let go of all: a large schema would be a circle that only a full run of the cycle collector finds, which
        stops every thread.
        """
        vars(self._resolver).clear()
        vars(self).clear()

    def _make_bodies(self) -> bool:
        """Whether none of them is NEVER; then only a rule that leads back to itself may have no text."""
        hopeful = True
        while self._queue:
            rule, body = self._queue.popleft()
            made = body()
            hopeful = hopeful and made != NEVER
            rule.build = partial(_same, made)
        return hopeful

    def value(self, places: Where) -> Expr:
        """A value that satisfies all places."""
        found = self._values.get(places)
        if found is None:
            found = self._simple.value(places[0]) if len(places) == 1 else None
            found = self._values[places] = self._combined(places) if found is None else found
        return found

    def _combined(self, places: Where) -> Expr:
        """The long way: through the shapes that the places allow together."""
        if not places:
            return _any_value(self._options, self._marked)
        shapes = self._resolver.written(places)
        return alt(*(self._shape(shape, places, i) for i, shape in enumerate(shapes)))

    def any_value(self) -> Expr:
        """A separate rule, with all that it calls."""
        body: Expr = NEVER
        self._values[()] = RuleCall(GrammarRule("any JSON value", lambda: body))
        body = self._shape(ANYTHING, (), 0)
        self._make_bodies()
        return self._values[()]

    def leaf(self, keywords: Keywords) -> Expr | None:
        """A value of scalar types under some keywords; None where there is an error to report, or no such value."""
        try:
            return _leaf(keywords, self._options)
        except (GrammarError, TypeError):
            return None

    def rule(self, places: Where, bracket: str, body: Callable[[], Expr]) -> Expr:
        return self._rule((places, 0, bracket), body)

    def texts(self, values: list[str]) -> Expr:
        return self.listed(values)

    def member(self, name: str, value: Expr) -> Expr:
        """The same one for the same value, which it keeps."""
        found = self._members.get((name, id(value)))
        if found is None:
            found = self._members[name, id(value)] = self.named_member(self._constant(name), value)
        return found

    def other_member(self, names: list[str], value: Expr, new: bool = False) -> Expr:
        """A member of a name that is none of these; `new`: nor that of another such member, which is remembered."""
        return self.named_member(seq(QUOTE, other_than(names), QUOTE), value, new)

    def members(self, parts: list[ListMember], extra: Expr, place: str) -> Expr:
        ordered = self._options.order == "schema" and _may_be_ordered(parts, 0)
        _check_room(parts, ordered, place)
        return self._object_marked(self._closed(self._joined(parts, extra, 0, None, ordered), b"}"))

    def _object_marked(self, members: Expr, unique: bool = False) -> Expr:
        return seq(opened(unique), members) if self._marked and members != NEVER else members

    def items(self, item: Expr) -> Expr:
        if self._marked:
            return seq(opened(False), self._closed(self._joined([], seq(item, ended(False)), 0, None, True), b"]"))
        return self._closed(self._joined([], item, 0, None, True), b"]")

    def long_body(self, places: Where) -> Expr:
        """The members of an object schema whose way was taken for simple."""
        objects = self._resolver.written(places)[0].objects
        assert objects is not None
        return self._object(objects)

    def _shape(self, shape: SchemaShape, places: Where, index: int) -> Expr:
        if shape.values is not None:
            unlisted = replace(shape, values=None)
            return self.listed([v for v in shape.listed() if self._resolver.admits(v, unlisted)])
        found: list[Expr] = [Literal(b"null")] if shape.null else []
        found += [Literal(json.dumps(b).encode()) for b in sorted(shape.booleans)]
        if shape.numbers is not None:
            found.append(number_expr(shape.numbers, self._plain, self._options.digits))
        if shape.strings is not None:
            found.append(self._string(shape.strings))
        if (arrays := shape.arrays) is not None:
            found.append(self._rule((places, index, "["), lambda: self._array(arrays)))
        if (objects := shape.objects) is not None:
            found.append(self._rule((places, index, "{"), lambda: self._object(objects)))
        return alt(*found)

    def _string(self, strings: StringShape) -> Expr:
        """A string; one that is JSON has the text of a value, as it is written in a string."""
        if strings.copied is not None:
            return self._copied(strings)
        alone = StringShape(place=strings.place, content=strings.content)
        if strings.content is None:
            return string_expr(strings, self._options.digits)
        if strings != alone or self._marked:
            other = "uniqueItems of any values" if self._marked else "other keywords of strings"
            raise UnsupportedGrammarError(
                "contentMediaType", strings.place, f"JSON in a string is not supported together with {other}"
            )
        inner = self.value(strings.content)
        if inner == NEVER:
            return NEVER
        rule = GrammarRule(f"JSON in the string at {strings.place}", lambda: in_string(inner))
        self._held[rule] = inner, strings.place
        return seq(QUOTE, RuleCall(rule), QUOTE)

    def _copied(self, strings: StringShape) -> Expr:
        piece = copied_string(strings)
        if piece == NEVER:
            return NEVER
        self._pieces |= called(piece)
        return seq(QUOTE, piece, QUOTE)

    def _check_held(self) -> None:
        """A string within itself would be spelled with more escapes at every level, without an end."""
        known = set(self._rules.values())
        for rule, (inner, place) in self._held.items():
            seen: set[GrammarRule] = set()
            work = [inner]
            while work:
                for other in called(work.pop()) - seen:
                    seen.add(other)
                    work += [self._held[other][0]] if other in self._held else [other.build()] if other in known else []
            if seen & self._pieces:
                raise UnsupportedGrammarError(COPIED, place, "within JSON in a string it is not supported")
            if rule in seen:
                raise UnsupportedGrammarError(
                    "contentMediaType", place, "JSON in a string that holds such a string again is not supported"
                )

    def listed(self, values: list[Any]) -> Expr:
        """Any one of some values."""
        spelled = [text for v in values if isinstance(v, str) for text in spellings(v)]
        others = [self._constant(v) for v in values if not isinstance(v, str)]
        return alt(words(spelled), *others)

    def _constant(self, value: Any) -> Expr:
        return constant(value, self._blanks, self._options.order == "any", self._plain, self._marked)

    def _rule(self, key: Key, body: Callable[[], Expr]) -> Expr:
        """An opening bracket and the call of a rule whose body is made later."""
        if key in self._dead:
            return NEVER
        found = self._calls.get(key)
        if found is None:
            rule = self._rules[key] = GrammarRule(f"{key[2]} at {' and '.join(key[0]) or 'anywhere'}", body)
            self._queue.append((rule, body))
            found = self._calls[key] = Seq((_OPENING[key[2]], RuleCall(rule)))
        return found

    def _closed(self, joined: Expr, bracket: bytes) -> Expr:
        """The list and its closing bracket."""
        if joined == NEVER:
            return NEVER
        blank = self._blanks.empty if nullable(joined) else EMPTY
        return seq(joined if blank == EMPTY else alt(joined, blank), Literal(bracket))

    def _joined(self, parts: list[ListMember], extra: Expr, least: int, most: int | None, ordered: bool) -> Expr:
        blanks = self._blanks
        needed = sum(part.required for part in parts)
        if most is not None and max(needed, least) > most:
            return NEVER
        if extra == NEVER and least > len(parts):
            return NEVER
        rest = None if extra == NEVER else extra
        ordered = ordered or not parts
        return SeparatedList(tuple(parts), rest, blanks.comma, least, most, blanks.opening, blanks.closing, ordered)

    def _array(self, arrays: ArrayShape) -> Expr:
        items = self._arrays.items(arrays)
        return seq(items, Literal(b"]"))

    def _object(self, objects: ObjectShape) -> Expr:
        return self._objects.members(objects)

    def listed_members(
        self, parts: list[ListMember], extra: Expr, objects: ObjectShape, ordered: bool, unique: bool = False
    ) -> Expr:
        counted = objects.least if objects.most is None else max(objects.least, objects.most)
        ordered = ordered and _may_be_ordered(parts, counted)
        _check_room(parts, ordered, objects.place)
        return self._object_marked(
            self._closed(self._joined(parts, extra, objects.least, objects.most, ordered), b"}"), unique
        )

    def named_member(self, name: Expr, value: Expr, new: bool = False) -> Expr:
        if self._marked:
            return Seq((name, ended(new), self._blanks.colon, value))
        return Seq((name, self._blanks.colon, value))


@lru_cache(maxsize=4096)
def _leaf(keywords: Keywords, options: SchemaOptions) -> Expr | None:
    """Made once for all schemas."""
    schema = {name: list(value) if kind is list else value for name, kind, value in keywords}
    shape = KeywordReader(options).shape(schema, "#")
    return _Builder(SchemaDocument({}), options)._shape(shape, (), 0)


@lru_cache(maxsize=64)
def _any_value(options: SchemaOptions, marked: bool) -> Expr:
    """Made once for all schemas."""
    return _Builder(SchemaDocument({}), options, marked).any_value()


def _may_be_ordered(parts: list[ListMember], counted: int) -> bool:
    """Whether a list in order stays small: a place for each count, and in a text a thread for each next member."""
    return len(parts) * counted <= _MOST_COUNTED and sum(not part.required for part in parts) <= _MOST_ORDERED


def _check_room(parts: list[ListMember], ordered: bool, place: str) -> None:
    """Refuse at once what would fail in the middle of a text, which has a thread for each member that may come."""
    if not ordered and len(parts) > _MOST_FREE:
        hint = f"{len(parts)} properties of which many may be absent; at most {_MOST_FREE} fit in an automaton"
        raise UnsupportedGrammarError("properties", place, hint)


def _same(expr: Expr) -> Expr:
    return expr


def ascii_only(expr: Expr) -> Expr:
    """The same grammar without raw characters beyond ASCII; rules are rewritten when they are first needed."""
    return _AsciiOnly().of(expr)


class _AsciiOnly(GrammarRewriting):
    def chars(self, chars: charset.CharSet) -> Expr:
        kept = charset.intersect(chars, _ASCII)
        return CharClass(kept) if kept else NEVER

    def byte_set(self, expr: ByteClass) -> Expr:
        return ByteClass(expr.mask)  # what counts as plain text in the masks may be beyond ASCII

    def data(self, data: bytes) -> tuple[bytes, ...]:
        return (data,) if data.isascii() or data == _BEGIN else ()

    def end(self, data: bytes) -> bytes:
        """The end of a string with its characters beyond ASCII as escapes."""
        return "".join(c if c.isascii() else json.dumps(c)[1:-1] for c in data.decode()).encode()

    def copied(self, expr: CopiedText) -> Expr:
        return CopiedText(text_pieces(*expr.pieces.key[:2], True))
