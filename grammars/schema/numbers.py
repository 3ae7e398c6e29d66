"""Languages of JSON numbers between bounds, exact in decimal."""

from __future__ import annotations

from decimal import Decimal

from sgl.grammars import charset
from sgl.grammars.expr import NEVER, Chars, Expr, Graph, Literal, alt, optional, repeat, seq

_SIGNIFICANT = 15  # decimals of at most so many digits are distinct doubles, so a strict bound survives parsing


def digit(low: int = 0, high: int = 9) -> Expr:
    return Chars(((0x30 + low, 0x30 + high),)) if low <= high else NEVER


DIGITS = repeat(digit(), 1)
_MINUS = Literal(b"-")
_WHOLE = alt(Literal(b"0"), seq(digit(1), repeat(digit())))
_FRACTION = seq(Literal(b"."), DIGITS)
_EXPONENT = seq(Chars(charset.of("eE")), optional(Chars(charset.of("+-"))), DIGITS)
ANY_INTEGER = seq(optional(_MINUS), _WHOLE)
_UNSIGNED = seq(_WHOLE, optional(_FRACTION))
ANY_DECIMAL = seq(optional(_MINUS), _UNSIGNED)
ANY_NUMBER = seq(ANY_DECIMAL, optional(_EXPONENT))
NOT_WHOLE = seq(  # short enough that parsing does not round it to a whole number
    optional(_MINUS),
    alt(Literal(b"0"), seq(digit(1), repeat(digit(), 0, 6))),
    Literal(b"."),
    repeat(Literal(b"0"), 0, 4),
    digit(1),
    repeat(digit(), 0, 3),
)
_ZERO = seq(Literal(b"0"), optional(seq(Literal(b"."), repeat(Literal(b"0"), 1))))
NOT_NEGATIVE = alt(seq(_UNSIGNED, optional(_EXPONENT)), seq(_MINUS, _ZERO))


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


def at_least(bound: Decimal, strict: bool) -> Expr:
    """Decimals without exponent (but for the bound 0) of at least, or more than, a bound."""
    if bound > 0 or (bound == 0 and strict):
        return _above(bound, strict)
    if bound == 0:
        return NOT_NEGATIVE
    return alt(_UNSIGNED if not strict else _limited(bound), seq(_MINUS, _below(-bound, strict)))


def at_most(bound: Decimal, strict: bool) -> Expr:
    """Decimals of at most, or less than, a bound."""
    if bound < 0 or (bound == 0 and strict):
        return seq(_MINUS, _above(-bound, strict))
    if bound == 0:
        return alt(seq(_MINUS, _UNSIGNED, optional(_EXPONENT)), _ZERO)
    return alt(seq(_MINUS, _UNSIGNED if not strict else _limited(bound)), _below(bound, strict))


def _split(bound: Decimal) -> tuple[int, list[int]]:
    """Whole part and the fraction's digits, without zeros at their end."""
    whole, _, fraction = f"{bound:f}".partition(".")
    return int(whole), [int(d) for d in fraction.rstrip("0")]


def _more_digits(bound: Decimal, strict: bool) -> int | None:
    return max(_SIGNIFICANT - len(str(int(abs(bound)))), 1) if strict else None


def _limited(bound: Decimal) -> Expr:
    return seq(_WHOLE, optional(seq(Literal(b"."), repeat(digit(), 1, _more_digits(bound, True)))))


def _above(bound: Decimal, strict: bool) -> Expr:
    whole, fraction = _split(bound)
    most = _more_digits(bound, strict)
    tail = optional(seq(Literal(b"."), repeat(digit(), 1, most)))
    same = seq(_naturals(whole, whole), _fraction_above(fraction, strict, most))
    return alt(seq(_naturals(whole + 1, None), tail), same)


def _fraction_above(digits: list[int], strict: bool, most: int | None) -> Expr:
    """Fractions, point included, above 0.digits."""
    expr = repeat(digit()) if most is None else _not_all_zeros(most - len(digits))
    for i in range(len(digits) - 1, -1, -1):
        left = None if most is None else max(most - i - 1, 0)
        higher = seq(digit(digits[i] + 1), repeat(digit(), 0, left))
        expr = alt(seq(digit(digits[i], digits[i]), expr), higher)
    if not digits and not strict:
        return optional(seq(Literal(b"."), repeat(digit(), 1, most)))
    return seq(Literal(b"."), expr)


def _not_all_zeros(most: int) -> Expr:
    """At most so many digits, one of them not 0."""
    expr: Expr = NEVER
    for left in range(most):
        expr = alt(seq(digit(1), repeat(digit(), 0, left)), seq(Literal(b"0"), expr))
    return expr


def _below(bound: Decimal, strict: bool) -> Expr:
    whole, fraction = _split(bound)
    most = _more_digits(bound, strict)
    tail = optional(seq(Literal(b"."), repeat(digit(), 1, most)))
    less = seq(_naturals(0, whole - 1), tail) if whole else NEVER
    return alt(less, seq(_naturals(whole, whole), _fraction_below(fraction, strict, most)))


def _fraction_below(digits: list[int], strict: bool, most: int | None) -> Expr:
    """Fractions, point included or absent, below 0.digits."""
    if not digits:
        return NEVER if strict else optional(seq(Literal(b"."), repeat(Literal(b"0"), 1)))
    expr: Expr = NEVER if strict else repeat(Literal(b"0"))
    for i in range(len(digits) - 1, -1, -1):
        left = None if most is None else max(most - i - 1, 0)
        same = seq(digit(digits[i], digits[i]), expr if i == len(digits) - 1 else optional(expr))
        lower = seq(digit(0, digits[i] - 1), repeat(digit(), 0, left)) if digits[i] else NEVER
        expr = alt(lower, same)
    return optional(seq(Literal(b"."), expr))


def fractions(places: int) -> Expr:
    """Decimals with at most so many places."""
    return seq(optional(_MINUS), _WHOLE, optional(seq(Literal(b"."), repeat(digit(), 1, places))))


def multiples(divisor: int) -> Graph:
    """Integers divisible by a small number: a state for each remainder, after those of sign and zero."""
    sign, zero, remainders = 1, 2, 3
    leading = tuple((digit(d, d), remainders + d % divisor) for d in range(1, 10))
    edges: list[tuple[tuple[Expr, int], ...]] = [
        (*leading, (digit(0, 0), zero), (_MINUS, sign)),
        (*leading, (digit(0, 0), zero)),
        (),
    ]
    for rest in range(divisor):
        edges.append(tuple((digit(d, d), remainders + (rest * 10 + d) % divisor) for d in range(10)))
    return Graph(tuple(edges), (False, False, True, True, *[False] * (divisor - 1)))
