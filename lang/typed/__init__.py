"""Typed results: `gen("x", int)` constrains the text so that it has a value, and `s.get("x")` is that value.

    s += "Age: " + sgl.gen("age", int)                       # text `42`, value 42
    s += sgl.gen("mood", Literal["happy", "sad"])            # text `happy`
    s += sgl.gen("booking", Booking)                         # JSON text; a dataclass, TypedDict or pydantic model

Numbers, bool, Literals and Enums of plain texts or numbers are written bare; everything else is JSON. Each type has one
reader, its library's own: msgspec for structs, pydantic for all others, with the constructor of a class of attrs. What
a
reader refuses is not written, or the type is refused by name (docs/types.md). `s["x"]` stays the text.
"""

from __future__ import annotations

import inspect
from functools import lru_cache
from typing import Any, TypeVar, overload

from ..errors import BadValueError, shown
from .msgspec_types import MsgspecTextParser, is_of_msgspec
from .typed_json import JsonTextParser
from .typed_text_parsing import TypedTextParser
from .unquoted_types import bare_reading

__all__ = ["reading_of"]

T = TypeVar("T")


_OF_TYPES = ("typing", "typing_extensions", "types")


@overload
def reading_of(kind: type[T]) -> TypedTextParser[T]: ...
@overload
def reading_of(kind: Any) -> TypedTextParser[Any]: ...
def reading_of(kind: Any) -> TypedTextParser[Any]:
    """How texts become values of a type. The same type gives the same reading.

    `kind`: int, float, bool, str, None, a Literal, Enum, dataclass, TypedDict, NamedTuple, pydantic model, attrs class,
    msgspec Struct, the types of pydantic and of the standard library, or list, dict, tuple, Optional, Union and
    Annotated of them. docs/types.md lists them.

    Validators of the program are run when a text is read.

    Raises BadValueError, naming the type and the field, for what is not a type, has no JSON form, or reads texts that
    no grammar can distinguish from those that it refuses.
    """
    try:
        hash(kind)
    except TypeError:
        return _made(kind)
    return _cached(kind)


def _made(kind: Any) -> TypedTextParser[Any]:
    if isinstance(kind, str | int | float | list | dict) or inspect.isroutine(kind):
        raise BadValueError(f"{kind!r} is not a type; give int, list[str], Literal[...], a class or similar")
    if _is_instance(kind):
        raise BadValueError(f"{shown(kind)} is a value, not a type; give its class: {type(kind).__name__}")
    return bare_reading(kind) or (MsgspecTextParser(kind) if is_of_msgspec(kind) else JsonTextParser(kind))


def _is_instance(kind: Any) -> bool:
    """Whether it is an object of somebody's class.

    Unions, Any, NewType and their like are objects of the modules of types.
    """
    return (
        kind is not None
        and not isinstance(kind, type)
        and type(kind).__module__ not in _OF_TYPES
        and not hasattr(kind, "__origin__")
    )


_cached = lru_cache(maxsize=512)(_made)
