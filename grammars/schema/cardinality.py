"""Whether a schema allows more values than an array of items that differ may have, so that there is always one more."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

from sgl.grammars.algebra import charset
from sgl.grammars.algebra.byte_marks import MOST_ITEMS
from sgl.grammars.algebra.expr import (
    Alt,
    AutomatonExpr,
    CharClass,
    Expr,
    Literal,
    LiteralSet,
    Repeat,
    Seq,
    length_bounds,
)
from sgl.grammars.algebra.language_operations import product
from sgl.grammars.errors import GrammarLimitError
from sgl.grammars.schema.schema_document import EndlessReference
from sgl.grammars.schema.schema_resolver import SchemaResolver
from sgl.grammars.schema.schema_shapes import ArrayShape, NumberShape, ObjectShape, SchemaShape, StringShape, Where
from sgl.grammars.schema.string_formats import generated

ENOUGH = MOST_ITEMS + 1
_DEEPEST = 6
_FEWEST_DIGITS = 4
_FAR = Decimal(10) ** 6


class Cardinality:
    """True only where it is sure; False also where that is not easily decided."""

    def __init__(self, resolver: SchemaResolver, digits: int | None) -> None:
        self._resolver, self._digits = resolver, digits

    def of(self, places: Where, depth: int = 0) -> bool:
        try:
            return depth < _DEEPEST and any(self._shape(shape, depth + 1) for shape in self._resolver.shapes(places))
        except (EndlessReference, GrammarLimitError):
            return False

    def _shape(self, shape: SchemaShape, depth: int) -> bool:
        if shape.values is not None:
            return False
        return (
            (shape.strings is not None and _many_strings(shape.strings))
            or (shape.numbers is not None and self._numbers(shape.numbers))
            or (shape.objects is not None and self._objects(shape.objects, depth))
            or (shape.arrays is not None and self._arrays(shape.arrays, depth))
        )

    def _numbers(self, numbers: NumberShape) -> bool:
        if numbers.indivisible or numbers.fractional or (self._digits is not None and self._digits < _FEWEST_DIGITS):
            return False
        low, high = numbers.low, numbers.high
        if any(end is not None and abs(end[0]) > _FAR for end in (low, high)) or any(
            m > 1000 for m in numbers.multiples
        ):
            return False
        if low is None or high is None:
            return True
        if not numbers.integer and not numbers.multiples:
            return high[0] - low[0] >= Decimal("0.001")
        step = Fraction(1)
        for multiple in numbers.multiples:
            step *= Fraction(multiple)
        return Fraction(high[0] - low[0]) / max(step, Fraction(1)) > ENOUGH + 2

    def _some(self, places: Where, depth: int) -> bool:
        """Whether there is a value at all."""
        try:
            return bool(self._resolver.finite(places)) or self.of(places, depth)
        except EndlessReference:
            return False

    def _arrays(self, arrays: ArrayShape, depth: int) -> bool:
        if arrays.contains:
            return False
        longest = min(len(arrays.prefix) + 1, arrays.most if arrays.most is not None else len(arrays.prefix) + 1)
        needed = min(max(arrays.least, 1), len(arrays.prefix) + 1)
        if arrays.most is not None and arrays.most < max(arrays.least, 1):
            return False
        if arrays.unique:
            return all(self.of(arrays.at(i), depth) for i in range(needed))
        if not all(self._some(arrays.at(i), depth) for i in range(needed)):
            return False
        if arrays.most is None and self._some(arrays.items, depth) and all(self._some(p, depth) for p in arrays.prefix):
            return True
        return any(self.of(arrays.at(i), depth) for i in range(min(needed, longest)))

    def _objects(self, objects: ObjectShape, depth: int) -> bool:
        required = objects.required
        if objects.names or objects.some or any(layer.patterns for layer in objects.layers):
            return False
        if not all(self._some(objects.member(name), depth) for name in required):
            return False
        room = objects.most is None or objects.most > len(required)
        if (
            objects.least <= len(required) + 1
            and room
            and self._some(sum((layer.additional for layer in objects.layers), ()), depth)
        ):
            return True
        if objects.least > len(required):
            return False
        return any(self.of(objects.member(name), depth) for name in objects.named() if room or name in required)


def _many_strings(strings: StringShape) -> bool:
    if strings.most is not None and strings.most < max(strings.least, 1):
        return False
    if strings.content is not None or strings.copied is not None:
        return False
    if not strings.languages and not strings.excluded:
        return len(strings.forbidden) < 10_000
    languages = [generated(language) for language in strings.languages]
    if (
        len(languages) == 1
        and not strings.excluded
        and not strings.forbidden
        and not strings.least
        and strings.most is None
    ):
        return _count(languages[0]) >= ENOUGH
    if strings.forbidden:
        return False
    try:
        return _count(product(languages, strings.excluded, strings.least, strings.most)) >= ENOUGH
    except (GrammarLimitError, TypeError):
        return False


def _count(expr: Expr) -> int:
    """At least so many texts, up to `ENOUGH`."""
    match expr:
        case CharClass(chars):
            return min(charset.size(chars), ENOUGH)
        case Literal():
            return 1
        case LiteralSet(words):
            return min(len(words), ENOUGH)
        case Alt(items):
            return max(map(_count, items), default=0)
        case Seq(items):
            return _sequence([(_count(item), _fixed(item)) for item in items])
        case Repeat(item, _, None):
            return ENOUGH if _count(item) else 0
        case Repeat(item, _, int(most)):
            one = _count(item)
            return int(min(one ** (min(most, 9) if _fixed(item) else 1), ENOUGH))
        case AutomatonExpr():
            return _paths(expr)
    return 0


def _fixed(expr: Expr) -> bool:
    """Whether all texts are equally long, so that counts may be multiplied."""
    shortest, longest = length_bounds(expr)
    return shortest == longest and shortest > 0


def _sequence(counts: list[tuple[int, bool]]) -> int:
    if any(not count for count, _ in counts):
        return 0
    total = 1
    for count, _ in counts if all(fixed for _, fixed in counts) else ():
        total = min(total * count, ENOUGH)
    return max(total, *(count for count, _ in counts))


def _paths(graph: AutomatonExpr) -> int:
    """Of a deterministic graph all of whose states lead to an end: its texts are its paths."""
    found = [0] * len(graph.edges)
    for _ in range(len(graph.edges) + 1):
        after = [
            min(accepts + sum(_count(e) * found[t] for e, t in out), ENOUGH)
            for out, accepts in zip(graph.edges, graph.accepting, strict=True)
        ]
        if after == found:
            break
        found = after
    return found[0]
