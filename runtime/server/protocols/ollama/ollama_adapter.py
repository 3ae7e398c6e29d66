"""Ollama's routes: chat, generate, and what is asked about models."""

from __future__ import annotations

import datetime
import hashlib
import json
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel

from sgl.runtime.dialects import ContentDelta, ReasoningDelta, ToolCallEnd

from ...http.documented_routes import OF_MODELS, answers
from ...http.http_errors import problem
from ...http.request_bodies import AnyContentTypeRoute, in_worker_thread
from ...http.sse_responses import json_line
from ..api_adapter import answer
from ..chat.chat_api_adapter import ChatApiAdapter
from ..chat.chat_choice import ContentChunk, ToolCallChunk
from ..chat.chat_types import ChatRequest
from ..openai_common.openai_request_setup import OpenAIRequestSetup
from ..openai_common.openai_response_fields import Json, finish_reason
from .ollama_to_chat import NAMES, chat_of
from .ollama_types import OllamaChat, OllamaGenerate, OllamaShow

NANOSECONDS = 1_000_000_000
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


GENERATED = answers(OllamaAnswer, *OF_MODELS, media="application/x-ndjson")


@router.post("/api/chat", responses=GENERATED)
async def chat(body: OllamaChat, request: Request) -> Response:
    """The assistant's next message; lines of JSON unless stream=false."""
    return await _answer(OllamaAdapter(request, body), bool(body.messages))


@router.post("/api/generate", responses=GENERATED)
async def generate(body: OllamaGenerate, request: Request) -> Response:
    """The answer to one prompt; lines of JSON unless stream=false."""
    return await _answer(OllamaAdapter(request, body), bool(body.prompt))


async def _answer(adapter: OllamaAdapter, asks: bool) -> Response:
    """asks: clients that ask nothing want a model to be loaded."""
    return await answer(adapter) if asks else JSONResponse(adapter.written("", done=True, done_reason="load"))


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
    name = body.model or body.name
    work = OpenAIRequestSetup(request, name and name.removesuffix(":latest"))
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


class OllamaAdapter(ChatApiAdapter):
    fields, media_type, mark, line = NAMES, "application/x-ndjson", b"", staticmethod(json_line)

    def __init__(self, request: Request, body: OllamaChat | OllamaGenerate) -> None:
        super().__init__(request, body.model and body.model.removesuffix(":latest"), body.stream)
        self._body = body

    async def read(self) -> ChatRequest:
        variables = self.work.engine.tokenizer.chat_variables
        return await in_worker_thread(self.request, partial(chat_of, self._body, variables))

    def event(self, index: int, piece: list[ContentChunk]) -> list[Json]:
        return [*self._written(piece)] if self.streamed else []

    async def end(self) -> list[Json]:
        return [self.written("", **self._counts())]

    async def whole(self) -> Json:
        [sample] = self.samples
        calls = [call for call in sample.calls if call.complete]
        return self.written(sample.content, sample.thought, calls, **self._counts())

    def failed(self, error: BaseException) -> list[Json]:
        return [{"error": problem(error).message}]

    def written(self, text: str, thought: str = "", calls: Iterable[ToolCallChunk] = (), **fields: object) -> Json:
        """A line of a stream, or the only one."""
        moment = datetime.datetime.now(datetime.UTC).isoformat().replace("+00:00", "Z")
        head: Json = {"model": self._body.model or self.work.model, "created_at": moment}
        thinking = {"thinking": thought} if thought else {}
        if isinstance(self._body, OllamaGenerate):
            return head | {"response": text} | thinking | fields
        made = [{"function": {"name": call.name, "arguments": json.loads(call.arguments)}} for call in calls]
        message = {"role": "assistant", "content": text} | thinking | ({"tool_calls": made} if made else {})
        return head | {"message": message} | fields

    def _written(self, pieces: Iterable[ContentChunk]) -> Iterator[Json]:
        for chunk in pieces:
            match chunk.event:
                case ContentDelta(text):
                    yield self.written(text, done=False)
                case ReasoningDelta(text):
                    yield self.written("", text, done=False)
                case ToolCallEnd(index, True):
                    yield self.written("", "", [self.samples[0].calls[index]], done=False)

    def _counts(self) -> Json:
        """What the last line says of all."""
        made = self.samples[0].generations[0]
        total, first = (int(seconds * NANOSECONDS) for seconds in (made.e2e_latency, made.first_token_seconds))
        return {
            "done": True,
            "done_reason": finish_reason(made),
            "total_duration": total,
            "load_duration": 0,
            "prompt_eval_count": made.prompt_tokens,
            "prompt_eval_duration": min(first, total),
            "eval_count": made.completion_tokens,
            "eval_duration": total - min(first, total),
        }
