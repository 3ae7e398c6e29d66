"""Lists of alternatives: those that say the same once, those that only list values as one."""

from __future__ import annotations

from dataclasses import replace

from sgl.grammars.schema.shapes import Shape, identity


def distinct(shapes: list[Shape]) -> list[Shape]:
    """The alternatives without those that say the same as an earlier one, each keyword of theirs once."""
    found: dict[str, Shape] = {}
    for shape in shapes:
        if shape.objects is not None:
            layers = {repr(layer): layer for layer in shape.objects.layers}
            ordered = tuple(layers[key] for key in sorted(layers))
            required = tuple(sorted(shape.objects.required))
            shape = replace(shape, objects=replace(shape.objects, layers=ordered, required=required))
        found.setdefault(repr(shape), shape)
    return list(found.values())


def merged(shapes: list[Shape]) -> list[Shape]:
    """All that only list values as one."""
    listing = [shape for shape in shapes if shape.only_lists()]
    if len(listing) < 2:
        return shapes
    values = {identity(v): v for shape in listing for v in shape.values or ()}
    return [Shape(values=tuple(values.values()))] + [shape for shape in shapes if not shape.only_lists()]


def repeated(branches: list[list[Shape]]) -> bool:
    """Whether two branches list the same value."""
    listed = [{identity(v) for shape in branch for v in shape.values or ()} for branch in branches]
    return sum(map(len, listed)) > len(set().union(*listed))
