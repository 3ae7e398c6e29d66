"""Marks: bytes that no text has, by which a grammar asks what was written. They are put in while a text is read.

A grammar that asks begins with `BEGIN`. After `[` comes the mark of an array, and after each item whether it is new.
"""

from __future__ import annotations

from sgl.grammars.algebra.expr import Bytes, Expr, Literal, Seq

BEGIN = 0xF9  # the first of all
OPENED, OPENED_PLAIN, OPENED_UNIQUE = 0xFB, 0xFC, 0xFD  # of any array, and which kinds of it may be meant
NEW, REPEATED = 0xFE, 0xFF
MOST_ITEMS = 256  # of an array whose items are remembered


def opened(unique: bool) -> Expr:
    """What follows the bracket of an array."""
    return Bytes(1 << OPENED | 1 << (OPENED_UNIQUE if unique else OPENED_PLAIN))


def ended(unique: bool) -> Expr:
    """What follows an item of an array."""
    return Bytes(1 << NEW if unique else 1 << NEW | 1 << REPEATED)


def remembered(expr: Expr) -> Expr:
    """A grammar whose texts are remembered."""
    return Seq((Literal(bytes((BEGIN,))), expr))
