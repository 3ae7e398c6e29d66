"""Every rule without the empty text, and without calls that can never end.

The algebra takes a called rule as never empty. So each rule keeps its other texts only, and where it may be empty the
call becomes optional.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import is_

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
    optional,
    plain_nullable,
    repeat,
    seq,
)
from sgl.grammars.algebra.grammar_core_extension import compiled

Bodies = dict[GrammarRule, Expr]


def remove_epsilon(bodies: Bodies, start: Expr) -> tuple[Bodies, Expr, dict[GrammarRule, set[GrammarRule]]]:
    """Bodies that are never empty and always productive, of what `start` reaches, and what each may call.

    Start itself may be empty.
    """
    called = _reachable(bodies, start)
    bodies = {rule: body for rule, body in bodies.items() if rule in called}
    empty = _least(bodies, called, may_be_empty)
    if empty:
        maybe = {rule: optional(RuleCall(rule)) for rule in empty}
        bodies = {
            rule: body
            if rule not in empty and empty.isdisjoint(called[rule])
            else nonempty(substitute(body, maybe.get))
            for rule, body in bodies.items()
        }
        start = substitute(start, maybe.get)
    endless = bodies.keys() - _least(bodies, called, may_end)
    if endless:
        cut = dict.fromkeys(endless, NEVER)
        bodies = {rule: substitute(body, cut.get) for rule, body in bodies.items() if rule not in endless}
        start = substitute(start, cut.get)
    return bodies, start, called


def plain_substitute(expr: Expr, replace: Callable[[GrammarRule], Expr | None]) -> Expr:
    """The expression with calls replaced (None: kept); repeats of what may be empty become repeats of what may not."""
    kind = type(expr)
    if kind is Literal or kind is CharClass:
        return expr
    match expr:
        case RuleCall(rule):
            return replace(rule) or expr
        case Seq(items) | Alt(items):
            new = [plain_substitute(i, replace) for i in items]
            if all(map(is_, new, items)):
                return expr
            return seq(*new) if isinstance(expr, Seq) else alt(*new)
        case Repeat(item, minimum, maximum):
            changed = plain_substitute(item, replace)
            return expr if changed is item else repeat(changed, minimum, maximum)
        case AutomatonExpr(edges, accepting):
            return AutomatonExpr(
                tuple(tuple((plain_substitute(e, replace), t) for e, t in out) for out in edges), accepting
            )
    return expr


def plain_calls(expr: Expr) -> set[GrammarRule]:
    """All rules that an expression calls."""
    found: set[GrammarRule] = set()
    work = [expr]
    while work:
        item = work.pop()
        if type(item) is RuleCall:
            found.add(item.rule)
        elif type(item) is Seq or type(item) is Alt:
            work += item.items
        elif type(item) is Repeat:
            work.append(item.item)
        elif type(item) is AutomatonExpr:
            work += (e for out in item.edges for e, _ in out)
    return found


def _reachable(bodies: Bodies, start: Expr) -> dict[GrammarRule, set[GrammarRule]]:
    """The rules that are reached, and those that each calls."""
    found: dict[GrammarRule, set[GrammarRule]] = {}
    work = list(calls(start))
    while work:
        rule = work.pop()
        if rule in bodies and rule not in found:
            found[rule] = calls(bodies[rule])
            work += found[rule]
    return found


Holds = Callable[[Expr, set[GrammarRule], Bodies], bool]


def _least(bodies: Bodies, called: dict[GrammarRule, set[GrammarRule]], holds: Holds) -> set[GrammarRule]:
    """The least set of rules for which a property holds, the property of a call being that of its rule."""
    callers: dict[GrammarRule, list[GrammarRule]] = {}
    for rule, inner in called.items():
        for other in inner:
            callers.setdefault(other, []).append(rule)
    found: set[GrammarRule] = set()
    failed: set[GrammarRule] = set()
    work = list(bodies)
    while work:
        rule = work.pop()
        if holds(bodies[rule], found, bodies):
            found.add(rule)
            again = failed.intersection(callers.get(rule, ()))
            failed -= again
            work += again
        else:
            failed.add(rule)
    return found


def plain_may_be_empty(expr: Expr, empty: set[GrammarRule], bodies: Bodies) -> bool:
    kind = type(expr)
    if kind is Literal or kind is CharClass:
        return expr == EMPTY
    match expr:
        case RuleCall(rule):
            return rule in empty
        case Seq(items):
            return all(plain_may_be_empty(i, empty, bodies) for i in items)
        case Alt(items):
            return any(plain_may_be_empty(i, empty, bodies) for i in items)
        case Repeat(item, minimum, _):
            return minimum == 0 or plain_may_be_empty(item, empty, bodies)
    return plain_nullable(expr)


def plain_may_end(expr: Expr, productive: set[GrammarRule], bodies: Bodies) -> bool:
    kind = type(expr)
    if kind is Literal or kind is CharClass:
        return True
    match expr:
        case RuleCall(rule):
            return rule in productive or rule not in bodies
        case Seq(items):
            return all(plain_may_end(i, productive, bodies) for i in items)
        case Alt(items):
            return any(plain_may_end(i, productive, bodies) for i in items)
        case Repeat(item, minimum, _):
            return minimum == 0 or plain_may_end(item, productive, bodies)
    return True


substitute, calls = compiled(plain_substitute), compiled(plain_calls)
may_be_empty, may_end = compiled(plain_may_be_empty), compiled(plain_may_end)
