"""POST /v1/chat/completions: the assistant's next message, its thoughts and its calls of tools."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from fastapi import APIRouter, Request
from fastapi.responses import Response

from ..allowance import json_response
from ..bodies import BodyRoute
from ..openai_answers import Json, head, usage
from ..openai_work import Work
from ..sse import EventResponse, primed
from .sample import Told
from .talk import Talk
from .types import ChatRequest
from .writer import ChoiceWriter, FunctionWriter

router = APIRouter(route_class=BodyRoute)


@router.post("/v1/chat/completions")
async def chat_completions(body: ChatRequest, request: Request) -> Response:
    """The next message, or `n` of them; a stream of events with stream=true."""
    work = Work(request)
    work.check(body, body.limit)
    task = Chat(work, body)
    if body.stream:
        return EventResponse(await primed(task.stream()))
    return await json_response(await task.whole())


class Chat:
    """One request to /v1/chat/completions."""

    def __init__(self, work: Work, body: ChatRequest) -> None:
        self.work, self.body = work, body
        self.talk = Talk(work, body)
        self.writers: list[ChoiceWriter] = []

    async def whole(self) -> Json:
        async with aclosing(await self._begin(streamed=False)) as told:
            async for _ in told:
                pass
        return {**self._head(""), "choices": [writer.whole() for writer in self.writers], "usage": self._usage()}

    async def stream(self) -> AsyncGenerator[Json, None]:
        common = self._head(".chunk") | ({"usage": None} if self.body.with_usage else {})
        async with aclosing(await self._begin(streamed=True)) as told:
            async for index, pieces in told:
                for choice in self.writers[index].write(pieces):
                    yield {**common, "choices": [choice]}
        if self.body.with_usage:
            yield {**common, "choices": [], "usage": self._usage()}

    async def _begin(self, streamed: bool) -> AsyncGenerator[tuple[int, list[Told]], None]:
        told = await self.talk.begin(streamed)
        writer = ChoiceWriter if self.body.functions is None else FunctionWriter
        thinks = self.body.separate_reasoning and self.work.dialect.reasoning is not None
        whole = not self.body.stream_reasoning
        self.writers = [writer(sample, index, thinks, whole) for index, sample in enumerate(self.talk.samples)]
        return told

    def _usage(self) -> Json:
        return usage([[made for sample in self.talk.samples for made in sample.generations]])

    def _head(self, suffix: str) -> Json:
        return head(self.work.engine, self.work.model, "chatcmpl", f"chat.completion{suffix}")
