"""Classes of characters that hold all plain JSON string text say so, which is what masks have slices for."""

from __future__ import annotations

from sgl.grammars.algebra import charset
from sgl.grammars.algebra.expr import PLAIN_REPEATED, Alt, ByteClass, CharClass, Expr, Repeat, Seq, alt, repeat, seq

_ASCII = charset.normalise([(0, 0x7F)])
_WIDE = charset.minus(charset.ANY, _ASCII)
_LAST = _WIDE[-1:]
_PLAIN = charset.minus(charset.ANY, charset.union(((0, 0x1F),), charset.of('"\\')))


def mark_plain_text_classes(expr: Expr) -> Expr:
    """The same language; the first bytes of its classes that hold all plain text are marked."""
    match expr:
        case CharClass(chars) if chars[-1:] == _LAST and not charset.minus(_PLAIN, chars):
            narrow = sum((1 << high + 1) - (1 << low) for low, high in charset.intersect(chars, _ASCII))
            return alt(ByteClass(narrow, PLAIN_REPEATED), CharClass(_WIDE))
        case Seq(items):
            return seq(*map(mark_plain_text_classes, items))
        case Alt(items):
            return alt(*map(mark_plain_text_classes, items))
        case Repeat(item, minimum, maximum):
            return repeat(mark_plain_text_classes(item), minimum, maximum)
    return expr
