"""/openapi.json as the server really is: FastAPI's account of the routes, put right where it cannot know."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI

from ..protocols.native.native_control_routes import AbortFields, EncodeFields, ReasoningFields
from ..protocols.native.native_types import SAMPLING_WITHOUT, WITHOUT, GenerateFields, SamplingFields
from ..protocols.openai_common.openai_request_setup import ANY_MODEL
from .api_error_formats import ANTHROPIC_PATH, NATIVE_PATHS, OLLAMA_PATH
from .middleware import METRICS, OPEN_PATHS
from .openapi_responses import (
    REF,
    Aborted,
    AnthropicError,
    AnthropicMessage,
    ChatCompletion,
    Detokenized,
    Embeddings,
    Health,
    Json,
    MessageTokens,
    ModelInfo,
    Models,
    NativeAnswer,
    NativeError,
    NativeVector,
    OllamaAbout,
    OllamaAnswer,
    OllamaError,
    OllamaModels,
    OllamaVersion,
    OpenAIError,
    ResponseDeleted,
    ResponseItems,
    ResponseObject,
    ResponseTokens,
    SeparatedReasoning,
    ServerInfo,
    TextCompletion,
    Tokens,
    schema_of,
)
from .openapi_responses import Model as ModelCard

STATUSES = {
    400: "what the request asks for cannot be done; the message says what and why",
    401: "no key of this server",
    403: "not for one of several API keys to do",
    404: "there is no such model or route",
    408: "the body did not come in time",
    409: "it is in use",
    413: "the body is too long",
    429: "too many requests wait already; the header Retry-After says when to come again",
    499: "the request was aborted",
    503: "the engine does not answer, or the server shuts down",
    504: "the request took longer than the server allows",
}
FAILING = (400, 408, 413, 429, 499, 503, 504)  # of every route that takes a body
EMPTY: Json = {"enum": [None, False, 0, "", [], {}], "description": "not supported: no value but an empty one is taken"}


@dataclass(frozen=True)
class RouteResponse:
    """What a route answers with status 200: a type as JSON (None: nothing), or a text of another media type."""

    form: Any = None
    media: str | None = None
    streams: bool = False
    lines: bool = False  # of JSON, instead of events
    failing: tuple[int, ...] = ()  # statuses besides those that all have


NATIVE_BODIES = {
    "/generate": "GenerateFields",
    "/abort_request": "AbortFields",
    "/encode": "EncodeFields",
    "/separate_reasoning": "ReasoningFields",
}
ANSWERS = {
    "/health": RouteResponse(Health, failing=(503,)),
    "/health_generate": RouteResponse(Health, failing=(503,)),
    "/metrics": RouteResponse(media="text/plain", failing=(404,)),
    "/flush_cache": RouteResponse(media="text/plain", failing=(403, 503)),
    "/adapters": RouteResponse(Json, failing=(403,)),
    "/adapters/load": RouteResponse(Json, failing=(403, 404, *FAILING)),
    "/adapters/unload": RouteResponse(Json, failing=(403, 404, 409, *FAILING)),
    "/v1/models": RouteResponse(Models),
    "/v1/models/{name}": RouteResponse(ModelCard, failing=(404,)),
    "/model_info": RouteResponse(ModelInfo),
    "/get_model_info": RouteResponse(ModelInfo),
    "/server_info": RouteResponse(ServerInfo, failing=(503,)),
    "/get_server_info": RouteResponse(ServerInfo, failing=(503,)),
    "/abort_request": RouteResponse(Aborted, failing=FAILING),
    "/separate_reasoning": RouteResponse(SeparatedReasoning, failing=FAILING),
    "/encode": RouteResponse(NativeVector | list[NativeVector], failing=FAILING),
    "/generate": RouteResponse(NativeAnswer | list[NativeAnswer], streams=True, failing=(404, *FAILING)),
    "/v1/completions": RouteResponse(TextCompletion, streams=True, failing=(404, *FAILING)),
    "/v1/embeddings": RouteResponse(Embeddings, failing=(404, *FAILING)),
    "/v1/chat/completions": RouteResponse(ChatCompletion, streams=True, failing=(404, *FAILING)),
    "/v1/responses": RouteResponse(ResponseObject, streams=True, failing=(404, *FAILING)),
    "/v1/responses/input_tokens": RouteResponse(ResponseTokens, failing=(404, *FAILING)),
    "/v1/responses/{id}": RouteResponse(ResponseObject, failing=(400, 404)),
    "/v1/responses/{id}/cancel": RouteResponse(ResponseObject, failing=(400, 404)),
    "/v1/responses/{id}/input_items": RouteResponse(ResponseItems, failing=(400, 404)),
    "/v1/messages": RouteResponse(AnthropicMessage, streams=True, failing=(404, *FAILING)),
    "/v1/messages/count_tokens": RouteResponse(MessageTokens, failing=(404, *FAILING)),
    "/tokenize": RouteResponse(Tokens, failing=(404, *FAILING)),
    "/detokenize": RouteResponse(Detokenized, failing=(404, *FAILING)),
    "/api/chat": RouteResponse(OllamaAnswer, failing=(404, *FAILING), lines=True),
    "/api/generate": RouteResponse(OllamaAnswer, failing=(404, *FAILING), lines=True),
    "/api/tags": RouteResponse(OllamaModels),
    "/api/ps": RouteResponse(OllamaModels),
    "/api/version": RouteResponse(OllamaVersion),
    "/api/show": RouteResponse(OllamaAbout, failing=(404, *FAILING)),
}


class DocumentedApp(FastAPI):
    """Its `state.models` and `state.settings` are in the document."""

    def openapi(self) -> dict[str, Any]:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Duplicate Operation ID")  # one route, two methods: they get names below
            plain = super().openapi()
        if getattr(self, "_plain", None) is not plain:
            self._plain, self._document = plain, _OpenApiDocument(self, copy.deepcopy(plain)).whole()
        return self._document


class _OpenApiDocument:
    def __init__(self, app: FastAPI, plain: Json) -> None:
        self._models: tuple[str, ...] = app.state.models
        self._with_adapters: bool = app.state.adapters.possible
        settings = app.state.settings
        self._open_paths = OPEN_PATHS | (METRICS if settings.open_metrics else set())
        self._with_keys = bool(settings.api_keys)
        self._json = plain
        self._schemas: dict[str, Json] = plain.setdefault("components", {}).setdefault("schemas", {})

    def whole(self) -> Json:
        for schema in [*self._schemas.values()]:
            self._as_taken(schema)
        for name in ("HTTPValidationError", "ValidationError"):  # this server answers 400, in words
            self._schemas.pop(name, None)
        for path, method, operation in self._operations():
            operation["operationId"] = f"{method}{path}".translate(_AS_NAME)
            self._tell_answers(path, operation)
        self._tell_native_bodies()
        if self._with_keys:
            self._json["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        return self._json

    def _operations(self) -> Iterator[tuple[str, str, Json]]:
        for path, methods in self._json["paths"].items():
            for method, operation in methods.items():
                yield path, method, operation

    # requests

    def _as_taken(self, schema: Json) -> None:
        """A null is the same as leaving a field out; there is one model."""
        if schema.get("additionalProperties") is not False:
            return
        for name in schema["properties"].keys() - set(schema.get("required", ())):
            schema["properties"][name] = _or_null(schema["properties"][name])
        if "model" in schema["properties"]:
            names = {"type": ["string", "null"]} if self._with_adapters else {"enum": [*self._models, *ANY_MODEL, None]}
            schema["properties"]["model"] = {**names, "title": "Model"}

    def _tell_native_bodies(self) -> None:
        """These routes read their bodies by themselves, for messages in the words of their protocol."""
        call, sampling = (fields.model_json_schema(ref_template=REF) for fields in (GenerateFields, SamplingFields))
        one = {"$ref": REF.format(model="SamplingFields")}
        call["properties"] |= dict.fromkeys(WITHOUT, EMPTY)
        call["properties"]["sampling_params"] = {"anyOf": [one, {"type": "array", "items": one}, {"type": "null"}]}
        sampling["properties"] |= dict.fromkeys(SAMPLING_WITHOUT, EMPTY)
        others = {
            fields.__name__: fields.model_json_schema(ref_template=REF)
            for fields in (AbortFields, EncodeFields, ReasoningFields)
        }
        self._schemas |= {"GenerateFields": call, "SamplingFields": sampling} | others
        for path, name in NATIVE_BODIES.items():
            content = self._json["paths"][path]["post"]["requestBody"]["content"]
            content["application/json"]["schema"] = {"$ref": REF.format(model=name)}

    # answers

    def _tell_answers(self, path: str, operation: Json) -> None:
        responses = operation["responses"]
        responses.pop("422", None)
        answer = ANSWERS.get(path, RouteResponse(failing=FAILING if "requestBody" in operation else ()))
        if operation["operationId"].startswith("delete"):
            answer = RouteResponse(ResponseDeleted, failing=(404,))
        if path in ANSWERS:
            responses["200"] = {"description": "what was asked for"} | self._content(answer)
        statuses = {*answer.failing, *([401] if self._with_keys and path not in self._open_paths else [])}
        if 401 in statuses:
            operation["security"] = [{"key": []}]
        for status in sorted(statuses):
            responses[str(status)] = {"description": STATUSES[status]} | self._error(path, status)

    def _content(self, answer: RouteResponse) -> Json:
        content: Json = {}
        if answer.form is not None:
            content["application/json"] = {"schema": self._schema(answer.form)}
        if answer.media is not None:
            content[answer.media] = {"schema": {"type": "string"}}
        if answer.streams:
            content["text/event-stream"] = {}  # OpenAPI 3.1 has no words for the form of events
        if answer.lines:
            content["application/x-ndjson"] = {}
        return {"content": content} if content else {}

    def _error(self, path: str, status: int) -> Json:
        form: Any = NativeError if path in NATIVE_PATHS else OpenAIError
        for begin, other in ((ANTHROPIC_PATH, AnthropicError), (OLLAMA_PATH, OllamaError)):
            form = other if path.startswith(begin) else form
        if path.startswith("/health") and status == 503:
            form = Health
        return {"content": {"application/json": {"schema": self._schema(form)}}}

    def _schema(self, form: Any) -> Json:
        schema, inner = schema_of(form)
        self._schemas |= inner
        if "$ref" in schema or "title" not in schema:
            return schema
        self._schemas[schema["title"]] = schema
        return {"$ref": REF.format(model=schema["title"])}


_AS_NAME = str.maketrans("/{}:", "____")


def _or_null(schema: Json) -> Json:
    kinds = schema.get("anyOf", [schema])
    if {"type": "null"} in kinds:
        return schema
    return {"anyOf": [*kinds, {"type": "null"}]} | {key: schema[key] for key in ("title", "default") if key in schema}
