"""Classes of attrs: pydantic reads their fields, and the class itself makes the object, with its converters and
validators.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Iterator
from types import UnionType
from typing import Annotated, Any, Literal, Optional, Union, get_args, get_origin

import annotated_types
from pydantic import Field
from pydantic_core import core_schema

from .hashable_items import MADE
from .unsupported_types import UnsupportedType

_COMPARED = {">=": annotated_types.Ge, ">": annotated_types.Gt, "<=": annotated_types.Le, "<": annotated_types.Lt}
_LIBRARIES = ("attr", "attrs")


def with_attrs(kind: Any, above: frozenset[type] = frozenset()) -> Any:
    """The type with every class of attrs in it, but not those inside of other classes, as pydantic can read it."""
    if isinstance(kind, type) and "__attrs_attrs__" in vars(kind):
        return Annotated[kind, AttrsFields(above)]
    origin, args = get_origin(kind), get_args(kind)
    if not args or origin is Literal or (isinstance(kind, type) and origin is None):
        return kind
    if origin is Annotated:
        return Annotated[(with_attrs(args[0], above), *args[1:])]
    fresh = tuple(with_attrs(one, above) if not isinstance(one, list) else one for one in args)
    if all(new is old for new, old in zip(fresh, args, strict=True)):
        return kind
    return Union[fresh] if origin in (Union, UnionType) else origin[fresh]  # noqa: UP007


class AttrsFields:
    """How pydantic reads a class of attrs. `above`: the classes whose fields are being looked at."""

    def __init__(self, above: frozenset[type]) -> None:
        self._above = above

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        ref = f"{source.__module__}.{source.__qualname__}:{id(source)}"
        if source in self._above:
            return core_schema.definition_reference_schema(ref)
        hints = typing.get_type_hints(source, include_extras=True)
        fields = {
            one.alias: self._field(source, one, hints.get(one.name, Any), handler)
            for one in source.__attrs_attrs__
            if one.init
        }
        read = core_schema.typed_dict_schema(fields, cls_name=source.__name__, extra_behavior="forbid")
        return core_schema.no_info_after_validator_function(_maker(source), read, ref=ref, metadata={MADE: source})

    def _field(self, owner: type, attribute: Any, hint: Any, handler: Any) -> Any:
        kind = hint if attribute.converter is None else _taken(owner, attribute, hint)
        for marks in _marks(attribute.validator, attribute.name):
            kind = marks(kind)
        schema = handler.generate_schema(with_attrs(kind, self._above | {owner}))
        return core_schema.typed_dict_field(schema, required=not _has_default(attribute))


def _has_default(attribute: Any) -> bool:
    return getattr(attribute.default, "name", "") != "NOTHING"


def _maker(cls: Any) -> Any:
    def made(values: dict[str, Any]) -> Any:
        try:
            return cls(**values)
        except Exception as error:
            raise ValueError(f"{cls.__name__} refuses it: {type(error).__name__}: {error}") from error

    return made


def _taken(owner: type, attribute: Any, hint: Any) -> Any:
    """What the converter of a field takes: the field's own type, where it is the converter, or what its parameter
    says."""
    converter = getattr(attribute.converter, "converter", attribute.converter)
    if converter is hint:
        return hint
    parameters = inspect.signature(converter).parameters if inspect.isroutine(converter) else {}
    taken = (
        typing.get_type_hints(converter, include_extras=True).get(next(iter(parameters), "")) if parameters else None
    )
    if taken is None:
        raise UnsupportedType(
            "its converter does not say what it takes; annotate the parameter of the converter", (attribute.name,)
        )
    return taken


def _marks(validator: Any, name: str) -> Iterator[Any]:
    """What attrs' own validators ask for, as functions from a type to a narrower one; others check when a text is
    read."""
    if validator is None or type(validator).__module__.partition(".")[0] not in _LIBRARIES:
        return
    kind = type(validator).__name__
    if kind == "_AndValidator":
        for one in validator._validators:
            yield from _marks(one, name)
    elif kind == "_OptionalValidator":
        inner = list(_marks(validator.validator, name))
        yield lambda hint: Optional[_all(_not_none(hint), inner)]  # noqa: UP045
    elif kind != "_InstanceOfValidator":
        yield _mark(validator, kind, name)


def _mark(validator: Any, kind: str, name: str) -> Any:
    if kind == "_NumberValidator":
        return lambda hint: Annotated[hint, _COMPARED[validator.compare_op](validator.bound)]
    if kind == "_MinLengthValidator":
        return lambda hint: Annotated[hint, annotated_types.MinLen(validator.min_length)]
    if kind == "_MaxLengthValidator":
        return lambda hint: Annotated[hint, annotated_types.MaxLen(validator.max_length)]
    if kind == "_InValidator" and all(isinstance(one, str | int) for one in validator.options):
        return lambda hint: Literal[tuple(validator.options)]
    if kind == "_MatchesReValidator" and not validator.pattern.flags & ~32:
        return lambda hint: Annotated[hint, Field(pattern=_whole(validator))]
    raise UnsupportedType(
        f"the validator {validator!r} has no counterpart; give a type that says it, or a function of your own", (name,)
    )


def _whole(validator: Any) -> str:
    """attrs matches the whole text by default."""
    function = getattr(validator.match_func, "__name__", "fullmatch")
    pattern = validator.pattern.pattern
    return {"search": pattern, "match": f"^(?:{pattern})"}.get(function, f"^(?:{pattern})$")


def _not_none(hint: Any) -> Any:
    members = [one for one in get_args(hint) if one is not type(None)]
    return Union[tuple(members)] if get_origin(hint) in (Union, UnionType) else hint  # noqa: UP007


def _all(hint: Any, marks: list[Any]) -> Any:
    for mark in marks:
        hint = mark(hint)
    return hint
