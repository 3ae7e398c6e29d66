"""What a sample tells as blocks of content, and as the events of its stream."""

from __future__ import annotations

import json
from collections.abc import Iterable

from sgl.runtime.dialects import ArgumentsDelta, ContentDelta, ReasoningDelta, ToolCallStart

from ..chat.chat_choice import ChoiceFinished, ContentChunk
from ..openai_common.openai_response_fields import Json

SIGNATURE = "unsigned"  # clients want one; it is not checked
DELTAS = {
    "text": ("text_delta", "text"),
    "thinking": ("thinking_delta", "thinking"),
    "tool_use": ("input_json_delta", "partial_json"),
}


class ContentBlockWriter:
    """Writes blocks, one after the other; one ends where the next begins."""

    def __init__(self) -> None:
        self._blocks: list[tuple[Json, list[str]]] = []  # as they began, and what came
        self._open = False

    @property
    def content(self) -> list[Json]:
        """The blocks so far, whole. The input of a call that broke off is empty."""
        return [_whole(block, "".join(pieces)) for block, pieces in self._blocks]

    def write(self, chunks: Iterable[ContentChunk]) -> list[Json]:
        return [event for chunk in chunks for event in self._events(chunk)]

    # inside

    def _events(self, chunk: ContentChunk) -> list[Json]:
        match chunk.event:
            case ContentDelta(text):
                return self._piece({"type": "text", "text": ""}, text)
            case ReasoningDelta(text):
                return self._piece({"type": "thinking", "thinking": "", "signature": ""}, text)
            case ToolCallStart(_, id, name):
                return self._begin(
                    {"type": "tool_use", "id": id.replace("call_", "toolu_", 1), "name": name, "input": {}}
                )
            case ArgumentsDelta(_, text):
                return self._delta(text)
            case ChoiceFinished():
                return self._end()
        return []

    def _piece(self, block: Json, text: str) -> list[Json]:
        """More of a block of this kind, which begins where there is none open."""
        if self._open and self._blocks[-1][0]["type"] == block["type"]:
            return self._delta(text)
        text = text.removeprefix("\n") if self._blocks else text  # which parts it from a call before it
        return [*self._begin(block), *self._delta(text)]

    def _begin(self, block: Json) -> list[Json]:
        ended = self._end()
        self._blocks.append((block, []))
        self._open = True
        return [*ended, {"type": "content_block_start", "index": len(self._blocks) - 1, "content_block": block}]

    def _delta(self, text: str) -> list[Json]:
        block, pieces = self._blocks[-1]
        pieces.append(text)
        kind, field = DELTAS[block["type"]]
        return [self._of_block("content_block_delta", delta={"type": kind, field: text})] if text else []

    def _end(self) -> list[Json]:
        if not self._open:
            return []
        self._open = False
        thought = self._blocks[-1][0]["type"] == "thinking"
        signed = self._of_block("content_block_delta", delta={"type": "signature_delta", "signature": SIGNATURE})
        return [*([signed] if thought else []), self._of_block("content_block_stop")]

    def _of_block(self, name: str, **fields: Json) -> Json:
        return {"type": name, "index": len(self._blocks) - 1, **fields}


def _whole(block: Json, text: str) -> Json:
    if block["type"] == "tool_use":
        return {**block, "input": _object(text)}
    more = {"signature": SIGNATURE} if block["type"] == "thinking" else {}
    return {**block, block["type"]: text, **more}


def _object(text: str) -> Json:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
