"""A grammar of JSON without characters beyond ASCII: those come as escapes only."""

from __future__ import annotations

import json

from sgl.grammars.algebra import charset
from sgl.grammars.algebra.byte_marks import BEGIN
from sgl.grammars.algebra.expr import NEVER, ByteClass, CharClass, Expr
from sgl.grammars.schema.grammar_rewriting import GrammarRewriting

_ASCII: charset.CharSet = ((0, 0x7F),)
_BEGIN = bytes((BEGIN,))


def ascii_only(expr: Expr) -> Expr:
    """The same grammar without raw characters beyond ASCII; rules are rewritten when they are first needed."""
    return _AsciiOnly().of(expr)


class _AsciiOnly(GrammarRewriting):
    def chars(self, chars: charset.CharSet) -> Expr:
        kept = charset.intersect(chars, _ASCII)
        return CharClass(kept) if kept else NEVER

    def byte_set(self, expr: ByteClass) -> Expr:
        return ByteClass(expr.mask)  # what counts as plain text in the masks may be beyond ASCII

    def data(self, data: bytes) -> tuple[bytes, ...]:
        return (data,) if data.isascii() or data == _BEGIN else ()

    def end(self, data: bytes) -> bytes:
        """The end of a string with its characters beyond ASCII as escapes."""
        return "".join(c if c.isascii() else json.dumps(c)[1:-1] for c in data.decode()).encode()
