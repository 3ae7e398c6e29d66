"""What a schema allows of each JSON type, as values that can be intersected (`allOf`, `$ref` with siblings).

A `Where` is a set of schema places (JSON pointers) that must all hold: sub-schemas are intersected by uniting their
places, and looked at only when they are needed. `()` allows everything, `NOWHERE` nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from sgl.grammars.expr import Expr
from sgl.grammars.language import matches

Where = tuple[str, ...]
NOWHERE: Where = ("false",)
TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")


def both(left: Where, right: Where) -> Where:
    """All places of two sets; order of first mention, so that results do not depend on hashing."""
    return tuple(dict.fromkeys(left + right))


def _tighter(left: Any, right: Any, pick: Any) -> Any:
    return right if left is None else left if right is None else pick(left, right)


@dataclass(frozen=True, slots=True)
class Numbers:
    """Bounds are (value, strict); `fractional` numbers are not whole."""

    integer: bool = False
    low: tuple[Decimal, bool] | None = None
    high: tuple[Decimal, bool] | None = None
    multiples: tuple[Decimal, ...] = ()
    place: str = ""
    fractional: bool = False

    def meet(self, other: Numbers) -> Numbers:
        return Numbers(
            self.integer or other.integer,
            _tighter(self.low, other.low, max),
            _tighter(self.high, other.high, lambda a, b: min(a, b, key=lambda x: (x[0], not x[1]))),
            tuple(dict.fromkeys(self.multiples + other.multiples)),
            self.place or other.place,
            self.fractional or other.fractional,
        )


@dataclass(frozen=True, slots=True)
class Strings:
    """Length in characters, languages of characters that must all, or must not, match, and forbidden texts."""

    least: int = 0
    most: int | None = None
    languages: tuple[Expr, ...] = ()
    excluded: tuple[Expr, ...] = ()
    place: str = ""
    forbidden: frozenset[str] = frozenset()

    def meet(self, other: Strings) -> Strings:
        return Strings(
            max(self.least, other.least),
            _tighter(self.most, other.most, min),
            tuple(dict.fromkeys(self.languages + other.languages)),
            tuple(dict.fromkeys(self.excluded + other.excluded)),
            self.place or other.place,
            self.forbidden | other.forbidden,
        )


@dataclass(frozen=True, slots=True)
class Arrays:
    """The first items by place, the others alike."""

    prefix: tuple[Where, ...] = ()
    items: Where = ()
    least: int = 0
    most: int | None = None

    def at(self, index: int) -> Where:
        return self.prefix[index] if index < len(self.prefix) else self.items

    def meet(self, other: Arrays) -> Arrays:
        longest = max(len(self.prefix), len(other.prefix))
        return Arrays(
            tuple(both(self.at(i), other.at(i)) for i in range(longest)),
            both(self.items, other.items),
            max(self.least, other.least),
            _tighter(self.most, other.most, min),
        )


@dataclass(frozen=True, slots=True)
class Layer:
    """`properties`, `patternProperties` and `additionalProperties` of one schema; they belong together."""

    properties: Mapping[str, Where]
    patterns: tuple[tuple[Expr, Where], ...] = ()
    additional: Where = ()

    def member(self, name: str) -> Where:
        """What the value of a named member must satisfy."""
        found = [self.properties[name]] if name in self.properties else []
        found += [place for pattern, place in self.patterns if matches(pattern, name)]
        return tuple(dict.fromkeys(p for where in found for p in where)) if found else self.additional


@dataclass(frozen=True, slots=True)
class Objects:
    layers: tuple[Layer, ...] = ()
    required: tuple[str, ...] = ()
    least: int = 0
    most: int | None = None
    names: tuple[Where, ...] = ()
    place: str = ""

    def member(self, name: str) -> Where:
        """What the value of a named member must satisfy, in all layers."""
        return tuple(dict.fromkeys(place for layer in self.layers for place in layer.member(name)))

    def named(self) -> list[str]:
        """All names that are spoken of, in the schema's order, required strangers last."""
        return list(dict.fromkeys([n for layer in self.layers for n in layer.properties] + list(self.required)))

    def meet(self, other: Objects) -> Objects:
        return Objects(
            self.layers + other.layers,
            tuple(dict.fromkeys(self.required + other.required)),
            max(self.least, other.least),
            _tighter(self.most, other.most, min),
            self.names + other.names,
            self.place or other.place,
        )


@dataclass(frozen=True, slots=True)
class Shape:
    """One alternative of a schema: what it allows of each type, and the only values where it lists them."""

    null: bool = True
    booleans: frozenset[bool] = frozenset((True, False))
    numbers: Numbers | None = Numbers()
    strings: Strings | None = Strings()
    arrays: Arrays | None = Arrays()
    objects: Objects | None = field(default_factory=Objects)
    values: tuple[Any, ...] | None = None

    def meet(self, other: Shape) -> Shape:
        return Shape(
            self.null and other.null,
            self.booleans & other.booleans,
            _meet(self.numbers, other.numbers),
            _meet(self.strings, other.strings),
            _meet(self.arrays, other.arrays),
            _meet(self.objects, other.objects),
            _common(self.values, other.values),
        )

    def hollow(self) -> bool:
        """Whether no type is left."""
        kinds = (self.numbers, self.strings, self.arrays, self.objects)
        return not self.null and not self.booleans and all(kind is None for kind in kinds)


def _meet(left: Any, right: Any) -> Any:
    return None if left is None or right is None else left.meet(right)


def _common(left: tuple[Any, ...] | None, right: tuple[Any, ...] | None) -> tuple[Any, ...] | None:
    if left is None or right is None:
        return right if left is None else left
    return tuple(v for v in left if any(same(v, w) for w in right))


def same(left: Any, right: Any) -> bool:
    """Equality of JSON values: 1 equals 1.0, but neither equals true."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(same(v, right[k]) for k, v in left.items())
    return bool(left == right)


ANYTHING = Shape()
