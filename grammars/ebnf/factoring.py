"""Alternatives that begin alike said once, so that threads do not double with every level of nesting.

A body in which two ways on may begin with the same recursive rule, or with the same literal before one, is unfolded
into a graph: a state is the set of sequences still to come, as in Antimirov's partial derivatives, but over calls
instead of characters. A call is opened only where it hides what another way begins with. All other bodies stay.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from sgl.grammars.algebra.expr import (
    EMPTY,
    Alt,
    Call,
    Chars,
    Expr,
    Graph,
    Literal,
    Repeat,
    Rule,
    Seq,
    Within,
    alt,
    nonempty,
    nullable,
    optional,
    repeat,
    seq,
)
from sgl.grammars.ebnf.corners import alternatives, sequence
from sgl.grammars.ebnf.epsilon import Bodies, calls

_MOST_STATES = 100
_MOST_OPENED = 400
_LONGEST = 40
_PLAIN = (Call, Literal, Chars)
Sequence = tuple[Expr, ...]
Corner = Rule | bytes
_NONE: frozenset[Corner] = frozenset()


class Factoring:
    """Over the bodies of one grammar; `nested` are its recursive rules."""

    def __init__(self, bodies: Bodies, nested: set[Rule]) -> None:
        self._bodies = bodies
        self._nested = nested
        self._corners: dict[Rule, frozenset[Corner]] = {}
        self._known: dict[int, tuple[Expr, frozenset[Corner]]] = {}

    def factored(self, expr: Expr) -> Expr:
        """The same language; the expression itself where its ways on begin differently."""
        if self._nested.isdisjoint(calls(expr)) or not self._doubtful(expr, _NONE):
            return expr
        found = _Unfolding(self).graph(nonempty(expr))
        return optional(found) if nullable(expr) else found

    def opened(self, first: Expr) -> Iterator[Sequence] | None:
        """The sequences that an item stands for; None for what cannot be opened."""
        match first:
            case Call(rule) if rule in self._bodies:
                return map(sequence, alternatives(self._bodies[rule]))
            case Alt(items):
                return map(sequence, items)
            case Repeat(item, minimum, maximum):
                again = repeat(item, max(minimum - 1, 0), None if maximum is None else maximum - 1)
                return iter([(*sequence(item), *sequence(again)), *([()] if minimum == 0 else [])])
            case Graph():
                return self.opened(Within(first, 0))
            case Within(graph, state):
                ways = [(*sequence(e), Within(graph, target)) for e, target in graph.edges[state]]
                return iter([*ways, *([()] if graph.accepting[state] else [])])
        return None

    def corners(self, items: Iterable[Expr]) -> frozenset[Corner]:
        """The recursive rules and the literals that a sequence may begin with."""
        found = _NONE
        for item in items:
            corner = self._corner(item)
            found = found | corner if found else corner
            if not nullable(item):
                break
        return found

    def _corner(self, item: Expr) -> frozenset[Corner]:
        """Remembered by identity: an expression that is kept is never another one."""
        if isinstance(item, Call):
            return self._of_rule(item.rule)
        if isinstance(item, Literal):
            return frozenset((item.data,)) if item.data else _NONE
        if isinstance(item, Chars):
            return _NONE
        if isinstance(item, Within):
            return self._compound_corner(item)
        found = self._known.get(id(item))
        if found is None:
            found = self._known[id(item)] = item, self._compound_corner(item)
        return found[1]

    def _compound_corner(self, item: Expr) -> frozenset[Corner]:
        match item:
            case Seq(items):
                return self.corners(items)
            case Alt(items):
                return frozenset().union(*map(self._corner, items))
            case Repeat(inner, _, _):
                return self._corner(inner)
            case Graph():
                return self._corner(Within(item, 0))
            case Within(graph, state):
                return frozenset().union(*(self.corners((e, Within(graph, t))) for e, t in graph.edges[state]))
        return _NONE

    def _of_rule(self, rule: Rule) -> frozenset[Corner]:
        found = self._corners.get(rule)
        if found is None:
            body = self._bodies.get(rule)
            found = self._corner(body) if body is not None else frozenset()
            self._corners[rule] = found = found | {rule} if rule in self._nested else found
        return found

    def _doubtful(self, expr: Expr, after: frozenset[Corner]) -> bool:
        """Whether two ways on inside an expression, or past it, may begin alike."""
        if type(expr) in _PLAIN:
            return False
        match expr:
            case Alt(items):
                ways = [self._corner(i) | after if after and nullable(i) else self._corner(i) for i in items]
                return _overlap(ways) or any(self._doubtful(i, after) for i in items)
            case Seq(items):
                for item in reversed(items):
                    if self._doubtful(item, after):
                        return True
                    after = self._corner(item) | after if after and nullable(item) else self._corner(item)
            case Repeat(item, minimum, maximum):
                again = self._corner(item) if maximum != 1 else _NONE
                return (minimum != maximum and _overlap([again, after])) or self._doubtful(item, again | after)
            case Graph():
                return self._doubtful_graph(expr, after)
        return False

    def _doubtful_graph(self, graph: Graph, after: frozenset[Corner]) -> bool:
        for out, final in zip(graph.edges, graph.accepting, strict=True):
            ways = [self._corner(e) for e, _ in out]
            if _overlap([*ways, after] if final else ways) or any(self._doubtful(e, _NONE) for e, _ in out):
                return True
        return False


def _overlap(ways: Iterable[frozenset[Corner]]) -> bool:
    seen: set[Corner] = set()
    for way in ways:
        if not seen.isdisjoint(way):
            return True
        seen |= way
    return False


class _Unfolding:
    """One body as a graph; when that grows too large, what is left stays unopened."""

    def __init__(self, factoring: Factoring) -> None:
        self._of = factoring
        self._states: dict[frozenset[Sequence], int] = {}
        self._order: list[list[Sequence]] = []
        self._opened = 0

    def graph(self, expr: Expr) -> Expr:
        self._state([sequence(item) for item in alternatives(expr)])
        edges: list[tuple[tuple[Expr, int], ...]] = []
        accepting: list[bool] = []
        for paths in self._order:
            groups = self._groups(paths)
            accepting.append(groups.pop(EMPTY, None) is not None)
            edges.append(tuple(self._edges(groups)))
        return Graph(tuple(edges), tuple(accepting))

    def _state(self, paths: list[Sequence]) -> int:
        key = frozenset(paths)
        if key not in self._states:
            self._states[key] = len(self._order)
            self._order.append(list(dict.fromkeys(paths)))
        return self._states[key]

    def _edges(self, groups: dict[Expr, list[Sequence]]) -> Iterator[tuple[Expr, int]]:
        for first, rests in groups.items():
            if len(self._order) < _MOST_STATES:
                yield _whole(first), self._state(rests)
            else:
                yield _whole(seq(first, alt(*(seq(*rest) for rest in rests)))), self._state([()])

    def _groups(self, paths: list[Sequence]) -> dict[Expr, list[Sequence]]:
        """The paths by their first item (EMPTY for none), once no two begin alike as far as the limits allow."""
        groups: dict[Expr, list[Sequence]] = {}
        _add(groups, paths)
        while (first := self._clash(groups)) is not None:
            ways = self._of.opened(first)
            rests = groups.pop(first)
            opened = [(*way, *rest) for way in ways or () for rest in rests]
            self._opened += len(opened)
            _add(groups, opened)
        return groups

    def _clash(self, groups: dict[Expr, list[Sequence]]) -> Expr | None:
        """A first item to open: a compound one, or one that hides the beginning of another."""
        if self._opened > _MOST_OPENED or any(len(rest) > _LONGEST for rests in groups.values() for rest in rests):
            return None
        for first in groups:
            if isinstance(first, Alt | Repeat | Graph | Within):
                return first
        ways = {first: self._of.corners((first,)) for first in groups}
        for first, way in ways.items():
            others = [w for f, w in ways.items() if f is not first]
            if isinstance(first, Call) and any(not way.isdisjoint(w) for w in others):
                hidden = {first.rule} if first.rule in way else set()
                if not any(hidden & w for w in others) and self._of.opened(first) is not None:
                    return first
        return None


def _add(groups: dict[Expr, list[Sequence]], paths: Iterable[Sequence]) -> None:
    for path in paths:
        rests = groups.setdefault(path[0] if path else EMPTY, [])
        if path[1:] not in rests:
            rests.append(path[1:])


def _whole(expr: Expr) -> Expr:
    """With the rests of graphs as graphs of their own, for lowering."""
    match expr:
        case Within(graph, state):
            return _from(graph, state)
        case Seq(items):
            return seq(*map(_whole, items))
        case Alt(items):
            return alt(*map(_whole, items))
        case Repeat(item, minimum, maximum):
            return Repeat(_whole(item), minimum, maximum)
    return expr


def _from(graph: Graph, state: int) -> Expr:
    """The graph that starts in another state: 0 and that one change places."""
    place = {0: state, state: 0}
    order = [place.get(i, i) for i in range(len(graph.edges))]
    edges = tuple(tuple((e, place.get(t, t)) for e, t in graph.edges[i]) for i in order)
    return Graph(edges, tuple(graph.accepting[i] for i in order))
