"""Numbers and strings of a schema as expressions over bytes of JSON text."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal

from sgl.grammars import charset
from sgl.grammars.errors import GrammarLimitError, UnsupportedGrammarError
from sgl.grammars.expr import NEVER, Call, Chars, Expr, Repeat, Rule, length_bounds, repeat, seq
from sgl.grammars.schema.instances import integer_bounds
from sgl.grammars.schema.json_text import FREE_CHAR, FREE_TEXT, QUOTE, encode
from sgl.grammars.language import combine, texts
from sgl.grammars.schema.numbers import ANY_NUMBER, NOT_WHOLE, at_least, at_most, fractions, integers, multiples
from sgl.grammars.schema.shapes import Numbers, Strings

_LARGEST_DIVISOR = 1000
_MOST_PLACES = 40
_FREE_REST = Call(Rule("rest of a free string", lambda: seq(FREE_TEXT, QUOTE)))


def number_expr(numbers: Numbers) -> Expr:
    """JSON numbers between bounds, divisible as asked.

    Raises:
        UnsupportedGrammarError: `multipleOf` is neither a small integer nor 0.1, 0.01 ...
    """
    whole = [int(m) for m in numbers.multiples if m == m.to_integral_value()]
    places = [_places(m, numbers.place) for m in numbers.multiples if m != m.to_integral_value()]
    if numbers.fractional:
        if numbers.integer or whole:
            return NEVER
        languages = [NOT_WHOLE, *([fractions(min(places))] if places else []), *_bounds(numbers)]
    elif numbers.integer or whole:
        languages = [integers(*integer_bounds(numbers)), *(multiples(_divisor(m, numbers.place)) for m in whole)]
    else:
        languages = [fractions(min(places))] if places else []
        languages += _bounds(numbers) or ([] if places else [ANY_NUMBER])
    return languages[0] if len(languages) == 1 else _combined(languages, (), "multipleOf", numbers.place)


def _bounds(numbers: Numbers) -> list[Expr]:
    for keyword, bound in (("minimum", numbers.low), ("maximum", numbers.high)):
        if bound and bound[0] != 0 and bound[0].adjusted() < -_MOST_PLACES:
            raise UnsupportedGrammarError(keyword, numbers.place, f"{bound[0]} has too many decimal places")
    found = [at_least(*numbers.low)] if numbers.low else []
    if numbers.high:
        found.append(at_most(*numbers.high))
    return found


def _divisor(multiple: int, place: str) -> int:
    if multiple > _LARGEST_DIVISOR:
        raise UnsupportedGrammarError("multipleOf", place, f"{multiple} is above {_LARGEST_DIVISOR}")
    return multiple


def _places(multiple: Decimal, place: str) -> int:
    _, digits, exponent = multiple.normalize().as_tuple()
    if digits != (1,) or not isinstance(exponent, int):
        raise UnsupportedGrammarError("multipleOf", place, f"{multiple} is neither whole nor 0.1, 0.01 ...")
    return -exponent


def string_expr(strings: Strings) -> Expr:
    """A quoted JSON string.

    Raises:
        UnsupportedGrammarError: the patterns and bounds together need too large an automaton.
    """
    if strings.most is not None and strings.least > strings.most:
        return NEVER
    if not strings.languages and not strings.excluded and not strings.forbidden:
        if strings.least == 0 and strings.most is None:
            return seq(QUOTE, _FREE_REST)
        return seq(QUOTE, repeat(FREE_CHAR, strings.least, strings.most), QUOTE)
    text = text_expr(strings)
    if text == NEVER:
        return NEVER
    return seq(QUOTE, Call(Rule(f"string at {strings.place}", lambda: seq(encode(text), QUOTE))))


def text_expr(strings: Strings) -> Expr:
    """The characters of a string that must match something."""
    excluded = strings.excluded
    if strings.forbidden:
        excluded += (texts(sorted(strings.forbidden)),)
    if len(strings.languages) == 1 and not excluded:
        bounded = _bounded(strings.languages[0], strings.least, strings.most)
        if bounded is not None:
            return bounded
    languages = strings.languages or (Repeat(Chars(charset.ANY), 0, None),)
    return _combined(languages, excluded, "pattern", strings.place, strings.least, strings.most)


def _bounded(language: Expr, least: int, most: int | None) -> Expr | None:
    """A language within bounds where that needs no product."""
    shortest, longest = length_bounds(language)
    if shortest >= least and (most is None or (longest is not None and longest <= most)):
        return language
    if isinstance(language, Repeat) and isinstance(language.item, Chars):
        tops = [m for m in (language.maximum, most) if m is not None]
        least, top = max(language.minimum, least), min(tops, default=None)
        return repeat(language.item, least, top) if top is None or least <= top else NEVER
    return None


def _combined(
    languages: Sequence[Expr],
    excluded: Sequence[Expr],
    keyword: str,
    place: str,
    least: int = 0,
    most: int | None = None,
) -> Expr:
    try:
        return combine(languages, excluded, least, most)
    except GrammarLimitError as error:
        raise UnsupportedGrammarError(keyword, place, f"with the keywords beside it: {error}") from error
