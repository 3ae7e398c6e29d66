"""The ASGI application: routes, middleware, and how errors are reported."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.responses import Response

from sgl.grammars import GrammarError, Vocabulary
from sgl.runtime.dialects import Dialect, dialect_for, dialect_named, reasoning_named
from sgl.runtime.engine import Engine
from sgl.runtime.errors import RuntimeFailure

from . import adapter_routes, status_routes, web_page
from .engine_bridge import EngineBridge
from .grammar_compiler import RequestGrammarCompiler
from .http.http_errors import RequestError, problem
from .http.middleware import ApiKeyMiddleware, CorsPolicyMiddleware, DisconnectMiddleware
from .http.openapi_document import DocumentedApp
from .http.request_bodies import BodyMemoryBudget
from .http.request_guard import RequestGuard
from .http.validation_errors import validation_message
from .observability.request_watchers import RequestWatchers, WatchedRequest
from .protocols.chat import chat_completions_adapter
from .protocols.completions import completions_adapter, embeddings_routes, tokenize_routes
from .protocols.messages import messages_adapter
from .protocols.native import generate_adapter, native_control_routes
from .protocols.ollama import ollama_adapter
from .protocols.responses import kept_responses_routes, responses_adapter
from .protocols.responses.response_store import ResponseStore
from .served_adapters import ServedAdapters
from .server_settings import ServerSettings

if TYPE_CHECKING:
    from .observability.otel_tracing import Tracing


def create_app(engine: Engine, settings: ServerSettings | None = None, tracing: Tracing | None = None) -> FastAPI:
    """The server of an open engine, which stays the caller's to close.

    Its `state` has `engine`, `settings`, `bridge`, `compiler`, `dialect`, the `responses` that are kept, the names of
    its `models`, its `adapters`, and the `watchers`, which are to be closed in the end. `tracing` instead of what
    `settings.trace` gives.
    """
    settings = settings or ServerSettings()
    app = DocumentedApp(title="sgl", docs_url=None, redoc_url=None)
    app.state.engine, app.state.settings = engine, settings
    app.state.models = settings.served_names or (Path(engine.model_path).name,)
    app.state.watchers = watchers = RequestWatchers(engine, settings, app.state.models[0], tracing)
    metrics = watchers.metrics
    app.state.adapters = ServedAdapters(engine, settings)
    app.state.bridge = EngineBridge(engine, settings, metrics.gap if metrics else None, app.state.adapters)
    app.state.dialect = dialect_of(engine, settings)
    app.state.compiler = RequestGrammarCompiler(
        engine, metrics.compiled if metrics else None, calls_vocabulary(engine, app.state.dialect)
    )
    app.state.responses = ResponseStore(settings.store_bytes)
    app.state.opened = time.time()
    for routes in (
        status_routes,
        adapter_routes,
        generate_adapter,
        native_control_routes,
        completions_adapter,
        chat_completions_adapter,
        responses_adapter,
        kept_responses_routes,
        messages_adapter,
        ollama_adapter,
        embeddings_routes,
        tokenize_routes,
        *([web_page] if settings.page else []),
    ):
        app.include_router(routes.router)
    _add_error_handlers(app)
    app.state.body_room = BodyMemoryBudget(max(settings.max_open_bytes, settings.max_body_bytes))
    app.add_middleware(DisconnectMiddleware, max_body_bytes=settings.max_body_bytes, room=app.state.body_room)
    app.add_middleware(ApiKeyMiddleware, settings=settings)
    if settings.cors_origins:
        app.add_middleware(CorsPolicyMiddleware, origins=settings.cors_origins)
    app.add_middleware(RequestGuard)
    app.add_middleware(WatchedRequest, watchers=watchers, with_content=settings.log_content)
    return app


def _add_error_handlers(app: FastAPI) -> None:
    for kind in (RequestError, RuntimeFailure, GrammarError, TimeoutError):
        app.add_exception_handler(kind, _failed)
    app.add_exception_handler(RequestValidationError, _malformed)
    app.add_exception_handler(HTTPException, _no_route)


async def _failed(request: Request, error: Exception) -> Response:
    found = problem(error)
    return JSONResponse(found.body(request.url.path), found.status, found.headers)


async def _malformed(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    field = getattr(request.scope.get("route"), "body_field", None)
    return await _failed(request, validation_message(error.errors(), _type_of(field)))


def _type_of(body_field: Any) -> Any:
    return None if body_field is None else body_field.field_info.annotation


async def _no_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    method, path = request.method, request.url.path
    words = {404: f"there is nothing at {path}", 405: f"{path} takes no {method}"}
    message = words.get(error.status_code, str(error.detail))
    answer = await _failed(request, RequestError(message, status=error.status_code))
    answer.headers.update(error.headers or {})  # Allow, where the method is not
    return answer


def dialect_of(engine: Engine, settings: ServerSettings) -> Dialect:
    """By the model's name and template, or as the settings say. Raises ConfigError for an unknown format in these."""
    name, tokenizer = model_name(engine.model_path), engine.tokenizer
    found = dialect_for(name, tokenizer.tools_template, response_template=tokenizer.response_template)
    dialect = found
    if settings.tool_format is not None and settings.tool_format != found.name:
        dialect = dialect_named(settings.tool_format).thinking(found.reasoning)
        dialect.single = found.single
    dialect = dialect.templated("\n".join(engine.tokenizer.chat_sources))
    return (
        dialect if settings.reasoning_format is None else dialect.thinking(reasoning_named(settings.reasoning_format))
    )


def calls_vocabulary(engine: Engine, dialect: Dialect) -> Vocabulary:
    """The engine's vocabulary, in which the special tokens among the marks of calls and thoughts are text that grammars
    may write.
    """
    calls, all_marks = dialect.spelled.encode(), "".join(dialect.marks).encode()
    ends = set(engine.tokenizer.eos_ids)  # what ends a thought and texts, too, still ends texts

    def spelled(index: int) -> bool:
        mark = engine.vocabulary.tokens[index]
        return bool(mark) and (mark in calls or (index not in ends and mark in all_marks))

    return engine.vocabulary.spelling([index for index in engine.vocabulary.special_ids if spelled(index)])


def model_name(path: str) -> str:
    """The part of a model's path that names it: the hub id of a cached snapshot, else the last two folders."""
    parts = Path(path).parts
    hub = [part for part in parts if part.startswith("models--")]
    return hub[-1].removeprefix("models--").replace("--", "/") if hub else "/".join(parts[-2:])
