"""What a shape does not allow, as alternatives: one for each way in which a value can miss it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import reduce
from itertools import pairwise, product
from math import prod
from typing import Any

from sgl.grammars.algebra.language_operations import texts
from sgl.grammars.errors import UnsupportedGrammarError
from sgl.grammars.schema.schema_shapes import (
    NOWHERE,
    ArrayShape,
    ContainsShape,
    NameSet,
    NumberShape,
    ObjectShape,
    PropertyLayer,
    SchemaShape,
    StringShape,
    Where,
    as_decimal,
)

_NOTHING = SchemaShape(False, frozenset(), None, None, None, None)
_MOST_WAYS = 64
Negate = Callable[[Where], Where]
Constant = Callable[[Any], Where]


def complement(
    shape: SchemaShape, negate: Negate, constant: Constant, place: str, keyword: str = "not"
) -> list[SchemaShape]:
    """The shapes of all values that do not fit; none of them counts anything as evaluated.

    Args:
        shape: what to negate.
        negate: names the place of what does not satisfy a set of places.
        constant: names the place of just one value.
        place: where the keyword stands, for errors.
        keyword: which one asks for it: not, oneOf, if ...

    Raises:
        UnsupportedGrammarError: "some member has a wrong value" is not a thing this engine can say.
    """
    found = [_scalars(shape), *_numbers(shape.numbers, place), *_strings(shape.strings, place, keyword)]
    found += _arrays(shape.arrays, negate, place, keyword)
    found += _objects(shape.objects, negate, place, keyword)
    if shape.values is not None:
        found += _unlisted(shape.values, constant, negate, place, keyword)
    return [s for s in found if not s.allows_nothing()]


def _scalars(shape: SchemaShape) -> SchemaShape:
    return replace(_NOTHING, null=not shape.null, booleans=frozenset((True, False)) - shape.booleans)


def _numbers(numbers: NumberShape | None, place: str) -> Iterator[SchemaShape]:
    if numbers is None:
        yield replace(_NOTHING, numbers=NumberShape())
        return
    for step in numbers.multiples:
        yield replace(_NOTHING, numbers=NumberShape(indivisible=(step,), place=place))
    for step in numbers.indivisible:
        yield replace(_NOTHING, numbers=NumberShape(multiples=(step,), place=place))
    if numbers.integer != numbers.fractional:
        opposite = NumberShape(integer=numbers.fractional, fractional=numbers.integer)
        yield replace(_NOTHING, numbers=opposite)
    if numbers.low:
        yield replace(_NOTHING, numbers=NumberShape(high=(numbers.low[0], not numbers.low[1])))
    if numbers.high:
        yield replace(_NOTHING, numbers=NumberShape(low=(numbers.high[0], not numbers.high[1])))


def _strings(strings: StringShape | None, place: str, keyword: str) -> Iterator[SchemaShape]:
    if strings is None:
        yield replace(_NOTHING, strings=StringShape())
        return
    if strings.content is not None:
        raise UnsupportedGrammarError(keyword, place, "strings that are not JSON, or not such JSON, are not supported")
    if strings.copied is not None:
        raise UnsupportedGrammarError(keyword, place, "strings that are no piece of a text are not supported")
    if strings.least:
        yield replace(_NOTHING, strings=StringShape(most=strings.least - 1))
    if strings.most is not None:
        yield replace(_NOTHING, strings=StringShape(least=strings.most + 1))
    for language in strings.languages:
        yield replace(_NOTHING, strings=StringShape(excluded=(language,), place=strings.place))
    if strings.forbidden:
        yield replace(_NOTHING, strings=StringShape(languages=(texts(sorted(strings.forbidden)),), place=strings.place))
    for language in strings.excluded:
        yield replace(_NOTHING, strings=StringShape(languages=(language,), place=strings.place))


def _arrays(arrays: ArrayShape | None, negate: Negate, place: str, keyword: str) -> Iterator[SchemaShape]:
    if arrays is None:
        yield replace(_NOTHING, arrays=ArrayShape())
        return
    if arrays.unique and arrays.most not in (0, 1):
        raise UnsupportedGrammarError(keyword, place, "a negated uniqueItems would require two equal items")
    for missing in _missed_items(arrays, negate, keyword):
        yield replace(_NOTHING, arrays=replace(missing, place=arrays.place or place))


def _missed_items(arrays: ArrayShape, negate: Negate, keyword: str) -> Iterator[ArrayShape]:
    if arrays.least:
        yield ArrayShape(most=arrays.least - 1)
    if arrays.most is not None:
        yield ArrayShape(least=arrays.most + 1)
    for i, places in enumerate(arrays.prefix):
        if places:
            yield ArrayShape(((),) * i + (negate(places),), least=i + 1)
    if arrays.items == NOWHERE:
        yield ArrayShape(least=len(arrays.prefix) + 1)
    elif arrays.items:
        yield ArrayShape(contains=(ContainsShape(negate(arrays.items), start=len(arrays.prefix), keyword=keyword),))
    for contained in arrays.contains:
        if contained.least:
            yield ArrayShape(contains=(replace(contained, least=0, most=contained.least - 1, spoken=False),))
        if contained.most is not None:
            yield ArrayShape(contains=(replace(contained, least=contained.most + 1, most=None, spoken=False),))


def _objects(objects: ObjectShape | None, negate: Negate, place: str, keyword: str) -> Iterator[SchemaShape]:
    if objects is None:
        yield replace(_NOTHING, objects=ObjectShape())
        return
    for missing in _missed_members(objects, negate, place, keyword):
        yield replace(_NOTHING, objects=replace(missing, place=objects.place or place))


def _missed_members(objects: ObjectShape, negate: Negate, place: str, keyword: str) -> Iterator[ObjectShape]:
    if objects.some:
        raise UnsupportedGrammarError(keyword, place, "a negated `not` on property names is not enforced")
    if objects.least:
        yield ObjectShape(most=objects.least - 1)
    if objects.most is not None:
        yield ObjectShape(least=objects.most + 1, keyword=keyword)
    for name in objects.required:
        yield ObjectShape((PropertyLayer({name: NOWHERE}, spoken=False),))
    for places in objects.names:
        yield ObjectShape(some=(NameSet(missed=places, keyword=keyword),))
    for layer in objects.layers:
        for name, places in layer.properties.items():
            if places:
                yield ObjectShape((PropertyLayer({name: negate(places)}, spoken=False),), (name,))
        yield from _missed_others(layer, place, keyword)


def _missed_others(layer: PropertyLayer, place: str, keyword: str) -> Iterator[ObjectShape]:
    """A member of a free name that is wrong by its name alone; a later one of the same name could right its value."""
    wrong = [where for where in (*(w for _, w in layer.patterns), layer.additional) if where]
    if any(where != NOWHERE for where in wrong):
        raise UnsupportedGrammarError(
            keyword, place, "negated, the values of patternProperties or additionalProperties are not enforced"
        )
    for pattern, where in layer.patterns:
        if where:
            yield ObjectShape(some=(NameSet(matched=(pattern,), keyword=keyword),))
    if layer.additional:
        yield ObjectShape(
            some=(NameSet(tuple(layer.properties), tuple(p for p, _ in layer.patterns), keyword=keyword),)
        )


def _unlisted(
    values: tuple[Any, ...], constant: Constant, negate: Negate, place: str, keyword: str
) -> list[SchemaShape]:
    """Everything but some values."""
    strings = [v for v in values if isinstance(v, str)]
    flags = [v for v in values if isinstance(v, bool)]
    numbers = sorted({as_decimal(v) for v in values if isinstance(v, int | float) and not isinstance(v, bool)})
    lists, mappings = ([v for v in values if isinstance(v, kind)] for kind in (list, dict))
    others = replace(
        SchemaShape(),
        null=None not in values,
        booleans=frozenset((True, False)) - set(flags),
        strings=StringShape(forbidden=frozenset(strings)),
        numbers=None,
        arrays=None if lists else ArrayShape(),
        objects=None if mappings else ObjectShape(),
    )
    edges = [None, *((n, True) for n in numbers), None]
    found = [others] + [replace(_NOTHING, numbers=NumberShape(low=low, high=high)) for low, high in pairwise(edges)]
    for structured in filter(None, (lists, mappings)):
        found += _unlike_all([list(_unlike(v, constant, negate, keyword)) for v in structured], place, keyword)
    return found


def _unlike_all(ways: list[list[SchemaShape]], place: str, keyword: str) -> list[SchemaShape]:
    if prod(map(len, ways)) > _MOST_WAYS:
        raise UnsupportedGrammarError(keyword, place, "the value must differ from too many arrays or objects")
    return [reduce(SchemaShape.meet, chosen) for chosen in product(*ways)]


def _unlike(value: Any, constant: Constant, negate: Negate, keyword: str) -> Iterator[SchemaShape]:
    """The arrays, or objects, that differ from one."""
    if isinstance(value, list):
        alike = ArrayShape(tuple(map(constant, value)), least=len(value), most=len(value))
        yield from (replace(_NOTHING, arrays=missed) for missed in _missed_items(alike, negate, keyword))
    else:
        alike_members = PropertyLayer({name: constant(v) for name, v in value.items()}, additional=NOWHERE)
        found = _missed_members(ObjectShape((alike_members,), tuple(value)), negate, "", keyword)
        yield from (replace(_NOTHING, objects=missed) for missed in found)
