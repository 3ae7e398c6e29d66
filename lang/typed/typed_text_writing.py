"""What a model would write for a value: the text that its type reads as that value."""

from __future__ import annotations

import enum
import json
import re
from collections.abc import Iterator
from typing import Any

from ..errors import BadValueError, shown
from ..sampling.constraint_match import matches_constraint
from ..sampling.options import SamplingOptions
from . import reading_of
from .copied_marks import FROM, KEYWORD
from .copied_text import copied_spans
from .msgspec_types import MsgspecTextParser
from .type_constraint import type_name
from .typed_json import JsonTextParser

_QUOTED_NUMBER = re.compile(r'"(-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?)"')


def text_of_value(kind: Any, value: Any, source: str | None = None) -> str:
    """The text of a value of a type, as a gen of that type would write it.

    source: the text of which copied values are pieces; None: they are any text.
    A value that is a text already, and that the type reads, stays as it is. Fields that are None are left out where
    they may be. Raises BadValueError for what has no such text.
    """
    reading = reading_of(kind)
    if isinstance(reading, JsonTextParser):
        return _json_text(reading, value, source)
    text = str(value.value) if isinstance(value, enum.Enum) else str(value)
    try:
        read = reading.read(text, None)  # type: ignore[arg-type]
    except ValueError as error:
        raise _no_text(kind, value, str(error)) from error
    if read != value and text != value:
        raise _no_text(kind, value, f"its text {text!r} is read as {read!r}")
    return text


def _json_text(reading: JsonTextParser, value: Any, source: str | None) -> str:
    schema = _free(reading.schema) if source is None else {**reading.schema, FROM: source}
    options = SamplingOptions(json_schema=json.dumps(schema if reading.copies else reading.schema, ensure_ascii=False))
    tried: list[str] = []
    if isinstance(value, str) and _is_read(reading, value):
        return value
    try:
        for text in _json_texts(reading, value):
            tried.append(text)
            matcher = matches_constraint(text, options)
            if matcher is not None and matcher.can_end and _is_read(reading, text, value):
                return text
    except Exception as error:  # a serializer of the program may raise anything
        raise _no_text(reading.kind, value, str(error)) from error
    if strange := _not_copied(reading.kind, value, source):
        raise _no_text(reading.kind, value, f"{strange} is copied, but is no piece of {shown(source)}")
    raise _no_text(reading.kind, value, f"{tried[-1]!r} is not what its grammar allows; give the JSON as a text")


def _not_copied(kind: Any, value: Any, source: str | None) -> str | None:
    """The first copied value that the source does not have."""
    spans = copied_spans(kind, value, source) if source is not None else {}
    return next((path or "the value" for path, found in spans.items() if not found), None)


def _free(schema: Any) -> Any:
    """The schema without the marks of copied texts."""
    if isinstance(schema, dict):
        return {name: _free(part) for name, part in schema.items() if name != KEYWORD}
    return [*map(_free, schema)] if isinstance(schema, list) else schema


def _json_texts(reading: JsonTextParser, value: Any) -> Iterator[str]:
    """Without what is None, whole, and with numbers for the decimals, which pydantic writes as texts."""
    for without_none in (True, False):
        text = json.dumps(_jsonable(reading, value, without_none), ensure_ascii=False)
        yield text
        yield _QUOTED_NUMBER.sub(r"\1", text)


def _jsonable(reading: JsonTextParser, value: Any, without_none: bool) -> Any:
    if isinstance(reading, MsgspecTextParser):
        import msgspec

        return json.loads(msgspec.json.encode(value))
    # a value of another class would be written too, with a warning
    return reading.adapter.dump_python(value, mode="json", by_alias=True, exclude_none=without_none, warnings="error")


def _is_read(reading: JsonTextParser, text: str, *value: Any) -> bool:
    """Whether the type reads the text, as what is written like `value` if that is given."""
    try:
        read = reading.read(text, None)  # type: ignore[arg-type]
    except ValueError:
        return False
    return not value or read == value[0] or _jsonable(reading, read, False) == _jsonable(reading, value[0], False)


def _no_text(kind: Any, value: Any, why: str) -> BadValueError:
    return BadValueError(f"{shown(value)} cannot be written as {type_name(kind)}: {why}")
