"""Values of any class as dicts, lists and leaves, and leaves in a form in which two of them can be compared."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from datetime import date
from decimal import Decimal
from enum import Enum
from typing import Any

import numpy as np

Comparable = tuple[Any, ...]
MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_MONTH = (
    r"(?P<month>jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sept?(?:ember)?|"
    r"oct(?:ober)?|nov(?:ember)?|dec(?:ember)?)\.?"
)
_DAY = r"(?P<day>\d{1,2})(?:st|nd|rd|th)?"
_DATES = [
    re.compile(pattern)
    for pattern in (
        r"(?P<year>\d{4})[-/](?P<number>\d{1,2})[-/](?P<day>\d{1,2})(?:t00:00(?::00)?z?)?",
        r"(?P<day>\d{1,2})\.\s?(?P<number>\d{1,2})\.\s?(?P<year>\d{4})",
        rf"(?:the )?{_DAY}(?: of)? {_MONTH}(?:,? (?P<year>\d{{4}}))?",
        rf"{_MONTH} (?:the )?{_DAY}(?:,? (?P<year>\d{{4}}))?",
    )
]
_SLASHED = re.compile(r"(\d{1,2})/(\d{1,2})/(\d{4})")
_GROUPED = re.compile(r"[+-]?\d{1,3}(?P<mark>[,. '])\d{3}(?:(?P=mark)\d{3})*(?:[.,]\d+)?")
_NUMBER = re.compile(r"[+-]?(?:(?:0|[1-9]\d*)(?:\.\d+)?|\.\d+)(?:e[+-]?\d{1,3})?")


def plain(value: Any) -> Any:
    """Dataclasses, models, structs, tuples with names and mappings as dicts; other lists, tuples and sets as lists;
    an Enum as its value; anything else as it is."""
    if isinstance(value, Enum):
        return plain(value.value)
    if (members := members_of(value)) is not None:
        return {str(plain(name)): plain(member) for name, member in members.items()}
    if isinstance(value, set | frozenset):
        return sorted(map(plain, value), key=repr)
    if isinstance(value, np.generic):
        return value.item()
    return [plain(item) for item in value] if isinstance(value, list | tuple) else value


def members_of(value: Any) -> Mapping[Any, Any] | None:
    """The parts of an object by name, or None if it has no such parts."""
    kind = type(value)
    if isinstance(value, Mapping):
        return value
    if is_dataclass(kind):
        names: Iterable[str] = [one.name for one in fields(kind)]
    elif isinstance(value, tuple) and hasattr(kind, "_fields"):
        names = kind._fields
    elif hasattr(kind, "model_fields"):
        names = [*kind.model_fields, *(value.model_extra or ())]
    elif hasattr(kind, "__attrs_attrs__"):
        names = [one.name for one in kind.__attrs_attrs__]
    else:
        names = getattr(kind, "__struct_fields__", None) or ()
        return {name: getattr(value, name) for name in names} or None
    return {name: getattr(value, name) for name in names}


def json_form(value: Any) -> Any:
    """A plain value with leaves that JSON has: dates as their ISO text, Decimals as numbers, others as text."""
    if isinstance(value, dict):
        return {name: json_form(member) for name, member in value.items()}
    if isinstance(value, list):
        return [json_form(item) for item in value]
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def exact_form(value: Any) -> Comparable:
    """Equal for leaves that are the same value. 2 and 2.0 are; True and 1 are not; a date is its ISO text."""
    if value is None or isinstance(value, bool):
        return ("constant", value)
    if isinstance(value, int | float | Decimal):
        return ("number", Decimal(str(value)) if isinstance(value, int) or math.isfinite(value) else str(value))
    return (
        "text",
        value if isinstance(value, str) else value.isoformat() if hasattr(value, "isoformat") else repr(value),
    )


def normalised_form(value: Any) -> Comparable:
    """Equal for leaves that differ only in case, white space, or in how a number or a date is written.

    Numbers: `1,234.50` is 1234.5; `0012` is text. Dates: `2026-03-01`, `1 March 2026`, `March 1st, 2026`, `01.03.2026`;
    `3/4/2026` is text, because writers disagree about it, but `3/25/2026` is a date. A date may have no year.
    """
    kind, content = exact_form(value)
    if kind != "text":
        return kind, content
    text = " ".join(unicodedata.normalize("NFKC", content).casefold().split())
    return _number(text) or _date(text) or ("text", text)


def _number(text: str) -> Comparable | None:
    if grouped := _GROUPED.fullmatch(text):
        text = (
            text.replace(grouped["mark"], "") if grouped["mark"] != "." or text.count(".") > 1 or "," in text else text
        )
    text = text.replace(",", ".") if text.count(",") == 1 and "." not in text else text
    return ("number", Decimal(text)) if _NUMBER.fullmatch(text) else None


def _date(text: str) -> Comparable | None:
    found = next((match for pattern in _DATES if (match := pattern.fullmatch(text))), None)
    if found is not None:
        parts = found.groupdict()
        month = int(parts["number"]) if parts.get("number") else MONTHS.index(parts["month"][:3]) + 1
        return _checked(parts["year"], month, int(parts["day"]))
    if not (slashed := _SLASHED.fullmatch(text)):
        return None
    first, second = int(slashed[1]), int(slashed[2])
    if (first > 12) == (second > 12):
        return None
    return _checked(slashed[3], *((second, first) if first > 12 else (first, second)))


def _checked(year: str | None, month: int, day: int) -> Comparable | None:
    try:
        date(int(year or 2000), month, day)
    except ValueError:
        return None
    return ("date", year and int(year), month, day)
