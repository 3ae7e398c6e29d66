"""One sample of a chat: from the engine's output to chunks of content, the same for every API."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import NamedTuple

from sgl.runtime.dialects import (
    ArgumentsDelta,
    ContentDelta,
    DialectStep,
    Event,
    ReasoningDelta,
    ToolCallEnd,
    ToolCallStart,
)
from sgl.runtime.sequences.generation import Chunk, Generation

from ...generation_steps import GenerationStep, joined
from ..openai_common.openai_response_fields import Json, finish_reason
from .chat_plan import ChatPlan
from .chat_readers import PlainTextReader
from .visible_logprobs import ChoiceLogprobs


@dataclass(frozen=True, slots=True)
class ChoiceFinished:
    """The sample has ended. finish: `stop`, `length`, or `tool_calls` where there are some and nothing cut them off."""

    finish: str


class ContentChunk(NamedTuple):
    """A piece of the message. rows: OpenAI's log-probabilities of its text, None where they are not wanted.

    Calls that begin have an id. With `ChoiceFinished` come the rows of text that no piece took along.
    """

    event: Event | ChoiceFinished
    rows: Json | None = None


class ToolCallChunk:
    """A call of the message, its arguments as JSON text; `complete`: they came to their end."""

    def __init__(self, id: str, name: str) -> None:
        self.id, self.name, self.complete = id, name, False
        self.pieces: list[str] = []

    @property
    def arguments(self) -> str:
        return "".join(self.pieces)


class ChatChoiceReader:
    """Takes the chunks of one sample and tells what becomes of them; knows what the sample does next.

    calls: those of the message so far, in order.
    """

    def __init__(self, plan: ChatPlan, prompt: str) -> None:
        self._plan = plan
        first = plan.begin(prompt)
        self._step: DialectStep | None = first  # None: the sample has ended
        self._made: list[Generation] = []
        self._reader = plan.readers.reader(prompt)
        self._early = self._reader.feed(first.prefix)
        self.plain = isinstance(self._reader, PlainTextReader)  # all that is written is text
        self._rows = ChoiceLogprobs(plan.work.engine.tokenizer, plan.params, self.plain)
        self._whole = True  # no call broke off
        self._content: list[str] = []
        self._thought: list[str] = []
        self.calls: list[ToolCallChunk] = []

    def take(self, chunk: Chunk) -> list[ContentChunk]:
        """What the next chunk tells; at last that the sample is over."""
        self._rows.add(chunk)
        if self.plain and chunk.generation is None and not self._early:  # the way of nearly all chunks
            return [self._write(ContentDelta(chunk.text))] if chunk.text else []
        events, self._early = [*self._early, *self._reader.feed(chunk.text)], []
        if chunk.generation is not None:
            events += self._finished(chunk.generation)
        chunks = [self._write(event) for event in events]
        return (
            chunks
            if self._step is not None
            else [*chunks, ContentChunk(ChoiceFinished(self.finish), self._rows.left())]
        )

    async def go_on(self) -> GenerationStep | None:
        """The sample's next move, once one has finished; None: it has ended."""
        if self._step is None:
            return None
        return await self._plan.move(self._step, sum(made.completion_tokens for made in self._made))

    @property
    def content(self) -> str:
        return "".join(self._content)

    @property
    def thought(self) -> str:
        return "".join(self._thought)

    @property
    def rows(self) -> Json | None:
        """Log-probabilities of all that was said so far."""
        return self._rows.all

    @property
    def finish(self) -> str:
        """As `ChoiceFinished` has it; of a sample that has made something."""
        why = finish_reason(self._made[-1])
        return "tool_calls" if why == "stop" and self._whole and self.calls else why

    @property
    def generations(self) -> list[Generation]:
        """All moves as one; none before the first was finished."""
        return [joined(self._made)] if self._made else []

    # inside

    def _finished(self, made: Generation) -> list[Event]:
        """A move is over: what the text between it and the next one tells."""
        assert self._step is not None
        self._made.append(made)
        cut = finish_reason(made) == "length"
        kept = self._reader.feed(self._plan.included_stop(self._step, made))
        self._step = None if cut else self._step.then(made.text + self._plan.stop_of(self._step, made))
        return kept + (self._reader.feed("", last=True) if self._step is None else self._reader.feed(self._step.prefix))

    def _write(self, event: Event) -> ContentChunk:
        """Put the piece to the message."""
        match event:
            case ContentDelta(text):
                self._content.append(text)
                return ContentChunk(event, self._rows.take_visible(text))
            case ReasoningDelta(text):
                self._rows.pass_over(text)
                self._thought.append(text)
            case ToolCallStart(index, _, name):
                self._rows.pass_over(name)
                event = ToolCallStart(index, f"call_{uuid.uuid4().hex[:24]}", name)
                self.calls.append(ToolCallChunk(event.id, name))
            case ArgumentsDelta(index, text):
                self._rows.pass_over(text)
                self.calls[index].pieces.append(text)
            case ToolCallEnd(index, complete):
                self.calls[index].complete = complete
                self._whole = self._whole and complete
        return ContentChunk(event)
