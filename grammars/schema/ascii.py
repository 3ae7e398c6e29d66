"""A grammar of JSON without characters beyond ASCII: those come as escapes only."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from sgl.grammars.algebra import charset
from sgl.grammars.algebra.expr import (
    NEVER,
    Alt,
    Bytes,
    Call,
    Chars,
    Expr,
    Graph,
    Joined,
    Literal,
    OtherThan,
    Repeat,
    Rule,
    Seq,
    Words,
    alt,
    repeat,
    seq,
    words,
)
from sgl.grammars.algebra.marks import BEGIN

_ASCII: charset.CharSet = ((0, 0x7F),)
_BEGIN = bytes((BEGIN,))


def ascii_only(expr: Expr) -> Expr:
    """The same grammar without raw characters beyond ASCII; rules are rewritten when they are first needed."""
    return _Rewriting().of(expr)


class _Rewriting:
    def __init__(self) -> None:
        self._rules: dict[Rule, Rule] = {}
        self._done: dict[int, tuple[Expr, Expr]] = {}

    def of(self, expr: Expr) -> Expr:
        """Shared parts stay shared; what was rewritten is kept alive, so that its id stays its own."""
        found = self._done.get(id(expr))
        if found is None:
            found = self._done[id(expr)] = expr, self._rewritten(expr)
        return found[1]

    def _rewritten(self, expr: Expr) -> Expr:
        match expr:
            case Chars(chars):
                kept = charset.intersect(chars, _ASCII)
                return Chars(kept) if kept else NEVER
            case Bytes(mask, _):
                return Bytes(mask)  # what counts as plain text in the masks may be beyond ASCII
            case Literal(data):
                return expr if data.isascii() or data == _BEGIN else NEVER
            case Words(literals):
                return words(w for w in literals if w.isascii())
            case Seq(items):
                return seq(*map(self.of, items))
            case Alt(items):
                return alt(*map(self.of, items))
            case Repeat(item, minimum, maximum):
                return repeat(self.of(item), minimum, maximum)
            case Graph(edges, accepting):
                return Graph(tuple(tuple((self.of(e), t) for e, t in out) for out in edges), accepting)
            case Joined():
                return self._joined(expr)
            case OtherThan():
                return self._other_than(expr)
            case Call(rule):
                return Call(self._rule(rule))
        return expr

    def _joined(self, expr: Joined) -> Expr:
        parts = tuple(replace(part, item=self.of(part.item)) for part in expr.parts)
        extra = None if expr.extra is None else self.of(expr.extra)
        return replace(expr, parts=parts, extra=extra)

    def _other_than(self, expr: OtherThan) -> Expr:
        leaving = {fork: self.of(e) for fork, e in expr.leaving.items()}
        spelled = {char: self.of(e) for char, e in expr.spelled.items()}
        return replace(expr, text=self.of(expr.text), leaving=leaving, spelled=spelled, mark=0)

    def _rule(self, rule: Rule) -> Rule:
        if rule not in self._rules:
            end = None if rule.end is None else partial(_escaped, rule.end)
            self._rules[rule] = Rule(rule.name, lambda: self.of(rule.build()), end)
        return self._rules[rule]


def _escaped(end: Callable[[], bytes]) -> bytes:
    """The end of a string with its characters beyond ASCII as escapes."""
    return "".join(c if c.isascii() else json.dumps(c)[1:-1] for c in end().decode()).encode()
