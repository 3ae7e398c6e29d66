"""POST /v1/chat/completions: the assistant's next message."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from sgl.runtime.ops import Chunk, Generation
from sgl.runtime.tokenizer import Tokenizer

from .bridge import LONG_TEXT
from .errors import RequestError
from .logprobs import RowStream, chat_logprobs, rows_of_generation
from .openai_answers import Json, finish_reason, head, usage
from .openai_types import ChatRequest, Message
from .openai_work import Work
from .sse import EventResponse, primed

router = APIRouter()


@router.post("/v1/chat/completions")
async def chat_completions(body: ChatRequest, request: Request) -> Response:
    """The next message, or `n` of them; a stream of events with stream=true."""
    work = Work(request)
    work.check(body, body.limit)
    if body.tools or body.tool_choice not in (None, "none"):
        name = "tools" if body.tools else "tool_choice"
        raise RequestError(f"this server calls no tools yet; leave {name} out, or give response_format", param=name)
    task = Chat(work, body)
    if body.stream:
        return EventResponse(await primed(task.stream()))
    return JSONResponse(await task.whole())


class Chat:
    """One request to /v1/chat/completions."""

    def __init__(self, work: Work, body: ChatRequest) -> None:
        self.work, self.body = work, body
        self.tokenizer = work.engine.tokenizer
        limit = max(work.context, body.min_tokens) if body.limit is None else body.limit
        self.params = body.params(limit, body.logprobs, body.top_logprobs)
        self.params.validate(self.tokenizer.vocab_size)

    async def whole(self) -> Json:
        grammar, prompt = await self.work.grammar(self.body), await self._prompt()
        found = await self.work.bridge.generate(prompt, self.params, grammar, self.body.n)
        choices = [self._choice(index, generation) for index, generation in enumerate(found)]
        return {**self._head(""), "choices": choices, "usage": usage([found])}

    async def stream(self) -> AsyncGenerator[Json, None]:
        grammar, prompt = await self.work.grammar(self.body), await self._prompt()
        writers = [ChoiceStream(self.tokenizer, self.body, index) for index in range(self.body.n)]
        common = self._head(".chunk") | ({"usage": None} if self.body.with_usage else {})
        source = self.work.bridge.stream(prompt, self.params, grammar, self.body.n)
        async with aclosing(source) as chunks:
            async for index, chunk in chunks:
                for choice in writers[index].take(chunk):
                    yield {**common, "choices": [choice]}
        if self.body.with_usage:
            ended = [writer.generation for writer in writers if writer.generation is not None]
            yield {**common, "choices": [], "usage": usage([ended])}

    def _choice(self, index: int, generation: Generation) -> Json:
        rows = chat_logprobs(self.tokenizer, rows_of_generation(generation)) if self.body.logprobs else None
        return {
            "index": index,
            "message": {"role": "assistant", "content": generation.text, "refusal": None},
            "logprobs": rows,
            "finish_reason": finish_reason(generation),
        }

    def _head(self, suffix: str) -> Json:
        return head(self.work.engine, self.work.model, "chatcmpl", f"chat.completion{suffix}")

    async def _prompt(self) -> str:
        """The conversation by the model's own template, long ones rendered beside the event loop."""
        messages = self.body.messages
        if sum(len(message.content) for message in messages) > LONG_TEXT:
            return await asyncio.to_thread(conversation, self.tokenizer, self.body)
        return conversation(self.tokenizer, self.body)


def conversation(tokenizer: Tokenizer, body: ChatRequest) -> str:
    """The text of the messages, with the beginning of the assistant's behind it unless its last one goes on.

    Raises:
        RequestError: continue_final_message without a message of the assistant at the end.
        ConfigError: the template refuses the messages.
    """
    messages = [_plain(message) for message in body.messages]
    if not body.continue_final_message:
        return tokenizer.render_chat(messages, add_generation_prompt=body.add_generation_prompt)
    if messages[-1]["role"] != "assistant":
        raise RequestError("continue_final_message needs an assistant's message at the end", param="continue_final_message")
    messages[-1]["content"] += MARK
    head, _, _ = tokenizer.render_chat(messages).rpartition(MARK)
    return head


MARK = "\ue000\ue001"  # private use: where the text that goes on ends; what the template puts behind is cut off


def _plain(message: Message) -> dict[str, Any]:
    return message.model_dump(exclude_none=True)


class ChoiceStream:
    """One choice of a stream: from the engine's chunks to entries of `choices`."""

    def __init__(self, tokenizer: Tokenizer, body: ChatRequest, index: int) -> None:
        self.generation: Generation | None = None
        self._tokenizer, self._logprobs, self._index = tokenizer, body.logprobs, index
        self._rows = RowStream(tokenizer, body.skip_special_tokens)
        self._first = True

    def take(self, chunk: Chunk) -> list[Json]:
        """First the role, then the pieces of text, at last why it ended."""
        entries = []
        if self._first:
            self._first = False
            entries.append(self._entry({"role": "assistant", "content": ""}))
        rows = self._rows.take(chunk) if self._logprobs else []
        if chunk.text or rows:
            entries.append(self._entry({"content": chunk.text}, chat_logprobs(self._tokenizer, rows) if self._logprobs else None))
        if chunk.generation is not None:
            self.generation = chunk.generation
            entries.append(self._entry({}, None, finish_reason(chunk.generation)))
        return entries

    def _entry(self, delta: Json, logprobs: Json | None = None, finish: str | None = None) -> Json:
        return {"index": self._index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
