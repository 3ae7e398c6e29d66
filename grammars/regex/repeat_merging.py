"""Repeats brought to few counters: nested and neighbouring repeats of the same item become one."""

from __future__ import annotations

from collections.abc import Iterable

from sgl.grammars.algebra.expr import EMPTY, Expr, Literal, Repeat, nonempty, nullable, optional, repeat, seq

Bounds = tuple[int, int | None]


def merge_repeats(item: Expr, minimum: int, maximum: int | None) -> Expr:
    """`item` between `minimum` and `maximum` times, as `repeat`, nested counts multiplied where that is exact."""
    if maximum == 0:
        return EMPTY
    if nullable(item):
        return optional_of(merge_repeats(nonempty(item), 1, maximum))
    if isinstance(item, Repeat):
        bounds = _product((item.minimum, item.maximum), (max(minimum, 1), maximum))
        if bounds is not None:
            merged = repeat(item.item, *bounds)
            return optional_of(merged) if minimum == 0 else merged
    return repeat(item, minimum, maximum)


def optional_of(item: Expr) -> Expr:
    if isinstance(item, Repeat) and item.minimum <= 1:
        return Repeat(item.item, 0, item.maximum)
    return optional(item)


def _product(inner: Bounds, outer: Bounds) -> Bounds | None:
    """The bounds of a repeat of a repeat; None where some count between them is missing (`(aa?a?){0,}` has none)."""
    (least, most), (fewest, greatest) = inner, outer
    top = None if most is None or greatest is None else most * greatest
    if fewest == greatest or most is None or fewest * most + 1 >= (fewest + 1) * least:
        return fewest * least, top
    return None


def sequence(items: Iterable[Expr]) -> Expr:
    """Concatenation in which `xx*` and `x{2}x{3,5}` are one repeat."""
    merged: list[Expr] = []
    for item in items:
        together = _joined(merged[-1], item) if merged else None
        if together is None:
            merged.append(item)
        else:
            merged[-1] = together
    return seq(*merged)


def _joined(left: Expr, right: Expr) -> Expr | None:
    if not (isinstance(left, Repeat) or isinstance(right, Repeat)):
        return None
    (one, low, high), (other, least, most) = _counted(left), _counted(right)
    if type(one) is not type(other) or (isinstance(one, Literal) and not one.data) or one != other:
        return None
    return Repeat(one, low + least, None if high is None or most is None else high + most)


def _counted(expr: Expr) -> tuple[Expr, int, int | None]:
    return (expr.item, expr.minimum, expr.maximum) if isinstance(expr, Repeat) else (expr, 1, 1)
