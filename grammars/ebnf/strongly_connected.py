"""Strongly connected components of a graph of rules, in an order that does not change from run to run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from sgl.grammars.algebra.expr import GrammarRule

Edges = Mapping[GrammarRule, list[GrammarRule]]


def components(
    rules: Iterable[GrammarRule], targets: Callable[[GrammarRule], set[GrammarRule]]
) -> list[list[GrammarRule]]:
    """Groups of rules that reach each other or themselves (Kosaraju); edges out of `rules` are left out."""
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
