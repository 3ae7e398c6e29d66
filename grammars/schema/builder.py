"""JSON Schema as a grammar: the shapes of every value become expressions, objects and arrays become rules."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import combinations
from typing import Any

from sgl.grammars import charset
from sgl.grammars.schema.document import Document, SchemaOptions, canonical_schema
from sgl.grammars.errors import GrammarLimitError, InvalidGrammarError, UnsupportedGrammarError
from sgl.grammars.expr import (
    EMPTY,
    NEVER,
    Call,
    Chars,
    Expr,
    Joined,
    Literal,
    Part,
    Repeat,
    Rule,
    alt,
    nullable,
    optional,
    repeat,
    seq,
    words,
)
from sgl.grammars.schema.json_text import QUOTE, WHITESPACE, constant, encode, other_than
from sgl.grammars.language import combine, matches, texts
from sgl.grammars.schema.productive import unproductive
from sgl.grammars.schema.resolver import Resolver
from sgl.grammars.schema.scalars import number_expr, string_expr, text_expr
from sgl.grammars.schema.shapes import Arrays, Objects, Shape, Strings, Where

__all__ = ["SchemaOptions", "canonical_schema", "schema_expr"]

_MOST_PATTERNS = 5
_ANY_TEXT = Repeat(Chars(charset.ANY), 0, None)
Key = tuple[Where, int, str]


def schema_expr(schema: Any, options: SchemaOptions) -> Expr:
    """The grammar of the JSON texts that a schema allows.

    Raises:
        InvalidGrammarError: the schema is malformed or allows nothing.
        UnsupportedGrammarError: a keyword cannot be enforced.
    """
    document = Document(schema)
    builder = _Builder(Resolver(document, options), options)
    expr = builder.root(("#",))
    if expr == NEVER:
        raise InvalidGrammarError("the schema allows no value at all", "#")
    return expr


class _Builder:
    def __init__(self, resolver: Resolver, options: SchemaOptions) -> None:
        self._resolver = resolver
        self._blanks = WHITESPACE[options.whitespace]
        self._dead: set[Key] = set()
        self._reset()

    def _reset(self) -> None:
        self._values: dict[Where, Expr] = {}
        self._rules: dict[Key, Rule] = {}
        self._queue: deque[tuple[Rule, Callable[[], Expr]]] = deque()

    def root(self, places: Where) -> Expr:
        """The expression of the whole text, after rules that no text can satisfy are cut out."""
        while True:
            expr = self.value(places)
            while self._queue:
                rule, body = self._queue.popleft()
                made = body()
                rule.build = partial(_same, made)
            dead = unproductive(list(self._rules.values()))
            if not dead:
                return expr
            self._dead |= {key for key, rule in self._rules.items() if rule in dead}
            self._reset()

    def value(self, places: Where) -> Expr:
        """A value that satisfies all places."""
        found = self._values.get(places)
        if found is None:
            shapes = self._resolver.shapes(places)
            found = alt(*(self._shape(shape, places, i) for i, shape in enumerate(shapes)))
            if not places:
                body = found
                found = Call(Rule("any JSON value", lambda: body))
            self._values[places] = found
        return found

    def _shape(self, shape: Shape, places: Where, index: int) -> Expr:
        if shape.values is not None:
            unlisted = replace(shape, values=None)
            return self._listed([v for v in shape.values if self._resolver.admits(v, unlisted)])
        found: list[Expr] = [Literal(b"null")] if shape.null else []
        found += [Literal(json.dumps(b).encode()) for b in sorted(shape.booleans)]
        if shape.numbers is not None:
            found.append(number_expr(shape.numbers))
        if shape.strings is not None:
            found.append(string_expr(shape.strings))
        if (arrays := shape.arrays) is not None:
            found.append(self._rule((places, index, "["), lambda: self._array(arrays)))
        if (objects := shape.objects) is not None:
            found.append(self._rule((places, index, "{"), lambda: self._object(objects)))
        return alt(*found)

    def _listed(self, values: list[Any]) -> Expr:
        strings = [v for v in values if isinstance(v, str)]
        spelled = [json.dumps(s, ensure_ascii=ascii).encode() for s in strings for ascii in (True, False)]
        others = [constant(v, self._blanks) for v in values if not isinstance(v, str)]
        return alt(words(spelled), *others)

    def _rule(self, key: Key, body: Callable[[], Expr]) -> Expr:
        """An opening bracket and the call of a rule whose body is made later."""
        if key in self._dead:
            return NEVER
        rule = self._rules.get(key)
        if rule is None:
            rule = self._rules[key] = Rule(f"{key[2]} at {' and '.join(key[0]) or 'anywhere'}", body)
            self._queue.append((rule, body))
        return seq(Literal(key[2].encode()), Call(rule))

    def _closed(self, joined: Expr, bracket: bytes) -> Expr:
        """The list and its closing bracket."""
        if joined == NEVER:
            return NEVER
        blank = self._blanks.empty if nullable(joined) else EMPTY
        return seq(joined if blank == EMPTY else alt(joined, blank), Literal(bracket))

    def _joined(self, parts: list[Part], extra: Expr, least: int, most: int | None) -> Expr:
        blanks = self._blanks
        needed = sum(part.required for part in parts)
        if most is not None and max(needed, least) > most:
            return NEVER
        if extra == NEVER and least > len(parts):
            return NEVER
        rest = None if extra == NEVER else extra
        return Joined(tuple(parts), rest, blanks.comma, least, most, blanks.opening, blanks.closing)

    def _array(self, arrays: Arrays) -> Expr:
        first, most = [self.value(places) for places in arrays.prefix], arrays.most
        if NEVER in first:
            most = min(first.index(NEVER), len(first) if most is None else most)
            first = first[:most]
        rest = self.value(arrays.items)
        if not first:
            return self._closed(self._joined([], rest, arrays.least, most), b"]")
        if most is not None and arrays.least > most:
            return NEVER
        return self._closed(self._tuple(first[:most], rest, arrays.least, most), b"]")

    def _tuple(self, first: list[Expr], rest: Expr, least: int, most: int | None) -> Expr:
        """Items by place, then others; only the last may be missing."""
        more = None if most is None else most - len(first)
        expr = repeat(seq(self._blanks.comma, rest), max(least - len(first), 0), more)
        for i in range(len(first) - 1, 0, -1):
            expr = seq(self._blanks.comma, first[i], expr)
            expr = expr if i < least else optional(expr)
        expr = seq(self._blanks.opening, first[0], expr, self._blanks.closing) if first else EMPTY
        return expr if least else optional(expr)

    def _object(self, objects: Objects) -> Expr:
        names = objects.named()
        parts: list[Part] = []
        for name in names:
            value = self.value(objects.member(name)) if self._may_name(name, objects) else NEVER
            needed = name in objects.required
            if value == NEVER and needed:
                return NEVER
            if value != NEVER:
                parts.append(Part(self._member(constant(name, self._blanks), value), needed))
        extra = self._extra(objects, names)
        if extra != NEVER and objects.least > max(len(objects.required), 0) + 1:
            raise UnsupportedGrammarError(
                "minProperties", objects.place, "members of free names may repeat, so more than one is not counted"
            )
        return self._closed(self._joined(parts, extra, objects.least, objects.most), b"}")

    def _member(self, name: Expr, value: Expr) -> Expr:
        return seq(name, self._blanks.colon, value)

    def _may_name(self, name: str, objects: Objects) -> bool:
        return all(
            any(self._resolver.admits(name, shape) for shape in self._resolver.shapes(places))
            for places in objects.names
        )

    def _extra(self, objects: Objects, names: list[str]) -> Expr:
        """A member of a name that is not spoken of, by the patterns that its name matches."""
        patterns = list(dict.fromkeys(p for layer in objects.layers for p, _ in layer.patterns))
        if len(patterns) > _MOST_PATTERNS:
            raise UnsupportedGrammarError(
                "patternProperties", objects.place, f"{len(patterns)} patterns; at most {_MOST_PATTERNS} are enforced"
            )
        return alt(
            *(
                self._extra_matching(objects, names, list(chosen), [p for p in patterns if p not in chosen])
                for count in range(len(patterns) + 1)
                for chosen in combinations(patterns, count)
            )
        )

    def _extra_matching(self, objects: Objects, names: list[str], chosen: list[Expr], left: list[Expr]) -> Expr:
        places: Where = ()
        for layer in objects.layers:
            found = [where for pattern, where in layer.patterns if pattern in chosen]
            places += sum(found, ()) if found else layer.additional
        value = self.value(tuple(dict.fromkeys(places)))
        if value == NEVER:
            return NEVER
        if not chosen and not left and not objects.names:
            return self._member(seq(QUOTE, other_than(names), QUOTE), value)
        key = self._key(objects, names, chosen, left)
        return key if key == NEVER else self._member(seq(QUOTE, encode(key), QUOTE), value)

    def _key(self, objects: Objects, names: list[str], chosen: list[Expr], left: list[Expr]) -> Expr:
        languages = [*chosen, *(self._name_language(places, objects.place) for places in objects.names)]
        relevant = [n for n in names if all(matches(p, n) for p in chosen)]
        if not languages:
            languages = [_ANY_TEXT]
        elif len(languages) == 1 and not left and not relevant:
            return languages[0]
        try:
            return combine(languages, (*left, *([texts(relevant)] if relevant else [])))
        except GrammarLimitError as error:
            raise UnsupportedGrammarError("patternProperties", objects.place, str(error)) from error

    def _name_language(self, places: Where, place: str) -> Expr:
        found: list[Expr] = []
        for shape in self._resolver.shapes(places):
            if shape.values is not None:
                found.append(texts(v for v in shape.values if isinstance(v, str) and self._resolver.admits(v, shape)))
            elif shape.strings is not None:
                bounded = Strings() != shape.strings
                found.append(text_expr(shape.strings) if bounded else _ANY_TEXT)
        return alt(*found)


def _same(expr: Expr) -> Expr:
    return expr
