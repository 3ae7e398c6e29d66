"""Bounds on the length of a language's texts, put into its repeats where that is exact."""

from __future__ import annotations

from itertools import product
from math import prod

from sgl.grammars.algebra.expr import (
    NEVER,
    Alt,
    CharClass,
    Expr,
    Literal,
    LiteralSet,
    Repeat,
    Seq,
    alt,
    repeat,
    seq,
    words,
)

_MOST_LENGTHS = 32
ByLength = dict[int, Expr]


def clip_lengths(expr: Expr, least: int, most: int | None) -> Expr | None:
    """The texts of `least` to `most` characters; None where counting in one repeat does not do."""
    if most is not None and most < least:
        return NEVER
    match expr:
        case Alt(items):
            found = [clip_lengths(item, least, most) for item in items]
            return None if None in found else alt(*(f for f in found if f is not None))
        case Seq(items):
            return _clipped_sequence(items, least, most)
        case Repeat(item, fewest, greatest):
            width = fixed_length(item)
            if width:
                tops = [top for top in (greatest, None if most is None else most // width) if top is not None]
                return _times(item, max(fewest, -(-least // width)), min(tops, default=None))
    groups = by_length(expr)
    return None if groups is None else alt(*(e for n, e in groups.items() if _within(n, least, most)))


def _within(length: int, least: int, most: int | None) -> bool:
    return least <= length and (most is None or length <= most)


def _times(item: Expr, fewest: int, greatest: int | None) -> Expr:
    return NEVER if greatest is not None and greatest < fewest else repeat(item, fewest, greatest)


def _clipped_sequence(items: tuple[Expr, ...], least: int, most: int | None) -> Expr | None:
    """One item takes up what the others, each of a few lengths, leave."""
    groups = [by_length(item) for item in items]
    free = [i for i, group in enumerate(groups) if group is None]
    if len(free) > 1:
        return None
    at = free[0] if free else max(range(len(items)), key=lambda i: len(groups[i] or ()))
    others = [[(0, item)] if i == at else list((groups[i] or {}).items()) for i, item in enumerate(items)]
    if prod(map(len, others)) > _MOST_LENGTHS:
        return None
    found: list[Expr] = []
    for choice in product(*others):
        used = sum(length for length, _ in choice)
        rest = None if most is None else most - used
        if rest is not None and rest < 0:
            continue
        middle = clip_lengths(items[at], max(least - used, 0), rest)
        if middle is None:
            return None
        found.append(seq(*(middle if i == at else item for i, (_, item) in enumerate(choice))))
    return alt(*found)


def fixed_length(expr: Expr) -> int | None:
    """The length of all texts of an expression; None where they differ or there are none."""
    groups = by_length(expr)
    return next(iter(groups)) if groups is not None and len(groups) == 1 else None


def by_length(expr: Expr) -> ByLength | None:
    """The texts by their length; None where the lengths are many."""
    match expr:
        case CharClass():
            return {1: expr}
        case Literal(data):
            return {len(data.decode()): expr}
        case LiteralSet(literals):
            return _gathered([(len(word.decode()), Literal(word)) for word in literals])
        case Alt(items):
            return _gathered_all([by_length(item) for item in items])
        case Seq(items):
            return _sequences([by_length(item) for item in items])
        case Repeat(item, fewest, greatest):
            width = fixed_length(item)
            if width is None or greatest is None or greatest - fewest >= _MOST_LENGTHS:
                return None
            return {width * n: repeat(item, n, n) for n in range(fewest, greatest + 1)}
    return None


def _gathered_all(groups: list[ByLength | None]) -> ByLength | None:
    known = [group for group in groups if group is not None]
    return _gathered([pair for group in known for pair in group.items()]) if len(known) == len(groups) else None


def _gathered(pairs: list[tuple[int, Expr]]) -> ByLength | None:
    found: dict[int, list[Expr]] = {}
    for length, expr in pairs:
        found.setdefault(length, []).append(expr)
    return None if len(found) > _MOST_LENGTHS else {n: _either(exprs) for n, exprs in found.items()}


def _either(exprs: list[Expr]) -> Expr:
    literals = [expr.data for expr in exprs if isinstance(expr, Literal)]
    return words(literals) if len(literals) == len(exprs) else alt(*exprs)


def _sequences(groups: list[ByLength | None]) -> ByLength | None:
    found: ByLength = {0: seq()}
    for group in groups:
        if group is None or len(found) * len(group) > _MOST_LENGTHS:
            return None
        pairs = [(n + m, seq(left, right)) for n, left in found.items() for m, right in group.items()]
        gathered = _gathered(pairs)
        if gathered is None:
            return None
        found = gathered
    return found
