"""Numbers and strings of a schema as expressions over bytes of JSON text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from functools import lru_cache, partial

from sgl.grammars.algebra import charset
from sgl.grammars.algebra.counted_texts import CountedTexts
from sgl.grammars.algebra.expr import NEVER, CharClass, Expr, GrammarRule, Repeat, RuleCall, length_bounds, repeat, seq
from sgl.grammars.algebra.language_operations import combine, determined, texts
from sgl.grammars.errors import GrammarLimitError, UnsupportedGrammarError
from sgl.grammars.schema.bounded_numbers import bounded
from sgl.grammars.schema.json_spelling import FREE_CHAR, FREE_TEXT, QUOTE, encode_chars, encode_once, spelled
from sgl.grammars.schema.multiple_of import common_step, few_remainders, multiples, other_numbers, whole_step
from sgl.grammars.schema.number_ranges import (
    any_number,
    integer_bounds,
    integers,
    not_whole,
    number_texts,
    unsigned,
    whole_numbers,
)
from sgl.grammars.schema.schema_shapes import NumberShape, StringShape
from sgl.grammars.schema.string_formats import generated, with_digits

_ANY_TEXT = Repeat(CharClass(charset.ANY), 0, None)
_MOST_COUNTED = 20_000  # characters
_MOST_PLACES = 5_000_000  # states times characters: of their possible lengths a bit each is kept
_FREE_REST = RuleCall(GrammarRule("rest of a free string", lambda: seq(FREE_TEXT, QUOTE)))


def number_expr(numbers: NumberShape, plain: bool = False, digits: int | None = None) -> Expr:
    """JSON numbers between bounds, divisible as asked; with `plain` integers are digits alone.

    digits: at most so many before and after the point, None for any number; see `bounded`.

    Raises:
        UnsupportedGrammarError: `multipleOf` needs too many remainders.
    """
    try:
        return _short_number(replace(numbers, place=""), plain, digits)
    except GrammarLimitError as error:
        raise UnsupportedGrammarError("multipleOf", numbers.place, str(error)) from error


@lru_cache(maxsize=512)
def _short_number(numbers: NumberShape, plain: bool, digits: int | None) -> Expr:
    whole = _number_expr(numbers, plain, digits)
    return whole if digits is None else bounded(whole, digits)


@lru_cache(maxsize=512)
def _number_expr(numbers: NumberShape, plain: bool, digits: int | None) -> Expr:
    if numbers.integer and numbers.fractional:
        return NEVER
    steps = [common_step(numbers.multiples)] if numbers.multiples else []
    if numbers.integer:
        steps = [Decimal(whole) for s in steps if (whole := whole_step(s)) > 1]
    for step in (*steps, *numbers.indivisible):
        if not few_remainders(step, step in numbers.indivisible):
            raise GrammarLimitError(f"{step} needs too many remainders")
    languages = [multiples(s) for s in steps] + [other_numbers(s) for s in numbers.indivisible]
    languages += [not_whole()] if numbers.fractional else []
    bounded = numbers.low or numbers.high
    if numbers.integer and (plain or bounded or not steps):
        bounds = integer_bounds(numbers.low, numbers.high)
        languages.append(integers(*bounds) if plain else whole_numbers(*bounds, called=not languages))
    elif bounded and not numbers.integer:
        languages.append(number_texts(numbers.low, numbers.high, *([] if languages else [unsigned(digits)])))
    if len(languages) > 1:
        return combine(languages)
    return languages[0] if languages else any_number(digits)


def string_expr(strings: StringShape, digits: int | None = None) -> Expr:
    """A quoted JSON string. digits: at most so many of the numbers of formats, where that leaves something.

    Raises:
        UnsupportedGrammarError: the patterns and bounds together need too large an automaton.
    """
    if strings.most is not None and strings.least > strings.most:
        return NEVER
    if not strings.languages and not strings.excluded and not strings.forbidden:
        if strings.least == 0 and strings.most is None:
            return seq(QUOTE, _FREE_REST)
        return seq(QUOTE, repeat(FREE_CHAR, strings.least, strings.most), QUOTE)
    strings = sure(strings)
    narrow = strings if digits is None else replace(strings, languages=with_digits(strings.languages, digits))
    for each in dict.fromkeys((narrow, strings)):
        text = _written(each)
        if text != NEVER:
            return seq(QUOTE, RuleCall(GrammarRule(f"string at {strings.place}", partial(seq, text, QUOTE))))
    return NEVER


def sure(strings: StringShape) -> StringShape:
    """The same with what is surely in a format in place of what may be."""
    return replace(strings, languages=tuple(generated(language) for language in strings.languages))


def _written(strings: StringShape) -> Expr:
    """The characters as JSON; by states and counts that are made on the way, where their product is too large."""
    try:
        return _encoded(text_expr(strings))
    except UnsupportedGrammarError:
        if not strings.least and (strings.most is None or strings.most > _MOST_COUNTED):
            raise
        try:
            graph = determined(strings.languages or (_ANY_TEXT,), _excluded(strings))
        except GrammarLimitError:
            graph = None
        if graph is None or len(graph.edges) * max(strings.least, strings.most or 0) > _MOST_PLACES:
            raise
    counted = CountedTexts(graph, strings.least, strings.most, encode_chars, spelled)
    return counted.expr(f"string at {strings.place}")


def _encoded(text: Expr) -> Expr:
    return text if text == NEVER else encode_once(text)


def text_expr(strings: StringShape) -> Expr:
    """The characters of a string that must match something."""
    if strings.copied is not None:
        raise UnsupportedGrammarError(
            "x-copied", strings.place, "names of properties are not copied; give their values"
        )
    if strings.content is not None:
        raise UnsupportedGrammarError(
            "contentMediaType", strings.place, "JSON in the name of a property is not supported"
        )
    excluded = _excluded(strings)
    if len(strings.languages) == 1 and not excluded:
        bounded = _bounded(strings.languages[0], strings.least, strings.most)
        if bounded is not None:
            return bounded
    languages = strings.languages or (_ANY_TEXT,)
    return _combined(languages, excluded, "pattern", strings.place, strings.least, strings.most)


def _excluded(strings: StringShape) -> tuple[Expr, ...]:
    return strings.excluded + ((texts(sorted(strings.forbidden)),) if strings.forbidden else ())


def _bounded(language: Expr, least: int, most: int | None) -> Expr | None:
    """A language within bounds where that needs no product."""
    shortest, longest = length_bounds(language)
    if shortest >= least and (most is None or (longest is not None and longest <= most)):
        return language
    if isinstance(language, Repeat) and isinstance(language.item, CharClass):
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
        raise UnsupportedGrammarError(keyword, place, f"with the keywords next to it: {error}") from error
