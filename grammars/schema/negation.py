"""What a shape does not allow, as alternatives: one for each way in which a value can miss it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from decimal import Decimal
from itertools import pairwise
from typing import Any

from sgl.grammars.errors import UnsupportedGrammarError
from sgl.grammars.language import texts
from sgl.grammars.schema.shapes import NOWHERE, Arrays, Layer, Numbers, Objects, Shape, Strings, Where

_NOTHING = Shape(False, frozenset(), None, None, None, None)
Negate = Callable[[Where], Where]


def complement(shape: Shape, negate: Negate, place: str) -> list[Shape]:
    """The shapes of all values that do not fit.

    Args:
        shape: what to negate.
        negate: names the place of what does not satisfy a set of places.
        place: where `not` stands, for errors.

    Raises:
        UnsupportedGrammarError: "some member or item is wrong" is not a thing this engine can say.
    """
    found = [_scalars(shape), *_numbers(shape.numbers, place), *_strings(shape.strings)]
    found += _arrays(shape.arrays, negate, place)
    found += _objects(shape.objects, negate, place)
    if shape.values is not None:
        found += _unlisted(shape.values, place)
    return [s for s in found if not s.hollow()]


def _scalars(shape: Shape) -> Shape:
    return replace(_NOTHING, null=not shape.null, booleans=frozenset((True, False)) - shape.booleans)


def _numbers(numbers: Numbers | None, place: str) -> Iterator[Shape]:
    if numbers is None:
        yield replace(_NOTHING, numbers=Numbers())
        return
    if numbers.multiples:
        raise UnsupportedGrammarError("not", place, "a negated multipleOf is not enforced")
    if numbers.integer != numbers.fractional:
        opposite = Numbers(integer=numbers.fractional, fractional=numbers.integer)
        yield replace(_NOTHING, numbers=opposite)
    if numbers.low:
        yield replace(_NOTHING, numbers=Numbers(high=(numbers.low[0], not numbers.low[1])))
    if numbers.high:
        yield replace(_NOTHING, numbers=Numbers(low=(numbers.high[0], not numbers.high[1])))


def _strings(strings: Strings | None) -> Iterator[Shape]:
    if strings is None:
        yield replace(_NOTHING, strings=Strings())
        return
    if strings.least:
        yield replace(_NOTHING, strings=Strings(most=strings.least - 1))
    if strings.most is not None:
        yield replace(_NOTHING, strings=Strings(least=strings.most + 1))
    for language in strings.languages:
        yield replace(_NOTHING, strings=Strings(excluded=(language,), place=strings.place))
    if strings.forbidden:
        yield replace(_NOTHING, strings=Strings(languages=(texts(sorted(strings.forbidden)),), place=strings.place))
    for language in strings.excluded:
        yield replace(_NOTHING, strings=Strings(languages=(language,), place=strings.place))


def _arrays(arrays: Arrays | None, negate: Negate, place: str) -> Iterator[Shape]:
    if arrays is None:
        yield replace(_NOTHING, arrays=Arrays())
        return
    if arrays.least:
        yield replace(_NOTHING, arrays=Arrays(most=arrays.least - 1))
    if arrays.most is not None:
        yield replace(_NOTHING, arrays=Arrays(least=arrays.most + 1))
    for i, places in enumerate(arrays.prefix):
        if places:
            prefix = ((),) * i + (negate(places),)
            yield replace(_NOTHING, arrays=Arrays(prefix, least=i + 1))
    if arrays.items == NOWHERE:
        yield replace(_NOTHING, arrays=Arrays(least=len(arrays.prefix) + 1))
    elif arrays.items:
        raise UnsupportedGrammarError("not", place, "negated items would mean that some item is wrong")


def _objects(objects: Objects | None, negate: Negate, place: str) -> Iterator[Shape]:
    if objects is None:
        yield replace(_NOTHING, objects=Objects())
        return
    if objects.names or any(layer.patterns or layer.additional for layer in objects.layers):
        raise UnsupportedGrammarError(
            "not", place, "negated additionalProperties, patternProperties or propertyNames are not enforced"
        )
    if objects.least:
        yield replace(_NOTHING, objects=Objects(most=objects.least - 1))
    if objects.most is not None:
        yield replace(_NOTHING, objects=Objects(least=objects.most + 1, place=place))
    for name in objects.required:
        yield replace(_NOTHING, objects=Objects((Layer({name: NOWHERE}),)))
    for layer in objects.layers:
        for name, places in layer.properties.items():
            if places:
                wrong = Layer({name: negate(places)})
                yield replace(_NOTHING, objects=Objects((wrong,), (name,)))


def _unlisted(values: tuple[Any, ...], place: str) -> list[Shape]:
    """Everything but some values."""
    if any(isinstance(v, list | dict) for v in values):
        raise UnsupportedGrammarError("not", place, "negated constants that are arrays or objects are not enforced")
    strings = [v for v in values if isinstance(v, str)]
    flags = [v for v in values if isinstance(v, bool)]
    numbers = sorted({Decimal(repr(v)) for v in values if isinstance(v, int | float) and not isinstance(v, bool)})
    others = Strings(forbidden=frozenset(strings))
    found = [
        replace(
            Shape(), null=None not in values, booleans=frozenset((True, False)) - set(flags), strings=others, numbers=None
        )
    ]
    edges = [None, *((n, True) for n in numbers), None]
    return found + [replace(_NOTHING, numbers=Numbers(low=low, high=high)) for low, high in pairwise(edges)]
