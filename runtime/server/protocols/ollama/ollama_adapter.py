"""Ollama's routes: chat, generate, and what is asked about models."""

from __future__ import annotations

import datetime
import hashlib
import json
from collections import deque
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel

from sgl.runtime.dialects import ContentDelta, ReasoningDelta, ToolCallEnd

from ...http.documented_routes import OF_MODELS, answers
from ...http.http_errors import RequestError, problem
from ...http.request_bodies import AnyContentTypeRoute, in_worker_thread
from ...http.sse_responses import json_line
from ..api_adapter import answer
from ..chat.chat_api_adapter import ChatApiAdapter
from ..chat.chat_choice import ContentChunk, ToolCallChunk
from ..chat.chat_types import ChatRequest
from ..chat.template_variables import switched
from ..openai_common.chat_translation import parse_chat_request
from ..openai_common.openai_request_setup import OpenAIRequestSetup
from ..openai_common.openai_response_fields import Json, finish_reason
from ..openai_common.sampling_fields import as_chat_fields, options_in
from .ollama_types import OllamaChat, OllamaGenerate, OllamaMessage, OllamaRequest, OllamaShow

NANOSECONDS = 1_000_000_000
VERSION = "0.12.0"  # of Ollama, whose routes these are: clients look whether it is new enough

NAMES = {  # of a chat request's fields, in errors
    r"max_completion_tokens|max_tokens": "options.num_predict",
    r"response_format(?:\.json_schema)?": "format",
    **{option.names["openai"]: f"options.{option.names['ollama']}" for option in options_in("ollama")},
}

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
        "details": _details(state.engine.fixed_info),
    }
    return {"models": [{"name": name, "model": name, **about} for name in state.models]}


@router.post("/api/show", responses=answers(OllamaAbout, *OF_MODELS))
async def show(body: OllamaShow, request: Request) -> Json:
    """The model's template, its context, what it can do."""
    name = body.model or body.name
    work = OpenAIRequestSetup(request, name and name.removesuffix(":latest"))
    info = work.engine.fixed_info
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
    fields, media_type, mark = NAMES, "application/x-ndjson", b""

    def __init__(self, request: Request, body: OllamaChat | OllamaGenerate) -> None:
        super().__init__(request, body.model and body.model.removesuffix(":latest"), body.stream)
        self._body = body

    def line(self, event: Json) -> bytes:
        return json_line(event)

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


# --- the request to a chat ---------------------------------------------------------------------------------


class UnansweredCalls:
    """Calls of one message without an answer yet, by their ids and names."""

    def __init__(self, calls: Iterable[tuple[str, str]]) -> None:
        self._names = dict(calls)
        self._of_name: dict[str, deque[str]] = {}
        for id, name in self._names.items():
            self._of_name.setdefault(name, deque()).append(id)

    def answered(self, message: OllamaMessage, place: int) -> str:
        """The id of the call that the message answers."""
        id, name = message.tool_call_id, message.tool_name or message.name
        if id is None and name is None:
            id = next(iter(self._names), None)
        elif id is None:
            ids = self._of_name.get(name or "", deque())
            while ids and ids[0] not in self._names:
                ids.popleft()
            id = ids[0] if ids else None
        if id is None or id not in self._names or name not in (None, self._names[id]):
            raise RequestError(
                f"messages.{place} answers no call of the assistant's message before it", f"messages.{place}"
            )
        del self._names[id]
        return id


def messages_of(body: OllamaChat | OllamaGenerate) -> list[Json]:
    """The messages of a chat. Answers of tools belong to the calls before them, by id, by name, else in their order."""
    if isinstance(body, OllamaGenerate):
        system = [] if body.system is None else [{"role": "system", "content": body.system}]
        return [*system, {"role": "user", "content": body.prompt}]
    found: list[Json] = []
    waiting = UnansweredCalls([])
    for place, message in enumerate(body.messages):
        if message.role == "tool":
            found.append({"role": "tool", "content": message.content, "tool_call_id": waiting.answered(message, place)})
            continue
        calls = [(call.id or f"call_{place}_{number}", call.function) for number, call in enumerate(message.tool_calls)]
        waiting = UnansweredCalls([(id, function.name) for id, function in calls])
        about = [
            {"id": id, "function": {"name": function.name, "arguments": json.dumps(function.arguments)}}
            for id, function in calls
        ]
        found.append(
            {
                "role": message.role,
                "content": message.content,
                "tool_calls": about or None,
                "reasoning_content": message.thinking,
            }
        )
    return found


def chat_of(body: OllamaChat | OllamaGenerate, variables: frozenset[str]) -> ChatRequest:
    """The same request to a chat.

    variables: those that the model's template reads. Raises RequestError, naming fields of the chat.
    """
    most = body.options.num_predict
    given: Json = as_chat_fields(body.options, "ollama") | {
        "max_completion_tokens": None if most is None or most < 0 else most,
        "model": body.model and body.model.removesuffix(":latest"),
        "messages": messages_of(body),
        "response_format": _format(body),
    }
    if isinstance(body, OllamaChat):
        given["tools"] = [tool.model_dump() for tool in body.tools]
    if isinstance(body.think, str) and "reasoning_effort" in variables:
        given["reasoning_effort"] = body.think
    if body.think is not None:
        given["chat_template_kwargs"] = switched(body.think is not False, variables)
    return parse_chat_request(ChatRequest, given)


def _format(body: OllamaRequest) -> Json | None:
    if not body.format:
        return {"type": "json_schema", "json_schema": {"name": "answer", "schema": {}}} if body.format == {} else None
    if body.format == "json":
        return {"type": "json_object"}
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": body.format}}
