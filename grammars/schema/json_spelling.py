"""How JSON is spelled: whitespace, string text with its escapes, and constants."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from typing import Any

from sgl.grammars.algebra import charset
from sgl.grammars.algebra.charset import CharSet
from sgl.grammars.algebra.expr import (
    EMPTY,
    PLAIN_REPEATED,
    Alt,
    AutomatonExpr,
    ByteClass,
    CharClass,
    Expr,
    GrammarRule,
    ListMember,
    Literal,
    NameComplement,
    Repeat,
    RuleCall,
    SeparatedList,
    Seq,
    alt,
    optional,
    repeat,
    seq,
)
from sgl.grammars.algebra.marked_expressions import ended, opened

QUOTE = Literal(b'"')
_COMMA = Literal(b",")
_COLON = Literal(b":")
_SIMPLE = re.compile(r"[ !#-\[\]-~]*")
_CONTROL: CharSet = ((0, 0x1F),)
_ASCII: CharSet = ((0, 0x7F),)
_WIDE = charset.minus(charset.ANY, _ASCII)
_SHORT_ESCAPES = {'"': b'"', "\\": b"\\", "\b": b"b", "\f": b"f", "\n": b"n", "\r": b"r", "\t": b"t"}
_ESCAPED = charset.of("".join(_SHORT_ESCAPES))
_PLAIN_ASCII = charset.minus(_ASCII, charset.union(_CONTROL, charset.of('"\\')))
_NOT_PLAIN = charset.complement(_PLAIN_ASCII)
_SPECIAL = charset.union(_CONTROL, _ESCAPED)
_MOST_INLINE = 16
_MOST_ENCODED = 256
_ENCODED: dict[int, tuple[Expr, Expr]] = {}
_escaped, _raw = json.JSONEncoder().encode, json.JSONEncoder(ensure_ascii=False).encode
_LARGEST = int(sys.float_info.max)


@dataclass(frozen=True, slots=True)
class JsonWhitespace:
    """Where blanks may or must stand; `opening` and `closing` are inside the brackets of what is not empty."""

    opening: Expr = EMPTY
    closing: Expr = EMPTY
    empty: Expr = EMPTY
    comma: Expr = _COMMA
    colon: Expr = _COLON


def _free(most: int) -> JsonWhitespace:
    blanks = repeat(CharClass(charset.of(" \t\n\r")), 0, most)
    comma, colon = seq(blanks, _COMMA, blanks), seq(blanks, _COLON, blanks)
    return JsonWhitespace(blanks, blanks, blanks, comma, colon)


def _indented(most: int) -> JsonWhitespace:
    line = seq(Literal(b"\n"), repeat(Literal(b" "), 0, most))
    return JsonWhitespace(line, line, EMPTY, seq(_COMMA, line), Literal(b": "))


_SPACE = optional(Literal(b" "))
WHITESPACE = {
    "default": JsonWhitespace(comma=seq(_COMMA, _SPACE), colon=seq(_COLON, _SPACE)),
    "compact": JsonWhitespace(),
    "spaced": JsonWhitespace(comma=Literal(b", "), colon=Literal(b": ")),
    "indented": _indented(80),
    "free": _free(40),
}


def _mask(chars: CharSet) -> int:
    return sum((1 << (high + 1)) - (1 << low) for low, high in chars)


_PLAIN_MASK = _mask(_PLAIN_ASCII)


def _hex_digit(low: int, high: int) -> Expr:
    return CharClass(charset.of("".join(f"{d:x}{d:X}" for d in range(low, high + 1))))


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
    return alt(CharClass(chars), _unicode_escapes(chars)) if chars else Alt(())


@lru_cache(maxsize=1024)
def _special(chars: CharSet) -> Expr:
    """Quote, backslash and control characters, which must be escaped."""
    short = [Literal(b"\\" + e) for c, e in _SHORT_ESCAPES.items() if charset.contains(chars, ord(c))]
    return alt(*short, _unicode_escapes(charset.intersect(chars, _CONTROL)))


@lru_cache(maxsize=1024)
def _beyond(chars: CharSet) -> Expr:
    """What is neither plain nor ASCII; a large set is a separate rule, so that each grammar lowers it once."""
    expr = alt(_wide(charset.intersect(chars, _WIDE)), _special(charset.intersect(chars, _SPECIAL)))
    return (
        RuleCall(GrammarRule("characters beyond ASCII", lambda: expr)) if charset.size(chars) > _MOST_INLINE else expr
    )


@lru_cache(maxsize=4096)
def encode_chars(chars: CharSet, plain: int = 0) -> Expr:
    """A character of a set inside a JSON string; ASCII is escaped only where it must be."""
    ascii_mask = _mask(charset.intersect(chars, _PLAIN_ASCII))
    beyond = _beyond(charset.intersect(chars, _NOT_PLAIN))
    return alt(ByteClass(ascii_mask, plain), beyond) if ascii_mask else beyond


def spelled(chars: CharSet) -> bytes:
    """One character of a set as it is written in a JSON string, a short one."""
    plain = charset.intersect(chars, _PLAIN_ASCII)
    return json.dumps(chr((plain or chars)[0][0]), ensure_ascii=not plain)[1:-1].encode()


@cache
def _any_escape() -> Expr:
    escapes = [Literal(b"\\" + e) for e in (*_SHORT_ESCAPES.values(), b"/")]
    return alt(CharClass(_WIDE), *escapes, _unicode_escapes(charset.ANY))


FREE_CHAR = alt(
    ByteClass(_PLAIN_MASK, PLAIN_REPEATED), RuleCall(GrammarRule("characters beyond ASCII, and escapes", _any_escape))
)
FREE_TEXT = Repeat(FREE_CHAR, 0, None)


def encode(expr: Expr) -> Expr:
    """A language of characters as JSON string text."""
    match expr:
        case CharClass(chars):
            return FREE_CHAR if chars == charset.ANY else encode_chars(chars)
        case Seq(items):
            return seq(*map(encode, items))
        case Alt(items):
            return alt(*map(encode, items))
        case Repeat(item, 0, None) if item == CharClass(charset.ANY):
            return FREE_TEXT
        case Repeat(item, minimum, maximum):
            return Repeat(encode(item), minimum, maximum)
        case AutomatonExpr(edges, accepting):
            return AutomatonExpr(tuple(tuple((encode(e), t) for e, t in out) for out in edges), accepting)
    return expr


def encode_once(expr: Expr) -> Expr:
    """The same, remembered by identity: formats and patterns come again in schema after schema."""
    known = _ENCODED.get(id(expr))
    if known is None or known[0] is not expr:
        if len(_ENCODED) >= _MOST_ENCODED:
            _ENCODED.clear()
        known = _ENCODED[id(expr)] = expr, encode(expr)
    return known[1]


def other_than(names: list[str]) -> Expr:
    """JSON string text that spells none of the names, made when it is first needed."""
    return RuleCall(GrammarRule("a different name", partial(_other_than, names))) if names else FREE_TEXT


def _other_than(names: list[str]) -> Expr:
    forks = set() if _SIMPLE.fullmatch("".join(names)) else _forks(names)
    leaving = {fork: _leaving(fork) for fork in ("", *forks)}
    spelled = {char: encode_chars(charset.single(char)) for fork in forks for char in fork}
    return NameComplement(tuple(sorted(set(names))), _PLAIN_MASK, FREE_TEXT, leaving, spelled)


@lru_cache(maxsize=1024)
def _leaving(fork: str) -> Expr:
    return _beyond(charset.minus(_NOT_PLAIN, charset.of(fork)))


def _forks(names: list[str]) -> set[str]:
    """What follows a beginning of the names, of the characters that do not spell themselves, for every beginning."""
    found: dict[str, set[str]] = {}
    for name in names:
        for i, char in enumerate(name):
            if char > "\x7f" or not _PLAIN_MASK >> ord(char) & 1:
                found.setdefault(name[:i], set()).add(char)
    return {"".join(sorted(chars)) for chars in found.values()}


def constant(
    value: Any, blanks: JsonWhitespace, any_order: bool = False, plain: bool = False, marked: bool = False
) -> Expr:
    """A JSON value as `json.dumps` writes it, with characters beyond ASCII raw or all escaped.

    Args:
        value: what to spell.
        blanks: whitespace between tokens.
        any_order: whether the members of objects may come in any order.
        plain: whether an integer is spelled without `.0`.
        marked: whether arrays and objects have the marks of what is remembered.
    """
    if isinstance(value, str):
        return alt(*map(Literal, spellings(value)))
    if isinstance(value, dict):
        spelled = {name: constant(member, blanks, any_order, plain, marked) for name, member in value.items()}
        after, named = (opened(False), ended(False)) if marked else (EMPTY, EMPTY)
        members = [seq(constant(name, blanks), named, blanks.colon, member) for name, member in spelled.items()]
        return bracketed(b"{}", members, blanks, not any_order, after=after)
    if isinstance(value, list):
        items = [constant(v, blanks, any_order, plain, marked) for v in value]
        if marked:
            return bracketed(b"[]", [seq(item, ended(False)) for item in items], blanks, after=opened(False))
        return bracketed(b"[]", items, blanks)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return alt(*(Literal(s.encode()) for s in sorted(_spellings(value, plain))))
    return Literal(json.dumps(value).encode())


def spellings(text: str) -> list[bytes]:
    """A string as `json.dumps` writes it, with characters beyond ASCII escaped and raw."""
    if _SIMPLE.fullmatch(text):
        return [b'"' + text.encode() + b'"']
    raw = {_raw(text).encode()} if _is_utf8(text) else set()  # no half of a surrogate pair
    return sorted(raw | {_escaped(text).encode()})


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _spellings(number: float, plain: bool) -> set[str]:
    """What `json.dumps` writes for the integer and for the double that are equal to a number; with `plain` an integer
    has one spelling.
    """
    if number != number // 1:
        return {json.dumps(number)}
    found = {str(int(number))}
    if not (plain and isinstance(number, int)) and abs(number) <= _LARGEST and float(number) == number:
        found |= {json.dumps(float(number))} | ({"-0.0"} if number == 0 else set())
    return found


def bracketed(
    brackets: bytes, members: list[Expr], blanks: JsonWhitespace, ordered: bool = True, after: Expr = EMPTY
) -> Expr:
    """A list of exactly these members; `after` follows the opening bracket."""
    if not members:
        return seq(Literal(brackets[:1]), after, blanks.empty, Literal(brackets[1:]))
    parts = tuple(ListMember(member, True) for member in members)
    joined = SeparatedList(parts, None, blanks.comma, 0, None, blanks.opening, blanks.closing, ordered)
    return seq(Literal(brackets[:1]), after, joined, Literal(brackets[1:]))
