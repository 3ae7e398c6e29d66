"""Terminals as single languages of characters: what operators on them and a lexer's way of reading them need.

A terminal in which a regex has lazy repeats or look-around is read as a lexer reads it, as one regex with all that it
is made of. Other terminals stay rules like any other.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from sgl.grammars.algebra import charset
from sgl.grammars.algebra.expr import (
    EMPTY,
    NEVER,
    Alt,
    AutomatonExpr,
    CharClass,
    Expr,
    GrammarRule,
    LazyRepeat,
    Literal,
    LiteralSet,
    Lookaround,
    Repeat,
    RuleCall,
    Seq,
    alt,
    length_bounds,
    repeat,
    seq,
)
from sgl.grammars.algebra.language_operations import combine
from sgl.grammars.ebnf.epsilon_removal import Bodies, calls
from sgl.grammars.ebnf.grammar_source import GrammarText
from sgl.grammars.errors import UnsupportedGrammarError
from sgl.grammars.regex import parse_ordered, parse_regex
from sgl.grammars.regex.ordered_matching import matched_texts

ANYTHING = Repeat(CharClass(charset.ANY), 0, None)
_SOMETHING = Repeat(CharClass(charset.ANY), 1, None)
_MAYBE_ORDERED = re.compile(r"\(\?<?[=!]|[*+?}]\?")


class TerminalPattern(NamedTuple):
    """A regex in a grammar and where it stands; `ordered` is what it is where its order tells, else None."""

    source: GrammarText
    at: int
    text: str
    flags: str
    ordered: Expr | None


def ordered_pattern(text: str, flags: str) -> Expr | None:
    """The regex as it is written if it has lazy repeats or look-around."""
    if not _MAYBE_ORDERED.search(text):
        return None
    found = parse_ordered(text, flags)
    return found if _has_order(found) else None


def _has_order(expr: Expr) -> bool:
    match expr:
        case LazyRepeat() | Lookaround():
            return True
        case Seq(items) | Alt(items):
            return any(map(_has_order, items))
        case Repeat(item):
            return _has_order(item)
    return False


def shortest(expr: Expr) -> Expr:
    """The texts no beginning of which is one: what a lexer takes that stops as soon as it may."""
    return combine([expr], [seq(expr, _SOMETHING)])


def other_than(expr: Expr) -> Expr:
    return combine([ANYTHING], [expr])


class TerminalTable:
    """Of a grammar and those that it imports; `bodies` are those of all rules."""

    def __init__(self, bodies: Bodies) -> None:
        self._bodies = bodies
        self._written: Bodies = {}
        self._patterns: dict[GrammarRule, TerminalPattern] = {}
        self._made: dict[GrammarRule, tuple[GrammarText, int, Callable[[], Expr]]] = {}
        self._names: set[GrammarRule] = set()
        self._ordered: dict[GrammarRule, bool] = {}
        self._open: list[GrammarRule] = []

    def name(self, rule: GrammarRule) -> None:
        self._names.add(rule)

    def pattern(self, rule: GrammarRule, pattern: TerminalPattern) -> None:
        self._patterns[rule] = pattern

    def later(self, source: GrammarText, at: int, make: Callable[[], Expr]) -> Expr:
        """A terminal that is made once all rules are read."""
        rule = GrammarRule("a terminal", lambda: NEVER)
        self._bodies[rule] = EMPTY
        self._made[rule] = source, at, make
        return RuleCall(rule)

    def settle(self, start: GrammarRule) -> None:
        """Give all terminals that are reached their final bodies."""
        if not (self._made or any(pattern.ordered is not None for pattern in self._patterns.values())):
            return
        self._written = dict(self._bodies)
        seen = {start}
        work = [start]
        while work:
            rule = work.pop()
            if rule in self._made or (self._is_terminal(rule) and self._reads_in_order(rule)):
                self._bodies[rule] = self._settled(rule)
            for called in calls(self._bodies[rule]) - seen if rule in self._bodies else ():
                seen.add(called)
                work.append(called)

    def _is_terminal(self, rule: GrammarRule) -> bool:
        return rule in self._names or rule in self._patterns

    def _settled(self, rule: GrammarRule) -> Expr:
        made = self._made.get(rule)
        if made is not None:
            source, at, make = made
            with source.inside(at):
                found = make()
            if found == NEVER:
                source.invalid("no text matches this terminal", at)
            return found
        return self._in_order(rule)

    def _in_order(self, rule: GrammarRule) -> Expr:
        pattern = self._patterns.get(rule) or self._first_ordered(rule)
        with pattern.source.inside(pattern.at):
            found = matched_texts(self._spelled(RuleCall(rule)))
        if found == NEVER or (isinstance(found, AutomatonExpr) and not found.edges[0]):
            what = "only the empty text" if found != NEVER else "no text"
            pattern.source.invalid(f"the regex /{pattern.text}/ of a terminal matches {what}", pattern.at)
        return found

    def _first_ordered(self, rule: GrammarRule) -> TerminalPattern:
        work = [rule]
        while True:
            found = work.pop()
            pattern = self._patterns.get(found)
            if pattern is not None and pattern.ordered is not None:
                return pattern
            work += (r for r in calls(self._written.get(found, EMPTY)) if self._reads_in_order(r))

    def _reads_in_order(self, rule: GrammarRule) -> bool:
        """Whether the terminal has a regex with lazy repeats or look-around in it."""
        found = self._ordered.get(rule)
        if found is None:
            self._ordered[rule] = False
            pattern = self._patterns.get(rule)
            if pattern is not None:
                found = pattern.ordered is not None
            else:
                inner = () if rule in self._made else calls(self._written.get(rule, EMPTY))
                found = any(self._reads_in_order(r) for r in inner)
            self._ordered[rule] = found
        return found

    def whole(self, expr: Expr) -> Expr:
        """The language of a terminal's expression, without calls."""
        return self._expanded(expr, self._language)

    def _language(self, rule: GrammarRule) -> Expr:
        if rule in self._made or self._reads_in_order(rule):
            return self._settled(rule)
        pattern = self._patterns.get(rule)
        return self.whole(self._body(rule)) if pattern is None else parse_regex(pattern.text, flags=pattern.flags)

    def _body(self, rule: GrammarRule) -> Expr:
        if rule not in self._written:
            raise UnsupportedGrammarError(f"{rule.name} in a terminal that is read as a whole", "the grammar")
        return self._written[rule]

    def _spelled(self, expr: Expr) -> Expr:
        """The terminal as one expression in order: wider alternatives come first, as Lark sorts them."""
        match expr:
            case Alt(items):
                return alt(*sorted(map(self._spelled, items), key=_width))
            case LiteralSet(literals):
                return alt(*map(Literal, sorted(literals, key=len, reverse=True)))
            case Seq(items):
                return seq(*map(self._spelled, items))
            case Repeat(item, least, most):
                return Repeat(self._spelled(item), least, most)
        return self._expanded(expr, self._spelling)

    def _spelling(self, rule: GrammarRule) -> Expr:
        if rule in self._made:
            source, at, _ = self._made[rule]
            source.unsupported("an operator on terminals together with look-around or lazy repeats", at)
        pattern = self._patterns.get(rule)
        if pattern is None:
            return self._spelled(self._body(rule))
        return pattern.ordered or parse_ordered(pattern.text, pattern.flags)

    def _expanded(self, expr: Expr, of: Callable[[GrammarRule], Expr]) -> Expr:
        match expr:
            case RuleCall(rule):
                return self._once(rule, of)
            case Seq(items):
                return seq(*(self._expanded(item, of) for item in items))
            case Alt(items):
                return alt(*(self._expanded(item, of) for item in items))
            case Repeat(item, least, most):
                return repeat(self._expanded(item, of), least, most)
        return expr

    def _once(self, rule: GrammarRule, of: Callable[[GrammarRule], Expr]) -> Expr:
        if rule in self._open:
            where = next((p for r in self._open if (p := self._patterns.get(r))), None)
            source, at = (where.source, where.at) if where else next(m[:2] for m in self._made.values())
            source.invalid(f"the terminal {rule.name!r} is part of itself", at)
        self._open.append(rule)
        try:
            return of(rule)
        finally:
            self._open.pop()


def _width(expr: Expr) -> tuple[float, int]:
    least, most = length_bounds(_plain(expr))
    return (-(float("inf") if most is None else most), -least)


def _plain(expr: Expr) -> Expr:
    """Lazy repeats as plain ones and look-around as nothing, to measure lengths."""
    match expr:
        case Lookaround():
            return EMPTY
        case Seq(items):
            return seq(*map(_plain, items))
        case Alt(items):
            return alt(*map(_plain, items))
        case Repeat(item, least, most) | LazyRepeat(item, least, most):
            return Repeat(_plain(item), least, most)
    return expr
