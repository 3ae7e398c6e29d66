"""A state at the end of a notebook's cell: its text and figures, small, without a script."""

from __future__ import annotations

import html
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..chat import ConversationTurn
from ..interpreter.state_transcript import LiteralText, Piece
from ..nodes.ir import SglSelect
from .value_text import seen

if TYPE_CHECKING:
    from ..program.program_state import StateBase

MOST = 20_000  # characters that are shown
_COLOURS = {"gen": "#4a86ff33", "select": "#9b5cff33", "error": "#ff4d4d33"}
_BOX = "border: 1px solid #8884; border-radius: 8px; padding: 8px 12px; max-height: 420px; overflow: auto"
_TEXT = "white-space: pre-wrap; overflow-wrap: anywhere; font-family: inherit; margin: 2px 0"


def brief(state: StateBase) -> str:
    """HTML of a state's text so far: generated parts tinted, the error named. Waits for nothing."""
    executor = state.stream_executor
    blocks = [f'<div dir="auto" style="{_TEXT}">{block}</div>' for block in _blocks(state) if block]
    line = f"{html.escape(executor.branch.program)} · {executor.branch.usage()} · <code>.report()</code> shows all"
    return f'<div style="{_BOX}">{"".join(blocks)}<small style="opacity: 0.7">{line}</small></div>'


def _blocks(state: StateBase) -> Iterator[str]:
    """The text turn by turn, up to the first piece that failed; without the template's marks."""
    turns = _turns(state)
    starts = {turn.start: turn.role for turn in turns}
    marks = {i for turn in turns for i in (turn.start - 1, turn.end) if i is not None}
    block, left = "", MOST
    for index, piece in enumerate(state.stream_executor.pieces.items):
        if index in starts:
            yield block
            block = f'<b style="opacity: 0.7">{html.escape(starts[index])}</b>&ensp;'
        if index not in marks:
            block += _part(piece, left)
            left -= len(piece.text)
        if piece.error is not None or left < 0:
            break
    yield block


def _turns(state: StateBase) -> list[ConversationTurn]:
    conversation = state.stream_executor.conversation
    return [*conversation.finished, *([conversation.current] if conversation.current else [])]


def _part(piece: Piece, most: int) -> str:
    """At most so many characters of a piece."""
    if isinstance(piece, LiteralText):
        return html.escape(seen(_cut(piece.text, most)))
    if piece.error is not None:
        return _tinted("error", f"{type(piece.error).__name__}: {piece.error}", "")
    kind = "select" if isinstance(piece.node, SglSelect) else "gen"
    text = piece.text if piece.done else f"{piece.streamed}…"
    return _tinted(kind, _cut(text, most), getattr(piece.node, "name", None) or kind)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}… (too long to be shown here)"


def _tinted(kind: str, text: str, title: str) -> str:
    style = f"background: {_COLOURS[kind]}; border-radius: 4px; padding: 1px 2px"
    return f'<span title="{html.escape(seen(title))}" style="{style}">{html.escape(seen(text))}</span>'
