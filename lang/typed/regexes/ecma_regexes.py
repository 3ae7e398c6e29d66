"""Patterns of pydantic, which Rust's regex or Python's re reads, as patterns of JSON Schema (ECMA-262).

The dialects differ in what `\\d`, `\\w` and `\\s` are beyond ASCII. What ECMA takes for one of them must be one for
the reader too, and what ECMA takes for none must be none: so the complements are spelled out, and hold only what is
outside for all three dialects.
"""

from __future__ import annotations

import re

from ..unsupported_types import UnsupportedType

_SPACE = r" \t\n\r\f\v\u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"  # for all dialects
_ANY_SPACE = _SPACE + r"\u001c-\u001f\u0085\ufeff"  # for any dialect
_ENCLOSED = r"\u24b6-\u24e9\u{1f130}-\u{1f149}\u{1f150}-\u{1f169}\u{1f170}-\u{1f189}"  # letters for Rust
_ANY = {"d": r"\p{Nd}", "w": rf"\p{{L}}\p{{M}}\p{{N}}\p{{Pc}}\u200c\u200d{_ENCLOSED}", "s": _ANY_SPACE}
_TOKEN = re.compile(r"\\(?:[pP]\{[^}]*\}|.)|\[\^?\]?|\]|&&|--|~~|.", re.DOTALL)
_EVERYTHING = re.compile(r"\[\\([dws])\\([DWS])\]|\[\\([DWS])\\([dws])\]")

TRIMMED = rf"^(?:[^{_ANY_SPACE}](?:[\s\S]*[^{_ANY_SPACE}])?)?$"
# Of the letters that some dialects take for others where case does not count: with these they do not agree.
CASELESS = r"^[^\u0130\u0131\u0390\u03b0\u1fd3\u1fe3\ufb05\ufb06]*$"
_IGNORES_CASE = re.compile(r"\(\?[a-z]*i")
ASCII = r"^[\x00-\x7f]*$"


def of_ecma(pattern: str | re.Pattern[str], rust: bool) -> str:
    """The pattern in ECMA's dialect: of what it matches the given pattern matches everything.

    Raises Unwritable for what the dialects read differently and cannot be spelled otherwise.
    """
    if isinstance(pattern, re.Pattern):
        if pattern.flags & re.VERBOSE:
            raise UnsupportedType(
                f"the flag re.VERBOSE of the pattern {pattern.pattern!r} has no counterpart; write it without blanks"
            )
        pattern, rust = pattern.pattern, False
    found, inside = [], ""
    for token in _tokens(pattern):
        if not inside:
            found.append(_outside(token))
            inside = token if token.startswith("[") and len(token) < 4 else ""
        elif token == "]":
            found.append(token)
            inside = ""
        else:
            found.append(_inside(token, inside, rust, pattern))
    return "".join(found)


def ignores_case(pattern: str) -> bool:
    """Whether a flag of a pattern lets capital and small letters stand for each other."""
    return _IGNORES_CASE.search(pattern) is not None


def _tokens(pattern: str) -> list[str]:
    """Escapes, starts and ends of classes, and single characters; a class of everything is one token."""
    tokens, at = [], 0
    while at < len(pattern):
        whole = _EVERYTHING.match(pattern, at)
        if whole and (whole[1] or whole[4]) == (whole[2] or whole[3]).lower():
            tokens.append(r"[\s\S]")
            at = whole.end()
            continue
        token = _TOKEN.match(pattern, at)
        assert token is not None
        tokens.append(token[0])
        at = token.end()
    return tokens


def _outside(token: str) -> str:
    if token in ("[]", "[^]"):  # for Rust and Python a first `]` is a character, for ECMA the end
        return token[:-1] + r"\]"
    if token in (r"\D", r"\W", r"\S"):
        return f"[^{_ANY[token[1].lower()]}]"
    if token == r"\s":
        return f"[{_SPACE}]"
    return {r"\A": "^", r"\z": "$", r"\Z": "$"}.get(token, token)


def _inside(token: str, opening: str, rust: bool, pattern: str) -> str:
    """In a class. Rust reads `[`, `&&`, `--` and `~~` there as operators on classes, which ECMA does not."""
    negated = opening.startswith("[^")
    if token in (r"\D", r"\W", r"\S") or (rust and token[0] in "[&-~" and (token[0] == "[" or len(token) == 2)):
        raise UnsupportedType(
            f"{token} in a class of the pattern {pattern!r} has no counterpart; write the characters instead"
        )
    if token in (r"\d", r"\w") and negated:
        return _ANY[token[1]]
    if token == r"\s":
        return _ANY_SPACE if negated else _SPACE
    return "".join(rf"\{char}" for char in token) if token[0] == "[" else token
