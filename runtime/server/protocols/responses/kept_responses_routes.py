"""The routes of /v1/responses that read or end responses that are kept."""

from __future__ import annotations

import asyncio
import json
from typing import Literal

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response
from pydantic import BaseModel

from ...http.documented_routes import answers
from ...http.http_errors import RequestError
from ...http.request_bodies import JsonBodyRoute
from ..openai_common.openai_response_fields import Json
from .response_object import ResponseObject
from .response_store import RUNNING, ResponseStore, missing

router = APIRouter(route_class=JsonBodyRoute)


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


@router.get("/v1/responses/{id}", responses=answers(ResponseObject, 400, 404))
async def retrieve(id: str, request: Request, stream: bool = False) -> Response:
    """A response that is kept, as it is now."""
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
    request.app.state.bridge.runs.abort(kept.run)
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
