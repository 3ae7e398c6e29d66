"""Expressions of the bytes that no text has, see `byte_marks`."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

from sgl.grammars.algebra.byte_marks import (
    BEGIN,
    ENDS,
    NEW,
    OPENED,
    OPENED_PLAIN,
    OPENED_UNIQUE,
    REPEATED,
    TOKEN,
    token_mark,
)
from sgl.grammars.algebra.charset import digit_ranges
from sgl.grammars.algebra.expr import Alt, ByteClass, Expr, Literal, Seq


def opened(unique: bool) -> Expr:
    """What follows the bracket of an array."""
    return ByteClass(1 << OPENED | 1 << (OPENED_UNIQUE if unique else OPENED_PLAIN))


def ended(unique: bool) -> Expr:
    """What follows an item of an array."""
    return ByteClass(1 << NEW if unique else 1 << NEW | 1 << REPEATED)


def remembered(expr: Expr) -> Expr:
    """A grammar whose texts are remembered."""
    return Seq((Literal(bytes((BEGIN,))), expr))


def token_among(ids: Iterable[int]) -> Expr:
    """Any one of some tokens."""
    return Seq((Literal(bytes((TOKEN,))), _numbers(ids)))


def naming(expr: Expr, ends: Iterable[int]) -> Expr:
    """A grammar that speaks of tokens, among them some that end texts elsewhere."""
    named = Seq((Literal(bytes((TOKEN,))), expr))
    return Alt((named, *(Literal(bytes((ENDS,)) + token_mark(token)[1:]) for token in ends)))


def _numbers(ids: Iterable[int]) -> Expr:
    runs = [
        [token for _, token in run] for _, run in groupby(enumerate(sorted(set(ids))), lambda pair: pair[1] - pair[0])
    ]
    products = [product for run in runs for product in digit_ranges(_digits(run[0]), _digits(run[-1]), 0, 255)]
    return Alt(tuple(Seq(tuple(ByteClass((2 << high) - (1 << low)) for low, high in product)) for product in products))


def _digits(token: int) -> list[int]:
    return list(token_mark(token)[1:])
