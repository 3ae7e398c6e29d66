"""Sets of characters in few words, for the arrows."""

from __future__ import annotations

from sgl.grammars.algebra import charset
from sgl.grammars.algebra.charset import CharSet

_NAMES = {0x20: "␣", 0x09: "\\t", 0x0A: "\\n", 0x0D: "\\r", 0x5C: "\\\\"}
_MOST_RANGES = 6


def describe(chars: CharSet) -> str:
    """Such as `a-z 0-9`, `any but "`, or a number of characters where nothing shorter says it."""
    if chars == charset.ANY:
        return "any"
    outside = charset.complement(chars)
    if charset.size(outside) < charset.size(chars) and len(outside) <= _MOST_RANGES:
        return "any but " + _ranges(outside)
    if len(chars) <= _MOST_RANGES:
        return _ranges(chars)
    return f"{_ranges(chars[: _MOST_RANGES - 1])} … ({charset.size(chars):,})"


def _ranges(chars: CharSet) -> str:
    return " ".join(spell(low) if low == high else f"{spell(low)}-{spell(high)}" for low, high in chars)


def spell(code: int) -> str:
    if code in _NAMES:
        return _NAMES[code]
    char = chr(code)
    if char.isprintable():
        return char
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
