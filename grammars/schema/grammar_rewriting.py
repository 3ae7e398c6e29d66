"""Rewriting a grammar of JSON leaf by leaf: its structure stays, and so does what it shares."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from sgl.grammars.algebra.charset import CharSet
from sgl.grammars.algebra.expr import (
    Alt,
    AutomatonExpr,
    ByteClass,
    CharClass,
    CopiedText,
    Expr,
    GrammarRule,
    Literal,
    LiteralSet,
    NameComplement,
    Repeat,
    RuleCall,
    SeparatedList,
    Seq,
    alt,
    repeat,
    seq,
    words,
)


class GrammarRewriting:
    """What the leaves become is said by `chars`, `byte_set`, `copied` and `data`, the text of an end by `end`.

    Rules are rewritten when they are first needed.
    """

    def __init__(self) -> None:
        self._rules: dict[GrammarRule, GrammarRule] = {}
        self._done: dict[int, tuple[Expr, Expr]] = {}

    def chars(self, chars: CharSet) -> Expr:
        raise NotImplementedError

    def byte_set(self, expr: ByteClass) -> Expr:
        raise NotImplementedError

    def data(self, data: bytes) -> tuple[bytes, ...]:
        """The texts in the place of one."""
        raise NotImplementedError

    def end(self, data: bytes) -> bytes:
        raise NotImplementedError

    def copied(self, expr: CopiedText) -> Expr:
        raise NotImplementedError

    def of(self, expr: Expr) -> Expr:
        """Shared parts stay shared; what was rewritten is kept alive, so that its id stays its own."""
        found = self._done.get(id(expr))
        if found is None:
            found = self._done[id(expr)] = expr, self._rewritten(expr)
        return found[1]

    def _rewritten(self, expr: Expr) -> Expr:
        match expr:
            case CharClass(chars):
                return self.chars(chars)
            case ByteClass():
                return self.byte_set(expr)
            case Literal(data):
                return self._words((data,))
            case LiteralSet(literals):
                return self._words(literals)
            case Seq(items):
                return seq(*map(self.of, items))
            case Alt(items):
                return alt(*map(self.of, items))
            case Repeat(item, minimum, maximum):
                return repeat(self.of(item), minimum, maximum)
            case AutomatonExpr(edges, accepting):
                return AutomatonExpr(tuple(tuple((self.of(e), t) for e, t in out) for out in edges), accepting)
            case SeparatedList():
                return self._joined(expr)
            case NameComplement():
                return self._other_than(expr)
            case RuleCall(rule):
                return RuleCall(self._rule(rule))
            case CopiedText():
                return self.copied(expr)
        return expr

    def _words(self, literals: tuple[bytes, ...]) -> Expr:
        return words(data for literal in literals for data in self.data(literal))

    def _joined(self, expr: SeparatedList) -> Expr:
        return replace(
            expr,
            parts=tuple(replace(part, item=self.of(part.item)) for part in expr.parts),
            extra=None if expr.extra is None else self.of(expr.extra),
            separator=self.of(expr.separator),
            opening=self.of(expr.opening),
            closing=self.of(expr.closing),
        )

    def _other_than(self, expr: NameComplement) -> Expr:
        leaving = {fork: self.of(e) for fork, e in expr.leaving.items()}
        spelled = {char: self.of(e) for char, e in expr.spelled.items()}
        return replace(expr, text=self.of(expr.text), leaving=leaving, spelled=spelled, mark=0)

    def _rule(self, rule: GrammarRule) -> GrammarRule:
        if rule not in self._rules:
            end = None if rule.end is None else partial(_ended, self.end, rule.end)
            self._rules[rule] = GrammarRule(rule.name, lambda: self.of(rule.build()), end)
        return self._rules[rule]


def _ended(rewritten: Callable[[bytes], bytes], end: Callable[[], bytes]) -> bytes:
    return rewritten(end())


def called(expr: Expr) -> set[GrammarRule]:
    """The rules that an expression calls itself."""
    found: set[GrammarRule] = set()
    work: list[Expr] = [expr]
    while work:
        item = work.pop()
        match item:
            case RuleCall(rule):
                found.add(rule)
            case Seq(items) | Alt(items):
                work += items
            case Repeat(inner):
                work.append(inner)
            case AutomatonExpr(edges):
                work += (e for out in edges for e, _ in out)
            case SeparatedList(parts, extra, separator, opening=opening, closing=closing):
                work += [
                    separator,
                    opening,
                    closing,
                    *(part.item for part in parts),
                    *([] if extra is None else [extra]),
                ]
    return found
