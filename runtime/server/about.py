"""Routes about the server itself: health, models, what runs, the cache."""

from __future__ import annotations

import asyncio
import dataclasses
import importlib.metadata
import time
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import PlainTextResponse
from starlette.responses import Response

from sgl.runtime.engine import Engine
from sgl.runtime.errors import RuntimeFailure
from sgl.runtime.sampling.params import SamplingParams

from .errors import RequestError

HEALTH_SECONDS = 5.0
GENERATE_SECONDS = 20.0

router = APIRouter()


@router.get("/health")
async def health(request: Request) -> Response:
    """200 while the engine's thread takes tasks, else 503."""
    try:
        alive = await request.app.state.bridge.alive(HEALTH_SECONDS)
    except RuntimeFailure:
        alive = False
    return Response(status_code=200 if alive else 503)


@router.get("/health_generate")
async def health_generate(request: Request) -> Response:
    """200 when a token comes out of the model in time, else 503."""
    call = request.app.state.bridge.generate([0], SamplingParams(max_tokens=1, temperature=0.0))
    try:
        await asyncio.wait_for(call, GENERATE_SECONDS)
    except (RuntimeFailure, TimeoutError):
        return Response(status_code=503)
    return Response(status_code=200)


@router.get("/v1/models")
async def models(request: Request) -> dict[str, Any]:
    return {"object": "list", "data": [_model(request)]}


@router.get("/v1/models/{name:path}")
async def model(request: Request, name: str) -> dict[str, Any]:
    known = request.app.state.model
    if name != known:
        raise RequestError(f"there is no model {name!r}; this server has {known!r}", "model", "model_not_found", 404)
    return _model(request)


def _model(request: Request) -> dict[str, Any]:
    state = request.app.state
    context = state.engine.info()["context"]
    return {
        "id": state.model,
        "object": "model",
        "created": int(state.opened),
        "owned_by": "sgl",
        "root": state.model,
        "max_model_len": context,
    }


@router.get("/get_model_info")
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
        "architectures": [engine.info()["architecture"]],
    }


@router.get("/server_info")
@router.get("/get_server_info")
async def server_info(request: Request) -> dict[str, Any]:
    """What runs and how: the engine's options, its account of itself, its counters."""
    state = request.app.state
    stats = await asyncio.to_thread(state.engine.stats)
    return {
        "version": importlib.metadata.version("sgl"),
        "model_path": state.engine.model_path,
        "tokenizer_path": state.engine.model_path,
        "served_model_name": state.model,
        "uptime": time.time() - state.opened,
        "options": dataclasses.asdict(state.engine.config),
        "engine": state.engine.info(),
        "stats": stats.as_dict(),
    }


@router.api_route("/flush_cache", methods=["GET", "POST"])
async def flush_cache(request: Request) -> Response:
    """Forget the prefixes that no running request holds."""
    freed = await asyncio.to_thread(request.app.state.engine.flush_cache)
    return PlainTextResponse(f"Cache flushed: {freed} pages are free again.\n")
