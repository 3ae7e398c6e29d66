"""What a sample tells as output items of a response, and as the events of its stream."""

from __future__ import annotations

from collections.abc import Iterable

from sgl.runtime.dialects import ArgumentsDelta, ContentDelta, ReasoningDelta, ToolCallEnd, ToolCallStart

from ..chat.chat_choice import ChoiceFinished, ContentChunk
from ..openai_common.openai_response_fields import Json
from .response_items import encrypted, new_id


class ItemWriter:
    """An item that is being written: `json` is the item so far. Methods give the events of what they do."""

    def __init__(self, index: int, prefix: str, kind: str, **fields: object) -> None:
        self.index = index
        self.json: Json = {"id": new_id(prefix), "type": kind, "status": "in_progress", **fields}
        self.pieces: list[str] = []

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    def begin(self) -> list[Json]:
        return [self._item_event("added")]

    def end(self, status: str) -> list[Json]:
        """Puts the content into the item."""
        self.json["status"] = status
        return [self._item_event("done")]

    def _item_event(self, name: str) -> Json:
        return {"type": f"response.output_item.{name}", "output_index": self.index, "item": {**self.json}}

    def _event(self, name: str, /, **fields: object) -> Json:
        return {"type": f"response.{name}", "item_id": self.json["id"], "output_index": self.index, **fields}


class MessageItemWriter(ItemWriter):
    def __init__(self, index: int) -> None:
        super().__init__(index, "msg", "message", role="assistant", content=[])
        self._rows: list[Json] = []

    def add(self, text: str, rows: Json | None) -> list[Json]:
        found = rows["content"] if rows else []
        self.pieces.append(text)
        self._rows += found
        return [self._event("output_text.delta", content_index=0, delta=text, logprobs=found)] if text or found else []

    def begin(self) -> list[Json]:
        return [*super().begin(), self._event("content_part.added", content_index=0, part=self._part)]

    def end(self, status: str) -> list[Json]:
        part = self._part
        self.json["content"] = [part]
        done = self._event("output_text.done", content_index=0, text=part["text"], logprobs=part["logprobs"])
        return [done, self._event("content_part.done", content_index=0, part=part), *super().end(status)]

    @property
    def _part(self) -> Json:
        return {"type": "output_text", "text": self.text, "annotations": [], "logprobs": [*self._rows]}


class CallItemWriter(ItemWriter):
    def __init__(self, index: int, id: str, name: str) -> None:
        super().__init__(index, "fc", "function_call", call_id=id, name=name, arguments="")
        self.whole = True  # it did not break off

    def add(self, text: str) -> list[Json]:
        self.pieces.append(text)
        return [self._event("function_call_arguments.delta", delta=text)]

    def end(self, status: str) -> list[Json]:
        self.json["arguments"] = self.text
        done = self._event("function_call_arguments.done", name=self.json["name"], arguments=self.text)
        return [done, *super().end(status if self.whole else "incomplete")]


class ReasoningItemWriter(ItemWriter):
    """A thought as content, or with `summary` as that. `carried`: its text is in encrypted_content too."""

    def __init__(self, index: int, summary: bool, carried: bool) -> None:
        super().__init__(index, "rs", "reasoning", summary=[])
        self._field, self._carried = "summary" if summary else "content", carried
        self._word = "reasoning_summary_text" if summary else "reasoning_text"
        self._holder = "reasoning_summary_part" if summary else "content_part"

    def add(self, text: str) -> list[Json]:
        self.pieces.append(text)
        return [self._part_event(f"{self._word}.delta", delta=text)]

    def begin(self) -> list[Json]:
        return [*super().begin(), self._part_event(f"{self._holder}.added", part=self._part)]

    def end(self, status: str) -> list[Json]:
        part = self._part
        self.json[self._field] = [part]
        if self._carried:
            self.json["encrypted_content"] = encrypted(part["text"])
        done = self._part_event(f"{self._word}.done", text=part["text"])
        return [done, self._part_event(f"{self._holder}.done", part=part), *super().end(status)]

    def _part_event(self, name: str, /, **fields: object) -> Json:
        return self._event(name, **{f"{self._field}_index": 0}, **fields)

    @property
    def _part(self) -> Json:
        return {"type": "summary_text" if self._field == "summary" else "reasoning_text", "text": self.text}


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
        return [] if item is None else item.end(status)
