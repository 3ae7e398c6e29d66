"""Rules that no finite text can satisfy, such as an object that requires itself."""

from __future__ import annotations

from sgl.grammars.algebra.expr import (
    Alt,
    AutomatonExpr,
    Expr,
    GrammarRule,
    Literal,
    LiteralSet,
    Repeat,
    RuleCall,
    SeparatedList,
    Seq,
)


def unproductive_rules(rules: list[GrammarRule]) -> set[GrammarRule]:
    """The rules that can never end, found as the complement of the least fixed point of those that can."""
    waiting = {rule: rule.build() for rule in reversed(rules)}  # what a rule calls mostly comes after it
    before = len(waiting) + 1
    while len(waiting) < before:
        before = len(waiting)
        for rule, body in list(waiting.items()):
            if _ends(body, waiting):
                del waiting[rule]
    return set(waiting)


def _ends(expr: Expr, waiting: dict[GrammarRule, Expr]) -> bool:
    if isinstance(expr, RuleCall):
        return expr.rule not in waiting
    if isinstance(expr, Seq):
        return _all_end(expr.items, waiting)
    if isinstance(expr, Alt):
        return any(_ends(item, waiting) for item in expr.items)
    if isinstance(expr, SeparatedList):
        return _list_ends(expr, waiting)
    if isinstance(expr, Repeat):
        return expr.minimum == 0 or _ends(expr.item, waiting)
    if isinstance(expr, AutomatonExpr):
        return _graph_ends(expr, waiting)
    return bool(expr.words) if isinstance(expr, LiteralSet) else True


def _all_end(items: tuple[Expr, ...], waiting: dict[GrammarRule, Expr]) -> bool:
    """Literals and the like always end, and are most of the items."""
    return all(type(item) is Literal or _ends(item, waiting) for item in items)


def _list_ends(joined: SeparatedList, waiting: dict[GrammarRule, Expr]) -> bool:
    if not all(_ends(part.item, waiting) for part in joined.parts if part.required):
        return False
    required = sum(part.required for part in joined.parts)
    if joined.maximum is not None and joined.maximum < max(required, joined.minimum):
        return False
    if joined.minimum <= required:
        return True
    able = sum(_ends(part.item, waiting) for part in joined.parts)
    return able >= joined.minimum or (joined.extra is not None and _ends(joined.extra, waiting))


def _graph_ends(graph: AutomatonExpr, waiting: dict[GrammarRule, Expr]) -> bool:
    """Whether a state that accepts is reached over items that can end."""
    reached, work = {0}, [0]
    while work:
        state = work.pop()
        if graph.accepting[state]:
            return True
        new = {target for item, target in graph.edges[state] if target not in reached and _ends(item, waiting)}
        reached |= new
        work += new
    return False
