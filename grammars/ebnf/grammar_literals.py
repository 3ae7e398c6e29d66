"""The leaves of grammars: strings, character classes, and regexes with flags."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache

from sgl.grammars.algebra import charset
from sgl.grammars.algebra.expr import EMPTY, CharClass, Expr, Literal, seq
from sgl.grammars.ebnf.grammar_source import GrammarText
from sgl.grammars.ebnf.lexer_terminals import ordered_pattern
from sgl.grammars.errors import UnsupportedGrammarError
from sgl.grammars.regex import parse_regex
from sgl.grammars.regex.plain_text_classes import mark_plain_text_classes

_HEX_WIDTH = {"x": 2, "u": 4, "U": 8}
_HEX = re.compile(r"[0-9a-fA-F]*")
_BNF_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "a": "\a", "b": "\b", "f": "\f", "v": "\v", "e": "\x1b"}
_LARK_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "\\": "\\", '"': '"'}
_ATOM = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|.", re.DOTALL)
_ANCHORS = ("^", "$", "\\A", "\\Z")

Unescaped = Callable[[str], str | None]


def code_point(source: GrammarText, digits: str, at: int) -> str:
    code = int(digits, 16) if digits else 0x110000
    if code > 0x10FFFF or 0xD800 <= code <= 0xDFFF:
        source.invalid(f"bad character escape {digits!r}", at)
    return chr(code)


def characters(source: GrammarText, at: int, end: int, escape: Unescaped) -> list[tuple[str, bool]]:
    """The characters that a piece of the source spells, each with whether it was escaped."""
    found: list[tuple[str, bool]] = []
    while at < end:
        char = source.text[at]
        if char != "\\":
            _refuse_surrogate(source, char, at)
            found.append((char, False))
            at += 1
            continue
        kind = source.text[at + 1]
        if kind in _HEX_WIDTH:
            digits = _HEX.match(source.text, at + 2, min(at + 2 + _HEX_WIDTH[kind], end))
            spelled = digits.group() if digits else ""
            full = spelled if len(spelled) == _HEX_WIDTH[kind] else ""
            found.append((code_point(source, full, at), True))
            at += 2 + len(spelled)
            continue
        meant = escape(kind)
        if meant is None:
            source.invalid(f"unknown escape {source.text[at : at + 2]!r}", at)
        found += [(c, True) for c in meant]
        at += 2
    return found


def _refuse_surrogate(source: GrammarText, char: str, at: int) -> None:
    if 0xD800 <= ord(char) <= 0xDFFF:
        source.invalid(f"{char!r} is an unpaired surrogate", at)


def bnf_escape(kind: str) -> str | None:
    if kind in _BNF_ESCAPES:
        return _BNF_ESCAPES[kind]
    return None if kind.isalnum() else kind


def lark_escape(kind: str) -> str:
    """Lark keeps the backslash before a character that it does not know."""
    return _LARK_ESCAPES.get(kind, "\\" + kind)


def string_text(source: GrammarText, at: int, end: int, escape: Unescaped) -> str:
    plain = source.text[at:end]
    if plain.isascii() and "\\" not in plain:
        return plain
    return "".join(c for c, _ in characters(source, at, end, escape))


def string_expr(text: str, any_case: bool = False) -> Expr:
    return seq(*map(_any_case, text)) if any_case else Literal(text.encode())


@lru_cache(maxsize=4096)
def _any_case(char: str) -> Expr:
    return parse_regex(re.escape(char), flags="i")


def class_expr(source: GrammarText, at: int, end: int) -> Expr:
    """A bracketed class of the `::=` dialects; `at` and `end` are those of the brackets' inside."""
    negated = source.text.startswith("^", at, end)
    found = characters(source, at + negated, end, bnf_escape)
    if not found and not negated:
        source.invalid("an empty character class", at)
    chars = charset.normalise(_ranges(source, found, at))
    return mark_plain_text_classes(CharClass(charset.complement(chars) if negated else chars))


def _ranges(source: GrammarText, found: list[tuple[str, bool]], at: int) -> list[tuple[int, int]]:
    ranges: list[tuple[int, int]] = []
    i = 0
    while i < len(found):
        low = high = found[i][0]
        if found[i + 1 : i + 2] == [("-", False)] and i + 2 < len(found):
            high = found[i + 2][0]
            i += 2
        if low > high:
            source.invalid(f"bad character range {low}-{high}", at)
        ranges.append((ord(low), ord(high)))
        i += 1
    return ranges


def regex_expr(source: GrammarText, pattern: str, flags: str, at: int) -> tuple[Expr, Expr | None]:
    """A regex literal of Lark with its flags: its language, and what it is in order where that tells (see
    `terminals.py`; the language is then not known yet). `^` and `$` mean nothing inside a text and are refused.
    """
    if "l" in flags:
        source.unsupported("regex flag l (locale)", at)
    with source.inside(at):
        return _regex(pattern, flags)


@lru_cache(maxsize=1024)
def _regex(pattern: str, flags: str) -> tuple[Expr, Expr | None]:
    for atom in _ATOM.finditer(pattern):
        if atom.group() in _ANCHORS:
            place = f"position {atom.start()} of the regex {pattern!r}"
            raise UnsupportedGrammarError(f"anchor {atom.group()} in a terminal", place)
    ordered = ordered_pattern(pattern, flags)
    return (
        (EMPTY, ordered) if ordered is not None else (mark_plain_text_classes(parse_regex(pattern, flags=flags)), None)
    )
