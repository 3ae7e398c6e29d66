"""`contentEncoding` and `contentMediaType`: strings that hold bytes in ASCII, and strings that hold JSON.

From draft 2019-09 on they are annotations; draft 7 lets them be checked. So the option `content` is "draft" unless one
says otherwise. A schema may ask for it itself: with `"x-content": "enforced"` at its root.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

from sgl.grammars.algebra import charset
from sgl.grammars.algebra.expr import ByteClass, CharClass, Expr, alt, words
from sgl.grammars.errors import InvalidGrammarError
from sgl.grammars.regex import parse_regex
from sgl.grammars.schema.grammar_rewriting import GrammarRewriting
from sgl.grammars.schema.json_spelling import encode_chars
from sgl.grammars.schema.schema_options import SchemaOptions

ASKED = "x-content"  # "enforced" at a schema's root: the contents of its texts are restricted whatever its draft is
KEYWORDS = ("contentEncoding", "contentMediaType", "contentSchema")
_JSON = re.compile(r"application/(?:[\w.+-]+\+)?json\s*(?:;.*)?", re.IGNORECASE)
_64, _URL, _32, _16 = "[A-Za-z0-9+/]", "[A-Za-z0-9_-]", "[A-Z2-7]", "[0-9A-F]"
# The last characters of what is not a whole group have bits that stand for nothing: they are zero, as encoders write
# them (RFC 4648). The wider languages leave them free, so that what is outside is outside for everybody.
_ENDS_64 = "{c}[AQgw]{two}|{c}{{2}}[AEIMQUYcgkosw048]{one}"
_EXACT = {
    "base64": rf"(?:{_64}{{4}})*(?:{_ENDS_64.format(c=_64, two='==', one='=')})?",
    "base64url": rf"(?:{_URL}{{4}})*(?:{_ENDS_64.format(c=_URL, two='(?:==)?', one='=?')})?",
    "base32": rf"(?:{_32}{{8}})*(?:{_32}[AEIMQUY4]={{6}}|{_32}{{3}}[AQ]={{4}}|{_32}{{4}}[ACEGIKMOQSUWY246]={{3}}|{_32}{{6}}[AIQY]=)?",  # noqa: E501
    "base16": rf"(?:{_16}{{2}})*",
}
_WIDE = {
    "base64": rf"(?:{_64}{{4}})*(?:{_64}{{2}}==|{_64}{{3}}=)?",
    "base64url": rf"(?:{_URL}{{4}})*(?:{_URL}{{2}}(?:==)?|{_URL}{{3}}=?)?",
    "base32": rf"(?:{_32}{{8}})*(?:{_32}{{2}}={{6}}|{_32}{{4}}={{4}}|{_32}{{5}}={{3}}|{_32}{{7}}=)?",
    "base16": r"(?:[0-9A-Fa-f]{2})*",
}
_encoded: dict[str, Expr] = {}
_SAME = {"hex": "base16", "base64-url": "base64url"}


def settled(options: SchemaOptions, schema: Any) -> SchemaOptions:
    """The options with `content` either "enforced" or "annotation", as a schema itself or its draft says."""
    if options.content != "draft":
        return options
    asked = schema if isinstance(schema, Mapping) else {}
    enforced = asked.get(ASKED) == "enforced" or "draft-07" in str(asked.get("$schema", ""))
    return replace(options, content="enforced" if enforced else "annotation")


def encoding_of(schema: Mapping[str, Any], place: str) -> str:
    """The encoding that a schema asks for if it is one that is enforced; empty otherwise."""
    found = _text(schema, "contentEncoding", place).lower()
    found = _SAME.get(found, found)
    return found if found in _EXACT else ""


def holds_json(schema: Mapping[str, Any], place: str) -> bool:
    return _JSON.fullmatch(_text(schema, "contentMediaType", place)) is not None


def _text(schema: Mapping[str, Any], keyword: str, place: str) -> str:
    found = schema.get(keyword, "")
    if not isinstance(found, str):
        raise InvalidGrammarError(f"{keyword} must be a string, not {found!r}", f"{place}/{keyword}")
    return found


def encoded(encoding: str) -> Expr:
    """The characters of an encoding, and perhaps more: see `exactly`. Always the same object, in all threads."""
    return _encoded.get(encoding) or _encoded.setdefault(encoding, parse_regex(_WIDE[encoding], "ecma"))


@lru_cache(maxsize=8)
def _exact(encoding: str) -> Expr:
    return parse_regex(_EXACT[encoding], "ecma")


def exactly(language: Expr) -> Expr | None:
    """The part of an encoding's language that everybody takes for it; None for other languages."""
    return next((_exact(name) for name in _EXACT if language is encoded(name)), None)


def json_of(text: str) -> tuple[bool, Any]:
    """Whether a text is JSON, and its value."""
    try:
        return True, json.loads(text, parse_constant=_refused)
    except (ValueError, RecursionError):
        return False, None


def _refused(name: str) -> Any:
    raise ValueError(name)


def in_string(expr: Expr) -> Expr:
    """A grammar of JSON as the text of a JSON string."""
    return _InString().of(expr)


class _InString(GrammarRewriting):
    def chars(self, chars: charset.CharSet) -> Expr:
        plain, beyond = (charset.intersect(chars, kind) for kind in (_PLAIN, _BEYOND))
        found = [CharClass(plain)] if plain else []
        return alt(*found, *self._escapes(chars), *([encode_chars(beyond)] if beyond else []))

    def byte_set(self, expr: ByteClass) -> Expr:
        escapes = self._escapes(tuple((code, code) for code in range(0x80) if expr.mask >> code & 1))
        plain = ByteClass(expr.mask & ~_SPECIAL_MASK, expr.plain)
        return alt(*([plain] if plain.mask else []), *escapes)

    def _escapes(self, chars: charset.CharSet) -> list[Expr]:
        special = charset.intersect(chars, _SPECIAL)
        return [words(_escape(chr(code)) for low, high in special for code in range(low, high + 1))] if special else []

    def data(self, data: bytes) -> tuple[bytes, ...]:
        """With characters beyond ASCII as they are, or as escapes."""
        text = data.decode()
        return tuple({json.dumps(text, ensure_ascii=ascii_only)[1:-1].encode() for ascii_only in (False, True)})

    def end(self, data: bytes) -> bytes:
        return _escape(data.decode())


_SPECIAL = charset.union(((0, 0x1F),), charset.of('"\\'))
_SPECIAL_MASK = sum(1 << code for low, high in _SPECIAL for code in range(low, high + 1))
_BEYOND: charset.CharSet = ((0x80, 0x10FFFF),)
_PLAIN = charset.minus(((0, 0x7F),), _SPECIAL)


def _escape(text: str) -> bytes:
    return json.dumps(text, ensure_ascii=False)[1:-1].encode()
