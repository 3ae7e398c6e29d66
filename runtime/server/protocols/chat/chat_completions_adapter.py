"""POST /v1/chat/completions: the assistant's next message, its thoughts and its calls of tools."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Literal

from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import BaseModel

from ...http.documented_routes import OF_MODELS, answers
from ...http.request_bodies import JsonBodyRoute
from ..api_adapter import answer
from ..openai_common.openai_response_fields import Json, OpenAICompletion, response_head, usage
from .chat_api_adapter import ChatApiAdapter
from .chat_choice import ContentChunk
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
    return await answer(ChatCompletionsAdapter(request, body))


class ChatCompletionsAdapter(ChatApiAdapter):
    def __init__(self, request: Request, body: ChatRequest) -> None:
        super().__init__(request, body.model, body.stream)
        self._body = body
        self._writers: list[ChatChoiceWriter] = []
        kind = "chat.completion.chunk" if body.stream else "chat.completion"
        self._head: Json = response_head(self.work.engine, self.work.model, "chatcmpl", kind)
        if body.with_usage:
            self._head["usage"] = None

    async def read(self) -> ChatRequest:
        return self._body

    async def parse(self) -> AsyncGenerator[tuple[int, list[ContentChunk]], None]:
        pieces = await super().parse()
        writer = ChatChoiceWriter if self._body.functions is None else FunctionCallWriter
        thinks = self._body.separate_reasoning and self.work.dialect.reasoning is not None
        whole = not self._body.stream_reasoning
        self._writers = [writer(sample, index, thinks, whole) for index, sample in enumerate(self.samples)]
        return pieces

    def event(self, index: int, piece: list[ContentChunk]) -> list[Json]:
        return [{**self._head, "choices": [choice]} for choice in self._writers[index].write(piece)]

    async def end(self) -> list[Json]:
        return [{**self._head, "choices": [], "usage": self._usage()}] if self._body.with_usage else []

    async def whole(self) -> Json:
        return {**self._head, "choices": [writer.whole() for writer in self._writers], "usage": self._usage()}

    def _usage(self) -> Json:
        return usage([[made for sample in self.samples for made in sample.generations]])
