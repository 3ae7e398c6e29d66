"""Regular expressions of dates, times and durations, as ISO 8601 writes them, between bounds.

A bound of a `DatetimeRange` is a moment that is still allowed. Bounds count in whole seconds: where one is between two
seconds, or is not itself allowed, the next second inside is the bound.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime, time, timedelta, timezone
from itertools import groupby
from math import ceil, floor
from typing import Any

from .number_range_regexes import NEVER, between, counts, group

UTC = timezone.utc  # noqa: UP017
DAY, SECOND = timedelta(days=1), timedelta(seconds=1)

YEARS = r"(?:000[1-9]|00[1-9]\d|0[1-9]\d\d|[1-9]\d{3})"
COMMON = r"(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\d|30)|02-(?:0[1-9]|1\d|2[0-8]))"
LEAP = r"(?:\d\d(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
DATE = rf"(?:{YEARS}-{COMMON}|{LEAP}-02-29)"
FRACTION = r"(?:\.\d{1,6})?"
TIME = rf"(?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d{FRACTION}"
OFFSET = r"(?:Z|[+-](?:[01]\d|2[0-3]):[0-5]\d)"
_SECONDS = r"\d{1,6}(?:\.\d{1,6})?S"
_HOURS = rf"T(?:\d{{1,6}}H(?:\d{{1,6}}M)?(?:{_SECONDS})?|\d{{1,6}}M(?:{_SECONDS})?|{_SECONDS})"
DURATION = rf"-?P(?:(?:\d{{1,6}}Y(?:\d{{1,6}}D)?|\d{{1,6}}D)(?:{_HOURS})?|{_HOURS})"
_TOPS = (23, 59, 59)


@dataclass(frozen=True)
class DatetimeRange:
    """The first and the last moment that are allowed; None where nothing bounds them."""

    low: Any = None
    high: Any = None

    @classmethod
    def of(cls, schema: dict[str, Any], step: timedelta) -> DatetimeRange:
        """The tightest of the bounds `ge`, `gt`, `le` and `lt`. `step` parts a moment from the next one."""
        lows = [schema["ge"]] if "ge" in schema else []
        lows += [schema["gt"] + step] if "gt" in schema else []
        highs = [schema["le"]] if "le" in schema else []
        highs += [schema["lt"] - step] if "lt" in schema else []
        return cls(max(lows, default=None), min(highs, default=None))

    def __bool__(self) -> bool:
        return self.low is not None or self.high is not None


def dates(span: DatetimeRange) -> str:
    """Of the days from one to another, both allowed."""
    if not span:
        return DATE
    low, high = span.low or date.min, span.high or date.max
    return group(_days(low, high)) if low <= high else NEVER


def _days(low: date, high: date) -> list[str]:
    if low.year == high.year:
        return [_in_year(low, high)]
    parts = []
    first, last = low.year, high.year
    if (low.month, low.day) != (1, 1):
        parts.append(_in_year(low, date(first, 12, 31)))
        first += 1
    if (high.month, high.day) != (12, 31):
        parts.append(_in_year(date(last, 1, 1), high))
        last -= 1
    if first <= last:
        parts.append(rf"{between(f'{first:04}', f'{last:04}')}-{COMMON}")
        parts += [f"{years}-02-29" for years in _leap_years(first, last)]
    return parts


def _in_year(low: date, high: date) -> str:
    """Of the days of one year."""
    months = []
    for month in range(low.month, high.month + 1):
        start = low.day if month == low.month else 1
        end = high.day if month == high.month else _length(low.year, month)
        months.append(rf"{month:02}-{between(f'{start:02}', f'{end:02}')}")
    return f"{low.year:04}-{group(months)}"


def _length(year: int, month: int) -> int:
    after = date(year + month // 12, month % 12 + 1, 1) if (year, month) != (9999, 12) else None
    return 31 if after is None else (after - DAY).day


def _leap_years(first: int, last: int) -> list[str]:
    """Patterns of the leap years between two years: centuries with the same ones share a pattern."""
    leaps = [year for year in range(first, last + 1) if year % 4 == 0 and (year % 100 or year % 400 == 0)]
    centuries: dict[tuple[int, ...], list[str]] = {}
    for century, years in groupby(leaps, lambda year: year // 100):
        centuries.setdefault(tuple(year % 100 for year in years), []).append(f"{century:02}")
    return [group(heads) + group([f"{year:02}" for year in years]) for years, heads in centuries.items() if years]


def times(span: DatetimeRange) -> str:
    """Of the times of a day, without an offset."""
    if not span:
        return TIME
    low, high = _clock(span.low or time.min, up=True), _clock(span.high or time.max, up=False)
    return _times(low, high) if low is not None and high is not None and low <= high else NEVER


def _clock(at: time, up: bool) -> tuple[int, int, int] | None:
    """A time in whole seconds, None where the next whole second is the next day's."""
    seconds = at.hour * 3600 + at.minute * 60 + at.second
    seconds += 1 if up and at.microsecond else 0
    return None if seconds >= 86_400 else (seconds // 3600, seconds // 60 % 60, seconds % 60)


def _times(low: tuple[int, int, int], high: tuple[int, int, int]) -> str:
    """From one second to another; the last one without a fraction, but for the last one of a day."""
    if high == _TOPS:
        return _fields(low, high, _TOPS) + FRACTION
    before = high[0] * 3600 + high[1] * 60 + high[2] - 1
    last = ":".join(f"{field:02}" for field in high)
    if low == high:
        return last
    inside = (before // 3600, before // 60 % 60, before % 60)
    return group([_fields(low, inside, _TOPS) + FRACTION, last])


def _fields(low: tuple[int, ...], high: tuple[int, ...], tops: tuple[int, ...]) -> str:
    """Numbers of two digits, parted by colons, in their order."""
    if len(low) == 1 or low[0] == high[0]:
        head = between(f"{low[0]:02}", f"{high[0]:02}")
        return head + (":" + _fields(low[1:], high[1:], tops[1:]) if len(low) > 1 else "")
    parts, first, last = [], low[0], high[0]
    if any(low[1:]):
        parts.append(f"{first:02}:" + _fields(low[1:], tops[1:], tops[1:]))
        first += 1
    if high[1:] != tops[1:]:
        parts.append(f"{last:02}:" + _fields((0,) * len(tops[1:]), high[1:], tops[1:]))
        last -= 1
    if first <= last:
        rest = "".join(rf":{between('00', f'{top:02}')}" for top in tops[1:])
        parts.append(between(f"{first:02}", f"{last:02}") + rest)
    return group(parts)


def datetimes(span: DatetimeRange) -> str:
    """Of date and time without an offset. The bounds have none either."""
    if not span:
        return f"{DATE}T{TIME}"
    low, high = span.low or datetime.min, span.high or datetime.max
    if low > high:
        return NEVER
    if low.date() == high.date():
        return _day(low.date()) + times(DatetimeRange(low.time(), high.time()))
    parts = [
        _day(low.date()) + times(DatetimeRange(low=low.time())),
        _day(high.date()) + times(DatetimeRange(high=high.time())),
    ]
    if high.date() - low.date() > DAY:
        parts.append(dates(DatetimeRange(low.date() + DAY, high.date() - DAY)) + f"T{TIME}")
    return group(parts)


def _day(day: date) -> str:
    return f"{day.isoformat()}T"


def moments(span: DatetimeRange, zone: str) -> str:
    """Of date and time with an offset, without one, or with either; `zone` is "aware", "naive" or "".

    pydantic compares the clocks where the bound or the text has no offset, and the moments where both have one. Of
    the latter only texts with `Z` may come near to a bound; those with other offsets keep two days off.
    """
    bounds = [bound for bound in (span.low, span.high) if bound is not None]
    parts = []
    if not any(bound.tzinfo for bound in bounds):
        offset = {"aware": OFFSET, "naive": "", "": f"{OFFSET}?"}[zone]
        return datetimes(span) + offset
    if zone != "aware":
        parts.append(datetimes(DatetimeRange(*(_local(bound) for bound in (span.low, span.high)))))
    if zone != "naive":
        low, high = (_utc(bound) for bound in (span.low, span.high))
        parts.append(datetimes(DatetimeRange(low, high)) + "Z")
        parts.append(dates(DatetimeRange(low and _shifted(low, 2), high and _shifted(high, -2))) + f"T{TIME}{OFFSET}")
    return group(parts)


def _local(bound: datetime | None) -> datetime | None:
    return bound and bound.replace(tzinfo=None)


def _utc(bound: datetime | None) -> datetime | None:
    if bound is None or bound.tzinfo is None:
        return bound
    return bound.astimezone(UTC).replace(tzinfo=None)


def _shifted(moment: datetime, days: int) -> date:
    try:
        return moment.date() + days * DAY
    except OverflowError:
        return date.max if days > 0 else date.min


def durations(span: DatetimeRange) -> str:
    """Between bounds in one unit: seconds, minutes, hours or days, whole ones."""
    if not span:
        return DURATION
    found = []
    for unit, form in ((86_400, "P{}D"), (3600, "PT{}H"), (60, "PT{}M"), (1, "PT{}S")):
        low = -999_999 if span.low is None else ceil(span.low.total_seconds() / unit)
        high = 999_999 if span.high is None else floor(span.high.total_seconds() / unit)
        low, high = max(low, -999_999), min(high, 999_999)
        if low <= high and high >= 0:
            found.append(form.format(counts(max(low, 0), high)))
        if low <= high and low < 0:
            found.append("-" + form.format(counts(max(1, -high), -low)))
    return group(found) if found else NEVER
