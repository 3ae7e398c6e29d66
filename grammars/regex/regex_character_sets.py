"""Sets of characters in a pattern: escapes, `[...]`, and the dot."""

from __future__ import annotations

import unicodedata
from bisect import bisect_left, bisect_right
from functools import cache, lru_cache
from typing import NamedTuple

from sgl.grammars.algebra import charset
from sgl.grammars.algebra.charset import CharSet
from sgl.grammars.regex.pattern_scanner import Dialect, PatternScanner
from sgl.grammars.regex.unicode_classes import characters, class_of_re, property_class

DIGIT = charset.normalise([(0x30, 0x39)])
WORD = charset.normalise([(0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A)])
SPACE = charset.of(" \t\n\r\f\v")
ECMA_SPACE = charset.union(SPACE, charset.of("\u00a0\u1680\u2028\u2029\u202f\u205f\u3000\ufeff"), ((0x2000, 0x200A),))
_ASCII_CLASSES = {"d": DIGIT, "w": WORD, "s": SPACE}
_CONTROLS = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "v": "\v"}
_HEX_WIDTH = {"x": 2, "u": 4, "U": 8}
_HEX, _OCTAL = "0123456789abcdefABCDEF", "01234567"
_LINE_ENDS: dict[Dialect, CharSet] = {"python": charset.single("\n"), "ecma": charset.of("\n\r\u2028\u2029")}
_BLOCK = 256
_ASCII_CASES = 0x20


class CaseFolding(NamedTuple):
    """All characters with a case in order, and for each of them the characters alike it, by `re.IGNORECASE`'s rule.

    Two are alike when their lower cases are equal, or when these have the same upper case (K and the Kelvin sign, s and
    the long s). A character is never alike a longer text.
    """

    codes: list[int]
    alike: dict[int, tuple[int, ...]]


@cache
def cases() -> CaseFolding:
    """Gathered from the interpreter's Unicode tables on first use."""
    families: dict[str, set[int]] = {}
    for code in _cased():
        lower = chr(code).lower()[0]  # one letter lowers to two: I with a dot, whose simple lower case is i
        families.setdefault(lower.upper(), set()).update((code, ord(lower)))
    alike = {code: tuple(sorted(family)) for family in families.values() for code in family}
    return CaseFolding(sorted(alike), alike)


def _cased() -> list[int]:
    found: list[int] = []
    everything = characters(0, 0x10FFFF)
    for start in range(0, len(everything), _BLOCK):
        block = everything[start : start + _BLOCK]
        if block.lower() != block or block.upper() != block:
            found += [ord(c) for c in block if c.lower() != c or c.upper() != c]
    return found


@lru_cache(maxsize=1024)
def fold(chars: CharSet, ascii_only: bool = False) -> CharSet:
    """The set with everything that is alike one of its members."""
    return charset.union(chars, _ascii_alike(chars) if ascii_only else _alike(chars))


def _ascii_alike(chars: CharSet) -> CharSet:
    upper = charset.intersect(chars, ((0x41, 0x5A),))
    lower = charset.intersect(chars, ((0x61, 0x7A),))
    return charset.union(
        tuple((low + _ASCII_CASES, high + _ASCII_CASES) for low, high in upper),
        tuple((low - _ASCII_CASES, high - _ASCII_CASES) for low, high in lower),
    )


def _alike(chars: CharSet) -> CharSet:
    codes, alike = cases()
    found: set[int] = set()
    for low, high in chars:
        for code in codes[bisect_left(codes, low) : bisect_right(codes, high)]:
            found.update(alike[code])
    return charset.normalise((code, code) for code in found)


def dot(scan: PatternScanner) -> CharSet:
    return charset.ANY if scan.flags.dot_all else charset.complement(_LINE_ENDS[scan.dialect])


def character(scan: PatternScanner, code: int, at: int) -> CharSet:
    """One character, with those alike it where case is ignored."""
    if 0xD800 <= code <= 0xDFFF:
        scan.invalid(f"{chr(code)!r} is an unpaired surrogate", at)
    chars: CharSet = ((code, code),)
    return fold(chars, scan.flags.ascii) if scan.flags.ignore_case else chars


def escaped_set(scan: PatternScanner, start: int) -> CharSet:
    """The set that an escape outside of brackets means; the backslash is read already."""
    found = _class_escape(scan, start)
    return character(scan, _escaped_code(scan, start), start) if found is None else found


def bracketed_set(scan: PatternScanner, start: int) -> CharSet:
    """A set in brackets; the opening one is read already."""
    negated = scan.take("^")
    singles: list[tuple[int, int]] = []
    classes: list[CharSet] = []
    first = scan.dialect == "python"
    while first or not scan.peek("]"):
        first = False
        if scan.done():
            scan.invalid("missing ']'", start)
        _member(scan, singles, classes)
    scan.at += 1
    chars = charset.normalise(singles)
    if scan.flags.ignore_case:
        chars = fold(chars, scan.flags.ascii)
    chars = charset.union(chars, *classes)
    return charset.complement(chars) if negated else chars


def _member(scan: PatternScanner, singles: list[tuple[int, int]], classes: list[CharSet]) -> None:
    """Read a character, a range or a class."""
    start = scan.at
    low = _item(scan)
    if not scan.peek("-") or scan.text[scan.at + 1 : scan.at + 2] in ("]", ""):
        _add(low, singles, classes)
        return
    scan.at += 1
    high = _item(scan)
    if not (isinstance(low, int) and isinstance(high, int)):
        if scan.dialect == "python":
            scan.invalid(f"bad character range {scan.text[start : scan.at]}", start)
        for item in (low, ord("-"), high):
            _add(item, singles, classes)
    elif low > high:
        scan.invalid(f"bad character range {scan.text[start : scan.at]}", start)
    else:
        singles.append((low, high))


def _add(item: int | CharSet, singles: list[tuple[int, int]], classes: list[CharSet]) -> None:
    if isinstance(item, int):
        singles.append((item, item))
    else:
        classes.append(item)


def _item(scan: PatternScanner) -> int | CharSet:
    start, char = scan.at, scan.next()
    if char != "\\":
        code = ord(char)
    elif scan.take("b"):
        code = 8
    else:
        found = _class_escape(scan, start)
        if found is not None:
            return found
        code = _escaped_code(scan, start, inside=True)
    if 0xD800 <= code <= 0xDFFF:
        scan.invalid(f"{chr(code)!r} is an unpaired surrogate", start)
    return code


def _class_escape(scan: PatternScanner, start: int) -> CharSet | None:
    """A class such as `\\d` or `\\p{L}`; None, with nothing read, for a single character."""
    letter = scan.text[scan.at : scan.at + 1]
    if letter and letter in "dwsDWS":
        scan.at += 1
        chars = _shorthand(scan, letter.lower())
        return charset.complement(chars) if letter.isupper() else chars
    if letter and letter in "pP":
        scan.at += 1
        return _property(scan, letter, start)
    return None


def _shorthand(scan: PatternScanner, letter: str) -> CharSet:
    if scan.flags.unicode or (scan.dialect == "python" and not scan.flags.ascii):
        return class_of_re("\\" + letter)
    return ECMA_SPACE if letter == "s" and scan.dialect == "ecma" else _ASCII_CLASSES[letter]


def _property(scan: PatternScanner, letter: str, start: int) -> CharSet:
    if scan.take("{"):
        negated = scan.dialect == "python" and scan.take("^")
        name = scan.until("}", start)
    else:
        negated, name = False, scan.next()
        if scan.dialect == "ecma":
            scan.unsupported(f"unicode property \\{letter} without braces", start)
    chars = property_class(name, bare_scripts=scan.dialect == "python")
    if chars is None:
        hint = "general categories such as L, Lu or Letter, Script=Greek, ASCII, Any and Assigned are"
        scan.unsupported(f"unicode property \\{letter}{{{name}}}", start, hint)
    if scan.flags.ignore_case:
        chars = fold(chars, scan.flags.ascii)
    return charset.complement(chars) if negated != (letter == "P") else chars


def _escaped_code(scan: PatternScanner, start: int, inside: bool = False) -> int:
    """The code point of an escaped character; `inside` brackets all digits are octal."""
    char = scan.next()
    if char in _CONTROLS:
        return ord(_CONTROLS[char])
    if char in "0123456789":
        return _octal(scan, start, inside)
    python = scan.dialect == "python"
    if char in _HEX_WIDTH and (python or char != "U"):
        return _hexadecimal(scan, char, start)
    if char == "a" and python:
        return 7
    if char == "N" and python:
        return _named(scan, start)
    if char == "c" and not python:
        return _control_letter(scan, start)
    if char.isascii() and char.isalnum() and (python or char in "AzZ"):
        scan.invalid(f"bad escape \\{char}", start)
    return ord(char)


def _octal(scan: PatternScanner, start: int, inside: bool) -> int:
    """Python's rule: `\\0` and up to two digits, or three; back-references were separated before."""
    scan.at -= 1
    if scan.dialect == "ecma":
        if scan.run("0123456789", 3) != "0":
            scan.unsupported("octal escape", start, "write it in hexadecimal")
        return 0
    digits = scan.run(_OCTAL, 3)
    if not digits:
        scan.invalid(f"bad escape {scan.text[start : scan.at + 1]}", start)
    if int(digits, 8) > 0o377:
        scan.invalid(f"octal escape \\{digits} is above \\377", start)
    return int(digits, 8)


def _control_letter(scan: PatternScanner, start: int) -> int:
    letter = scan.next()
    if not (letter.isascii() and letter.isalpha()):
        scan.invalid(f"bad escape \\c{letter}", start)
    return ord(letter) % 32


def _named(scan: PatternScanner, start: int) -> int:
    if not scan.take("{"):
        scan.invalid("missing '{' after \\N", start)
    name = scan.until("}", start)
    try:
        return ord(unicodedata.lookup(name))
    except (KeyError, TypeError):
        scan.invalid(f"undefined character name {name!r}", start)


def _hexadecimal(scan: PatternScanner, kind: str, start: int) -> int:
    if kind == "u" and scan.dialect == "ecma" and scan.take("{"):
        return _code_point(scan, scan.until("}", start), start)
    code = _code_point(scan, scan.run(_HEX, _HEX_WIDTH[kind]), start, _HEX_WIDTH[kind])
    if scan.dialect == "ecma" and 0xD800 <= code <= 0xDBFF and scan.take("\\u"):
        low = _code_point(scan, scan.run(_HEX, 4), start, 4)
        if not 0xDC00 <= low <= 0xDFFF:
            scan.invalid(f"{chr(code)!r} is an unpaired surrogate", start)
        return 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00)
    return code


def _code_point(scan: PatternScanner, digits: str, start: int, width: int = 0) -> int:
    if len(digits) < max(width, 1) or any(d not in _HEX for d in digits) or int(digits, 16) > 0x10FFFF:
        scan.invalid(f"bad character escape {digits!r}", start)
    return int(digits, 16)
