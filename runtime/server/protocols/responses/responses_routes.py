"""The routes of /v1/responses."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from typing import Literal

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response
from pydantic import BaseModel

from ...http.documented_routes import OF_MODELS, answers
from ...http.http_errors import HttpProblem, RequestError
from ...http.request_bodies import JsonBodyRoute, in_worker_thread
from ...http.response_size_limit import json_response
from ...http.sse_responses import NamedSSEResponse, primed
from ..openai_common.openai_request_setup import OpenAIRequestSetup
from ..openai_common.openai_response_fields import Json
from .response_store import RUNNING, ResponseStore, missing
from .responses_reply import ResponsesReply
from .responses_types import ResponseRequest

router = APIRouter(route_class=JsonBodyRoute)


class ResponseObject(BaseModel):
    id: str
    object: Literal["response"]
    created_at: int
    status: Literal["in_progress", "completed", "incomplete", "cancelled", "failed"]
    error: Json | None
    incomplete_details: Json | None
    model: str
    output: list[Json]
    usage: Json | None
    previous_response_id: str | None
    store: bool


class ResponseDeleted(BaseModel):
    id: str
    object: Literal["response"]
    deleted: bool


class ResponseItems(BaseModel):
    object: Literal["list"]
    data: list[Json]
    first_id: str | None
    last_id: str | None
    has_more: bool


class ResponseTokens(BaseModel):
    object: Literal["response.input_tokens"]
    input_tokens: int


@router.post("/v1/responses", responses=answers(ResponseObject, *OF_MODELS, media="text/event-stream"))
async def create(body: ResponseRequest, request: Request) -> Response:
    """The next items of a conversation; a stream of events with stream=true."""
    reply = ResponsesReply(
        OpenAIRequestSetup(request), body, _store(request), request.state.request_id, partial(in_worker_thread, request)
    )
    if body.stream:
        return NamedSSEResponse(await primed(reply.stream()), _error)
    return await json_response(await reply.whole())


@router.post("/v1/responses/input_tokens", responses=answers(ResponseTokens, *OF_MODELS))
async def input_tokens(body: ResponseRequest, request: Request) -> Json:
    """How long the prompt of such a request is."""
    reply = ResponsesReply(
        OpenAIRequestSetup(request), body, _store(request), request.state.request_id, partial(in_worker_thread, request)
    )
    return {"object": "response.input_tokens", "input_tokens": await reply.count()}


@router.get("/v1/responses/{id}", responses=answers(ResponseObject, 400, 404))
async def retrieve(id: str, request: Request, stream: bool = False) -> Response:
    """A response that is kept, as it stands."""
    if stream:
        raise RequestError("streams of kept responses cannot be read again; leave stream out", "stream")
    return Response(_store(request).get(id).answer, media_type="application/json")


@router.delete("/v1/responses/{id}", responses=answers(ResponseDeleted, 404))
async def delete(id: str, request: Request) -> Json:
    """Forget a response. What follows it cannot be followed any more."""
    _store(request).delete(id)
    return {"id": id, "object": "response", "deleted": True}


@router.post("/v1/responses/{id}/cancel", responses=answers(ResponseObject, 400, 404))
async def cancel(id: str, request: Request) -> Json:
    """End a response that is being streamed; its stream tells so."""
    kept = _store(request).get(id)
    if kept.status != RUNNING:
        raise RequestError(f"the response {id!r} is {kept.status}; only one that is in progress can be cancelled", "id")
    OpenAIRequestSetup(request).bridge.runs.abort(kept.run)
    answer: Json = json.loads(kept.answer)
    return answer | {"status": "cancelled"}


@router.get("/v1/responses/{id}/input_items", responses=answers(ResponseItems, 400, 404))
async def input_items(
    id: str,
    request: Request,
    after: str | None = None,
    limit: int = Query(20, ge=1, le=100),
    order: Literal["asc", "desc"] = "desc",
) -> Json:
    """What the model was given: the conversation before the response, and its own input; the last first."""
    items = await asyncio.to_thread(_given, _store(request), id)
    found = items if order == "asc" else items[::-1]
    if after is not None:
        place = next((i for i, item in enumerate(found) if item["id"] == after), None)
        if place is None:
            raise missing(after, "item")
        found = found[place + 1 :]
    page = found[:limit]
    ends = {"first_id": page[0]["id"], "last_id": page[-1]["id"]} if page else {"first_id": None, "last_id": None}
    return {"object": "list", "data": page, **ends, "has_more": len(found) > limit}


def _given(store: ResponseStore, id: str) -> list[Json]:
    *before, last = store.chain(id)
    return [*(item for kept in before for item in kept.conversation), *json.loads(last.input)]


def _store(request: Request) -> ResponseStore:
    store: ResponseStore = request.app.state.responses
    return store


def _error(problem: HttpProblem) -> Json:
    return {"type": "error", "code": problem.code, "message": problem.message, "param": problem.param}
