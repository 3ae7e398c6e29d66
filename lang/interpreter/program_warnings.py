"""Warnings about a program, once for each of its lines: what runs, but is hardly what was meant."""

from __future__ import annotations

import warnings
from typing import Any

from ..nodes.ir import SglExpr, SglSelect
from ..places.source_location import SourceLocation
from .state_transcript import LiteralText
from .state_writer import StateWriter

_registry: dict[Any, Any] = {}  # of the warnings module: which lines were warned about


class OutsideTurnWarning(UserWarning):
    """In a conversation, a gen or select is outside of all turns, where chat models do not expect to write."""


class UnreadDefinitionsWarning(UserWarning):
    """A select has definitions of its choices, but the prompt has none of them."""


def warn_about_node(executor: StateWriter, node: SglExpr, where: SourceLocation | None) -> None:
    """Called before a gen or select begins."""
    if _outside_of_turns(executor):
        role = executor.conversation.finished[-1].role
        _warn(
            executor,
            OutsideTurnWarning,
            where,
            f"{node!r:.100} is outside of all turns, after the end of the {role!r} turn, where a chat model does not "
            "expect to write; "
            "put it into a turn: s += sgl.assistant(...)",
        )
    if isinstance(node, SglSelect) and node.about and not _is_described(executor, node):
        _warn(
            executor,
            UnreadDefinitionsWarning,
            where,
            f"select({node.name!r}) has definitions that the prompt does not have, so the model does not know them; "
            "write them with "
            "sgl.labels(choices), as in s += sgl.system(sgl.labels(choices))",
        )


def _outside_of_turns(executor: StateWriter) -> bool:
    """Whether turns were used and none is open, by their roles or by the template's own marks."""
    conversation = executor.conversation
    if conversation.role is not None or not conversation.finished:
        return False
    ended = conversation.finished[-1].end or 0
    since = "".join(piece.text for piece in executor.pieces.items[ended + 1 :] if isinstance(piece, LiteralText))
    opens = conversation.opening("assistant").strip()
    return bool(opens) and opens not in since


def _is_described(executor: StateWriter, node: SglSelect) -> bool:
    """Whether the prompt has any of the definitions, by `sgl.labels` or in the program's own words."""
    texts = [" ".join(piece.text.split()) for piece in executor.pieces.items if isinstance(piece, LiteralText)]
    return any(about in text for about in node.about.values() for text in texts)


def _warn(executor: StateWriter, kind: type[Warning], where: SourceLocation | None, message: str) -> None:
    """Once for a line in a run, and, as Python's filters say, once for a line in a process."""
    if where is None or not executor.control.is_new((kind, where)):
        return
    warnings.warn_explicit(message, kind, where.file, where.line, registry=_registry)
