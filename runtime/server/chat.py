"""POST /v1/chat/completions: the assistant's next message, its thoughts and its calls of tools."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from sgl.runtime.sampling.params import SamplingParams
from sgl.runtime.sequences.ops import Chunk

from .chat_moves import ChatPrompt
from .chat_plan import Plan
from .chat_prompt import prompt_of
from .chat_types import ChatRequest
from .chat_writer import ChoiceWriter
from .errors import RequestError
from .openai_answers import Json, head, usage
from .openai_work import Work
from .sse import EventResponse, primed

router = APIRouter()


@router.post("/v1/chat/completions")
async def chat_completions(body: ChatRequest, request: Request) -> Response:
    """The next message, or `n` of them; a stream of events with stream=true."""
    work = Work(request)
    work.check(body, body.limit)
    task = Chat(work, body)
    if body.stream:
        return EventResponse(await primed(task.stream()))
    return JSONResponse(await task.whole())


class Chat:
    """One request to /v1/chat/completions."""

    def __init__(self, work: Work, body: ChatRequest) -> None:
        self.work, self.body = work, body
        self.plan = Plan(work, body, self._params())
        self.writers: list[ChoiceWriter] = []

    async def whole(self) -> Json:
        async with aclosing(await self._samples(streamed=False)) as chunks:
            async for index, chunk in chunks:
                self.writers[index].take(chunk)
        return {**self._head(""), "choices": [writer.whole() for writer in self.writers], "usage": self._usage()}

    async def stream(self) -> AsyncGenerator[Json, None]:
        common = self._head(".chunk") | ({"usage": None} if self.body.with_usage else {})
        async with aclosing(await self._samples(streamed=True)) as chunks:
            async for index, chunk in chunks:
                for choice in self.writers[index].take(chunk):
                    yield {**common, "choices": [choice]}
        if self.body.with_usage:
            yield {**common, "choices": [], "usage": self._usage()}

    async def _samples(self, streamed: bool) -> AsyncGenerator[tuple[int, Chunk], None]:
        try:
            prompt = await self._prepared()
        except RecursionError:
            raise RequestError("the request is nested too deeply; send it flatter") from None
        self.writers = [ChoiceWriter(self.plan, prompt.text, index) for index in range(self.body.n)]
        first = await self.plan.move(self.plan.begin(prompt.text), 0)
        return self.work.bridge.walk(prompt, first, lambda index: self.writers[index].go_on(), self.body.n, streamed)

    async def _prepared(self) -> ChatPrompt:
        await self.plan.prepare()
        tokenizer, check = self.work.engine.tokenizer, self.work.bridge.check_size
        return await prompt_of(tokenizer, self.body, self.plan.dialect, self.plan.tools, check)

    def _params(self) -> SamplingParams:
        body = self.body
        limit = max(self.work.context, body.min_tokens) if body.limit is None else body.limit
        params = body.params(limit, body.logprobs, body.top_logprobs)
        params.validate(self.work.engine.tokenizer.vocab_size)
        return params

    def _usage(self) -> Json:
        return usage([[made for writer in self.writers for made in writer.generations]])

    def _head(self, suffix: str) -> Json:
        return head(self.work.engine, self.work.model, "chatcmpl", f"chat.completion{suffix}")
