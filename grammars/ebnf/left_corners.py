"""The calls that an expression may begin with, and its split by them."""

from __future__ import annotations

from collections.abc import Iterable

from sgl.grammars.algebra.expr import (
    EMPTY,
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
    nonempty,
    nullable,
    repeat,
    seq,
)
from sgl.grammars.algebra.grammar_core_extension import compiled

Heads = dict[GrammarRule, Expr]


def plain_left_calls(expr: Expr) -> set[GrammarRule]:
    """The rules that may be called before a byte is read."""
    if type(expr) is Literal or type(expr) is CharClass:
        return set()
    match expr:
        case RuleCall(rule):
            return {rule}
        case Seq(items):
            found: set[GrammarRule] = set()
            for item in items:
                found |= plain_left_calls(item)
                if not nullable(item):
                    break
            return found
        case Alt(items):
            return set().union(*map(plain_left_calls, items))
        case Repeat(item, _, _):
            return plain_left_calls(item)
        case AutomatonExpr(edges, _):
            return set().union(*(plain_left_calls(e) for e, _ in edges[0]))
    return set()


def tail_calls(expr: Expr) -> set[GrammarRule]:
    """The rules called last in one of the alternatives, plainly."""
    return {item.rule for item in map(_last, alternatives(expr)) if isinstance(item, RuleCall)}


def alternatives(expr: Expr) -> tuple[Expr, ...]:
    return expr.items if isinstance(expr, Alt) else (expr,)


def sequence(expr: Expr) -> tuple[Expr, ...]:
    return expr.items if isinstance(expr, Seq) else () if expr == EMPTY else (expr,)


def _last(expr: Expr) -> Expr:
    return expr.items[-1] if isinstance(expr, Seq) else expr


def split_by_left_calls(expr: Expr, rules: set[GrammarRule]) -> tuple[Heads, Expr]:
    """(R, base) such that the non-empty texts of `expr` are those of the sum of Call(r) R[r] and of base.

    No alternative of base begins with a call of one of the rules; base is never empty.
    """
    if rules.isdisjoint(left_calls(expr)):
        return {}, nonempty(expr)
    match expr:
        case RuleCall(rule):
            return {rule: EMPTY}, NEVER
        case Alt(items):
            return _union(split_by_left_calls(item, rules) for item in items)
        case Seq(items):
            return _union(_peel_sequence(items, rules))
        case Repeat(item, minimum, maximum):
            again = repeat(item, max(minimum - 1, 0), None if maximum is None else maximum - 1)
            return _followed(split_by_left_calls(item, rules), again)
    raise AssertionError(f"{expr!r} begins with a call")


def _peel_sequence(items: tuple[Expr, ...], rules: set[GrammarRule]) -> Iterable[tuple[Heads, Expr]]:
    for i, item in enumerate(items):
        yield _followed(split_by_left_calls(item, rules), seq(*items[i + 1 :]))
        if not nullable(item):
            return


def _followed(split: tuple[Heads, Expr], rest: Expr) -> tuple[Heads, Expr]:
    heads, base = split
    return {rule: seq(head, rest) for rule, head in heads.items()}, seq(base, rest)


def _union(splits: Iterable[tuple[Heads, Expr]]) -> tuple[Heads, Expr]:
    heads: Heads = {}
    bases: list[Expr] = []
    for found, base in splits:
        bases.append(base)
        for rule, head in found.items():
            heads[rule] = alt(heads[rule], head) if rule in heads else head
    return heads, alt(*bases)


left_calls = compiled(plain_left_calls)
