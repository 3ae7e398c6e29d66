"""Numbers that are, or are not, multiples of a step; exact in decimal, for every spelling that `json.dumps`
produces."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from math import gcd, lcm

from sgl.grammars.algebra.expr import NEVER, AutomatonExpr, Expr, Literal, alt, nonempty, optional, repeat, seq
from sgl.grammars.algebra.language_operations import combine
from sgl.grammars.schema.number_ranges import digit, far_from_whole, power

_MOST_REMAINDERS = 1000
_READ_EXACTLY = 15  # a decimal of at most so many digits keeps its value in a double well enough
_MOST_COUNTED = 1600
_MOST_PLACES = 40  # of a step; far more than a double tells apart
_MINUS, _POINT, _ZERO = Literal(b"-"), Literal(b"."), Literal(b"0")
_LEAST_POWER, _GREAT_POWER, _GREATEST_POWER = -5, 16, 307


def as_ratio(step: Decimal) -> tuple[int, int]:
    """(a, k) with step = a / 10**k, k as small as can be and not below 0."""
    ratio, places = Fraction(step), 0
    while ratio.denominator > 1:
        ratio, places = ratio * 10, places + 1
    return ratio.numerator, places


def common_step(steps: Sequence[Decimal]) -> Decimal:
    """The step of what is a multiple of all steps."""
    places = max(as_ratio(step)[1] for step in steps)
    number = lcm(*(int(Fraction(step) * 10**places) for step in steps))
    return Decimal(f"{number}e-{places}")


def whole_step(step: Decimal) -> int:
    """The step of the integers among the multiples."""
    number, places = as_ratio(step)
    return number // gcd(number, 10**places)


def few_remainders(step: Decimal, negated: bool) -> bool:
    """Whether an automaton can tell the remainders apart."""
    if -int(step.as_tuple().exponent) > _MOST_PLACES:
        return False
    number, places = as_ratio(step)
    if negated:
        return number * (_READ_EXACTLY + places) <= _MOST_COUNTED
    while number % 10 == 0:
        number //= 10
    return number * (places + 1) <= _MOST_REMAINDERS


@lru_cache(maxsize=64)
def multiples(step: Decimal) -> Expr:
    """Multiples, with a point where their value survives being read as a double."""
    number, places = as_ratio(step)
    powers = [*_small_powers(number, places), _great_powers(number)]
    zeros = len(str(number)) - len(str(number).rstrip("0"))
    if zeros:
        tens = seq(_divisible(number // 10**zeros, 0, False), Literal(b"0" * zeros))
        plain = alt(seq(optional(_MINUS), _ZERO), tens)
    else:
        plain = _divisible(number // gcd(number, 10**places), 0, False)
    if number // 10**zeros * (_READ_EXACTLY + places) > _MOST_COUNTED:
        return alt(plain, *powers)
    if places:
        dotted = combine([_divisible(number, places, True), _dotted(_READ_EXACTLY - places)])
    else:
        dotted = seq(combine([plain, _short()]), _POINT, repeat(_ZERO, 1))
    return alt(plain, dotted, *powers)


def _short() -> Expr:
    return seq(optional(_MINUS), repeat(digit(), 1, _READ_EXACTLY))


def _dotted(whole: int, places: int | None = None) -> Expr:
    fraction = repeat(digit(), 1) if places is None else seq(repeat(digit(), 0, places), repeat(_ZERO))
    return seq(optional(_MINUS), repeat(digit(), 1, max(whole, 1)), _POINT, nonempty(fraction))


def _small_powers(number: int, places: int) -> list[Expr]:
    """`json.dumps` writes what is below 0.0001 with an exponent."""
    found: list[Expr] = []
    for exponent in range(-_LEAST_POWER, places + 1):
        mantissa = _divisible(number, places - exponent, True)
        one_digit = seq(optional(_MINUS), digit(1), optional(seq(_POINT, repeat(digit(), 1))))
        found.append(seq(combine([mantissa, one_digit]), power(-exponent, -exponent)))
    return found


def _great_powers(number: int) -> Expr:
    """Numbers so great that their doubles are multiples of a power of two."""
    if number & (number - 1):
        return NEVER
    least = _GREAT_POWER + number.bit_length() // 3
    return seq(optional(_MINUS), digit(1), optional(seq(_POINT, repeat(digit(), 1))), power(least, _GREATEST_POWER))


@lru_cache(maxsize=64)
def other_numbers(step: Decimal) -> Expr:
    """Numbers that are no multiples: those that end soon, and those that go on far from any multiple."""
    number, places = as_ratio(step)
    near = alt(seq(optional(_MINUS), repeat(digit(), 1)), _dotted(_READ_EXACTLY - places, places))
    fraction = seq(_POINT, repeat(digit(), 1))
    any_decimal = seq(optional(_MINUS), alt(_ZERO, seq(digit(1), repeat(digit()))), optional(fraction))
    found = combine([near, any_decimal], [_divisible(number, places, True)])
    tiny = seq(optional(_MINUS), digit(1), optional(fraction), power(-_GREATEST_POWER, _LEAST_POWER))
    return alt(found, far_from_whole(places), tiny if step >= 1 else NEVER)


def _divisible(number: int, places: int, pointed: bool) -> Expr:
    """Plain decimals divisible by number / 10**places; without `pointed` only those without a point."""
    graph = _Division(number, places).graph(pointed)
    return combine([graph]) if pointed else graph


class _Division:
    """Long division: a state for each remainder, before the point, at it, and at each place after it."""

    def __init__(self, number: int, places: int) -> None:
        self._number, self._places = number, places

    def graph(self, pointed: bool) -> AutomatonExpr:
        sign, zero = 1, 2
        leading = self._digits(0, 0, 1)
        point = [(_POINT, self._state(1, 0))] if pointed else []
        edges: list[list[tuple[Expr, int]]] = [[*leading, (_ZERO, zero), (_MINUS, sign)], [*leading, (_ZERO, zero)]]
        edges.append([*point])
        accepting = [False, False, True]
        for step in range(max(self._places, 1) + 2 if pointed else 1):
            for rest in range(self._number):
                after = [(_POINT, self._state(1, rest))] if step == 0 and pointed else []
                edges.append([*self._further(step, rest), *after])
                accepting.append(step != 1 and self._divides(step, rest))
        return AutomatonExpr(tuple(tuple(out) for out in edges), tuple(accepting))

    def _state(self, step: int, rest: int) -> int:
        """Step 0 is before the point, 1 at it, 2 after one place."""
        return 3 + step * self._number + rest % self._number

    def _further(self, step: int, rest: int) -> list[tuple[Expr, int]]:
        if step == 0:
            return self._digits(0, rest)
        if step <= self._places:
            return self._digits(step + 1, rest)
        return [(_ZERO, self._state(max(self._places, 1) + 1, rest))]

    def _digits(self, step: int, rest: int, least: int = 0) -> list[tuple[Expr, int]]:
        return [(digit(d, d), self._state(step, rest * 10 + d)) for d in range(least, 10)]

    def _divides(self, step: int, rest: int) -> bool:
        left = self._places - max(step - 1, 0)
        return bool(rest * 10 ** max(left, 0) % self._number == 0)
