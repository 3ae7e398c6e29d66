"""From a table of rules to one expression of the algebra."""

from __future__ import annotations

from collections.abc import Callable

from sgl.grammars.algebra.expr import Alt, Chars, Expr, Graph, Literal, Repeat, Rule, Seq
from sgl.grammars.ebnf.epsilon import Bodies, substitute, without_empty
from sgl.grammars.ebnf.factoring import Factoring
from sgl.grammars.ebnf.recursion import without_left_recursion

_MOST_INLINED = 64


def assemble(bodies: Bodies, start: Expr) -> Expr:
    """The language of `start`; rules get their final bodies, which are made when they are first needed.

    Returns:
        NEVER when the start matches no text at all.
    """
    bodies, start = without_empty(bodies, start)
    return _Assembly(*without_left_recursion(bodies)).ready(start)


class _Assembly:
    """Factors bodies and puts small rules that are not recursive in the place of their calls."""

    def __init__(self, bodies: Bodies, nested: set[Rule]) -> None:
        self._bodies = bodies
        self._recursive = nested
        self._factoring = Factoring(bodies, nested)
        self._ready: dict[Rule, Expr] = {}
        self._small: dict[Rule, Expr | None] = {}
        for rule in bodies:
            rule.build = self._builder(rule)

    def _builder(self, rule: Rule) -> Callable[[], Expr]:
        return lambda: self._body(rule)

    def ready(self, expr: Expr) -> Expr:
        return substitute(self._factoring.factored(expr), self._inlined)

    def _body(self, rule: Rule) -> Expr:
        found = self._ready.get(rule)
        if found is None:
            found = self._ready[rule] = self.ready(self._bodies[rule])
        return found

    def _inlined(self, rule: Rule) -> Expr | None:
        if rule not in self._small:
            known = rule in self._bodies and rule not in self._recursive
            self._small[rule] = self._body(rule) if known and size(self._body(rule)) <= _MOST_INLINED else None
        return self._small[rule]


def size(expr: Expr) -> int:
    """About how many nodes the expression takes."""
    match expr:
        case Literal(data):
            return len(data)
        case Chars(chars):
            return len(chars)
        case Seq(items) | Alt(items):
            return 1 + sum(map(size, items))
        case Repeat(item, _, _):
            return 1 + size(item)
        case Graph(edges, _):
            return sum(1 + size(e) for out in edges for e, _ in out)
    return 1
