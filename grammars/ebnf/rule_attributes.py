"""The attributes in brackets after a rule's name in llguidance's grammars: `text[lazy, suffix="</end>"]: /.*/`."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from sgl.grammars.algebra.expr import EMPTY, Expr
from sgl.grammars.ebnf.grammar_source import GrammarText, GrammarToken, GrammarTokenStream

_CAPTURES = ("capture", "stop_capture")
_HINTS = {"stop": "`suffix` ends a terminal with a text that stays", "max_tokens": "bound the characters with {m,n}"}


class RuleAttributes(NamedTuple):
    """A lazy rule stops as soon as it may; one with a suffix stops after that."""

    lazy: bool = False
    suffix: Expr = EMPTY


def read_attributes(source: GrammarText, tokens: GrammarTokenStream, value: Callable[[], Expr]) -> RuleAttributes:
    """The attributes before a rule's colon, if there are any. Captures mean nothing here and are read over.

    Args:
        source: the grammar's text.
        tokens: its tokens.
        value: reads a terminal.

    Raises:
        UnsupportedGrammarError: an attribute is not enforced; names it.
    """
    found = RuleAttributes()
    if not tokens.sign("["):
        return found
    while True:
        name = tokens.expect("name", what="an attribute")
        found = _attribute(source, tokens, name, value, found)
        if not tokens.sign(","):
            break
    tokens.expect("sign", "]")
    return found


def _attribute(
    source: GrammarText,
    tokens: GrammarTokenStream,
    name: GrammarToken,
    value: Callable[[], Expr],
    found: RuleAttributes,
) -> RuleAttributes:
    if name.text == "lazy":
        return found._replace(lazy=True)
    if name.text == "suffix":
        tokens.expect("sign", "=")
        return RuleAttributes(True, value())
    if name.text not in _CAPTURES:
        source.unsupported(f"rule attribute {name.text}", name.at, _HINTS.get(name.text, ""))
    if tokens.sign("="):
        tokens.expect("string", what="a capture's name")
    return found
