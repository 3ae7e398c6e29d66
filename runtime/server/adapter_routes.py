"""Routes for those who run the server: which adapters there are, loading one, forgetting one."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field

from sgl.runtime.errors import RuntimeFailure

from .http.documented_routes import OF_MODELS, answers
from .http.http_errors import RequestError
from .http.request_bodies import JsonBodyRoute
from .http.request_guard import check_owner
from .served_adapters import ServedAdapters

router = APIRouter(route_class=JsonBodyRoute)


class AdapterName(BaseModel):
    """`name`: of a folder within the one that the server was started with. `pin`: it stays in main memory."""

    model_config = ConfigDict(extra="forbid", strict=True)

    name: Annotated[str, Field(min_length=1, max_length=200)]
    pin: bool = False


@router.get("/adapters", responses=answers(dict[str, Any], 403))
async def adapters(request: Request) -> dict[str, Any]:
    """Those that are loaded, and the names of those that the caller may ask for."""
    served = _served(request)
    loaded = await asyncio.to_thread(served.loaded)
    return {"loaded": [_as_json(info) for info in loaded], "names": await asyncio.to_thread(served.names)}


@router.post("/adapters/load", responses=answers(dict[str, Any], 403, *OF_MODELS))
async def load(body: AdapterName, request: Request) -> dict[str, Any]:
    """Read an adapter from the folder. One that is loaded is read again; requests that run keep the old one."""
    served = _served(request)
    try:
        return _as_json(await asyncio.to_thread(served.load, body.name, body.pin))
    except RuntimeFailure as error:
        raise RequestError(f"adapter {body.name!r} cannot be used: {error}", "name", "adapter_unusable") from error


@router.post("/adapters/unload", responses=answers(dict[str, Any], 403, 409, *OF_MODELS))
async def unload(body: AdapterName, request: Request) -> dict[str, Any]:
    """Forget an adapter that no request uses. One of the folder is loaded again when it is asked for."""
    await asyncio.to_thread(_served(request).unload, body.name)
    return {"unloaded": body.name}


def _served(request: Request) -> ServedAdapters:
    check_owner(request.headers, request.app.state.settings, "adapters are")
    served: ServedAdapters = request.app.state.adapters
    return served


def _as_json(info: Any) -> dict[str, Any]:
    return {key: value for key, value in info.as_dict().items() if key != "path"}
