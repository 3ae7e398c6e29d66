"""The rules of one grammar by name: defined once each, called from anywhere."""

from __future__ import annotations

from sgl.grammars.algebra.expr import (
    EMPTY,
    NEVER,
    CharClass,
    Expr,
    GrammarRule,
    Literal,
    RuleCall,
    Seq,
    alt,
    seq,
    words,
)
from sgl.grammars.ebnf.grammar_source import GrammarText, nearest
from sgl.grammars.ebnf.lexer_terminals import TerminalPattern, TerminalTable

_TRIE_FROM = 8


def any_of(found: list[Expr], after: Expr = EMPTY) -> Expr:
    """Alternatives; many literals among them, each followed by `after`, become one trie."""
    spelled = {e: data for e in found if (data := _spelled(e, after)) is not None} if len(found) >= _TRIE_FROM else {}
    if len(spelled) < _TRIE_FROM:
        return alt(*found)
    return alt(seq(words(spelled.values()), after), *(e for e in found if e not in spelled))


def _spelled(expr: Expr, after: Expr) -> bytes | None:
    """The bytes of a literal before `after`."""
    first = expr.items[0] if isinstance(expr, Seq) else expr
    return first.data if isinstance(first, Literal) and seq(first, after) == expr else None


class RuleTable:
    """Bodies speak of rules by `RuleCall`; a repeat's item may still be empty. `before` comes before the start rule.

    The table of an imported grammar has separate names and shares the rest with that of its `importer`.
    """

    def __init__(self, source: GrammarText, importer: RuleTable | None = None) -> None:
        self.source = source
        self.bodies: dict[GrammarRule, Expr] = {} if importer is None else importer.bodies
        self.terminals: TerminalTable = TerminalTable(self.bodies) if importer is None else importer.terminals
        self.before: Expr = EMPTY
        self.declared: set[str] = set()
        self._rules: dict[str, GrammarRule] = {}
        self._adopted: dict[str, GrammarRule] = {}
        self._called: dict[str, int] = {}
        self._defined: dict[str, int] = {}
        self._leaves: dict[Expr, Expr] = {}
        self._regexes: dict[tuple[str, str], Expr] = {}

    def rule(self, name: str) -> GrammarRule:
        found = self._rules.get(name)
        if found is None:
            found = self._rules[name] = GrammarRule(name, lambda: NEVER)
        return found

    def call(self, name: str, at: int) -> Expr:
        self._called.setdefault(name, at)
        return RuleCall(self.rule(name))

    def define(self, name: str, at: int, body: Expr) -> None:
        if name in self._defined:
            self.source.invalid(f"the rule {name!r} is defined twice", at)
        self._defined[name] = at
        self.bodies[self.rule(name)] = body

    def adopt(self, name: str, at: int, rule: GrammarRule) -> None:
        """Another grammar's rule under a name of this one, which may have been called already."""
        if name in self._defined and self._adopted.get(name) is not rule:
            self.source.invalid(f"the rule {name!r} is defined twice", at)
        self._defined[name] = at
        self._adopted[name] = rule
        if self._rules.setdefault(name, rule) is not rule:
            self.bodies[self._rules[name]] = RuleCall(rule)

    def redefine(self, name: str, at: int, body: Expr, extend: bool) -> None:
        """Another body, or one more alternative, for a rule that is defined already, wherever it is called."""
        if name not in self._defined:
            self.source.invalid(f"the rule {name!r} is not defined{nearest(name, self._defined)}", at)
        rule = self._adopted.get(name) or self.rule(name)
        self.bodies[rule] = alt(self.bodies[rule], body) if extend else body

    def knows(self, name: str) -> bool:
        return name in self._defined

    def defined_at(self, name: str) -> int:
        return self._defined[name]

    def leaf(self, expr: Expr) -> Expr:
        """A part without calls as a separate rule, so that it is not inspected again; a class as it is."""
        if isinstance(expr, CharClass):
            return expr
        found = self._leaves.get(expr)
        if found is None:
            rule = GrammarRule("a terminal", lambda: NEVER)
            self.bodies[rule] = expr
            found = self._leaves[expr] = RuleCall(rule)
        return found

    def pattern(self, text: str, flags: str, at: int, expr: Expr, ordered: Expr | None) -> Expr:
        """A regex as a separate rule; `ordered` is its expression where the order of alternatives matters."""
        if isinstance(expr, CharClass) and ordered is None:
            return expr
        found = self._regexes.get((text, flags))
        if found is None:
            rule = GrammarRule(f"/{text}/", lambda: NEVER)
            self.bodies[rule] = expr
            self.terminals.pattern(rule, TerminalPattern(self.source, at, text, flags, ordered))
            found = self._regexes[text, flags] = RuleCall(rule)
        return found

    def check(self) -> None:
        """Raises: InvalidGrammarError: a rule is called and not defined."""
        for called, at in self._called.items():
            if called in self.declared and called not in self._defined:
                hint = "give its text by the argument `declared`"
                self.source.unsupported(f"terminal {called} of %declare, which no grammar defines", at, hint)
            if called not in self._defined:
                self.source.invalid(f"the rule {called!r} is not defined{nearest(called, self._defined)}", at)

    def start(self, name: str) -> GrammarRule:
        """The start rule, once every called rule is known to be defined, and terminals have their bodies."""
        self.check()
        if name not in self._defined:
            self.source.invalid(f"there is no start rule {name!r}{nearest(name, self._defined)}", 0)
        self.terminals.settle(self.rule(name))
        return self.rule(name)
