"""One sample of a chat as OpenAI's deltas and message."""

from __future__ import annotations

from collections.abc import Iterable

from sgl.runtime.dialects import ArgumentsDelta, ContentDelta, ReasoningDelta, ToolCallStart

from ..openai_common.openai_response_fields import Json
from .chat_choice import ChatChoiceReader, ChoiceFinished, ContentChunk, ToolCallChunk
from .deprecated_functions import as_functions


class ChatChoiceWriter:
    """Writes what a sample tells.

    thinks: messages and deltas have the key reasoning_content, null where there is no thought, as SGLang's have.
    whole_thoughts: a stream gives a thought at once, when it has ended.
    """

    def __init__(
        self, sample: ChatChoiceReader, index: int, thinks: bool = False, whole_thoughts: bool = False
    ) -> None:
        self._sample, self._index = sample, index
        self._thinks, self._whole_thoughts = thinks, whole_thoughts
        self._thought: list[str] = []  # of a thought that is to be given at once
        self._begun = False

    def write(self, chunks: Iterable[ContentChunk]) -> list[Json]:
        """Entries of `choices` in a stream: first the role, then what was written, at last why it ended."""
        entries = (
            [] if self._begun else [self._entry({"role": "assistant", "content": "" if self._sample.plain else None})]
        )
        self._begun = True
        for chunk in chunks:
            entries += self._entries(chunk)
        return entries

    def whole(self) -> Json:
        """The entry of `choices` in an answer that is no stream."""
        sample = self._sample
        return {"index": self._index, "message": self.message, "logprobs": sample.rows, "finish_reason": sample.finish}

    @property
    def message(self) -> Json:
        """OpenAI's message, of all chunks so far."""
        sample = self._sample
        message: Json = {
            "role": "assistant",
            "content": sample.content or (None if sample.calls else ""),
            "refusal": None,
        }
        if sample.thought or self._thinks:
            message["reasoning_content"] = sample.thought or None
        if sample.calls:
            message["tool_calls"] = [_call(call, call.arguments) for call in sample.calls]
        return message

    # inside

    def _entries(self, chunk: ContentChunk) -> list[Json]:
        if self._whole_thoughts and isinstance(chunk.event, ReasoningDelta):
            self._thought.append(chunk.event.text)
            return []
        thought, self._thought = "".join(self._thought), []
        held = [self._entry({"reasoning_content": thought})] if thought else []
        return [*held, *self._entries_of(chunk)]

    def _entries_of(self, chunk: ContentChunk) -> list[Json]:
        match chunk.event:
            case ContentDelta(text):
                return [self._entry({"content": text}, chunk.rows)]
            case ReasoningDelta(text):
                return [self._entry({"reasoning_content": text})]
            case ToolCallStart(index, id, name):
                return [self._entry({"tool_calls": [{"index": index, **_call(ToolCallChunk(id, name), "")}]})]
            case ArgumentsDelta(index, text):
                return [self._entry({"tool_calls": [{"index": index, "function": {"arguments": text}}]})]
            case ChoiceFinished(finish):
                left = [self._entry({"content": ""}, chunk.rows)] if chunk.rows else []
                return [*left, self._entry({}, finish=finish)]
        return []

    def _entry(self, delta: Json, logprobs: Json | None = None, finish: str | None = None) -> Json:
        if self._thinks:
            delta = {"reasoning_content": None, **delta}
        return {"index": self._index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}


class FunctionCallWriter(ChatChoiceWriter):
    """The same for a request that has functions, not tools."""

    def write(self, chunks: Iterable[ContentChunk]) -> list[Json]:
        return [as_functions(entry) for entry in super().write(chunks)]

    def whole(self) -> Json:
        return as_functions(super().whole())


def _call(call: ToolCallChunk, arguments: str) -> Json:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}}
