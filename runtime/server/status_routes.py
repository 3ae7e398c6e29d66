"""Routes about the server itself: health, models, what runs, the cache."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Literal

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, PlainTextResponse
from pydantic import BaseModel
from starlette.responses import Response

from sgl.runtime.engine import Engine
from sgl.runtime.errors import RuntimeFailure
from sgl.runtime.loading.model_files.model_directory import read_json

from .engine_bridge import EngineBridge
from .http.documented_routes import DocumentedRoute, answers
from .http.http_errors import RequestError
from .http.request_guard import check_owner
from .protocols.openai_common.openai_request_setup import find_model
from .protocols.openai_common.openai_response_fields import Json
from .served_adapters import ServedAdapters
from .sgl_version import own_version

HEALTH_SECONDS = 5.0
GENERATE_SECONDS = 20.0

router = APIRouter(route_class=DocumentedRoute)


class Model(BaseModel):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int
    parent: str | None = None


class Models(BaseModel):
    object: Literal["list"]
    data: list[Model]


class Health(BaseModel):
    status: Literal["ok", "down", "draining"]


class ModelInfo(BaseModel):
    model_path: str
    tokenizer_path: str
    is_generation: bool


class ServerInfo(BaseModel):
    version: str
    served_model_name: str
    options: Json
    engine: Json
    stats: Json


HEALTH = answers(Health, 503)
HEALTH[503]["model"] = Health
FLUSHED = answers(None, 403, 503, media="text/plain")


@router.get("/health", responses=HEALTH)
async def health(request: Request) -> Response:
    """200 while the engine's thread takes tasks; 503 where it does not, and while the server drains."""
    return await _health(request, EngineBridge.alive, HEALTH_SECONDS)


@router.get("/health_generate", responses=HEALTH)
async def health_generate(request: Request) -> Response:
    """200 when a token comes out of the model in time, else 503."""
    return await _health(request, EngineBridge.speaks, GENERATE_SECONDS)


async def _health(
    request: Request, question: Callable[[EngineBridge, float], Awaitable[bool]], seconds: float
) -> Response:
    bridge: EngineBridge = request.app.state.bridge
    if bridge.admission.draining:
        return _state("draining")
    try:
        return _state("ok" if bridge.engine.up and await question(bridge, seconds) else "down")
    except RuntimeFailure:
        return _state("down")


def _state(name: str) -> Response:
    return JSONResponse({"status": name}, 200 if name == "ok" else 503)


@router.get("/metrics", response_class=Response, responses=answers(None, 404, media="text/plain"))
async def metrics(request: Request) -> Response:
    """The metrics, as Prometheus reads them; 404 where the server keeps none."""
    found = request.app.state.watchers.metrics
    if found is None:
        raise RequestError("this server keeps no metrics; start it without --no-metrics", status=404)
    page, media_type = await asyncio.to_thread(found.page, request.headers.get("accept", ""))
    return Response(page, media_type=media_type)


@router.get("/v1/models", responses=answers(Models))
async def models(request: Request) -> dict[str, Any]:
    state = request.app.state
    adapters = await asyncio.to_thread(state.adapters.names)
    ids = [name if name not in state.models else f"{state.models[0]}:{name}" for name in adapters]
    return {
        "object": "list",
        "data": [
            *(_model(request, name) for name in state.models),
            *(_model(request, id, name) for id, name in zip(ids, adapters, strict=True)),
        ],
    }


@router.get("/v1/models/{name:path}", responses=answers(Model, 404))
async def model(request: Request, name: str) -> dict[str, Any]:
    state = request.app.state
    return _model(request, *await asyncio.to_thread(find_model, name, state.models, state.adapters))


def _model(request: Request, name: str, adapter: str | None = None) -> dict[str, Any]:
    """parent: of an adapter, the model that it belongs to."""
    state = request.app.state
    context = state.engine.fixed_info["context"]
    return {
        "id": name,
        "object": "model",
        "created": int(state.opened),
        "owned_by": "sgl",
        "root": adapter or state.models[0],
        "max_model_len": context,
        **({} if adapter is None else {"parent": state.models[0]}),
    }


@router.get("/model_info", responses=answers(ModelInfo))
@router.get("/get_model_info", responses=answers(ModelInfo))
async def model_info(request: Request) -> dict[str, Any]:
    engine: Engine = request.app.state.engine
    return {
        "model_path": engine.model_path,
        "tokenizer_path": engine.model_path,
        "is_generation": True,
        "preferred_sampling_params": None,
        "weight_version": "default",
        "has_image_understanding": False,
        "has_audio_understanding": False,
        "takes_quoted_text": True,
        "closes_at_limit": True,
        "masks_logprobs": True,
        "copies_values": True,
        "model_type": read_json(Path(engine.model_path) / "config.json").get("model_type"),
        "architectures": [engine.fixed_info["architecture"]],
    }


@router.get("/server_info", responses=answers(ServerInfo, 503))
@router.get("/get_server_info", responses=answers(ServerInfo, 503))
async def server_info(request: Request) -> dict[str, Any]:
    """What runs and how: the engine's options, its account of itself, its counters."""
    state = request.app.state
    stats = (await asyncio.to_thread(state.engine.stats)).as_dict()
    info = await asyncio.to_thread(state.engine.info)
    return {
        "version": own_version(),
        "model_path": state.engine.model_path,
        "tokenizer_path": state.engine.model_path,
        "served_model_name": state.models[0],
        "uptime": time.time() - state.opened,
        "notes": [note for note in (state.dialect.note,) if note],
        "tool_format": state.dialect.name,
        "options": _seen(dataclasses.asdict(state.engine.config), "adapters", state.adapters),
        "engine": {**info, "adapters": _seen(info["adapters"], "outside", state.adapters)},
        "stats": {**stats, "adapters": _seen(stats["adapters"], "by_name", state.adapters)},
    }


def _seen(stats: dict[str, Any], key: str, adapters: ServedAdapters) -> dict[str, Any]:
    """Without the adapters that the caller may not name."""
    by_name = stats.get(key)
    return (
        stats
        if not by_name
        else {**stats, key: {name: of_name for name, of_name in by_name.items() if adapters.allows(name)}}
    )


@router.get("/flush_cache", response_class=Response, responses=FLUSHED)
@router.post("/flush_cache", response_class=Response, responses=FLUSHED)
async def flush_cache(request: Request) -> Response:
    """Forget the prefixes that no running request holds. Where API keys are kept apart it is no client's to do."""
    check_owner(request.headers, request.app.state.settings, "the cache holds prefixes that are")
    freed = await asyncio.to_thread(request.app.state.engine.flush_cache)
    return PlainTextResponse(f"Cache flushed: {freed} pages are free again.\n")
