"""Grammars written with `::=`: GBNF of llama.cpp, and the W3C-like dialect that xgrammar reads.

A rule ends where a name with `::=` follows, so that both ways of breaking lines are read by one parser.
"""

from __future__ import annotations

import re

from sgl.grammars.algebra import charset
from sgl.grammars.algebra.expr import CharClass, Expr, repeat, seq
from sgl.grammars.ebnf.grammar_literals import bnf_escape, class_expr, string_expr, string_text
from sgl.grammars.ebnf.grammar_source import END, GrammarText, GrammarToken, GrammarTokenPattern, GrammarTokenStream
from sgl.grammars.ebnf.rule_table import RuleTable, any_of
from sgl.grammars.ebnf.special_token_terminals import SpecialTokenTerminals
from sgl.grammars.regex.plain_text_classes import mark_plain_text_classes

_TOKEN = GrammarTokenPattern(
    r"\s+|\#[^\n]*|/\*(?s:.*?)\*/",
    r"""
      (?P<head>[A-Za-z0-9_][\w-]*(?=\s*::=))
    | (?P<macro>(?:TagDispatch|TokenTagDispatch|ExcludeToken|Token|EVERY_TOKEN)(?=\s*\())
    | (?P<name>[A-Za-z0-9_][\w-]*)
    | (?P<string>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')
    | (?P<class>\[(?:\\.|[^\]\\\n])*\])
    | (?P<count>\{[^{}\n]*\})
    | (?P<token>!?<(?:\[[^\]\n]*\]|[^\s<>]*)>)
    | (?P<look>\([=!])
    | (?P<define>::=)
    | (?P<sign>[()|*+?.])
    """,
)
_COUNT = re.compile(r"\{\s*(?P<least>[0-9]*)\s*(?P<comma>,?)\s*(?P<most>[0-9]*)\s*\}")
BOUNDS: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
_MOST_REPEATS = 1_000_000
_ANY = mark_plain_text_classes(CharClass(charset.ANY))


def read_bnf(source: GrammarText, named: SpecialTokenTerminals | None = None) -> RuleTable:
    """All rules of a grammar text; leaves are characters, and calls are not resolved yet."""
    return _BnfReader(source, named or SpecialTokenTerminals(None)).read()


class _BnfReader:
    def __init__(self, source: GrammarText, named: SpecialTokenTerminals) -> None:
        self.source = source
        self._named = named
        self.tokens = GrammarTokenStream(source, _TOKEN)
        self.table = RuleTable(source)

    def read(self) -> RuleTable:
        while self.tokens.next.kind != END:
            head = self.tokens.take("head") or self.tokens.unexpected("a rule: name ::= ...")
            self.tokens.expect("define", what="'::='")
            self.table.define(head.text, head.at, self._alternatives())
        return self.table

    def _alternatives(self) -> Expr:
        found = [self._sequence()]
        while self.tokens.sign("|"):
            found.append(self._sequence())
        return any_of(found)

    def _sequence(self) -> Expr:
        items: list[Expr] = []
        while (item := self._item()) is not None:
            items.append(self._repeated(item))
        return items[0] if len(items) == 1 else seq(*items)

    def _item(self) -> Expr | None:
        """None at the end of a sequence; what this engine does not know is refused by name."""
        token = self.tokens.next
        if token.kind in _READ:
            self.tokens.take(token.kind)
            return _READ[token.kind](self, token)
        if token.kind == "sign":
            return self._sign(token)
        if token.kind in _REFUSED:
            self.source.unsupported(f"{_REFUSED[token.kind]} {token.text}", token.at)
        return None

    def _name(self, token: GrammarToken) -> Expr:
        return self.table.call(token.text, token.at)

    def _string(self, token: GrammarToken) -> Expr:
        return string_expr(string_text(self.source, token.at + 1, token.at + len(token.text) - 1, bnf_escape))

    def _token(self, token: GrammarToken) -> Expr:
        negated = token.text.startswith("!")
        return self._named.expr(self.source, token.text[negated:], token.at, negated)

    def _class(self, token: GrammarToken) -> Expr:
        return self.table.leaf(class_expr(self.source, token.at + 1, token.at + len(token.text) - 1))

    def _sign(self, token: GrammarToken) -> Expr | None:
        if self.tokens.sign("."):
            return self.table.leaf(_ANY)
        if self.tokens.sign("("):
            inner = self._alternatives()
            self.tokens.expect("sign", ")")
            return inner
        return None if token.text in "|)" else self.tokens.unexpected("something to repeat")

    def _repeated(self, item: Expr) -> Expr:
        while True:
            token = self.tokens.next
            if token.kind == "count" and self.tokens.take("count"):
                item = repeat(item, *self._counts(token.text, token.at))
            elif token.text in BOUNDS and self.tokens.sign(token.text):
                item = repeat(item, *BOUNDS[token.text])
            else:
                return item

    def _counts(self, text: str, at: int) -> tuple[int, int | None]:
        found = _COUNT.fullmatch(text)
        if found is None or not (found["least"] or found["most"]):
            self.source.invalid(f"bad repeat {text!r}, expected {{n}}, {{n,}} or {{n,m}}", at)
        least = int(found["least"] or 0)
        most = int(found["most"]) if found["most"] else None if found["comma"] else least
        return check_counts(self.source, least, most, at)


_READ = {"name": _BnfReader._name, "string": _BnfReader._string, "class": _BnfReader._class, "token": _BnfReader._token}
_REFUSED = {"look": "lookahead assertion", "macro": "macro"}


def check_counts(source: GrammarText, least: int, most: int | None, at: int) -> tuple[int, int | None]:
    if max(least, most or 0) > _MOST_REPEATS:
        source.unsupported(f"a repeat of more than {_MOST_REPEATS}", at)
    if most is not None and most < least:
        source.invalid(f"a repeat of at least {least} and at most {most}", at)
    return least, most
