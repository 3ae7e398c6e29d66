"""Values of a program as text that people read."""

from __future__ import annotations

import json
import re
from typing import Any


def shown(value: Any) -> str:
    """Text as it is, JSON where the value has that form, else its repr. Never raises."""
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value, ensure_ascii=False, indent=1 if len(str(value)) > 60 else None)
    except Exception:
        return _repr(value)


def _repr(value: Any) -> str:
    try:
        return repr(value)
    except Exception as error:
        return f"<{type(value).__name__}, whose repr raised {type(error).__name__}>"


def error_data(error: BaseException, place: Any) -> dict[str, Any]:
    """An exception with what it came from. `place` makes data of a file and line."""
    causes: list[str] = []
    cause = error.__cause__
    while cause is not None and len(causes) < 10:
        causes.append(f"{type(cause).__name__}: {cause}")
        cause = cause.__cause__
    data: dict[str, Any] = {"type": type(error).__name__, "message": getattr(error, "message", str(error))}
    if causes:
        data["causes"] = causes
    if where := place(getattr(error, "where", None)):
        data["at"] = where
    return data


def seen(text: str) -> str:
    """Text whose control characters can be seen, and that cannot change the direction of the text around it."""
    return _HIDDEN.sub(_picture, text)


def _picture(found: re.Match[str]) -> str:
    code = ord(found[0])
    if code < 0x20 or code == 0x7F:
        return chr(0x2400 + code) if code < 0x20 else "\u2421"
    return f"[U+{code:04X}]"


_HIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e\ud800-\udfff]")
