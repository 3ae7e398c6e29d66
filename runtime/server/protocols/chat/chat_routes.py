"""POST /v1/chat/completions: the assistant's next message, its thoughts and its calls of tools."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Literal

from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import BaseModel

from ...http.documented_routes import OF_MODELS, answers
from ...http.request_bodies import JsonBodyRoute
from ...http.response_size_limit import json_response
from ...http.sse_responses import SSEResponse, primed
from ..openai_common.openai_request_setup import OpenAIRequestSetup
from ..openai_common.openai_response_fields import Json, OpenAICompletion, response_head, usage
from .chat_choice import ContentChunk
from .chat_request_run import ChatRequestRun
from .chat_types import ChatRequest
from .chat_writer import ChatChoiceWriter, FunctionCallWriter

router = APIRouter(route_class=JsonBodyRoute)


class CalledFunction(BaseModel):
    name: str
    arguments: str


class CalledTool(BaseModel):
    id: str
    type: Literal["function"]
    function: CalledFunction


class AssistantMessage(BaseModel):
    role: Literal["assistant"]
    content: str | None
    refusal: str | None
    tool_calls: list[CalledTool] | None = None
    reasoning_content: str | None = None


class ChatChoice(BaseModel):
    index: int
    message: AssistantMessage
    logprobs: Json | None
    finish_reason: Literal["stop", "length", "tool_calls"]


class ChatCompletion(OpenAICompletion):
    object: Literal["chat.completion"]
    choices: list[ChatChoice]


@router.post("/v1/chat/completions", responses=answers(ChatCompletion, *OF_MODELS, media="text/event-stream"))
async def chat_completions(body: ChatRequest, request: Request) -> Response:
    """The next message, or `n` of them; a stream of events with stream=true."""
    work = OpenAIRequestSetup(request)
    work.check(body, body.limit)
    task = ChatCompletionHandler(work, body)
    if body.stream:
        return SSEResponse(await primed(task.stream()))
    return await json_response(await task.whole())


class ChatCompletionHandler:
    """One request to /v1/chat/completions."""

    def __init__(self, work: OpenAIRequestSetup, body: ChatRequest) -> None:
        self.work, self.body = work, body
        self.talk = ChatRequestRun(work, body)
        self.writers: list[ChatChoiceWriter] = []

    async def whole(self) -> Json:
        async with aclosing(await self._begin(streamed=False)) as steps:
            async for _ in steps:
                pass
        return {**self._head(""), "choices": [writer.whole() for writer in self.writers], "usage": self._usage()}

    async def stream(self) -> AsyncGenerator[Json, None]:
        common = self._head(".chunk") | ({"usage": None} if self.body.with_usage else {})
        async with aclosing(await self._begin(streamed=True)) as steps:
            async for index, pieces in steps:
                for choice in self.writers[index].write(pieces):
                    yield {**common, "choices": [choice]}
        if self.body.with_usage:
            yield {**common, "choices": [], "usage": self._usage()}

    async def _begin(self, streamed: bool) -> AsyncGenerator[tuple[int, list[ContentChunk]], None]:
        steps = await self.talk.begin(streamed)
        writer = ChatChoiceWriter if self.body.functions is None else FunctionCallWriter
        thinks = self.body.separate_reasoning and self.work.dialect.reasoning is not None
        whole = not self.body.stream_reasoning
        self.writers = [writer(sample, index, thinks, whole) for index, sample in enumerate(self.talk.samples)]
        return steps

    def _usage(self) -> Json:
        return usage([[made for sample in self.talk.samples for made in sample.generations]])

    def _head(self, suffix: str) -> Json:
        return response_head(self.work.engine, self.work.model, "chatcmpl", f"chat.completion{suffix}")
