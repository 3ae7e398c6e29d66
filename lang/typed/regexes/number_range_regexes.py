"""Regular expressions of decimal numbers between two bounds."""

from __future__ import annotations

NEVER = r"[^\s\S]"  # no text
MOST_DIGITS = 39  # of whole numbers without a bound: integers of 128 bits have no more


def between(low: str, high: str) -> str:
    """Of all texts of digits from `low` to `high`, which are equally long."""
    if low == high:
        return low
    head_low, head_high, free = int(low[0]), int(high[0]), len(low) - 1
    if head_low == head_high:
        return low[0] + between(low[1:], high[1:])
    parts = []
    if low[1:].strip("0"):
        parts.append(low[0] + between(low[1:], "9" * free))
        head_low += 1
    if high[1:].strip("9"):
        parts.append(high[0] + between("0" * free, high[1:]))
        head_high -= 1
    if head_low <= head_high:
        parts.insert(len(parts) and 1, digits(head_low, head_high) + _any(free))
    return group(parts)


def digits(low: int, high: int) -> str:
    """Of one digit."""
    if (low, high) == (0, 9):
        return r"\d"
    return str(low) if low == high else f"[{low}-{high}]"


def _any(count: int) -> str:
    return "" if not count else r"\d" if count == 1 else rf"\d{{{count}}}"


def group(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else f"(?:{'|'.join(parts)})"


def counts(low: int, high: int | None) -> str:
    """Of the whole numbers from `low`, at least 0, to `high`; without a bound they have at most `MOST_DIGITS`
    digits."""
    high = max(low, 10**MOST_DIGITS - 1) if high is None else high
    parts = []
    while low <= high:
        top = min(high, 10 ** len(str(low)) - 1)
        parts.append(between(str(low), str(top)))
        low = top + 1
    return group(parts)


def integers(low: int | None, high: int | None) -> str:
    """Of the whole numbers between bounds; of no text where there is none between them."""
    parts = []
    if low is None or low < 0:
        least, most = max(1, -(high or 0)), None if low is None else -low
        if most is None or least <= most:
            parts.append("-" + counts(least, most))
    if high is None or high >= 0:
        least = max(0, low or 0)
        if high is None or least <= high:
            parts.append(counts(least, high))
    return group(parts) if parts else NEVER
