"""What a schema allows of each JSON type, as values that can be intersected (`allOf`, `$ref` with siblings).

A `Where` is a set of schema places (JSON pointers) that must all hold: sub-schemas are intersected by uniting their
places, and looked at only when they are needed. `()` allows everything, `NOWHERE` nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

from sgl.grammars.algebra.expr import Expr
from sgl.grammars.algebra.language_operations import matches

Where = tuple[str, ...]
NOWHERE: Where = ("false",)
TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")


def both(left: Where, right: Where) -> Where:
    """All places of two sets; order of first mention, so that results do not depend on hashing."""
    return tuple(dict.fromkeys(left + right))


def _tighter(left: Any, right: Any, pick: Any) -> Any:
    return right if left is None else left if right is None else pick(left, right)


@dataclass(frozen=True, slots=True)
class NumberShape:
    """Bounds are (value, strict); `fractional` numbers are not whole, `indivisible` steps must not divide them."""

    integer: bool = False
    low: tuple[Decimal, bool] | None = None
    high: tuple[Decimal, bool] | None = None
    multiples: tuple[Decimal, ...] = ()
    place: str = ""
    fractional: bool = False
    indivisible: tuple[Decimal, ...] = ()

    def meet(self, other: NumberShape) -> NumberShape:
        return NumberShape(
            self.integer or other.integer,
            _tighter(self.low, other.low, max),
            _tighter(self.high, other.high, lambda a, b: min(a, b, key=lambda x: (x[0], not x[1]))),
            tuple(dict.fromkeys(self.multiples + other.multiples)),
            self.place or other.place,
            self.fractional or other.fractional,
            tuple(dict.fromkeys(self.indivisible + other.indivisible)),
        )


@dataclass(frozen=True, slots=True)
class StringShape:
    """Length in characters, languages of characters that must all, or must not, match, and forbidden texts.

    `content` are the places of the JSON value that the text is, None where it need not be JSON. `copied` is the text
    that it is a piece of, with what pieces are made of.
    """

    least: int = 0
    most: int | None = None
    languages: tuple[Expr, ...] = ()
    excluded: tuple[Expr, ...] = ()
    place: str = ""
    forbidden: frozenset[str] = frozenset()
    content: Where | None = None
    copied: tuple[str, str] | None = None

    def meet(self, other: StringShape) -> StringShape:
        return StringShape(
            max(self.least, other.least),
            _tighter(self.most, other.most, min),
            tuple(dict.fromkeys(self.languages + other.languages)),
            tuple(dict.fromkeys(self.excluded + other.excluded)),
            self.place or other.place,
            self.forbidden | other.forbidden,
            _tighter(self.content, other.content, both),
            _tighter(self.copied, other.copied, max),  # pieces of words are pieces of characters as well
        )


@dataclass(frozen=True, slots=True)
class ContainsShape:
    """At least and at most so many of the items from `start` on satisfy the places; `spoken` as for a
    `PropertyLayer`."""

    places: Where
    least: int = 1
    most: int | None = None
    start: int = 0
    spoken: bool = False
    keyword: str = "contains"


@dataclass(frozen=True, slots=True)
class ArrayShape:
    """The first items by place, the others alike.

    `evaluated` counts the first items that a keyword has spoken of (None: all), which `unevaluatedItems` asks for.
    """

    prefix: tuple[Where, ...] = ()
    items: Where = ()
    least: int = 0
    most: int | None = None
    contains: tuple[ContainsShape, ...] = ()
    unique: bool = False
    evaluated: int | None = 0
    place: str = ""

    def at(self, index: int) -> Where:
        return self.prefix[index] if index < len(self.prefix) else self.items

    def unspoken(self) -> ArrayShape:
        return replace(self, evaluated=0, contains=tuple(replace(c, spoken=False) for c in self.contains))

    def meet(self, other: ArrayShape) -> ArrayShape:
        longest = max(len(self.prefix), len(other.prefix))
        open_ended = self.evaluated is None or other.evaluated is None
        return ArrayShape(
            tuple(both(self.at(i), other.at(i)) for i in range(longest)),
            both(self.items, other.items),
            max(self.least, other.least),
            _tighter(self.most, other.most, min),
            tuple(dict.fromkeys(self.contains + other.contains)),
            self.unique or other.unique,
            None if open_ended else max(self.evaluated or 0, other.evaluated or 0),
            self.place or other.place,
        )


@dataclass(frozen=True, slots=True)
class PropertyLayer:
    """`properties`, `patternProperties` and `additionalProperties` of one schema; they belong together.

    `spoken` and `rest` tell whether its names, and all others, count as evaluated for `unevaluatedProperties`.
    `closes`:
    an object that has it holds only evaluated members, where objects are closed unless they say otherwise. `closing`:
    it
    repeats the names of other layers.
    """

    properties: Mapping[str, Where]
    patterns: tuple[tuple[Expr, Where], ...] = ()
    additional: Where = ()
    spoken: bool = True
    rest: bool = False
    closes: bool = False
    closing: bool = False

    def member(self, name: str) -> Where:
        """What the value of a named member must satisfy."""
        if not self.patterns:
            return self.properties.get(name, self.additional)
        found = [self.properties[name]] if name in self.properties else []
        found += [place for pattern, place in self.patterns if matches(pattern, name)]
        return tuple(dict.fromkeys(p for where in found for p in where)) if found else self.additional


@dataclass(frozen=True, slots=True)
class NameSet:
    """A set of names: those that match all of some patterns, are not listed, match none of others and miss places.

    `keyword` is the one that asks for it.
    """

    listed: tuple[str, ...] = ()
    unmatched: tuple[Expr, ...] = ()
    matched: tuple[Expr, ...] = ()
    missed: Where = ()
    keyword: str = "not"

    def within(self, other: NameSet) -> bool:
        """Whether every condition of the other set is one of this set; then all names here are also there."""
        narrower = not other.missed or (bool(self.missed) and set(self.missed) <= set(other.missed))
        pairs = ((other.listed, self.listed), (other.unmatched, self.unmatched), (other.matched, self.matched))
        return narrower and all(set(theirs) <= set(ours) for theirs, ours in pairs)


@dataclass(frozen=True, slots=True)
class ObjectShape:
    """`some`: for each of these sets of names at least one member has a name in it; `keyword` asks for `least`."""

    layers: tuple[PropertyLayer, ...] = ()
    required: tuple[str, ...] = ()
    least: int = 0
    most: int | None = None
    names: tuple[Where, ...] = ()
    place: str = ""
    some: tuple[NameSet, ...] = ()
    keyword: str = "minProperties"

    def member(self, name: str) -> Where:
        """What the value of a named member must satisfy, in all layers."""
        if len(self.layers) == 1:
            return self.layers[0].member(name)
        found: Where = ()
        for layer in self.layers:
            found += layer.member(name) if layer.patterns else layer.properties.get(name, layer.additional)
        return tuple(dict.fromkeys(found)) if len(found) > 1 else found

    def named(self) -> list[str]:
        """All names that are spoken of, in the schema's order, required strangers last."""
        return list(dict.fromkeys([n for layer in self.layers for n in layer.properties] + list(self.required)))

    def meet(self, other: ObjectShape) -> ObjectShape:
        return ObjectShape(
            self.layers + other.layers,
            tuple(dict.fromkeys(self.required + other.required)),
            max(self.least, other.least),
            _tighter(self.most, other.most, min),
            self.names + other.names,
            self.place or other.place,
            tuple(dict.fromkeys(self.some + other.some)),
            self.keyword if self.least >= other.least else other.keyword,
        )


_ANY_NUMBER, _ANY_STRING, _ANY_ARRAY, _ANY_OBJECT = NumberShape(), StringShape(), ArrayShape(), ObjectShape()
_FREE = (_ANY_NUMBER, _ANY_STRING, _ANY_ARRAY, _ANY_OBJECT)
_BOTH = frozenset((True, False))


@dataclass(frozen=True, slots=True)
class SchemaShape:
    """One alternative of a schema: what it allows of each type, and the only values where it lists them."""

    null: bool = True
    booleans: frozenset[bool] = _BOTH
    numbers: NumberShape | None = _ANY_NUMBER
    strings: StringShape | None = _ANY_STRING
    arrays: ArrayShape | None = _ANY_ARRAY
    objects: ObjectShape | None = _ANY_OBJECT
    values: tuple[Any, ...] | None = None

    def meet(self, other: SchemaShape) -> SchemaShape:
        return SchemaShape(
            self.null and other.null,
            self.booleans & other.booleans,
            _meet(self.numbers, other.numbers),
            _meet(self.strings, other.strings),
            _meet(self.arrays, other.arrays),
            _meet(self.objects, other.objects),
            _common(self.values, other.values),
        )

    def unspoken(self) -> SchemaShape:
        """The same without anything that counts as evaluated, as `not` has it."""
        objects, arrays = self.objects, self.arrays
        layers = (
            tuple(replace(layer, spoken=False, rest=False, closes=False) for layer in objects.layers) if objects else ()
        )
        return replace(
            self,
            objects=None if objects is None else replace(objects, layers=layers),
            arrays=None if arrays is None else arrays.unspoken(),
        )

    def listed(self) -> list[Any]:
        """The values that it lists; those of an integer as integers, however the schema writes them."""
        whole = self.numbers is not None and self.numbers.integer
        return [int(v) if whole and isinstance(v, float) and v == v // 1 else v for v in self.values or ()]

    def only_lists(self) -> bool:
        """Whether its values say it all."""
        kinds = (self.numbers, self.strings, self.arrays, self.objects)
        free = all(kind is any_kind for kind, any_kind in zip(kinds, _FREE, strict=True))
        return self.values is not None and free and self.null and self.booleans == _BOTH

    def allows_nothing(self) -> bool:
        """Whether no type, or no value, is left."""
        if self.values == ():
            return True
        kinds = (self.numbers, self.strings, self.arrays, self.objects)
        return not self.null and not self.booleans and all(kind is None for kind in kinds)


def _meet(left: Any, right: Any) -> Any:
    """Most shapes leave most types as they are, which identity shows."""
    if left is right or any(right is free for free in _FREE):
        return left
    if any(left is free for free in _FREE):
        return right
    return None if left is None or right is None else left.meet(right)


def _common(left: tuple[Any, ...] | None, right: tuple[Any, ...] | None) -> tuple[Any, ...] | None:
    if left is None or right is None:
        return right if left is None else left
    known = set(map(identity, right))
    return tuple(v for v in left if identity(v) in known)


def as_decimal(value: float) -> Decimal:
    """A number of a schema: a whole one exactly, any other as it is written."""
    return Decimal(value) if value == value // 1 else Decimal(repr(value))


def identity(value: Any) -> Any:
    """Equal for equal JSON values, and only for them: 1 equals 1.0, but neither equals true."""
    if isinstance(value, list):
        return list, tuple(map(identity, value))
    if isinstance(value, dict):
        return dict, frozenset((name, identity(member)) for name, member in value.items())
    return isinstance(value, bool), value


def same(left: Any, right: Any) -> bool:
    """Equality of JSON values."""
    return bool(identity(left) == identity(right))


ANYTHING = SchemaShape()
