"""`unevaluatedProperties` and `unevaluatedItems`: what the other keywords of one alternative have not spoken of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from sgl.grammars.schema.schema_shapes import ArrayShape, PropertyLayer, SchemaShape, Where


def speaks(shape: SchemaShape) -> bool:
    """Whether an alternative has spoken of any members or items."""
    layers = shape.objects.layers if shape.objects else ()
    if any(layer.rest or (layer.spoken and (layer.properties or layer.patterns)) for layer in layers):
        return True
    arrays = shape.arrays
    return arrays is not None and (arrays.evaluated != 0 or any(c.spoken for c in arrays.contains))


def close_members(shape: SchemaShape, rest: Where) -> SchemaShape:
    """The alternative whose members that nothing has spoken of satisfy some places."""
    objects = shape.objects
    if objects is None or any(layer.rest for layer in objects.layers):
        return shape
    spoken = [layer for layer in objects.layers if layer.spoken]
    if len(spoken) == len(objects.layers) == 1:
        return replace(shape, objects=replace(objects, layers=(replace(spoken[0], additional=rest, rest=True),)))
    names: dict[str, Where] = {name: () for layer in spoken for name in layer.properties}
    patterns = tuple((pattern, ()) for layer in spoken for pattern, _ in layer.patterns)
    closing = PropertyLayer(names, patterns, rest, rest=True, closing=True)
    return replace(shape, objects=replace(objects, layers=(*objects.layers, closing)))


def close_items(
    shape: SchemaShape, rest: Where, either: Callable[[tuple[Where, ...]], Where], earlier: bool
) -> SchemaShape:
    """The alternative whose items that nothing has spoken of satisfy some places.

    Args:
        shape: the alternative.
        rest: the places.
        either: names the place of what satisfies one of some sets of places.
        earlier: whether `contains` does not count as speaking of the items that it found, as in draft 2019-09.
    """
    arrays = shape.arrays
    if arrays is None or arrays.evaluated is None:
        return shape
    found = () if earlier else tuple(c.places for c in arrays.contains if c.spoken)
    rest = either((*found, rest)) if found else rest
    closing = ArrayShape(((),) * arrays.evaluated, rest, evaluated=None)
    return replace(shape, arrays=arrays.meet(closing))
