"""Numbers, and fractions of seconds, that come to an end: what has any number of digits gets a bound."""

from __future__ import annotations

from functools import lru_cache

from sgl.grammars.algebra import charset
from sgl.grammars.algebra.expr import (
    NEVER,
    Alt,
    AutomatonExpr,
    CharClass,
    Expr,
    GrammarRule,
    Literal,
    Repeat,
    RuleCall,
    Seq,
    alt,
    optional,
    repeat,
    seq,
)
from sgl.grammars.algebra.language_operations import combine
from sgl.grammars.errors import GrammarLimitError

SECOND_DIGITS = 12  # of a second
_EXPONENT_DIGITS = 4  # with a zero before them, as `json.dumps` writes e-07
_DIGIT, _E = CharClass(((0x30, 0x39),)), CharClass(charset.of("eE"))
_rules: dict[tuple[GrammarRule, int], Expr] = {}


def bounded(expr: Expr, digits: int) -> Expr:
    """The same language without its texts of more digits in a row, where an automaton or a repeat is unbounded.

    What would be empty so stays as it is. `expr` is of numbers, or a format.
    """
    match expr:
        case Seq(items):
            return seq(*_following(items, digits))
        case Alt(items):
            return alt(*(bounded(item, digits) for item in items))
        case Repeat(item, least, None) if _is_digits(item):
            return repeat(item, least, max(least, digits))
        case Repeat(item, least, most):
            return repeat(bounded(item, digits), least, most)
        case AutomatonExpr():
            return _bounded_graph(expr, digits)
        case RuleCall(rule):
            return _bounded_call(rule, digits)
    return expr


def _following(items: tuple[Expr, ...], digits: int) -> list[Expr]:
    """Items of a sequence; digits before a repeat of digits count, and after an `e` few are many."""
    found, before = [], 0
    for item in items:
        found.append(bounded(item, max(1, digits - before) if _is_repeat(item) else digits))
        before = before + 1 if _is_digits(item) else 0
        digits = min(digits, _EXPONENT_DIGITS) if item == _E else digits
    return found


def _is_repeat(item: Expr) -> bool:
    return isinstance(item, Repeat) and _is_digits(item.item)


def _is_digits(item: Expr) -> bool:
    if isinstance(item, CharClass):
        return all(low >= 0x30 and high <= 0x39 for low, high in item.chars)
    return isinstance(item, Literal) and item.data.isdigit()


def _bounded_graph(graph: AutomatonExpr, digits: int) -> Expr:
    try:
        found = combine([graph, _short(digits)])
    except GrammarLimitError:
        return graph
    return graph if found == NEVER else found


@lru_cache(maxsize=8)
def _short(digits: int) -> Expr:
    """Numbers of few digits, and all parts of such numbers."""
    some, sign = repeat(_DIGIT, 0, digits), optional(CharClass(charset.of("+-")))
    power = seq(_E, sign, repeat(_DIGIT, 1, _EXPONENT_DIGITS))
    return seq(optional(Literal(b"-")), some, optional(seq(Literal(b"."), some)), optional(power))


def _bounded_call(rule: GrammarRule, digits: int) -> Expr:
    """One rule for one rule, so that what was shared stays so."""
    found = _rules.get((rule, digits))
    if found is None:
        found = _rules[rule, digits] = RuleCall(GrammarRule(rule.name, lambda: bounded(rule.build(), digits)))
    return found
