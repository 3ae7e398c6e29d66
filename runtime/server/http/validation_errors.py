"""What a client got wrong in a body, from pydantic's account of it."""

from __future__ import annotations

import difflib
import reprlib
from collections.abc import Iterator, Sequence
from typing import Any, get_args

from pydantic import BaseModel, FailFast

from .http_errors import RequestError

Path = Sequence[str | int]


class _First(FailFast):
    __hash__ = object.__hash__  # members of unions are hashed


First = _First()  # of a list's errors the first is enough, however long it is


def validation_message(errors: Sequence[Any], body_type: Any = None, place: Path = ()) -> RequestError:
    """The first of pydantic's errors as one of ours.

    body_type: what the route takes as its body. place: of what was checked, within the body.
    """
    first = next((e for e in errors if e["type"] == "extra_forbidden"), errors[0])
    path = [*place, *(part for part in first["loc"] if part != "body")]
    name = ".".join(str(part) for part in path)
    if first["type"] == "json_invalid":
        where = f"{first.get('ctx', {}).get('error', 'malformed')} at character {first['loc'][-1]}"
        return RequestError(f"the body is no JSON: {where}", code="invalid_json")
    if first["type"] == "extra_forbidden":
        return RequestError(f"there is no field {name!r}{_hint(body_type, path)}", name, "unknown_field")
    if not path and isinstance(first.get("input"), bytes):
        return RequestError("the body was not read as JSON: send the header 'Content-Type: application/json'")
    if first["type"] == "missing":
        return RequestError(f"{name or 'the body'} is missing", name or None, "missing_field")
    return RequestError(
        f"{name or 'the body'}: {first['msg']}, got {shown(first['input'])}", name or None, "invalid_value"
    )


def shown(value: Any, most: int = 200) -> str:
    """The beginning of a value, however large it is."""
    text = _SHORT.repr(value)
    return text if len(text) <= most else f"{text[:most]}..."


_SHORT = reprlib.Repr()
_SHORT.maxlevel, _SHORT.maxlist, _SHORT.maxdict, _SHORT.maxstring, _SHORT.maxlong = 4, 20, 20, 250, 250


def _hint(body_type: Any, path: Path) -> str:
    """The nearest field that is known at that place."""
    types = [body_type]
    for part in path[:-1]:
        types = [found for kind in types for found in _inner(kind, part)]
    known = {name for kind in types for model in _models(kind) for name in model.model_fields}
    near = difflib.get_close_matches(str(path[-1]), sorted(known), 1)
    if near:
        return f"; did you mean {near[0]!r}?"
    return f"; known ones: {', '.join(sorted(known))}" if known else "; leave it out"


def _inner(kind: Any, part: str | int) -> list[Any]:
    """The types after one step of a path: a field's, else an item's or a union's member, which stay where they are."""
    fields = [model.model_fields[part] for model in _models(kind) if part in model.model_fields]
    return [field.annotation for field in fields] or [kind]


def _models(kind: Any) -> Iterator[type[BaseModel]]:
    """The pydantic models in a type: itself, members of unions, items of lists."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        yield kind
    for part in get_args(kind):
        yield from _models(part)
