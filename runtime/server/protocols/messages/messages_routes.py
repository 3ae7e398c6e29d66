"""The routes of /v1/messages."""

from __future__ import annotations

from functools import partial

from fastapi import APIRouter, Request
from fastapi.responses import Response

from ..allowance import json_response
from ..bodies import BodyRoute, aside
from ..error_shapes import anthropic_error
from ..errors import Problem
from ..openai_answers import Json
from ..openai_work import Work
from ..sse import NamedEventResponse, primed
from .reply import Reply, count
from .types import Conversation, MessagesRequest

router = APIRouter(route_class=BodyRoute)


@router.post("/v1/messages")
async def create(body: MessagesRequest, request: Request) -> Response:
    """The assistant's next message; a stream of events with stream=true."""
    body.check_thread()
    reply = Reply(Work(request), body, partial(aside, request))
    if body.stream:
        return NamedEventResponse(await primed(reply.stream()), _error)
    return await json_response(await reply.whole())


@router.post("/v1/messages/count_tokens")
async def count_tokens(body: Conversation, request: Request) -> Json:
    """How long the prompt of such a request is."""
    return {"input_tokens": await count(Work(request), body, partial(aside, request))}


def _error(problem: Problem) -> Json:
    return anthropic_error(problem.status, problem.message, problem.param, problem.details)
