"""From a table of rules to one expression of the algebra."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sgl.grammars.algebra.expr import Alt, AutomatonExpr, CharClass, Expr, GrammarRule, Literal, Repeat, RuleCall, Seq
from sgl.grammars.algebra.grammar_core_extension import compiled
from sgl.grammars.ebnf.epsilon_removal import Bodies, calls, remove_epsilon, substitute
from sgl.grammars.ebnf.left_recursion import remove_left_recursion

_MOST_INLINED = 64


def assemble(bodies: Bodies, start: Expr) -> Expr:
    """The language of `start`; rules get their final bodies, which are made when they are first needed.

    Returns:
        NEVER when the start matches no text at all.
    """
    bodies, start, called = remove_epsilon(bodies, start)
    return _Assembly(*remove_left_recursion(bodies, called)).ready(start)


class _Assembly:
    """Puts small rules that are not recursive in the place of their calls."""

    def __init__(self, bodies: Bodies, nested: set[GrammarRule]) -> None:
        self._bodies = bodies
        self._recursive = nested
        self._ready: dict[GrammarRule, Expr] = {}
        self._sizes = _Sizes(bodies, nested)
        self._awaited: set[GrammarRule] = set()
        self._small: dict[GrammarRule, Expr | None] = {}
        for rule in bodies:
            rule.build = self._builder(rule)

    def _builder(self, rule: GrammarRule) -> Callable[[], Expr]:
        return lambda: self._body(rule)

    def ready(self, expr: Expr) -> Expr:
        return substitute(expr, self._inlined)

    def _body(self, rule: GrammarRule) -> Expr:
        """Of a long chain of rules the last ones come first, so that nothing nests as deeply as the chain."""
        work = [rule]
        while rule not in self._ready:
            last = work[-1]
            waiting = [] if last in self._awaited else self._plain_calls(last)
            self._awaited.add(last)
            if waiting:
                work += waiting
                continue
            if last not in self._ready:
                self._ready[last] = self.ready(self._bodies[last])
            work.pop()
        return self._ready[rule]

    def _plain_calls(self, rule: GrammarRule) -> list[GrammarRule]:
        """The rules whose bodies may be put in the place of their calls."""
        found = calls(self._bodies[rule])
        plain = [r for r in found if r in self._bodies and r not in self._recursive and r not in self._ready]
        return [r for r in plain if self._sizes.of(r) <= _MOST_INLINED]

    def _inlined(self, rule: GrammarRule) -> Expr | None:
        if rule not in self._small:
            known = rule in self._bodies and rule not in self._recursive
            self._small[rule] = self._body(rule) if known and self._sizes.of(rule) <= _MOST_INLINED else None
        return self._small[rule]


class _Sizes:
    """How large bodies become once small rules are put into them, without making them: most are never needed."""

    def __init__(self, bodies: Bodies, nested: set[GrammarRule]) -> None:
        self._bodies = bodies
        self._nested = nested
        self._known: dict[GrammarRule, int] = {}

    def of(self, rule: GrammarRule) -> int:
        """About how many nodes; of a long chain of rules the last ones come first."""
        work = [rule]
        while work:
            last = work[-1]
            waiting = [r for r in calls(self._bodies[last]) if self._is_open(r)] if last not in self._known else []
            if waiting:
                work += waiting
                continue
            if last not in self._known:
                self._known[last] = size(self._bodies[last], self._known, _MOST_INLINED)
            work.pop()
        return self._known[rule]

    def _is_open(self, rule: GrammarRule) -> bool:
        return rule in self._bodies and rule not in self._nested and rule not in self._known


def plain_size(expr: Expr, known: Mapping[GrammarRule, int], most: int) -> int:
    """About how many nodes; rules of a known size up to `most` count as what they are, others as one."""
    match expr:
        case RuleCall(rule):
            found = known.get(rule, most + 1)
            return found if found <= most else 1
        case Literal(data):
            return len(data)
        case CharClass(chars):
            return len(chars)
        case Seq(items) | Alt(items):
            return 1 + sum(plain_size(item, known, most) for item in items)
        case Repeat(item, _, _):
            return 1 + plain_size(item, known, most)
        case AutomatonExpr(edges, _):
            return sum(1 + plain_size(e, known, most) for out in edges for e, _ in out)
    return 1


size = compiled(plain_size)
