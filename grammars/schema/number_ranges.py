"""Languages of JSON numbers between bounds, exact for every spelling that `json.dumps` produces.

Whole numbers are compared as they are, decimals and normalised exponents (one digit before the point, not 0) as the
doubles that they are read as; other exponents come only where there is no bound.
"""

from __future__ import annotations

from decimal import Decimal
from functools import cache, lru_cache
from math import ceil, floor

from sgl.grammars.algebra import charset
from sgl.grammars.algebra.expr import (
    NEVER,
    AutomatonExpr,
    CharClass,
    Expr,
    GrammarRule,
    Literal,
    RuleCall,
    alt,
    optional,
    repeat,
    seq,
)
from sgl.grammars.algebra.language_operations import combine
from sgl.grammars.schema.double_rounding import LARGEST, SMALLEST, Bound, last_double, readable_high, readable_low

_SMALLEST_PLAIN = Decimal("1e-30")  # smaller decimals are written with an exponent, or are 0
_EXACT_WHOLE = 2**53
_WHOLE_DIGITS = 16
_LEAST_GREAT = 10**16  # `json.dumps` writes doubles from here on with an exponent
_MOST_WITH_POWER = 40  # digits before the point of a number with an exponent
_GREATEST_POWER = 308  # of the doubles


def digit(low: int = 0, high: int = 9) -> Expr:
    return CharClass(((0x30 + low, 0x30 + high),)) if low <= high else NEVER


DIGITS = repeat(digit(), 1)
_MINUS, _POINT = Literal(b"-"), Literal(b".")
_WHOLE = alt(Literal(b"0"), seq(digit(1), repeat(digit())))
_FRACTION = seq(_POINT, DIGITS)
_ZEROS = seq(_POINT, repeat(Literal(b"0"), 1))
_ZERO_FRACTION = Literal(b".0")
_E = CharClass(charset.of("eE"))
_EXPONENT = seq(_E, optional(CharClass(charset.of("+-"))), DIGITS)
ANY_INTEGER = seq(optional(_MINUS), _WHOLE)
_ANY_POWER = seq(_WHOLE, optional(_FRACTION), optional(_EXPONENT))
_ANY_ZERO = seq(optional(_MINUS), Literal(b"0"), optional(_ZEROS))


def any_number(digits: int | None = None) -> Expr:
    """All numbers, those with an exponent as far as they are surely read as doubles that are finite.

    digits: at most so many before the point, None for any number; with an exponent at most 40.
    """
    return seq(optional(_MINUS), unsigned(digits))


@lru_cache(maxsize=8)
def unsigned(digits: int | None = None) -> Expr:
    """The same without a sign."""
    endless, most = digits is None or digits > _MOST_WITH_POWER, min(digits or _MOST_WITH_POWER, _MOST_WITH_POWER)
    few, many = optional(_power_up_to(2, 7, endless)), optional(_power_up_to(1, None, endless))
    found = [seq(alt(Literal(b"0"), digit(1)), optional(_FRACTION), few), _greatest()]
    if most > 1:
        found.append(seq(digit(1), repeat(digit(), 1, most - 1), optional(_FRACTION), many))
    return alt(*found, *([seq(digit(1), repeat(digit(), most), optional(_FRACTION))] if endless else []))


def _power_up_to(hundreds: int, more: int | None, endless: bool) -> Expr:
    """An `e` and an exponent up to a hundred less one, or to 300 and some more;
    with its zeros one has at most four digits.
    """
    zeros = [repeat(Literal(b"0"), 0, None if endless else most) for most in (2, 1)]
    plus = [seq(zeros[0], digit(), optional(digit())), seq(zeros[1], digit(1, hundreds), digit(), digit())]
    plus += [] if more is None else [seq(zeros[1], Literal(b"30"), digit(0, more))]
    return seq(_E, alt(seq(optional(Literal(b"+")), alt(*plus)), seq(_MINUS, DIGITS)))


def integers(low: int | None, high: int | None) -> Expr:
    """Integers between two inclusive bounds."""
    if low is None and high is None:
        return ANY_INTEGER
    positive = NEVER if high is not None and high < 0 else _naturals(max(low or 0, 0), high)
    negative: Expr = NEVER
    if low is None or low < 0:
        least = 1 if high is None else max(-high, 1)
        negative = seq(_MINUS, _naturals(least, None if low is None else -low))
    return alt(positive, negative)


def whole_numbers(low: int | None, high: int | None, called: bool = True) -> Expr:
    """Integers between two inclusive bounds, also with `.0` after them, or with the exponent that makes them whole.

    Args:
        low: least, None for no bound.
        high: greatest, None for no bound.
        called: whether rules may be called, which keeps the expression small.
    """
    if low is None and high is None:
        return seq(optional(_MINUS), alt(seq(_WHOLE, optional(_ZERO_FRACTION)), _great_between(None, None, called)))
    found = [_maybe_dotted(low, high), _great_between(low, high, called)]
    found.append(seq(_MINUS, _great_between(_negative(high), _negative(low), called)))
    return alt(*found, *([Literal(b"-0.0")] if (low or 0) <= 0 <= (high or 0) else []))


def _maybe_dotted(low: int | None, high: int | None) -> Expr:
    """Integers between bounds; with `.0` after them those that are so as doubles too."""
    doubles = None if low is None else -_double_within(-low), None if high is None else _double_within(high)
    if doubles == (low, high):
        return seq(integers(low, high), optional(_ZERO_FRACTION))
    return alt(integers(low, high), seq(_between(*doubles), _ZERO_FRACTION))


def _negative(bound: int | None) -> int | None:
    return None if bound is None else -bound


def _double_within(high: int) -> int:
    """The greatest whole double at most a whole number; the number itself below all doubles."""
    return high if abs(high) <= _EXACT_WHOLE or high < -int(LARGEST) else int(last_double(Decimal(high)))


def _between(low: int | None, high: int | None) -> Expr:
    return NEVER if low is not None and high is not None and low > high else integers(low, high)


def _great_between(low: int | None, high: int | None, called: bool) -> Expr:
    """Positive numbers from 10**16 on with an exponent; as doubles they are whole."""
    if (high is not None and high < max(low or 0, _LEAST_GREAT)) or (low or 0) > int(LARGEST):
        return NEVER
    if called and high is None and (low or 0) <= _LEAST_GREAT:
        return _great()
    least = readable_low((Decimal(max(low or 0, _LEAST_GREAT)), False))
    return _scientific(least, readable_high((LARGEST if high is None else Decimal(high), False)))


@lru_cache(maxsize=1)
def _great() -> Expr:
    """All of them, with what comes after the `e`, or is close to the largest, in rules that are seldom reached."""
    most = RuleCall(GrammarRule("exponent of a whole number", cache(lambda: exponent(16, _GREATEST_POWER - 1))))
    return alt(seq(digit(1), optional(_FRACTION), _E, most), _greatest())


@lru_cache(maxsize=1)
def _greatest() -> Expr:
    """Numbers from 10**308 on; the largest of them are 1.7976... times that. The digits after the first two are in a
    rule that is seldom reached.
    """
    first, second, *digits = map(int, _split(readable_high((LARGEST, False))[0].scaleb(-_GREATEST_POWER))[1])
    power = seq(_E, optional(Literal(b"+")), optional(Literal(b"0")), Literal(str(_GREATEST_POWER).encode()))
    rest = RuleCall(GrammarRule("digits of the greatest", cache(lambda: seq(optional(_below(digits)), power))))
    later = alt(power, seq(digit(0, second - 1), repeat(digit()), power), seq(digit(second, second), rest))
    fraction = alt(seq(digit(0, first - 1), repeat(digit()), power), seq(digit(first, first), later))
    return seq(Literal(b"1"), alt(power, seq(_POINT, fraction)))


def _below(bound: list[int]) -> Expr:
    """Digits that are read as no more than others."""
    expr: Expr = digit(0, bound[-1])
    for d in reversed(bound[:-1]):
        expr = alt(seq(digit(0, d - 1), repeat(digit())), seq(digit(d, d), optional(expr)))
    return expr


def _naturals(low: int, high: int | None) -> Expr:
    """Natural numbers without leading zeros: those as long as a bound by digits, those in between by length."""
    if high is not None and low > high:
        return NEVER
    shortest, longest = len(str(low)), None if high is None else len(str(high))
    if high is not None and shortest == longest:
        return _same_length(low, high)
    between = None if longest is None else longest - 2
    found = [_same_length(low, 10**shortest - 1)]
    if between is None or between >= shortest:
        found.append(seq(digit(1), repeat(digit(), shortest, between)))
    if high is not None:
        found.append(_same_length(10 ** len(str(high)) // 10, high))
    return alt(*found)


def _same_length(low: int, high: int) -> Expr:
    """Numbers of as many digits as both bounds."""
    found: list[Expr] = []
    for product in charset.digit_ranges(_digits(low), _digits(high), 0, 9):
        bound = len(product)
        while bound > 1 and product[bound - 1] == (0, 9):
            bound -= 1
        free = len(product) - bound
        found.append(seq(*(digit(*pair) for pair in product[:bound]), repeat(digit(), free, free)))
    return alt(*found)


def _digits(number: int) -> list[int]:
    return [int(d) for d in str(number)]


def number_texts(low: Bound | None, high: Bound | None, any_unsigned: Expr = _ANY_POWER) -> Expr:
    """Numbers between bounds; where 0 is the only one, the sign tells all.

    any_unsigned: numbers without a sign; by default with any exponent, which is for what is met with others.
    """
    if high is None and low == (0, False):
        return alt(any_unsigned, _ANY_ZERO)
    if low is None and high == (0, False):
        return alt(seq(_MINUS, any_unsigned), _ANY_ZERO)
    return alt(integers(*integer_bounds(low, high)), fractional_texts(low, high))


def integer_bounds(low: Bound | None, high: Bound | None) -> tuple[int | None, int | None]:
    """Inclusive bounds of the integers between two bounds."""
    least = None if low is None else ceil(low[0]) + (low[1] and ceil(low[0]) == low[0])
    most = None if high is None else floor(high[0]) - (high[1] and floor(high[0]) == high[0])
    return least, most


def fractional_texts(low: Bound | None, high: Bound | None) -> Expr:
    """Numbers between bounds that are written with a point or an exponent."""
    found: list[Expr] = []
    holds_zero = _is_zero_between(low, high)
    if high is None or high[0] > 0:
        found.append(_magnitudes(None if holds_zero else low, high))
    if low is None or low[0] < 0:
        found.append(seq(_MINUS, _magnitudes(None if holds_zero else _opposite(high), _opposite(low))))
    return alt(*found, *([seq(optional(_MINUS), Literal(b"0"), _ZEROS)] if holds_zero else []))


def _is_zero_between(low: Bound | None, high: Bound | None) -> bool:
    return (low is None or low < (Decimal(0), True)) and (high is None or high[0] > 0 or high == (0, False))


def _opposite(bound: Bound | None) -> Bound | None:
    return None if bound is None else (bound[0].copy_negate(), bound[1])


def _magnitudes(low: Bound | None, high: Bound | None) -> Expr:
    """Positive numbers (and 0 without a low bound), with a point or an exponent or both."""
    top = None if high is None else readable_high(high)
    least = None if low is None else readable_low(low)
    plain = least if least is None or least[0] >= _SMALLEST_PLAIN else (_SMALLEST_PLAIN, False)
    smallest, largest = readable_low((SMALLEST, False)), readable_high((LARGEST, False))
    return alt(_decimals(plain, top), _scientific(max(least or smallest, smallest), top or largest))


def _decimals(low: Bound | None, high: Bound | None) -> Expr:
    """Unsigned texts with a point between bounds: those as long as a bound's whole part by digits."""
    if low and high and low[0] > high[0]:
        return NEVER
    shortest = 1 if low is None else len(_split(low[0])[0])
    longest = None if high is None else len(_split(high[0])[0])
    if low is None and high is None:
        return seq(_WHOLE, _FRACTION)
    if shortest == longest:
        return _following(shortest, low, high)
    found = [_following(shortest, low, None)]
    if longest is None or longest - 2 >= shortest:
        found.append(seq(digit(1), repeat(digit(), shortest, None if longest is None else longest - 2), _FRACTION))
    if longest is not None:
        found.append(_following(longest, None, high))
    return alt(*found)


def _split(bound: Decimal) -> tuple[str, str]:
    """Digits before and after the point, without zeros at the end."""
    whole, _, fraction = f"{bound:f}".partition(".")
    return whole, fraction.rstrip("0")


def _following(length: int, low: Bound | None, high: Bound | None) -> Expr:
    """Texts with a whole part of some length, digit by digit along bounds with as long a one."""
    return _Following(length, low, high).expr()


class _Following:
    """A state is (characters read, still equal to the low bound so far, still equal to the high one)."""

    def __init__(self, length: int, low: Bound | None, high: Bound | None) -> None:
        self._point = length
        self._low, self._low_strict = ("", False) if low is None else (".".join(_split(low[0])), low[1])
        self._high, self._high_strict = ("", False) if high is None else (".".join(_split(high[0])), high[1])
        self._most = max(len(self._low), len(self._high), length + 2)
        start = (0, low is not None, high is not None)
        self._order = [start]
        self._numbers = {start: 0}

    def expr(self) -> Expr:
        edges, accepting = [], []
        for state in self._order:
            edges.append(self._edges(state))
            accepting.append(state[0] > self._point + 1 and not state[1])
        return combine([AutomatonExpr(tuple(edges), tuple(accepting))])

    def _edges(self, state: tuple[int, bool, bool]) -> tuple[tuple[Expr, int], ...]:
        at, follows_low, follows_high = state
        if at == self._point:
            target = self._target(at + 1, follows_low, follows_high)
            return () if target is None else ((_POINT, target),)
        least = _digit_at(self._low, at) if follows_low else 0
        most = _digit_at(self._high, at) if follows_high else 9
        least = max(least, 1) if at == 0 and self._point > 1 else least
        found: dict[int, list[int]] = {}
        for d in range(least, most + 1):
            low = follows_low and d == _digit_at(self._low, at)
            high = follows_high and d == _digit_at(self._high, at)
            target = self._target(min(at + 1, self._most), low, high)
            if target is not None:
                found.setdefault(target, []).append(d)
        return tuple((digit(ds[0], ds[-1]), target) for target, ds in found.items())

    def _target(self, at: int, low: bool, high: bool) -> int | None:
        low = low and (self._low_strict or at < len(self._low) or at <= self._point + 1)
        if high and self._high_strict and at >= len(self._high) and at > self._point + 1:
            return None
        state = (at, low, high)
        if state not in self._numbers:
            self._numbers[state] = len(self._order)
            self._order.append(state)
        return self._numbers[state]


def _digit_at(text: str, at: int) -> int:
    return int(text[at]) if at < len(text) else 0


def _scientific(low: Bound, high: Bound) -> Expr:
    """Positive numbers with one digit before the point and an exponent."""
    if low[0] > high[0]:
        return NEVER
    first, last = low[0].adjusted(), high[0].adjusted()
    if first == last:
        return seq(_mantissa(low, high), power(first, first))
    found = [seq(_mantissa(low, None), power(first, first)), seq(_mantissa(None, high), power(last, last))]
    if last - first > 1:
        found.append(seq(digit(1), optional(_FRACTION), power(first + 1, last - 1)))
    return alt(*found)


def _mantissa(low: Bound | None, high: Bound | None) -> Expr:
    one = (Decimal(1), False)
    least = one if low is None else (low[0].scaleb(-low[0].adjusted()), low[1])
    top = None if high is None else (high[0].scaleb(-high[0].adjusted()), high[1])
    first = int(least[0]) + (least[1] or least[0] != int(least[0]))
    last = 9 if top is None else int(top[0]) - (top[1] and top[0] == int(top[0]))
    return alt(digit(first, last), _following(1, least, top))


def power(low: int, high: int) -> Expr:
    """An `e` and an exponent between two bounds."""
    return seq(_E, exponent(low, high)) if low <= high else NEVER


def exponent(low: int, high: int) -> Expr:
    """An exponent between two bounds; `json.dumps` writes at least two digits, and a plus."""
    zero = optional(Literal(b"0"))
    plus = seq(optional(Literal(b"+")), zero, _naturals(max(low, 0), high)) if high >= 0 else NEVER
    minus = seq(_MINUS, zero, _naturals(max(-high, 1), -low)) if low < 0 else NEVER
    return alt(plus, minus)


@lru_cache(maxsize=1)
def not_whole() -> Expr:
    """Numbers whose double is not whole."""
    tiny = seq(optional(_MINUS), digit(1), optional(_FRACTION), power(-307, -2))
    return alt(far_from_whole(0), tiny)


@lru_cache(maxsize=32)
def far_from_whole(places: int) -> Expr:
    """Decimals whose digits after some places are soon neither all zeros nor all nines."""
    skipped = repeat(digit(), places, places)
    lengths = range(1, _WHOLE_DIGITS - places)
    forms = [seq(_exactly(n), _POINT, skipped, _mixed(_WHOLE_DIGITS - places - n)) for n in lengths]
    return seq(optional(_MINUS), alt(*forms))


def _exactly(length: int) -> Expr:
    return digit() if length == 1 else seq(digit(1), repeat(digit(), length - 1, length - 1))


def _mixed(places: int) -> Expr:
    """Digits of which the first so many are neither all 0 nor, where there are as many, all 9."""
    zeros, nines, mixed = 1, 1 + places, 1 + 2 * places
    edges: list[tuple[tuple[Expr, int], ...]] = [((digit(0, 0), zeros), (digit(9, 9), nines), (digit(1, 8), mixed))]
    for i in range(1, places):
        edges.append(((digit(0, 0), zeros + i), (digit(1), mixed)))
    edges.append(())
    for i in range(1, places):
        edges.append(((digit(9, 9), nines + i), (digit(0, 8), mixed)))
    edges += [(), ((digit(), mixed),)]
    accepting = [False] * (1 + places) + [True] * (places - 1) + [False, True]
    return combine([AutomatonExpr(tuple(edges), tuple(accepting))])
