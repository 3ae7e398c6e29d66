"""The range of decimals that are read as a double within a bound."""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal

Bound = tuple[Decimal, bool]
_DIGITS = 21  # more than the 17 that distinguish doubles, so that rounding to them loses no double
LARGEST = Decimal(math.nextafter(math.inf, 0))
_OVERFLOW = Decimal("1.7976931348623157581e308")  # what is above is read as infinite
_EXACT = 2**53
SMALLEST = Decimal(repr(math.ulp(0.0)))


def readable_low(bound: Bound) -> Bound:
    """The least decimals whose double is still at least, or above, a bound, and whether they are left out."""
    value, strict = readable_high((bound[0].copy_negate(), bound[1]))
    return value.copy_negate(), strict


def readable_high(bound: Bound) -> Bound:
    """The greatest decimals whose double is still at most, or below, a bound."""
    value, strict = bound
    if value.copy_abs() > LARGEST:  # unlike abs() it does not round
        return bound
    edge = last_double(value, strict)
    if math.isinf(edge):
        return _OVERFLOW.copy_negate(), False
    middle = _middle(edge, math.nextafter(edge, math.inf))
    if not strict and value < middle and abs(value) <= _EXACT:  # further out shortest texts are on either side
        return value, False
    return middle, _is_odd(edge)


def _is_odd(double: float) -> bool:
    """Whether the last bit is set; ties are read as the even neighbour."""
    return int(math.ldexp(math.frexp(double)[0], 53)) % 2 == 1


def last_double(value: Decimal, strict: bool = False) -> float:
    """The greatest double at most, or below, a bound: a whole one counts exactly, any other as the double it is."""
    found = float(value)
    exact = Decimal(found)
    top = value if value == value.to_integral_value() else exact
    while exact > top or (strict and exact == top):
        found = math.nextafter(found, -math.inf)
        exact = Decimal(found)
    return found


def _middle(low: float, high: float) -> Decimal:
    """The middle between two neighbours, or a decimal just below it: all decimals below are read as the lower one."""
    wide = Context(prec=1200)
    if math.isinf(high):
        return _OVERFLOW
    middle = wide.divide(wide.add(Decimal(low), Decimal(high)), Decimal(2))
    return Context(prec=_DIGITS, rounding=ROUND_FLOOR if middle > 0 else ROUND_CEILING).plus(middle)
