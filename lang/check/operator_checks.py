"""What operators make of values, and which pairs of values they cannot join."""

from __future__ import annotations

import ast
import operator
import re

from .abstract_values import (
    ANY,
    GENERATED,
    PLAIN,
    AbstractValue,
    AppendableExpression,
    AppendedTurn,
    ConstantValue,
    ExpressionNodeValue,
    GeneratedText,
    ListValue,
    TextPattern,
    UnionValue,
    is_generated,
    is_plain,
    options_of,
)
from .check_context import CheckContext

LONGEST_TEXT = 200_000
_FOLDED = {ast.Sub: operator.sub, ast.Div: operator.truediv, ast.FloorDiv: operator.floordiv}
_NUMERIC = (ast.Add, ast.Sub, ast.Div, ast.FloorDiv, ast.Pow)


def combine(
    c: CheckContext, node: ast.AST, op: ast.operator, left: AbstractValue, right: AbstractValue
) -> AbstractValue:
    """The value of `left op right`."""
    for side in (left, right):
        c.check_awaited(side, node)
    if isinstance(op, ast.Mod) and _is_text(left):
        for value in right.items if isinstance(right, ListValue) else (right,):
            c.check_text_of(value, node, "%")
    if isinstance(op, _NUMERIC):
        check_number(c, node, left, right)
    if isinstance(op, ast.Add):
        return _sum(left, right, node)
    if isinstance(left, ConstantValue) and isinstance(right, ConstantValue) and type(op) in _FOLDED:
        try:
            return ConstantValue(_FOLDED[type(op)](left.value, right.value))
        except Exception:
            return PLAIN
    if isinstance(op, ast.Mult) and isinstance(left, ListValue):
        return ListValue(left.items, complete=False)
    return _mixed(left, right)


def _mixed(left: AbstractValue, right: AbstractValue) -> AbstractValue:
    if is_generated(left) or is_generated(right):
        return GENERATED
    return PLAIN if is_plain(left) and is_plain(right) else ANY


def _is_text(value: AbstractValue) -> bool:
    return isinstance(value, TextPattern | GeneratedText) or (
        isinstance(value, ConstantValue) and isinstance(value.value, str)
    )


def check_number(c: CheckContext, node: ast.AST, left: AbstractValue, right: AbstractValue) -> None:
    for text, number in ((left, right), (right, left)):
        if isinstance(text, GeneratedText) and is_number(number):
            c.report(
                "SGL105",
                node,
                f"s[{text.name!r}] is text, not a number; read s.get({text.name!r}) of a typed gen, or convert: "
                f"int(s[{text.name!r}])",
            )


def is_number(value: AbstractValue) -> bool:
    return (
        isinstance(value, ConstantValue) and isinstance(value.value, int | float) and not isinstance(value.value, bool)
    )


def check_equal(c: CheckContext, node: ast.Compare, left: AbstractValue, right: AbstractValue) -> None:
    for text, number in ((left, right), (right, left)):
        if isinstance(text, GeneratedText) and is_number(number):
            assert isinstance(number, ConstantValue)
            c.report(
                "SGL105",
                node,
                f"s[{text.name!r}] is text and never equals the number {number.value!r}; compare with "
                f"{str(number.value)!r}, or read s.get({text.name!r}) of a typed gen",
                severity="warning",
            )


def _sum(left: AbstractValue, right: AbstractValue, node: ast.AST) -> AbstractValue:
    if _holds_any(left) or _holds_any(right):
        return AppendableExpression((*parts_of(left, node), *parts_of(right, node)))
    if isinstance(left, ListValue) and isinstance(right, ListValue):
        return ListValue(left.items + right.items, left.complete and right.complete, left.is_tuple)
    if isinstance(left, ConstantValue) and isinstance(right, ConstantValue):
        try:
            total = left.value + right.value
        except Exception:
            return PLAIN
        return ConstantValue(total) if not isinstance(total, str) or len(total) < LONGEST_TEXT else PLAIN
    patterns = [_pattern(side) for side in (left, right)]
    if all(pattern is not None for pattern in patterns):
        return TextPattern("".join(pattern for pattern in patterns if pattern))
    return _mixed(left, right)


def _holds_any(value: AbstractValue) -> bool:
    return any(isinstance(option, AppendableExpression | AppendedTurn) for option in options_of(value))


def _pattern(value: AbstractValue) -> str | None:
    if isinstance(value, TextPattern):
        return value.pattern
    return re.escape(value.value) if isinstance(value, ConstantValue) and isinstance(value.value, str) else None


def parts_of(value: AbstractValue, place: ast.AST) -> tuple[ExpressionNodeValue | UnionValue, ...]:
    if isinstance(value, AppendableExpression):
        return value.nodes
    if isinstance(value, UnionValue):
        return (UnionValue(tuple(AppendableExpression(parts_of(option, place)) for option in value.options)),)
    if is_plain(value):
        return (ExpressionNodeValue("plain_text", place, value),)
    if isinstance(value, AppendedTurn):
        return ()
    return (ExpressionNodeValue("any", place),)
