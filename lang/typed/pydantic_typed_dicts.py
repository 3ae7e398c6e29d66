"""`typing.TypedDict` for pydantic, which before Python 3.12 takes only that of typing_extensions."""

from __future__ import annotations

import sys
import typing
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import typing_extensions


def modern(kind: Any) -> Any:
    """The type with every TypedDict in it, but not those inside of other classes, in a form that pydantic takes."""
    if sys.version_info >= (3, 12):
        return kind
    if typing.is_typeddict(kind) and type(kind).__module__ == "typing":
        return _rebuilt(kind)
    origin, args = get_origin(kind), get_args(kind)
    if not args or origin is Literal:
        return kind
    if origin is Annotated:
        return Annotated[(modern(args[0]), *args[1:])]
    fresh = tuple(modern(one) for one in args)
    if all(new is old for new, old in zip(fresh, args, strict=True)):
        return kind
    return Union[fresh] if origin in (Union, UnionType) else origin[fresh]  # noqa: UP007


def _rebuilt(kind: Any) -> Any:
    """The same TypedDict, made by typing_extensions."""
    fields = {}
    for name, hint in typing.get_type_hints(kind, include_extras=True).items():
        plain = get_args(hint)[0] if get_origin(hint) in _PRESENCE else hint
        presence = typing.Required if name in kind.__required_keys__ else typing.NotRequired
        fields[name] = presence[modern(plain)]
    made = typed_dict(kind.__name__, fields)
    made.__doc__ = kind.__doc__
    return made


def typed_dict(name: str, fields: dict[str, Any]) -> Any:
    """A TypedDict made at run time, of a kind that pydantic takes. `fields`: types in Required or NotRequired."""
    make: Any = typing_extensions.TypedDict
    return make(name, fields)


_PRESENCE = (typing.Required, typing.NotRequired)
