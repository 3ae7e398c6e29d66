"""Rules that no finite text can satisfy, such as an object that requires itself."""

from __future__ import annotations

from sgl.grammars.expr import Alt, Call, Expr, Graph, Joined, Repeat, Rule, Seq, Words


def unproductive(rules: list[Rule]) -> set[Rule]:
    """The rules that can never end, found as the complement of the least fixed point of those that can."""
    waiting = {rule: rule.build() for rule in rules}
    while True:
        ending = [rule for rule, body in waiting.items() if _ends(body, waiting)]
        if not ending:
            return set(waiting)
        for rule in ending:
            del waiting[rule]


def _ends(expr: Expr, waiting: dict[Rule, Expr]) -> bool:
    match expr:
        case Call(rule):
            return rule not in waiting
        case Seq(items):
            return all(_ends(item, waiting) for item in items)
        case Alt(items):
            return any(_ends(item, waiting) for item in items)
        case Repeat(item, minimum, _):
            return minimum == 0 or _ends(item, waiting)
        case Words(literals):
            return bool(literals)
        case Joined():
            return _list_ends(expr, waiting)
        case Graph():
            return True
    return True


def _list_ends(joined: Joined, waiting: dict[Rule, Expr]) -> bool:
    if not all(_ends(part.item, waiting) for part in joined.parts if part.required):
        return False
    if joined.minimum <= sum(part.required for part in joined.parts):
        return True
    able = sum(_ends(part.item, waiting) for part in joined.parts)
    return able >= joined.minimum or (joined.extra is not None and _ends(joined.extra, waiting))
