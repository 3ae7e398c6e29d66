"""The items of an array: by place, counted by kind, or all different."""

from __future__ import annotations

from itertools import combinations, islice, product
from typing import Any, Protocol

from sgl.grammars.algebra.expr import EMPTY, NEVER, Expr, Joined, Part, alt, nullable, optional, repeat, seq
from sgl.grammars.errors import UnsupportedGrammarError
from sgl.grammars.schema.json_text import Whitespace
from sgl.grammars.schema.lists import CountedList
from sgl.grammars.schema.resolver import Resolver
from sgl.grammars.schema.shapes import Arrays, Where, same

_MOST_LISTS = 500


class Forms(Protocol):
    """How values are written."""

    def value(self, places: Where) -> Expr: ...
    def listed(self, values: list[Any]) -> Expr: ...


class ArrayBuilder:
    def __init__(self, resolver: Resolver, forms: Forms, blanks: Whitespace) -> None:
        self._resolver, self._forms, self._blanks = resolver, forms, blanks

    def items(self, arrays: Arrays) -> Expr:
        """All item lists of a shape, with the blanks between the brackets; NEVER where there is none.

        Raises:
            UnsupportedGrammarError: items that must differ, or be counted, are not few enough.
        """
        if arrays.most is not None and arrays.least > arrays.most:
            return NEVER
        if arrays.unique and arrays.most not in (0, 1) and not self._always_differ(arrays):
            return self._with_blank(self._different(arrays))
        if arrays.contains:
            return CountedList(arrays, self._forms.value, self._resolver.negated, self._blanks).expr()
        return self._with_blank(self._placed(arrays))

    def _with_blank(self, items: Expr) -> Expr:
        return alt(items, self._blanks.empty) if self._blanks.empty != EMPTY and nullable(items) else items

    def _placed(self, arrays: Arrays) -> Expr:
        first, most = [self._forms.value(places) for places in arrays.prefix], arrays.most
        if NEVER in first:
            most = min(first.index(NEVER), len(first) if most is None else most)
            first = first[:most]
        if most is not None and arrays.least > most:
            return NEVER
        rest = self._forms.value(arrays.items)
        if first:
            return self._tuple(first[:most], rest, arrays.least, most)
        if rest == NEVER and arrays.least:
            return NEVER
        return self._joined([], None if rest == NEVER else rest, arrays.least, most)

    def _joined(self, parts: list[Part], rest: Expr | None, least: int, most: int | None) -> Joined:
        blanks = self._blanks
        return Joined(
            tuple(parts), rest, blanks.comma, least, most, blanks.opening, blanks.closing, ordered=not parts
        )

    def _tuple(self, first: list[Expr], rest: Expr, least: int, most: int | None) -> Expr:
        """Items by place, then others; only the last may be missing."""
        more = None if most is None else most - len(first)
        expr = repeat(seq(self._blanks.comma, rest), max(least - len(first), 0), more)
        for i in range(len(first) - 1, 0, -1):
            expr = seq(self._blanks.comma, first[i], expr)
            expr = expr if i < least else optional(expr)
        expr = seq(self._blanks.opening, first[0], expr, self._blanks.closing) if first else EMPTY
        return expr if least else optional(expr)

    def _always_differ(self, arrays: Arrays) -> bool:
        """Whether there are only items by place, no two of which can be equal."""
        count = self._longest(arrays)
        if count is None:
            return False
        return all(self._resolver.disjoint(arrays.at(i), arrays.at(j)) for i, j in combinations(range(count), 2))

    def _longest(self, arrays: Arrays) -> int | None:
        """The greatest length where only items by place are possible."""
        placed = len(arrays.prefix)
        if arrays.most is not None and arrays.most <= placed:
            return arrays.most
        return placed if self._forms.value(arrays.items) == NEVER else None

    def _different(self, arrays: Arrays) -> Expr:
        """Items of finitely many values, each at most once."""
        if arrays.contains:
            raise UnsupportedGrammarError("uniqueItems", arrays.place, "together with contains")
        if arrays.prefix:
            return self._different_by_place(arrays)
        values = self._values(arrays.items, arrays)
        if arrays.least > len(values):
            return NEVER
        parts = [Part(self._forms.listed([value]), False) for value in values]
        return self._joined(parts, None, arrays.least, arrays.most) if parts else EMPTY

    def _different_by_place(self, arrays: Arrays) -> Expr:
        longest = self._longest(arrays)
        if longest is None:
            raise _not_finite(arrays)
        values = [self._values(arrays.at(i), arrays) for i in range(longest)]
        found: list[Expr] = []
        for length in range(arrays.least, longest + 1):
            lists = list(islice(product(*values[:length]), _MOST_LISTS + 1))
            if len(lists) > _MOST_LISTS:
                raise _not_finite(arrays)
            found += [self._exactly(chosen) for chosen in lists if _distinct(chosen)]
        return alt(*found)

    def _exactly(self, values: tuple[Any, ...]) -> Expr:
        items = [self._forms.listed([value]) for value in values]
        return self._tuple(items, NEVER, len(items), len(items))

    def _values(self, places: Where, arrays: Arrays) -> list[Any]:
        found = self._resolver.finite(places)
        if found is None:
            raise _not_finite(arrays)
        return found


def _distinct(values: tuple[Any, ...]) -> bool:
    return not any(same(a, b) for a, b in combinations(values, 2))


def _not_finite(arrays: Arrays) -> UnsupportedGrammarError:
    return UnsupportedGrammarError("uniqueItems", arrays.place, "its items can have infinitely many values; give them an enum, or leave it out")
