"""The items of an array: by place, counted by kind, or all different."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import combinations, islice, product
from typing import Any, Protocol

from sgl.grammars.algebra.byte_marks import MOST_ITEMS
from sgl.grammars.algebra.expr import (
    EMPTY,
    NEVER,
    Expr,
    ListMember,
    SeparatedList,
    alt,
    nullable,
    optional,
    repeat,
    seq,
)
from sgl.grammars.algebra.marked_expressions import ended, opened
from sgl.grammars.errors import UnsupportedGrammarError
from sgl.grammars.schema.cardinality import Cardinality
from sgl.grammars.schema.counted_lists import CountedList
from sgl.grammars.schema.distinct_items_error import TooManyDistinctError
from sgl.grammars.schema.json_spelling import JsonWhitespace
from sgl.grammars.schema.schema_resolver import SchemaResolver
from sgl.grammars.schema.schema_shapes import NOWHERE, ArrayShape, Where, same

_MOST_LISTS = 500


class ArrayItemWriter(Protocol):
    """How values are written."""

    def value(self, places: Where) -> Expr: ...
    def listed(self, values: list[Any]) -> Expr: ...


class ArrayBuilder:
    """`marked`: the grammar's texts are remembered, and arrays have the marks for that (`algebra/marks.py`)."""

    def __init__(
        self, resolver: SchemaResolver, forms: ArrayItemWriter, blanks: JsonWhitespace, marked: bool, digits: int | None
    ) -> None:
        self._resolver, self._forms, self._blanks, self._marked = resolver, forms, blanks, marked
        self._plenty = Cardinality(resolver, digits)

    def items(self, arrays: ArrayShape) -> Expr:
        """All item lists of a shape, with the marks and blanks between the brackets; NEVER where there is none.

        Raises:
            UnsupportedGrammarError: items that must differ, or be counted, are not few enough.
        """
        if arrays.most is not None and arrays.least > arrays.most:
            return NEVER
        if arrays.unique and arrays.most not in (0, 1) and not self._always_differ(arrays):
            return self._unlike(arrays)
        if arrays.contains:
            return self._opened(CountedList(arrays, self._value, self._resolver.negated, self._blanks).expr())
        return self._opened(self._with_blank(self._placed(arrays, self._value)))

    def _opened(self, items: Expr, unique: bool = False) -> Expr:
        return seq(opened(unique), items) if self._marked else items

    def _value(self, places: Where) -> Expr:
        """An item that is not compared with others."""
        return self._ended(self._forms.value(places))

    def _ended(self, item: Expr) -> Expr:
        return seq(item, ended(False)) if self._marked else item

    def _new_value(self, places: Where) -> Expr:
        return seq(self._forms.value(places), ended(True))

    def _unlike(self, arrays: ArrayShape) -> Expr:
        """Items that all differ: of few values, which are listed, or remembered."""
        try:
            return self._opened(self._with_blank(self._different(arrays)))
        except TooManyDistinctError:
            if not self._marked:
                raise
            return self._opened(self._with_blank(self._remembered(arrays)), unique=True)

    def _remembered(self, arrays: ArrayShape) -> Expr:
        """Items of few values, in all ways in which they differ, then others that are compared as they are written."""
        first = self._few_first(arrays)
        rest = [arrays.at(i) for i in range(len(first), len(arrays.prefix))]
        if not all(map(self._plenty.of, rest)) or not (arrays.items == NOWHERE or self._plenty.of(arrays.items)):
            raise _not_enough(arrays)
        if arrays.least > MOST_ITEMS:
            raise UnsupportedGrammarError(
                "minItems", arrays.place, f"at most {MOST_ITEMS} items that differ are remembered"
            )
        most = MOST_ITEMS if arrays.most is None else min(arrays.most, MOST_ITEMS)
        bounded = replace(arrays, most=most)
        if not first:
            return self._placed(bounded, self._new_value)
        found = [
            self._exactly(chosen)
            for n in range(arrays.least, len(first))
            for chosen in self._choices(first[:n], arrays)
        ]
        return alt(*found, *(self._going_on(chosen, rest, bounded) for chosen in self._choices(first[:most], arrays)))

    def _few_first(self, arrays: ArrayShape) -> list[list[Any]]:
        found: list[list[Any]] = []
        for places in arrays.prefix:
            values = self._resolver.finite(places)
            if values is None:
                break
            found.append(values)
        return found

    def _choices(self, values: list[list[Any]], arrays: ArrayShape) -> list[tuple[Any, ...]]:
        """Items that differ, one of each list."""
        lists = list(islice(product(*values), _MOST_LISTS + 1))
        if len(lists) > _MOST_LISTS:
            raise _not_finite(arrays)
        return [chosen for chosen in lists if _distinct(chosen)]

    def _going_on(self, chosen: tuple[Any, ...], rest: list[Where], arrays: ArrayShape) -> Expr:
        items = [self._ended(self._forms.listed([value])) for value in chosen] + list(map(self._new_value, rest))
        return self._tuple(items, self._new_value(arrays.items), max(arrays.least, len(chosen)), arrays.most)

    def _with_blank(self, items: Expr) -> Expr:
        return alt(items, self._blanks.empty) if self._blanks.empty != EMPTY and nullable(items) else items

    def _placed(self, arrays: ArrayShape, value: Callable[[Where], Expr]) -> Expr:
        first, most = [value(places) for places in arrays.prefix], arrays.most
        if NEVER in first:
            most = min(first.index(NEVER), len(first) if most is None else most)
            first = first[:most]
        if most is not None and arrays.least > most:
            return NEVER
        rest = value(arrays.items)
        if first:
            return self._tuple(first[:most], rest, arrays.least, most)
        if rest == NEVER and arrays.least:
            return NEVER
        return self._joined([], None if rest == NEVER else rest, arrays.least, most)

    def _joined(self, parts: list[ListMember], rest: Expr | None, least: int, most: int | None) -> SeparatedList:
        blanks = self._blanks
        return SeparatedList(
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

    def _always_differ(self, arrays: ArrayShape) -> bool:
        """Whether there are only items by place, no two of which can be equal."""
        count = self._longest(arrays)
        if count is None:
            return False
        return all(self._resolver.disjoint(arrays.at(i), arrays.at(j)) for i, j in combinations(range(count), 2))

    def _longest(self, arrays: ArrayShape) -> int | None:
        """The greatest length where only items by place are possible."""
        placed = len(arrays.prefix)
        if arrays.most is not None and arrays.most <= placed:
            return arrays.most
        return placed if self._forms.value(arrays.items) == NEVER else None

    def _different(self, arrays: ArrayShape) -> Expr:
        """Items of finitely many values, each at most once."""
        if arrays.contains:
            raise UnsupportedGrammarError("uniqueItems", arrays.place, "together with contains")
        if arrays.prefix:
            return self._different_by_place(arrays)
        values = self._values(arrays.items, arrays)
        if arrays.least > len(values):
            return NEVER
        parts = [ListMember(self._ended(self._forms.listed([value])), False) for value in values]
        return self._joined(parts, None, arrays.least, arrays.most) if parts else EMPTY

    def _different_by_place(self, arrays: ArrayShape) -> Expr:
        longest = self._longest(arrays)
        if longest is None:
            raise _not_finite(arrays)
        values = [self._values(arrays.at(i), arrays) for i in range(longest)]
        found: list[Expr] = []
        for length in range(arrays.least, longest + 1):
            found += [self._exactly(chosen) for chosen in self._choices(values[:length], arrays)]
        return alt(*found)

    def _exactly(self, values: tuple[Any, ...]) -> Expr:
        items = [self._ended(self._forms.listed([value])) for value in values]
        return self._tuple(items, NEVER, len(items), len(items))

    def _values(self, places: Where, arrays: ArrayShape) -> list[Any]:
        found = self._resolver.finite(places)
        if found is None:
            raise _not_finite(arrays)
        return found


def _distinct(values: tuple[Any, ...]) -> bool:
    return not any(same(a, b) for a, b in combinations(values, 2))


def _not_finite(arrays: ArrayShape) -> TooManyDistinctError:
    return TooManyDistinctError(
        "uniqueItems", arrays.place, "its items can have infinitely many values; give them an enum, or leave it out"
    )


def _not_enough(arrays: ArrayShape) -> UnsupportedGrammarError:
    hint = (
        f"its items have too many values to be listed, and maybe not more than {MOST_ITEMS}, or only some of them "
        "are few"
    )
    return UnsupportedGrammarError("uniqueItems", arrays.place, hint)
