"""Types of msgspec, which it reads itself: structs, and whatever has structs or msgspec's `Meta` in it."""

from __future__ import annotations

import dataclasses
import json
import sys
import typing
from typing import Annotated, Any, get_args, get_origin

from ..errors import BadValueError
from .copied_marks import has_copied
from .type_constraint import type_name
from .typed_json import JsonTextParser
from .unsupported_types import UnsupportedType


def is_of_msgspec(kind: Any) -> bool:
    """Whether msgspec is the one that reads a type. It is looked for only where a program has imported it."""
    return "msgspec" in sys.modules and _mentions(kind, set())


def _mentions(kind: Any, seen: set[int]) -> bool:
    import msgspec

    if id(kind) in seen:
        return False
    seen.add(id(kind))
    plain = get_origin(kind) or kind
    if isinstance(plain, type) and issubclass(plain, msgspec.Struct | msgspec.Raw):
        return True
    if get_origin(kind) is Annotated and any(isinstance(one, msgspec.Meta) for one in get_args(kind)[1:]):
        return True
    return any(_mentions(inner, seen) for inner in (*get_args(kind), *_hints(kind)))


def _hints(kind: Any) -> list[Any]:
    """The types of the fields of a class that other libraries read too."""
    plain = isinstance(kind, type) and (
        dataclasses.is_dataclass(kind)
        or hasattr(kind, "__attrs_attrs__")
        or typing.is_typeddict(kind)
        or hasattr(kind, "_fields")
    )
    if not plain:
        return []
    try:
        return list(typing.get_type_hints(kind, include_extras=True).values())
    except (NameError, TypeError):
        return []


def plain_schema_of(kind: Any) -> dict[str, Any]:
    """msgspec's own schema, in which formats have names. Raises BadValueError for what msgspec does not know."""
    import msgspec

    try:
        return msgspec.json.schema(kind)
    except (TypeError, NameError) as error:
        raise BadValueError(f"{type_name(kind)} cannot be written as JSON: {error}") from error


class MsgspecTextParser(JsonTextParser):
    """JSON in the schema of a type that msgspec reads."""

    def __init__(self, kind: Any) -> None:
        from .msgspec_schema import schema_of

        self.kind = kind
        self._timely = False
        try:
            self.schema = schema_of(kind)
        except UnsupportedType as error:
            field = f", field {'.'.join(error.path)!r}," if error.path else ""
            raise BadValueError(f"the type {type_name(kind)}{field} cannot be enforced: {error}") from error
        except (TypeError, NameError) as error:
            raise BadValueError(f"{type_name(kind)} cannot be written as JSON: {error}") from error
        self._text = json.dumps(self.schema, ensure_ascii=False)
        self.copies = has_copied(self.schema)

    def _value(self, text: str) -> Any:
        from .msgspec_schema import read

        return read(text, self.kind)
