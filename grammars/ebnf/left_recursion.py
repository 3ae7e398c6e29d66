"""Left recursion taken out, exactly.

Rules that begin with each other are linear equations A = base + B R + ..., whose least solution is base R* (a matrix
star when there are several; Arden's rule). A rule on its own that also ends in itself,

    A = atom | U A | A P A | A Q,

has the solution (U* atom) (P U* atom | Q)*, in which no A remains at either end: what is ambiguous in the nesting of
operators costs no threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from sgl.grammars.algebra.expr import EMPTY, AutomatonExpr, Expr, GrammarRule, RuleCall, alt, nonempty, nullable, seq
from sgl.grammars.ebnf.epsilon_removal import Bodies, calls
from sgl.grammars.ebnf.left_corners import Heads, alternatives, left_calls, sequence, split_by_left_calls, tail_calls

Edge = tuple[Expr, int]
Edges = Mapping[GrammarRule, list[GrammarRule]]


def remove_left_recursion(
    bodies: Bodies, called: Mapping[GrammarRule, set[GrammarRule]]
) -> tuple[Bodies, set[GrammarRule]]:
    """Equal rules none of which can call itself before a byte is read, and those of them that are recursive.

    The bodies must never be empty; `called` are the rules that each may call.
    """
    nested = recursive(bodies, called.__getitem__)
    groups = components(nested, lambda rule: left_calls(bodies[rule]))
    if not groups:
        return bodies, set(nested)
    found = dict(bodies)
    for group in groups:
        _solve(found, set(group))
    return found, set(recursive(nested, lambda rule: calls(found[rule])))  # no others have become so


def _solve(bodies: Bodies, group: set[GrammarRule]) -> None:
    inner = _merged(bodies, group)
    for rule in inner:
        _take_in_tails(bodies, rule)
    if len(inner) == 1:
        rule = inner[0]
        bodies[rule] = _alone(rule, bodies[rule])
    else:
        _together(bodies, inner)


def _merged(bodies: Bodies, group: set[GrammarRule]) -> list[GrammarRule]:
    """Put members that do not begin with themselves into those that begin with them; the members that stay."""
    left = [rule for rule in bodies if rule in group]
    while True:
        passing = [rule for rule in left if len(left) > 1 and rule not in left_calls(bodies[rule])]
        if not passing:
            return left
        rule = passing[-1]
        left.remove(rule)
        for other in left:
            heads, base = split_by_left_calls(bodies[other], {rule})
            if heads:
                bodies[other] = alt(_distribute(bodies[rule], heads[rule]), base)


def _distribute(body: Expr, rest: Expr) -> Expr:
    return alt(*(seq(item, rest) for item in alternatives(body))) if rest != EMPTY else body


def _take_in_tails(bodies: Bodies, rule: GrammarRule) -> None:
    """Where the rule ends in another that ends in it (`expr: unary | ...`, `unary: "-" expr`), put that one's body."""
    ends = tail_calls(bodies[rule])
    for other in [r for r in bodies if r in ends]:
        tails = tail_calls(bodies[other])
        if other is not rule and rule in tails and other not in tails:
            found = [_ended(item, other, bodies[other]) for item in alternatives(bodies[rule])]
            bodies[rule] = alt(*found)


def _ended(item: Expr, rule: GrammarRule, body: Expr) -> Expr:
    items = sequence(item)
    if not items or items[-1] != RuleCall(rule):
        return item
    return alt(*(seq(*items[:-1], end) for end in alternatives(body)))


def _alone(rule: GrammarRule, body: Expr) -> Expr:
    heads, base = split_by_left_calls(body, {rule})
    unary, atoms = _split_tails(base, rule)
    binary, postfix = _split_tails(nonempty(heads[rule]), rule)
    operand = [*((u, 0) for u in unary), *((a, 1) for a in atoms)]
    operator = [*((p, 0) for p in binary), *((q, 1) for q in postfix)]
    return AutomatonExpr((tuple(operand), tuple(operator)), (False, True))


def _split_tails(expr: Expr, rule: GrammarRule) -> tuple[list[Expr], list[Expr]]:
    """(what comes before a last call of the rule, the alternatives that do not end in it)."""
    before: list[Expr] = []
    others: list[Expr] = []
    for item in alternatives(expr):
        items = sequence(item)
        if items and items[-1] == RuleCall(rule):
            before.append(seq(*items[:-1]))
        else:
            others.append(item)
    return before, others


def _together(bodies: Bodies, group: list[GrammarRule]) -> None:
    """The matrix star as one graph a rule: a state for every member that may have been read so far."""
    members = set(group)
    peeled = [split_by_left_calls(bodies[rule], members) for rule in group]
    same = _units(group, [heads for heads, _ in peeled])
    steps: list[list[Edge]] = [[] for _ in group]
    for state in range(len(group)):
        for read in same[state]:
            for target, (heads, _) in enumerate(peeled):
                steps[state] += _edge(heads, group[read], target)
    start = [(base, i + 1) for i, (_, base) in enumerate(peeled)]
    for i, rule in enumerate(group):
        accepting = [False, *(i in same[state] for state in range(len(group)))]
        bodies[rule] = AutomatonExpr(tuple(map(tuple, (start, *steps))), tuple(accepting))


def _edge(heads: Heads, read: GrammarRule, target: int) -> Iterator[Edge]:
    if read in heads:
        for item in alternatives(nonempty(heads[read])):
            yield item, target + 1


def _units(group: list[GrammarRule], heads: list[Heads]) -> list[set[int]]:
    """For every member those that it is by itself, by unit productions."""
    found = [{i} for i in range(len(group))]
    changed = True
    while changed:
        changed = False
        for target, out in enumerate(heads):
            units = {i for i, rule in enumerate(group) if rule in out and nullable(out[rule])}
            for reached in found:
                if reached & units and target not in reached:
                    reached.add(target)
                    changed = True
    return found


def components(
    rules: Iterable[GrammarRule], targets: Callable[[GrammarRule], set[GrammarRule]]
) -> list[list[GrammarRule]]:
    """Groups of rules that reach each other or themselves (Kosaraju); edges out of `rules` are left out.

    Their order, and that within each, does not change from run to run.
    """
    place = {rule: i for i, rule in enumerate(rules)}
    called = ((rule, [t for t in targets(rule) if t in place]) for rule in place)
    edges = {rule: sorted(found, key=place.__getitem__) for rule, found in called if found}
    back: dict[GrammarRule, list[GrammarRule]] = {rule: [] for rule in edges}
    for rule, out in edges.items():
        for target in out:
            if target in edges:
                back[target].append(rule)
    groups, left = [], set(edges)
    for root in reversed(_postorder(edges, edges, set(edges))):
        group = _postorder(back, [root], left)
        if len(group) > 1 or (group and root in edges[root]):
            groups.append(sorted(group, key=place.__getitem__))
    return groups


def recursive(rules: Iterable[GrammarRule], called: Callable[[GrammarRule], set[GrammarRule]]) -> list[GrammarRule]:
    """The rules that reach themselves."""
    return [rule for group in components(rules, called) for rule in group]


def _postorder(edges: Edges, roots: Iterable[GrammarRule], left: set[GrammarRule]) -> list[GrammarRule]:
    """A depth-first walk through what is left, which it takes away."""
    order: list[GrammarRule] = []
    for root in roots:
        work = [(root, False)]
        while work:
            rule, done = work.pop()
            if done:
                order.append(rule)
            elif rule in left:
                left.remove(rule)
                work.append((rule, True))
                work += [(target, False) for target in edges[rule] if target in left]
    return order
