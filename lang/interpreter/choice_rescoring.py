"""What the model holds of each choice at a place of a finished text: the text is read again, up to there."""

from __future__ import annotations

from concurrent.futures import Future
from typing import TYPE_CHECKING

from sgl.runtime.text.chat_templates.quoted_text import quoted

from ..backend import Generated, SelectRequest, Stream
from ..errors import BadValueError
from ..global_config import own_words
from ..sampling.choices import ChoicesDecision, token_length_normalized
from .state_transcript import LiteralText, PendingText

if TYPE_CHECKING:
    from .state_transcript import Piece
    from .stream_executor import StreamExecutor


def rescore_choices(executor: StreamExecutor, piece: PendingText, choices: list[str]) -> Future[ChoicesDecision]:
    """Score the choices in the place of `piece`, which a state of this executor has.

    Its text, and the run, stay as they are.
    """
    stream = _stream_before(executor, piece)
    name = piece.node.name if hasattr(piece.node, "name") else None
    request = SelectRequest([quoted(choice) for choice in choices], token_length_normalized, 0.0, name, piece.where)
    try:
        return stream.select(request)
    finally:
        stream.close()


def _stream_before(executor: StreamExecutor, piece: PendingText) -> Stream:
    before = executor.pieces.items
    end = next((index for index, one in enumerate(before) if one is piece), None)
    if end is None:
        raise BadValueError(
            f"{piece.node!r} is not in the text of this state; read its probabilities in the state that made it"
        )
    adapter = executor.branch.adapter if piece.adapter is ... else piece.adapter
    stream = executor.backend.open_adapted(adapter) if isinstance(adapter, str) else executor.backend.open()
    turns = [
        *executor.conversation.finished,
        *([executor.conversation.current] if executor.conversation.current else []),
    ]
    opens = {turn.start - 1: turn.role for turn in turns}
    ends = {turn.end: turn.role for turn in turns}
    for index, one in enumerate(before[:end]):
        _write(stream, one, opens.get(index), ends.get(index), executor.chat_template.image_token)
    return stream


def _write(stream: Stream, piece: Piece, opened: str | None, ended: str | None, image_token: str) -> None:
    if isinstance(piece, LiteralText) and piece.media is not None:
        stream.attach(piece.media, image_token)
    elif isinstance(piece, PendingText):
        whole = piece.split is None and piece.results and piece.results[0].text == piece.text
        stream.restore(Generated(piece.text, token_ids=piece.token_ids)) if whole else stream.append(
            own_words(piece.text)
        )
    elif opened is not None:
        stream.begin_turn(opened, piece.passage)
    elif ended is not None:
        stream.end_turn(ended, piece.passage)
    else:
        stream.append(piece.passage)
