"""What a sample tells as output items of a response, and as the events of its stream."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable

from sgl.runtime.dialects import ArgumentsDelta, ContentDelta, ReasoningDelta, ToolCallEnd, ToolCallStart

from ..chat.chat_choice import ChoiceFinished, ContentChunk
from ..openai_common.openai_response_fields import Json
from .response_items import encrypted, new_id


class ItemWriter(ABC):
    """An item that is being written: `json` is the item so far. Methods give the events of what they do."""

    def __init__(self, index: int, json: Json) -> None:
        self.index, self.json = index, json

    def begin(self) -> list[Json]:
        added = {"type": "response.output_item.added", "output_index": self.index, "item": {**self.json}}
        return [added, *self._begin()]

    def end(self, status: str) -> list[Json]:
        self.json["status"] = status
        events = self._end()
        return [*events, {"type": "response.output_item.done", "output_index": self.index, "item": {**self.json}}]

    def _event(self, name: str, /, **fields: object) -> Json:
        return {"type": f"response.{name}", "item_id": self.json["id"], "output_index": self.index, **fields}

    @abstractmethod
    def _begin(self) -> list[Json]: ...

    @abstractmethod
    def _end(self) -> list[Json]:
        """Puts the content into the item."""


class MessageItemWriter(ItemWriter):
    def __init__(self, index: int) -> None:
        super().__init__(
            index, {"id": new_id("msg"), "type": "message", "status": "in_progress", "role": "assistant", "content": []}
        )
        self._pieces: list[str] = []
        self._rows: list[Json] = []

    def add(self, text: str, rows: Json | None) -> list[Json]:
        found = rows["content"] if rows else []
        self._pieces.append(text)
        self._rows += found
        return [self._event("output_text.delta", content_index=0, delta=text, logprobs=found)] if text or found else []

    def _begin(self) -> list[Json]:
        return [self._event("content_part.added", content_index=0, part=self._part)]

    def _end(self) -> list[Json]:
        part = self._part
        self.json["content"] = [part]
        done = self._event("output_text.done", content_index=0, text=part["text"], logprobs=part["logprobs"])
        return [done, self._event("content_part.done", content_index=0, part=part)]

    @property
    def _part(self) -> Json:
        return {"type": "output_text", "text": "".join(self._pieces), "annotations": [], "logprobs": [*self._rows]}


class CallItemWriter(ItemWriter):
    def __init__(self, index: int, id: str, name: str) -> None:
        json = {
            "id": new_id("fc"),
            "type": "function_call",
            "status": "in_progress",
            "call_id": id,
            "name": name,
            "arguments": "",
        }
        super().__init__(index, json)
        self._pieces: list[str] = []
        self.whole = True  # it did not break off

    def add(self, text: str) -> list[Json]:
        self._pieces.append(text)
        return [self._event("function_call_arguments.delta", delta=text)]

    def _begin(self) -> list[Json]:
        return []

    def _end(self) -> list[Json]:
        self.json["arguments"] = "".join(self._pieces)
        return [self._event("function_call_arguments.done", name=self.json["name"], arguments=self.json["arguments"])]


class ReasoningItemWriter(ItemWriter):
    """A thought as content, or with `summary` as that. `carried`: its text is in encrypted_content too."""

    def __init__(self, index: int, summary: bool, carried: bool) -> None:
        super().__init__(index, {"id": new_id("rs"), "type": "reasoning", "status": "in_progress", "summary": []})
        self._summary, self._carried = summary, carried
        self._pieces: list[str] = []

    def add(self, text: str) -> list[Json]:
        self._pieces.append(text)
        return [self._part_event(f"{self._word}.delta", delta=text)]

    def _begin(self) -> list[Json]:
        return [self._part_event(f"{self._holder}_part.added", part=self._part)]

    def _end(self) -> list[Json]:
        part = self._part
        self.json["summary" if self._summary else "content"] = [part]
        if self._carried:
            self.json["encrypted_content"] = encrypted(part["text"])
        return [
            self._part_event(f"{self._word}.done", text=part["text"]),
            self._part_event(f"{self._holder}_part.done", part=part),
        ]

    def _part_event(self, name: str, /, **fields: object) -> Json:
        return self._event(name, **{"summary_index" if self._summary else "content_index": 0}, **fields)

    @property
    def _word(self) -> str:
        return "reasoning_summary_text" if self._summary else "reasoning_text"

    @property
    def _holder(self) -> str:
        return "reasoning_summary" if self._summary else "content"

    @property
    def _part(self) -> Json:
        return {"type": "summary_text" if self._summary else "reasoning_text", "text": "".join(self._pieces)}


class ResponseOutputWriter:
    """Writes items, one after the other; one ends where the next begins.

    finish: why the sample ended, empty before it has.
    """

    def __init__(self, summary: bool, carried: bool) -> None:
        self._summary, self._carried = summary, carried
        self._items: list[ItemWriter] = []
        self._open: ItemWriter | None = None
        self.finish = ""

    @property
    def output(self) -> list[Json]:
        """The items so far, of which the last may be open."""
        return [{**item.json} for item in self._items]

    def write(self, chunks: Iterable[ContentChunk]) -> list[Json]:
        """The events of these pieces, without their numbers."""
        return [event for chunk in chunks for event in self._events(chunk)]

    def break_off(self) -> list[Json]:
        """End what is open where it stands."""
        return self._close("incomplete")

    # inside

    def _events(self, chunk: ContentChunk) -> list[Json]:
        match chunk.event:
            case ContentDelta(text):
                return self._text_events(text, chunk.rows)
            case ReasoningDelta(text):
                begun = [] if isinstance(self._open, ReasoningItemWriter) else self._next(self._thought())
                assert isinstance(self._open, ReasoningItemWriter)
                return [*begun, *self._open.add(text)]
            case ToolCallStart(_, id, name):
                return self._next(CallItemWriter(len(self._items), id, name))
            case ArgumentsDelta(_, text) if isinstance(self._open, CallItemWriter):
                return self._open.add(text)
            case ToolCallEnd(_, complete) if isinstance(self._open, CallItemWriter):
                self._open.whole = complete
            case ChoiceFinished(finish):
                return self._over(finish, chunk.rows)
        return []

    def _text_events(self, text: str, rows: Json | None) -> list[Json]:
        begun: list[Json] = []
        if not isinstance(self._open, MessageItemWriter):
            text = text.removeprefix("\n") if self._items else text  # which parts it from a call before it
            begun = self._next(MessageItemWriter(len(self._items)))
        assert isinstance(self._open, MessageItemWriter)
        return [*begun, *self._open.add(text, rows)]

    def _over(self, finish: str, rows: Json | None) -> list[Json]:
        self.finish = finish
        events = (
            self._text_events("", rows)
            if not self._items or (rows and isinstance(self._open, MessageItemWriter))
            else []
        )
        return [*events, *self._close("incomplete" if finish == "length" else "completed")]

    def _thought(self) -> ReasoningItemWriter:
        return ReasoningItemWriter(len(self._items), self._summary, self._carried)

    def _next(self, item: ItemWriter) -> list[Json]:
        ended = self._close("completed")
        self._items.append(item)
        self._open = item
        return [*ended, *item.begin()]

    def _close(self, status: str) -> list[Json]:
        item, self._open = self._open, None
        if item is None:
            return []
        return item.end("incomplete" if isinstance(item, CallItemWriter) and not item.whole else status)
