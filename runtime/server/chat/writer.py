"""One sample of a chat as OpenAI's deltas and message."""

from __future__ import annotations

from collections.abc import Iterable

from sgl.runtime.dialects import Arguments, CallBegun, Said, Thought

from ..openai_answers import Json
from .functions import as_functions
from .sample import Called, Over, Sample, Told


class ChoiceWriter:
    """Writes what a sample tells."""

    def __init__(self, sample: Sample, index: int) -> None:
        self._sample, self._index = sample, index
        self._begun = False

    def write(self, told: Iterable[Told]) -> list[Json]:
        """Entries of `choices` in a stream: first the role, then what was written, at last why it ended."""
        entries = [] if self._begun else [self._entry({"role": "assistant", "content": "" if self._sample.plain else None})]
        self._begun = True
        for one in told:
            entries += self._entries(one)
        return entries

    def whole(self) -> Json:
        """The entry of `choices` in an answer that is no stream."""
        sample = self._sample
        return {"index": self._index, "message": self.message, "logprobs": sample.rows, "finish_reason": sample.finish}

    @property
    def message(self) -> Json:
        """OpenAI's message, of all that was told so far."""
        sample = self._sample
        message: Json = {"role": "assistant", "content": sample.said or (None if sample.calls else ""), "refusal": None}
        if thought := sample.thought:
            message["reasoning_content"] = thought
        if sample.calls:
            message["tool_calls"] = [_call(call, call.arguments) for call in sample.calls]
        return message

    # inside

    def _entries(self, told: Told) -> list[Json]:
        match told.event:
            case Said(text):
                return [self._entry({"content": text}, told.rows)]
            case Thought(text):
                return [self._entry({"reasoning_content": text})]
            case CallBegun(index, id, name):
                return [self._entry({"tool_calls": [{"index": index, **_call(Called(id, name), "")}]})]
            case Arguments(index, text):
                return [self._entry({"tool_calls": [{"index": index, "function": {"arguments": text}}]})]
            case Over(finish):
                left = [self._entry({"content": ""}, told.rows)] if told.rows else []
                return [*left, self._entry({}, finish=finish)]
        return []

    def _entry(self, delta: Json, logprobs: Json | None = None, finish: str | None = None) -> Json:
        return {"index": self._index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}


class FunctionWriter(ChoiceWriter):
    """The same for a request that has functions, not tools."""

    def write(self, told: Iterable[Told]) -> list[Json]:
        return [as_functions(entry) for entry in super().write(told)]

    def whole(self) -> Json:
        return as_functions(super().whole())


def _call(call: Called, arguments: str) -> Json:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}}
