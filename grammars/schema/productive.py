"""Rules that no finite text can satisfy, such as an object that requires itself."""

from __future__ import annotations

from sgl.grammars.expr import Alt, Call, Expr, Graph, Joined, Repeat, Rule, Seq, Words


def unproductive(rules: list[Rule]) -> set[Rule]:
    """The rules that can never end, found as the complement of the least fixed point of those that can."""
    waiting = {rule: rule.build() for rule in reversed(rules)}  # what a rule calls mostly comes after it
    before = len(waiting) + 1
    while len(waiting) < before:
        before = len(waiting)
        for rule, body in list(waiting.items()):
            if _ends(body, waiting):
                del waiting[rule]
    return set(waiting)


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
            return _graph_ends(expr, waiting)
    return True


def _list_ends(joined: Joined, waiting: dict[Rule, Expr]) -> bool:
    if not all(_ends(part.item, waiting) for part in joined.parts if part.required):
        return False
    required = sum(part.required for part in joined.parts)
    if joined.maximum is not None and joined.maximum < max(required, joined.minimum):
        return False
    if joined.minimum <= required:
        return True
    able = sum(_ends(part.item, waiting) for part in joined.parts)
    return able >= joined.minimum or (joined.extra is not None and _ends(joined.extra, waiting))


def _graph_ends(graph: Graph, waiting: dict[Rule, Expr]) -> bool:
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
