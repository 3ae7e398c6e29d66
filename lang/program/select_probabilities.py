"""How likely the model holds each choice of a `select`, or of a gen of a Literal, an Enum or bool, by the choice's
text.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from typing import TYPE_CHECKING

from sgl.runtime.text.chat_templates.quoted_text import quoted

from ..backend import Generated, SelectRequest, Stream
from ..errors import BadValueError
from ..global_config import own_words
from ..interpreter.state_transcript import LiteralText, PendingText
from ..nodes.ir import SglGen, SglSelect
from ..sampling.choices import ChoicesDecision, token_length_normalized
from ..typed.choice_labels import choice_labels

if TYPE_CHECKING:
    from ..interpreter.state_transcript import Piece
    from ..interpreter.state_variables import Binding
    from ..interpreter.stream_executor import StreamExecutor


def probabilities(executor: StreamExecutor, name: str, binding: Binding | None) -> dict[str, float]:
    """P(choice | it is one of them) of what made `name`, most likely first. Waits.

    A select knows them. The choices of a typed gen are scored now, in its place. Equal choices are one, with their sum.
    Raises BadValueError if neither made the variable or its backend reports no probabilities, ProgramError if it
    failed.
    """
    made = _Made(executor, name, binding)
    return made.probabilities(None if made.later is None else made.later.result())


async def probabilities_async(executor: StreamExecutor, name: str, binding: Binding | None) -> dict[str, float]:
    """`probabilities` of what is done, without blocking the event loop."""
    made = _Made(executor, name, binding)
    if made.later is None:
        return made.probabilities(None)
    scored: ChoicesDecision = await asyncio.wrap_future(made.later)
    return made.probabilities(scored)


class _Made:
    """What made a variable: its choices, and their scores or where these will come from."""

    def __init__(self, executor: StreamExecutor, name: str, binding: Binding | None) -> None:
        self.name = name
        node = getattr(binding, "node", None)
        self.later: Future[ChoicesDecision] | None = None
        if isinstance(node, SglSelect):
            self.choices = node.choices
        elif isinstance(binding, PendingText) and (choices := _choices_of(node)):
            self.choices = choices
        else:
            raise BadValueError(
                f"probs({name!r}): {_made(binding)}; read it in the state whose select, or gen of a Literal, Enum or "
                "bool, made it"
            )
        assert binding is not None
        binding.get()
        self._meta = binding.meta_info
        if isinstance(binding, PendingText) and not isinstance(node, SglSelect):
            self.later = rescore_choices(executor, binding, self.choices)

    def probabilities(self, scored: ChoicesDecision | None) -> dict[str, float]:
        meta = self._meta if scored is None else scored.meta_info
        listed = (meta or {}).get("choice_probs")
        if listed is None:
            raise BadValueError(f"probs({self.name!r}): the backend returned no probabilities")
        found = dict.fromkeys(map(str, self.choices), 0.0)
        for choice, value in zip(self.choices, listed, strict=True):
            found[choice] += value
        return dict(sorted(found.items(), key=lambda item: -item[1]))


def _choices_of(node: object) -> list[str] | None:
    labels = choice_labels(getattr(node.reading, "kind", None)) if isinstance(node, SglGen) else None
    return labels.texts if labels else None


def _made(binding: Binding | None) -> str:
    if binding is None:
        return "this value was assigned, or gathered from forks by join"
    return "no select made this variable"


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
