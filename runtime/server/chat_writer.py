"""One sample of a chat: from what the engine gives to OpenAI's deltas and message."""

from __future__ import annotations

import uuid

from sgl.runtime.dialects import Arguments, CallBegun, CallEnded, Event, Said, Step, Thought
from sgl.runtime.sequences.ops import Chunk, Generation

from .chat_moves import Move, joined
from .chat_plan import Plan
from .chat_reading import Plain
from .chat_rows import RowChooser
from .openai_answers import Json, finish_reason


class ChoiceWriter:
    """Takes the chunks of one sample and tells what becomes of them; knows what the sample does next."""

    def __init__(self, plan: Plan, prompt: str, index: int) -> None:
        self._plan, self._index = plan, index
        first = plan.begin(prompt)
        self._step: Step | None = first  # None: the sample has ended
        self._made: list[Generation] = []
        self._reader = plan.readers.reader(prompt)
        self._early = self._reader.feed(first.prefix)
        self._plain = isinstance(self._reader, Plain)
        self._rows = RowChooser(plan.work.engine.tokenizer, plan.params, self._plain)
        self._begun = False
        self._whole = True  # no call broke off
        self._said: list[str] = []
        self._thought: list[str] = []
        self._calls: list[tuple[Json, list[str]]] = []  # with the pieces of its arguments

    def take(self, chunk: Chunk) -> list[Json]:
        """Entries of `choices` in a stream: first the role, then what was written, at last why it ended."""
        if self._plain and self._begun and chunk.generation is None:
            return self._more(chunk)
        entries = [] if self._begun else [self._entry({"role": "assistant", "content": self._empty})]
        self._begun = True
        self._rows.add(chunk)
        events, self._early = [*self._early, *self._reader.feed(chunk.text)], []
        if chunk.generation is not None:
            events += self._finished(chunk.generation)
        entries += [entry for event in events if (entry := self._write(event)) is not None]
        if self._step is None:
            entries += self._ended()
        return entries

    async def go_on(self) -> Move | None:
        """The sample's next move, once one has finished; None: it has ended."""
        if self._step is None:
            return None
        return await self._plan.move(self._step, sum(made.completion_tokens for made in self._made))

    def whole(self) -> Json:
        """The entry of `choices` in an answer that is no stream."""
        return {"index": self._index, "message": self.message, "logprobs": self._rows.all, "finish_reason": self.finish}

    @property
    def message(self) -> Json:
        """OpenAI's message, of all that was taken so far."""
        message: Json = {"role": "assistant", "content": "".join(self._said) or (None if self._calls else ""), "refusal": None}
        if self._thought:
            message["reasoning_content"] = "".join(self._thought)
        if self._calls:
            message["tool_calls"] = [_call(call, "".join(arguments)) for call, arguments in self._calls]
        return message

    @property
    def finish(self) -> str:
        """`tool_calls` where there are some, and nothing cut them off."""
        why = finish_reason(self._made[-1])
        return "tool_calls" if why == "stop" and self._whole and self._calls else why

    @property
    def generations(self) -> list[Generation]:
        """All moves as one; none before the first was finished."""
        return [joined(self._made)] if self._made else []

    # inside

    def _more(self, chunk: Chunk) -> list[Json]:
        """`take` in the middle of what is text and nothing else: the way of nearly all chunks."""
        self._rows.add(chunk)
        if not chunk.text:
            return []
        self._said.append(chunk.text)
        return [self._entry({"content": chunk.text}, self._rows.of_said(chunk.text))]

    def _finished(self, made: Generation) -> list[Event]:
        """A move is over: what the text between it and the next one tells."""
        assert self._step is not None
        self._made.append(made)
        cut = finish_reason(made) == "length"
        self._step = None if cut else self._step.then(made.text + self._plan.stop_of(self._step, made))
        return self._reader.feed("", last=True) if self._step is None else self._reader.feed(self._step.prefix)

    def _write(self, event: Event) -> Json | None:
        """A piece of the message, as an entry that holds it as a delta."""
        match event:
            case Said(text):
                self._said.append(text)
                return self._entry({"content": text}, self._rows.of_said(text))
            case Thought(text):
                self._rows.pass_over(text)
                self._thought.append(text)
                return self._entry({"reasoning_content": text})
            case CallBegun(index, _, name):
                self._rows.pass_over(name)
                call = {"id": f"call_{uuid.uuid4().hex[:24]}", "type": "function", "function": {"name": name, "arguments": ""}}
                self._calls.append((call, []))
                return self._entry({"tool_calls": [{"index": index, **call}]})
            case Arguments(index, text):
                self._rows.pass_over(text)
                self._calls[index][1].append(text)
                return self._entry({"tool_calls": [{"index": index, "function": {"arguments": text}}]})
            case CallEnded(_, complete):
                self._whole = self._whole and complete
        return None

    def _ended(self) -> list[Json]:
        left = self._rows.left()
        return [*([self._entry({"content": ""}, left)] if left else []), self._entry({}, finish=self.finish)]

    @property
    def _empty(self) -> str | None:
        """What a stream has as content where it begins: nothing yet, or text for sure."""
        return "" if self._plain else None

    def _entry(self, delta: Json, logprobs: Json | None = None, finish: str | None = None) -> Json:
        return {"index": self._index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}


def _call(call: Json, arguments: str) -> Json:
    return {**call, "function": {**call["function"], "arguments": arguments}}
