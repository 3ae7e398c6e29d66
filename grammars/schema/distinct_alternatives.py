"""Lists of alternatives: those that say the same once, those that only list values as one."""

from __future__ import annotations

from dataclasses import replace

from sgl.grammars.schema.schema_shapes import SchemaShape, identity


def distinct(shapes: list[SchemaShape]) -> list[SchemaShape]:
    """The alternatives without those that say the same as an earlier one, each keyword of theirs once."""
    found: dict[str, SchemaShape] = {}
    for shape in shapes:
        if shape.objects is not None:
            layers = {repr(layer): layer for layer in shape.objects.layers}
            ordered = tuple(layers[key] for key in sorted(layers))
            required = tuple(sorted(shape.objects.required))
            shape = replace(shape, objects=replace(shape.objects, layers=ordered, required=required))
        found.setdefault(repr(shape), shape)
    return list(found.values())


def merged(shapes: list[SchemaShape]) -> list[SchemaShape]:
    """All that only list values as one."""
    listing = [shape for shape in shapes if shape.only_lists()]
    if len(listing) < 2:
        return shapes
    values = {identity(v): v for shape in listing for v in shape.values or ()}
    return [SchemaShape(values=tuple(values.values()))] + [shape for shape in shapes if not shape.only_lists()]


def repeated(branches: list[list[SchemaShape]]) -> bool:
    """Whether two branches list the same value."""
    listed = [{identity(v) for shape in branch for v in shape.values or ()} for branch in branches]
    return sum(map(len, listed)) > len(set().union(*listed))
