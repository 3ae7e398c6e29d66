"""Judging values and shapes: whether a value fits a shape, and whether a shape certainly allows nothing."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from itertools import combinations
from typing import Any

from sgl.grammars.algebra.expr import NEVER, Expr
from sgl.grammars.algebra.language_operations import combine, matches, texts
from sgl.grammars.errors import GrammarLimitError
from sgl.grammars.schema.content_encoding import json_of
from sgl.grammars.schema.copied_strings import is_piece
from sgl.grammars.schema.number_ranges import integer_bounds
from sgl.grammars.schema.schema_document import EndlessReference
from sgl.grammars.schema.schema_shapes import (
    ArrayShape,
    NameSet,
    NumberShape,
    ObjectShape,
    SchemaShape,
    StringShape,
    Where,
    as_decimal,
    identity,
    same,
)

_DEEPEST = 8
_MOST_INTEGERS = 256


class InstanceValidator:
    """`read` says which texts a language stands for: all that may be in a format, or those that surely are."""

    def __init__(
        self, shapes: Callable[[Where], list[SchemaShape]], read: Callable[[Expr], Expr] = lambda language: language
    ) -> None:
        self._shapes, self._read = shapes, read
        self._matched: dict[tuple[int, str], tuple[Expr, bool]] = {}
        self._listed: dict[int, tuple[tuple[Any, ...], set[Any]]] = {}

    def admits(self, value: Any, places: Where) -> bool:
        """Whether a JSON value satisfies all places."""
        return any(self.fits(value, shape) for shape in self._shapes(places))

    def fits(self, value: Any, shape: SchemaShape) -> bool:
        """Whether a JSON value is one of those that a shape allows."""
        if shape.values is not None and identity(value) not in self._identities(shape.values):
            return False
        if value is None:
            return shape.null
        if isinstance(value, bool):
            return value in shape.booleans
        if isinstance(value, str):
            return shape.strings is not None and self._string_fits(value, shape.strings)
        if isinstance(value, int | float):
            return shape.numbers is not None and number_fits(as_decimal(value), shape.numbers)
        if isinstance(value, list):
            return shape.arrays is not None and self._array_fits(value, shape.arrays)
        return shape.objects is not None and self._object_fits(value, shape.objects)

    def _identities(self, values: tuple[Any, ...]) -> set[Any]:
        """Of listed values, remembered by the list, which the memo keeps alive."""
        if id(values) not in self._listed:
            self._listed[id(values)] = values, set(map(identity, values))
        return self._listed[id(values)][1]

    def _string_fits(self, text: str, strings: StringShape) -> bool:
        return (
            _within(len(text), strings.least, strings.most)
            and text not in strings.forbidden
            and all(self._matches(self._read(language), text) for language in strings.languages)
            and not any(self._matches(language, text) for language in strings.excluded)
            and (strings.content is None or self._content_fits(text, strings.content))
            and (strings.copied is None or is_piece(text, strings.copied))
        )

    def _content_fits(self, text: str, places: Where) -> bool:
        whole, value = json_of(text)
        return whole and self.admits(value, places)

    def _matches(self, language: Expr, text: str) -> bool:
        """Remembered by identity: the languages are large to hash, and kept alive by the memo."""
        key = (id(language), text)
        if key not in self._matched:
            self._matched[key] = language, matches(language, text)
        return self._matched[key][1]

    def _array_fits(self, value: list[Any], arrays: ArrayShape) -> bool:
        if not _within(len(value), arrays.least, arrays.most) or (arrays.unique and not _distinct(value)):
            return False
        for contained in arrays.contains:
            count = sum(self.admits(item, contained.places) for item in value[contained.start :])
            if not _within(count, contained.least, contained.most):
                return False
        return all(self.admits(item, arrays.at(i)) for i, item in enumerate(value))

    def _object_fits(self, value: dict[str, Any], objects: ObjectShape) -> bool:
        if not _within(len(value), objects.least, objects.most) or not value.keys() >= set(objects.required):
            return False
        if not all(self.admits(name, places) for name in value for places in objects.names):
            return False
        if not all(any(self.names(name, names) for name in value) for names in objects.some):
            return False
        return all(self.admits(member, objects.member(name)) for name, member in value.items())

    def names(self, name: str, names: NameSet) -> bool:
        """Whether a name is in a set of names."""
        return (
            name not in names.listed
            and not any(self._matches(pattern, name) for pattern in names.unmatched)
            and all(self._matches(pattern, name) for pattern in names.matched)
            and not (names.missed and self.admits(name, names.missed))
        )

    def few(self, shape: SchemaShape) -> list[Any] | None:
        """The values of a shape where they are few: those that it lists, null, booleans, a short range of integers."""
        if shape.values is not None:
            return [v for v in shape.listed() if self.fits(v, shape)]
        if (shape.strings and not _no_string(shape.strings)) or (
            shape.objects and not self._no_object(shape.objects, 0)
        ):
            return None
        if shape.arrays and not self._no_array(shape.arrays, 0):
            return None
        found: list[Any] = [None] * shape.null + sorted(shape.booleans)
        if shape.numbers and not _no_number(shape.numbers):
            low, high = integer_bounds(shape.numbers.low, shape.numbers.high)
            if not shape.numbers.integer or low is None or high is None or high - low >= _MOST_INTEGERS:
                return None
            found += [n for n in range(low, high + 1) if number_fits(Decimal(n), shape.numbers)]
        return found

    def empty(self, shape: SchemaShape, depth: int = 0) -> bool:
        """True only if no value fits; False also where that is not easily decided."""
        if shape.values is not None:
            return not any(self.fits(v, shape) for v in shape.values)
        return not (
            shape.null
            or shape.booleans
            or (shape.numbers and not _no_number(shape.numbers))
            or (shape.strings and not _no_string(shape.strings))
            or (shape.arrays and not self._no_array(shape.arrays, depth))
            or (shape.objects and not self._no_object(shape.objects, depth))
        )

    def _nothing_at(self, places: Where, depth: int) -> bool:
        """A schema that is being read at the moment is taken to allow something."""
        try:
            return depth < _DEEPEST and all(self.empty(s, depth + 1) for s in self._shapes(places))
        except EndlessReference:
            return False

    def _no_array(self, arrays: ArrayShape, depth: int) -> bool:
        if arrays.most is not None and arrays.least > arrays.most:
            return True
        if any(c.most is not None and c.least > c.most for c in arrays.contains):
            return True
        if any(c.least and self._nothing_at(c.places, depth) for c in arrays.contains):
            return True
        needed = min(arrays.least, len(arrays.prefix) + 1)
        return any(self._nothing_at(arrays.at(i), depth) for i in range(needed))

    def _no_object(self, objects: ObjectShape, depth: int) -> bool:
        if objects.most is not None and max(objects.least, len(objects.required)) > objects.most:
            return True
        return any(self._nothing_at(objects.member(name), depth) for name in objects.required)


def _distinct(values: list[Any]) -> bool:
    return not any(same(a, b) for a, b in combinations(values, 2))


def _within(count: int, least: int, most: int | None) -> bool:
    return least <= count and (most is None or count <= most)


def number_fits(value: Decimal, numbers: NumberShape) -> bool:
    whole = value == value.to_integral_value()
    if (numbers.integer and not whole) or (numbers.fractional and whole):
        return False
    if numbers.low and (value < numbers.low[0] or (numbers.low[1] and value == numbers.low[0])):
        return False
    if numbers.high and (value > numbers.high[0] or (numbers.high[1] and value == numbers.high[0])):
        return False
    divisible = all(_divides(m, value) for m in numbers.multiples)
    return divisible and not any(_divides(m, value) for m in numbers.indivisible)


def _divides(step: Decimal, value: Decimal) -> bool:
    return Fraction(value) % Fraction(step) == 0


def _no_number(numbers: NumberShape) -> bool:
    if numbers.integer and numbers.fractional:
        return True
    if numbers.low is None or numbers.high is None:
        return False
    if numbers.integer:
        low, high = integer_bounds(numbers.low, numbers.high)
        return low is not None and high is not None and low > high
    (low_value, low_strict), (high_value, high_strict) = numbers.low, numbers.high
    return low_value > high_value or (low_value == high_value and (low_strict or high_strict))


def _no_string(strings: StringShape) -> bool:
    if strings.most is not None and strings.least > strings.most:
        return True
    if not strings.languages or (len(strings.languages) == 1 and not strings.excluded and not strings.forbidden):
        return False
    excluded = (*strings.excluded, texts(sorted(strings.forbidden)))
    try:
        return combine(strings.languages, excluded) == NEVER
    except GrammarLimitError:
        return False
