"""Ollama's routes: chat, generate, and what is asked about models."""

from __future__ import annotations

import datetime
import hashlib
from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel

from ...http.documented_routes import OF_MODELS, answers
from ...http.http_errors import HttpProblem
from ...http.request_bodies import AnyContentTypeRoute, in_worker_thread
from ...http.sse_responses import JsonLinesResponse, primed
from ..openai_common.openai_request_setup import OpenAIRequestSetup
from ..openai_common.openai_response_fields import Json
from .ollama_reply import OllamaReply
from .ollama_types import OllamaChat, OllamaGenerate, OllamaShow

VERSION = "0.12.0"  # of Ollama, whose routes these are: clients look whether it is new enough

router = APIRouter(route_class=AnyContentTypeRoute)


class OllamaAnswer(BaseModel):
    """A line, or the only one. Counts and durations, in nanoseconds, come with the last."""

    model: str
    created_at: str
    message: Json | None = None
    response: str | None = None
    done: bool
    done_reason: str | None = None


class OllamaModels(BaseModel):
    models: list[Json]


class OllamaVersion(BaseModel):
    version: str


class OllamaAbout(BaseModel):
    template: str
    details: Json
    model_info: Json
    capabilities: list[str]


@router.post("/api/chat", responses=answers(OllamaAnswer, *OF_MODELS, media="application/x-ndjson"))
async def chat(body: OllamaChat, request: Request) -> Response:
    """The assistant's next message; lines of JSON unless stream=false."""
    return await _answer(
        OllamaReply(OpenAIRequestSetup(request), body, partial(in_worker_thread, request)), body.stream
    )


@router.post("/api/generate", responses=answers(OllamaAnswer, *OF_MODELS, media="application/x-ndjson"))
async def generate(body: OllamaGenerate, request: Request) -> Response:
    """The answer to one prompt; lines of JSON unless stream=false."""
    return await _answer(
        OllamaReply(OpenAIRequestSetup(request), body, partial(in_worker_thread, request)), body.stream
    )


async def _answer(reply: OllamaReply, stream: bool) -> Response:
    if reply.loads:
        return JSONResponse(reply.loaded())
    return JsonLinesResponse(await primed(reply.stream()), _error) if stream else JSONResponse(await reply.whole())


@router.get("/api/version", responses=answers(OllamaVersion))
async def version() -> Json:
    return {"version": VERSION}


@router.get("/api/tags", responses=answers(OllamaModels))
@router.get("/api/ps", responses=answers(OllamaModels))
async def tags(request: Request) -> Json:
    """The one model, by all its names."""
    state = request.app.state
    opened = datetime.datetime.fromtimestamp(state.opened, datetime.UTC).isoformat().replace("+00:00", "Z")
    about = {
        "modified_at": opened,
        "size": 0,
        "digest": hashlib.sha256(state.engine.model_path.encode()).hexdigest(),
        "details": _details(state.engine.info()),
    }
    return {"models": [{"name": name, "model": name, **about} for name in state.models]}


@router.post("/api/show", responses=answers(OllamaAbout, *OF_MODELS))
async def show(body: OllamaShow, request: Request) -> Json:
    """The model's template, its context, what it can do."""
    work = OpenAIRequestSetup(request)
    name = body.model or body.name
    work.check_model(name and name.removesuffix(":latest"))
    info = work.engine.info()
    thinking = ["thinking"] if work.dialect.reasoning is not None else []
    return {
        "modelfile": "",
        "parameters": "",
        "template": work.engine.tokenizer.chat_template or "",
        "details": _details(info),
        "model_info": {
            "general.architecture": info["architecture"],
            f"{info['architecture']}.context_length": info["context"],
        },
        "capabilities": ["completion", "tools", *thinking],
    }


def _details(info: dict[str, Any]) -> Json:
    family = info["architecture"]
    return {
        "parent_model": "",
        "format": "safetensors",
        "family": family,
        "families": [family],
        "parameter_size": "",
        "quantization_level": str(info["weights"]),
    }


def _error(problem: HttpProblem) -> Json:
    return {"error": problem.message}
