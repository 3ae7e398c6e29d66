"""Turns: roles are opened and closed in pairs, one at a time."""

from __future__ import annotations

import ast
import re

from .abstract_values import AbstractValue, ConstantValue, ExpressionNodeValue
from .check_context import CheckContext
from .check_environment import ANY_ROLE, StateFacts

_MARK = re.compile(r"<[|｜]|\[/?INST|<start_of_turn>|assistant|\bmodel\b|\bbot\b|\bAI\b", re.IGNORECASE)


def apply_role(c: CheckContext, facts: StateFacts, node: ExpressionNodeValue) -> None:
    """A role begins or ends."""
    if node.kind == "begin":
        _begin_role(c, facts, node)
    else:
        _end_role(c, facts, node)


def _begin_role(c: CheckContext, facts: StateFacts, node: ExpressionNodeValue) -> None:
    if facts.role not in (None, ANY_ROLE):
        line = getattr(facts.role_place, "lineno", 0)
        c.report(
            "SGL201",
            node.place,
            f"{node.role} begins while the {facts.role} turn of line {line} is open; turns cannot be nested: end "
            f"that one first, with {facts.role}_end()",
        )
        facts.role = ANY_ROLE  # one report is enough: what ends then is open to doubt
        return
    facts.role, facts.role_place = node.role, node.place


def _end_role(c: CheckContext, facts: StateFacts, node: ExpressionNodeValue) -> None:
    if facts.role is None:
        c.report(
            "SGL202",
            node.place,
            f"{node.role}_end() ends a turn that never began; put {node.role}_begin() before its text",
        )
    elif facts.role not in (node.role, ANY_ROLE):
        line = getattr(facts.role_place, "lineno", 0)
        c.report(
            "SGL203",
            node.place,
            f"{node.role}_end() comes while the {facts.role} turn of line {line} is open; write {facts.role}_end()",
        )
    if facts.role != ANY_ROLE:
        facts.role, facts.ends_with_turn = None, True


def check_inside(c: CheckContext, facts: StateFacts, node: ExpressionNodeValue) -> None:
    """A gen or select, where turns were used, is inside of one. The program's own text may open one in its own way."""
    if facts.role is None and facts.ends_with_turn:
        c.report(
            "SGL206",
            node.place,
            f"this {node.kind} is outside of all turns, where a chat model does not expect to write; put it into one: "
            "s += sgl.assistant(...)",
        )


def note_text(facts: StateFacts, value: AbstractValue) -> None:
    """Text outside of turns that may itself open one: a mark that is spelt out, or text that is not known."""
    if facts.role is None and not (
        isinstance(value, ConstantValue) and isinstance(value.value, str) and not _MARK.search(value.value)
    ):
        facts.ends_with_turn = False


def check_turn_content(c: CheckContext, role: str, inside: AbstractValue | None, place: ast.AST) -> None:
    """`sgl.user(None)`."""
    if inside == ConstantValue(None):
        c.report(
            "SGL207",
            place,
            f"{role}(None) is an error: a turn needs a text or an expression; leave the turn out where there is none",
        )


def check_closed(c: CheckContext, facts: StateFacts) -> None:
    """At the end of a program. An assistant turn may stay open: the model, or the caller, continues there."""
    if facts.role in (None, ANY_ROLE, "assistant") or facts.role_place is None:
        return
    c.report("SGL204", facts.role_place, f"this {facts.role} turn is never ended; append {facts.role}_end()")
