"""The routes of /v1/messages."""

from __future__ import annotations

from functools import partial
from typing import Literal

from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import BaseModel

from ...http.api_error_formats import anthropic_error
from ...http.documented_routes import OF_MODELS, answers
from ...http.http_errors import HttpProblem
from ...http.request_bodies import JsonBodyRoute, in_worker_thread
from ...http.response_size_limit import json_response
from ...http.sse_responses import NamedSSEResponse, primed
from ..openai_common.openai_request_setup import OpenAIRequestSetup
from ..openai_common.openai_response_fields import Json
from .messages_reply import MessagesReply, count
from .messages_types import AnthropicConversation, MessagesRequest

router = APIRouter(route_class=JsonBodyRoute)


class MessageUsage(BaseModel):
    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int


class AnthropicMessage(BaseModel):
    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[Json]
    stop_reason: Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]
    stop_sequence: str | None
    usage: MessageUsage


class MessageTokens(BaseModel):
    input_tokens: int


@router.post("/v1/messages", responses=answers(AnthropicMessage, *OF_MODELS, media="text/event-stream"))
async def create(body: MessagesRequest, request: Request) -> Response:
    """The assistant's next message; a stream of events with stream=true."""
    body.check_thread()
    reply = MessagesReply(OpenAIRequestSetup(request), body, partial(in_worker_thread, request))
    if body.stream:
        return NamedSSEResponse(await primed(reply.stream()), _error)
    return await json_response(await reply.whole())


@router.post("/v1/messages/count_tokens", responses=answers(MessageTokens, *OF_MODELS))
async def count_tokens(body: AnthropicConversation, request: Request) -> Json:
    """How long the prompt of such a request is."""
    return {"input_tokens": await count(OpenAIRequestSetup(request), body, partial(in_worker_thread, request))}


def _error(problem: HttpProblem) -> Json:
    return anthropic_error(problem.status, problem.message, problem.param, problem.details)
