"""Objects that are closed unless they say otherwise: they hold no member that no schema of theirs declares.

All schemas that apply to one object count together (`allOf`, the branches of `anyOf` that hold, `$ref` next to other
keywords ...), as they do for `unevaluatedProperties`. An object whose schemas name no properties stays free.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from sgl.grammars.errors import InvalidGrammarError
from sgl.grammars.schema.schema_document import child
from sgl.grammars.schema.schema_options import SchemaOptions
from sgl.grammars.schema.schema_shapes import NOWHERE, ArrayShape, PropertyLayer, SchemaShape, Where
from sgl.grammars.schema.unevaluated_keywords import close_members

KEYWORD = "x-additional-properties"  # of a whole document: the option additional_properties
MOST_JOINED = 32  # ways to combine the branches of an anyOf; beyond them a text keeps to one branch
MOST_BRANCHES = 100  # of an anyOf, each pair of which is compared
Shapes = list[SchemaShape]


def closing(options: SchemaOptions, schema: Any) -> SchemaOptions:
    """The options with `additional_properties` as a document says.

    Raises:
        InvalidGrammarError: it says neither true nor false.
    """
    said = (
        schema.get(KEYWORD, options.additional_properties)
        if isinstance(schema, Mapping)
        else options.additional_properties
    )
    if not isinstance(said, bool):
        raise InvalidGrammarError(f"{KEYWORD} must be true or false, not {said!r}", child("#", KEYWORD))
    return replace(options, additional_properties=said)


def close_objects(shape: SchemaShape) -> SchemaShape:
    """The alternative without members that it does not declare, where it declares some."""
    return close_members(shape, NOWHERE) if _closes(shape) else shape


def quieted(shape: SchemaShape, quiet: Callable[[Where], Where]) -> SchemaShape:
    """The alternative as a condition: it closes no object, and neither do its parts, which `quiet` names."""
    objects, arrays = shape.objects, shape.arrays
    if objects is not None and objects.layers:
        objects = replace(objects, layers=tuple(_quiet_layer(layer, quiet) for layer in objects.layers))
    if arrays is not None and (arrays.prefix or arrays.items):
        arrays = replace(arrays, prefix=tuple(map(quiet, arrays.prefix)), items=quiet(arrays.items))
    return replace(shape, objects=objects, arrays=arrays)


def quiet_contains(arrays: ArrayShape, quiet: Callable[[Where], Where]) -> ArrayShape:
    """`contains` is a condition of items, too."""
    return replace(arrays, contains=tuple(replace(each, places=quiet(each.places)) for each in arrays.contains))


def _quiet_layer(layer: PropertyLayer, quiet: Callable[[Where], Where]) -> PropertyLayer:
    return replace(
        layer,
        properties={name: quiet(places) for name, places in layer.properties.items()},
        patterns=tuple((pattern, quiet(places)) for pattern, places in layer.patterns),
        additional=quiet(layer.additional),
        closes=False,
    )


def joined(branches: list[Shapes], known: Iterable[str], meet: Callable[[Shapes, Shapes], Shapes]) -> list[Shapes]:
    """Branches of an anyOf that hold together, where so they declare members that none of them declares alone.

    Args:
        branches: the alternatives of each.
        known: names that are declared next to them.
        meet: gives the alternatives of two branches at once that may have values.
    """
    parts = [part for branch in branches if (part := [_objects_alone(shape) for shape in branch if _closes(shape)])]
    if not 1 < len(parts) <= MOST_BRANCHES:
        return []
    names = [_names(part, frozenset(known)) for part in parts]
    level: list[tuple[tuple[int, ...], Shapes]] = [((i,), part) for i, part in enumerate(parts)]
    found: list[Shapes] = []
    while level:
        level = [
            ((*chosen, more), met)
            for chosen, shapes in level
            for more in range(chosen[-1] + 1, len(parts))
            if _all_needed([names[i] for i in (*chosen, more)]) and (met := meet(shapes, parts[more]))
        ]
        found += [shapes for _, shapes in level]
        if len(found) > MOST_JOINED:
            return []
    return found


def _all_needed(names: list[tuple[frozenset[Any], frozenset[Any]]]) -> bool:
    """Whether each branch may declare something that the others do not."""
    return all(
        not most <= frozenset().union(*(least for j, (least, _) in enumerate(names) if j != i))
        for i, (_, most) in enumerate(names)
    )


def _names(shapes: Shapes, known: frozenset[str]) -> tuple[frozenset[Any], frozenset[Any]]:
    """What all alternatives of a branch declare beyond the known names, and what any of them does."""
    found = [frozenset(_declared(shape)) - known for shape in shapes]
    return frozenset.intersection(*found), frozenset().union(*found)


def _declared(shape: SchemaShape) -> Iterable[Any]:
    for layer in shape.objects.layers if shape.objects else ():
        if layer.spoken:
            yield from layer.properties
            yield from (pattern for pattern, _ in layer.patterns)


def _closes(shape: SchemaShape) -> bool:
    layers = shape.objects.layers if shape.objects else ()
    return any(layer.closes for layer in layers) and not any(layer.rest for layer in layers)


def _objects_alone(shape: SchemaShape) -> SchemaShape:
    return replace(shape, null=False, booleans=frozenset(), numbers=None, strings=None, arrays=None)
