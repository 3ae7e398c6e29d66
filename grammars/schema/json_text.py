"""How JSON is spelled: whitespace, string text with its escapes, and constants."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from sgl.grammars import charset
from sgl.grammars.charset import CharSet
from sgl.grammars.expr import (
    EMPTY,
    PLAIN_ALWAYS,
    PLAIN_REPEATED,
    Alt,
    Bytes,
    Call,
    Chars,
    Expr,
    Graph,
    Joined,
    Literal,
    Part,
    Repeat,
    Rule,
    Seq,
    alt,
    optional,
    repeat,
    seq,
)

QUOTE = Literal(b'"')
_COMMA = Literal(b",")
_COLON = Literal(b":")
_SIMPLE = re.compile(r'[ !#-\[\]-~]*')
_CONTROL: CharSet = ((0, 0x1F),)
_ASCII: CharSet = ((0, 0x7F),)
_WIDE = charset.minus(charset.ANY, _ASCII)
_SHORT_ESCAPES = {'"': b'"', "\\": b"\\", "\b": b"b", "\f": b"f", "\n": b"n", "\r": b"r", "\t": b"t"}
_ESCAPED = charset.of("".join(_SHORT_ESCAPES))
_PLAIN_ASCII = charset.minus(_ASCII, charset.union(_CONTROL, charset.of('"\\')))
_NOT_PLAIN = charset.complement(_PLAIN_ASCII)
_SPECIAL = charset.union(_CONTROL, _ESCAPED)
_MOST_INLINE = 16


@dataclass(frozen=True, slots=True)
class Whitespace:
    """Where blanks may or must stand; `opening` and `closing` are inside the brackets of what is not empty."""

    opening: Expr = EMPTY
    closing: Expr = EMPTY
    empty: Expr = EMPTY
    comma: Expr = _COMMA
    colon: Expr = _COLON


def _free(most: int) -> Whitespace:
    blanks = repeat(Chars(charset.of(" \t\n\r")), 0, most)
    comma, colon = seq(blanks, _COMMA, blanks), seq(blanks, _COLON, blanks)
    return Whitespace(blanks, blanks, blanks, comma, colon)


def _indented(most: int) -> Whitespace:
    line = seq(Literal(b"\n"), repeat(Literal(b" "), 0, most))
    return Whitespace(line, line, EMPTY, seq(_COMMA, line), Literal(b": "))


_SPACE = optional(Literal(b" "))
WHITESPACE = {
    "default": Whitespace(comma=seq(_COMMA, _SPACE), colon=seq(_COLON, _SPACE)),
    "compact": Whitespace(),
    "indented": _indented(80),
    "free": _free(40),
}


def _mask(chars: CharSet) -> int:
    return sum((1 << (high + 1)) - (1 << low) for low, high in chars)


def _hex_digit(low: int, high: int) -> Expr:
    return Chars(charset.of("".join(f"{d:x}{d:X}" for d in range(low, high + 1))))


def _hex4(low: int, high: int) -> Expr:
    digits = [[value >> shift & 15 for shift in (12, 8, 4, 0)] for value in (low, high)]
    products = charset.digit_ranges(digits[0], digits[1], 0, 15)
    return alt(*(seq(*(_hex_digit(*r) for r in product)) for product in products))


@lru_cache(maxsize=1024)
def _unicode_escapes(chars: CharSet) -> Expr:
    """`\\uXXXX` for every character of a set, surrogate pairs above U+FFFF."""
    found: list[Expr] = []
    for low, high in chars:
        if low <= 0xFFFF:
            found.append(_hex4(low, min(high, 0xFFFF)))
        if high > 0xFFFF:
            found.append(_surrogates(max(low, 0x10000) - 0x10000, high - 0x10000))
    return seq(Literal(b"\\u"), alt(*found)) if found else Alt(())


def _surrogates(low: int, high: int) -> Expr:
    """Pairs for the 20-bit offsets `low` to `high`."""
    pairs = charset.digit_ranges([low >> 10, low & 0x3FF], [high >> 10, high & 0x3FF], 0, 0x3FF)
    return alt(
        *(
            seq(_hex4(0xD800 + a, 0xD800 + b), Literal(b"\\u"), _hex4(0xDC00 + c, 0xDC00 + d))
            for (a, b), (c, d) in pairs
        )
    )


@lru_cache(maxsize=1024)
def _wide(chars: CharSet) -> Expr:
    """Characters beyond ASCII, raw or escaped; cached so that equal sets are lowered once."""
    return alt(Chars(chars), _unicode_escapes(chars)) if chars else Alt(())


@lru_cache(maxsize=1024)
def _special(chars: CharSet) -> Expr:
    """Quote, backslash and control characters, which must be escaped."""
    short = [Literal(b"\\" + e) for c, e in _SHORT_ESCAPES.items() if charset.contains(chars, ord(c))]
    return alt(*short, _unicode_escapes(charset.intersect(chars, _CONTROL)))


@lru_cache(maxsize=1024)
def _beyond(chars: CharSet) -> Expr:
    """What is neither plain nor ASCII; a large set is a rule of its own, so that each grammar lowers it once."""
    expr = alt(_wide(charset.intersect(chars, _WIDE)), _special(charset.intersect(chars, _SPECIAL)))
    return Call(Rule("characters beyond ASCII", lambda: expr)) if charset.size(chars) > _MOST_INLINE else expr


@lru_cache(maxsize=4096)
def encode_chars(chars: CharSet, plain: int = 0) -> Expr:
    """A character of a set inside a JSON string; ASCII is escaped only where it must be."""
    ascii_mask = _mask(charset.intersect(chars, _PLAIN_ASCII))
    beyond = _beyond(charset.intersect(chars, _NOT_PLAIN))
    return alt(Bytes(ascii_mask, plain), beyond) if ascii_mask else beyond


def _any_escape() -> Expr:
    escapes = [Literal(b"\\" + e) for e in (*_SHORT_ESCAPES.values(), b"/")]
    return alt(Chars(_WIDE), *escapes, _unicode_escapes(charset.ANY))


FREE_CHAR = alt(
    Bytes(_mask(_PLAIN_ASCII), PLAIN_REPEATED), Call(Rule("characters beyond ASCII, and escapes", _any_escape))
)
FREE_TEXT = Repeat(FREE_CHAR, 0, None)


def encode(expr: Expr) -> Expr:
    """A language of characters as JSON string text."""
    match expr:
        case Chars(chars):
            return FREE_CHAR if chars == charset.ANY else encode_chars(chars)
        case Seq(items):
            return seq(*map(encode, items))
        case Alt(items):
            return alt(*map(encode, items))
        case Repeat(item, 0, None) if item == Chars(charset.ANY):
            return FREE_TEXT
        case Repeat(item, minimum, maximum):
            return Repeat(encode(item), minimum, maximum)
        case Graph(edges, accepting):
            return Graph(tuple(tuple((encode(e), t) for e, t in out) for out in edges), accepting)
    return expr


def other_than(names: list[str]) -> Expr:
    """JSON string text that spells none of the names, made when it is first needed."""
    return Call(Rule("a name of its own", lambda: _other_than(names))) if names else FREE_TEXT


def _other_than(names: list[str]) -> Expr:
    """A trie that is left at every node; any beginning of plain text may still become such a text."""
    trie: list[dict[str, int]] = [{}]
    ends = {0} if "" in names else set()
    for name in names:
        at = 0
        for char in name:
            at = trie[at].setdefault(char, len(trie))
            if at == len(trie):
                trie.append({})
        ends.add(at)
    sink = len(trie)
    edges = [_leaving(children, sink) for children in trie]
    return Graph((*edges, ()), (*(i not in ends for i in range(sink)), True))


def _leaving(children: dict[str, int], sink: int) -> tuple[tuple[Expr, int], ...]:
    others = charset.complement(charset.of("".join(children)))
    inward = [(encode_chars(charset.single(c)), target) for c, target in children.items()]
    return ((seq(encode_chars(others, PLAIN_ALWAYS), FREE_TEXT), sink), *inward)


def constant(value: Any, blanks: Whitespace) -> Expr:
    """A JSON value as `json.dumps` writes it, with characters beyond ASCII raw or all escaped."""
    if isinstance(value, str) and _SIMPLE.fullmatch(value):
        return Literal(b'"' + value.encode() + b'"')
    if isinstance(value, dict):
        members = [seq(constant(k, blanks), blanks.colon, constant(v, blanks)) for k, v in value.items()]
        return bracketed(b"{}", members, blanks)
    if isinstance(value, list):
        return bracketed(b"[]", [constant(v, blanks) for v in value], blanks)
    spellings = {json.dumps(value), json.dumps(value, ensure_ascii=False)}
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        spellings.add(str(int(value)))
    return alt(*(Literal(s.encode()) for s in sorted(spellings)))


def bracketed(brackets: bytes, members: list[Expr], blanks: Whitespace) -> Expr:
    """A list of exactly these members."""
    if not members:
        return seq(Literal(brackets[:1]), blanks.empty, Literal(brackets[1:]))
    parts = tuple(Part(member, True) for member in members)
    joined = Joined(parts, None, blanks.comma, 0, None, blanks.opening, blanks.closing)
    return seq(Literal(brackets[:1]), joined, Literal(brackets[1:]))


