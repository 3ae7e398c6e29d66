"""The rules of one grammar by name: defined once each, called from anywhere."""

from __future__ import annotations

from sgl.grammars.algebra.expr import EMPTY, NEVER, Call, Chars, Expr, Literal, Rule, Seq, alt, seq, words
from sgl.grammars.ebnf.source import Source, nearest

_TRIE_FROM = 8


def any_of(found: list[Expr], after: Expr = EMPTY) -> Expr:
    """Alternatives; many literals among them, each with `after` behind it, become one trie."""
    spelled = {e: data for e in found if (data := _spelled(e, after)) is not None} if len(found) >= _TRIE_FROM else {}
    if len(spelled) < _TRIE_FROM:
        return alt(*found)
    return alt(seq(words(spelled.values()), after), *(e for e in found if e not in spelled))


def _spelled(expr: Expr, after: Expr) -> bytes | None:
    """The bytes of a literal that stands before `after`."""
    first = expr.items[0] if isinstance(expr, Seq) else expr
    return first.data if isinstance(first, Literal) and seq(first, after) == expr else None


class RuleTable:
    """Bodies speak of rules by `Call`; a repeat's item may still be empty. `before` comes before the start rule."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.bodies: dict[Rule, Expr] = {}
        self.before: Expr = EMPTY
        self._rules: dict[str, Rule] = {}
        self._called: dict[str, int] = {}
        self._defined: dict[str, int] = {}
        self._leaves: dict[Expr, Expr] = {}

    def rule(self, name: str) -> Rule:
        found = self._rules.get(name)
        if found is None:
            found = self._rules[name] = Rule(name, lambda: NEVER)
        return found

    def call(self, name: str, at: int) -> Expr:
        self._called.setdefault(name, at)
        return Call(self.rule(name))

    def define(self, name: str, at: int, body: Expr) -> None:
        if name in self._defined:
            self.source.invalid(f"the rule {name!r} is defined twice", at)
        self._defined[name] = at
        self.bodies[self.rule(name)] = body

    def defined_at(self, name: str) -> int:
        return self._defined[name]

    def leaf(self, expr: Expr) -> Expr:
        """A part without calls as a rule of its own, so that nothing has to look into it again; a class as it is."""
        if isinstance(expr, Chars):
            return expr
        found = self._leaves.get(expr)
        if found is None:
            rule = Rule("a terminal", lambda: NEVER)
            self.bodies[rule] = expr
            found = self._leaves[expr] = Call(rule)
        return found

    def start(self, name: str) -> Rule:
        """The start rule, once every called rule is known to be defined."""
        for called, at in self._called.items():
            if called not in self._defined:
                self.source.invalid(f"the rule {called!r} is not defined{nearest(called, self._defined)}", at)
        if name not in self._defined:
            self.source.invalid(f"there is no start rule {name!r}{nearest(name, self._defined)}", 0)
        return self.rule(name)
