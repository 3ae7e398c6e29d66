"""Arguments of callers, checked where they come in: numbers and JSON; and how a value is shown in an error."""

from __future__ import annotations

import math
import operator
from typing import Any

from ..errors import ConfigError

MOST_SHOWN = 200  # characters
WORD = 2**63  # counts beyond a machine's word are refused: floats and arrays cannot hold them


def shown(value: Any) -> str:
    """The repr of a value, cut, and whatever it does: numbers may be too long for one, and classes of others raise."""
    try:
        text = repr(value)
    except BaseException as error:
        return f"a {type(value).__name__} that cannot be shown ({type(error).__name__})"
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}..."


def plain(value: Any) -> Any:
    """A number or text of somebody's own class as the one that it is: what their class makes of it is not asked."""
    if isinstance(value, int) and type(value) is not bool:
        return int.__int__(value)
    if isinstance(value, float):
        return float.__float__(value)
    return str.__str__(value) if isinstance(value, str) else value


def check_whole(name: str, value: Any, low: int = -WORD, high: int = WORD - 1, hint: str = "") -> int:
    """`value` as a plain int from `low` to `high`; anything with an index counts as one, but for bools.

    Raises ConfigError naming the value and what is allowed there.
    """
    try:
        number = None if isinstance(value, bool) else plain(operator.index(value))
    except Exception:
        number = None
    if number is not None and low <= number <= high:
        return number
    if low == -WORD or (high != WORD - 1):
        wanted = f"be in {low}..{high}" if number is not None else "be an integer"
    else:
        wanted = f"be an integer of at least {low}" if number is None or number < low else f"be below {WORD}"
    raise ConfigError(f"{name} must {wanted}{hint}, got {shown(value)}")


def check_real(name: str, value: Any, low: float, high: float, open_low: bool = False) -> float:
    """`value` as a finite float from `low`, which is itself left out where that end is open, to `high`.

    Raises ConfigError naming the value and what is allowed there.
    """
    try:
        number = float(plain(value)) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
    except OverflowError:
        number = math.inf
    if not (low <= number <= high and math.isfinite(number)) or (open_low and number == low):
        brackets = f"{'(' if open_low else '['}{low:g}, {high:g}{')' if math.isinf(high) else ']'}"
        raise ConfigError(f"{name} must be in {brackets}, got {shown(value)}")
    return number


MOST_VALUES = 2**19  # of a JSON object: each takes a hundred bytes or two
MOST_WIDE = 2**24  # bytes of JSON with text beyond ASCII: in memory each character of such a text may take four
MOST_DIGITS = 2000  # in a row: to make a number of digits takes their square
SAME_DIGITS = bytes.maketrans(b"123456789", b"0" * 9)


def require_little_json(data: bytes, most: int = MOST_VALUES, wide: int = MOST_WIDE) -> None:
    """Raise ValueError for JSON of a file that would take much more time or memory than its bytes.

    Counted before anything is made; a comma in a text counts too.
    """
    if (values := sum(data.count(sign) for sign in b",[{")) > most:
        raise ValueError(f"it holds up to {values:,} values, at most {most:,} are read")
    if len(data) > wide and (not data.isascii() or b"\\u" in data):
        raise ValueError(
            f"it has {len(data):,} bytes with text beyond ASCII in them, at most {wide:,} of such are read"
        )
    if b"0" * MOST_DIGITS in data.translate(SAME_DIGITS):
        raise ValueError(f"it has a row of {MOST_DIGITS:,} digits, which is no number that is read")
