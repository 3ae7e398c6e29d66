"""EBNF grammars: Lark's syntax, GBNF of llama.cpp, and the W3C-like dialect that xgrammar reads.

All three become context-free grammars over characters: ambiguity is allowed, and recursion of every kind.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

from sgl.grammars.algebra.expr import NEVER, Expr, RuleCall, seq
from sgl.grammars.ebnf.assemble_rules import assemble
from sgl.grammars.ebnf.bnf_syntax import read_bnf
from sgl.grammars.ebnf.grammar_imports import GrammarImports
from sgl.grammars.ebnf.grammar_source import GrammarText
from sgl.grammars.ebnf.lark_syntax import read_lark
from sgl.grammars.ebnf.special_token_terminals import NoVocabularyError, SpecialTokenTerminals
from sgl.grammars.errors import InvalidGrammarError
from sgl.grammars.tokens.vocabulary import Vocabulary

__all__ = ["NoVocabularyError", "SpecialTokenTerminals", "Syntax", "ebnf_expr", "ebnf_part", "is_headed"]

Syntax = Literal["auto", "lark", "gbnf", "w3c"]
_SYNTAXES = ("auto", "lark", "gbnf", "w3c")
_HEADED = re.compile(r"(?>(?:\s|\#[^\n]*|//[^\n]*|/\*(?s:.*?)\*/)*)[\w-]+\s*::=")


def ebnf_expr(
    text: str,
    syntax: Syntax = "auto",
    start: str | None = None,
    imports: Mapping[str, str] | None = None,
    declared: Mapping[str, str | int] | None = None,
    vocabulary: Vocabulary | None = None,
) -> Expr:
    """The language of a grammar.

    Args:
        text: the grammar.
        syntax: "lark" (rules with `:`), "gbnf" or "w3c" (both with `::=`); "auto" looks at the first rule.
        start: the start rule; `start` in Lark's syntax and `root` in the others when None.
        imports: the texts of the grammars that `%import` may read, by their paths; see `imports.py`.
        declared: the texts of the terminals that `%declare` names, or the numbers of tokens that they are.
        vocabulary: the tokens, if the grammar is to speak of some; see `special_token_terminals.py`.

    Raises:
        InvalidGrammarError: the grammar is malformed, or its start matches no text; says line:column.
        UnsupportedGrammarError: it uses a construct that this engine refuses; says which and line:column.
    """
    tokens = SpecialTokenTerminals(vocabulary)
    return tokens.around(ebnf_part(text, tokens, syntax, start, imports, declared))


def ebnf_part(
    text: str,
    tokens: SpecialTokenTerminals,
    syntax: Syntax = "auto",
    start: str | None = None,
    imports: Mapping[str, str] | None = None,
    declared: Mapping[str, str | int] | None = None,
) -> Expr:
    """The same, as a part of what has the tokens that it speaks of, and puts `tokens.around` around all of it."""
    _check(text, syntax)
    source = GrammarText(text)
    headed = is_headed(text, syntax)
    name = start or ("root" if headed else "start")
    table = read_bnf(source, tokens) if headed else read_lark(source, GrammarImports(imports, declared), tokens)
    rule = table.start(name)
    found = assemble(table.bodies, seq(table.before, RuleCall(rule)))
    if found == NEVER:
        source.invalid(f"the start rule {name!r} matches no text: it never ends", table.defined_at(name))
    return found


def is_headed(text: str, syntax: Syntax) -> bool:
    """Whether rules are written with `::=`, as in GBNF and the W3C-like dialect, and not in Lark's syntax."""
    return syntax in ("gbnf", "w3c") or (syntax == "auto" and _HEADED.match(text) is not None)


def _check(text: str, syntax: str) -> None:
    if not isinstance(text, str):
        raise InvalidGrammarError(f"a grammar must be a string, not {text!r}")
    if syntax not in _SYNTAXES:
        raise InvalidGrammarError(f"syntax must be one of {', '.join(_SYNTAXES)}, not {syntax!r}")
