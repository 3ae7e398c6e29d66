"""The ASGI application: routes, what stands before them, and how errors are told."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.responses import Response

from sgl.grammars import GrammarError
from sgl.runtime.engine import Engine
from sgl.runtime.errors import RuntimeFailure

from . import about, chat, completions, native
from .bridge import Bridge
from .compiling import Compiler
from .errors import RequestError, problem
from .fields import refusal
from .security import ApiKeys, Attended, RequestId
from .settings import ServerSettings


def create_app(engine: Engine, settings: ServerSettings | None = None) -> FastAPI:
    """The server of an open engine, which stays the caller's to close.

    Its `state` has `engine`, `settings`, `bridge`, `compiler` and the `model` that clients see.
    """
    settings = settings or ServerSettings()
    app = FastAPI(title="sgl", docs_url=None, redoc_url=None)
    app.state.engine, app.state.settings = engine, settings
    app.state.bridge, app.state.compiler = Bridge(engine, settings), Compiler(engine)
    app.state.model = settings.served_name or Path(engine.model_path).name
    app.state.opened = time.time()
    for routes in (about, native, completions, chat):
        app.include_router(routes.router)
    _tell_errors(app)
    app.add_middleware(Attended, max_body_bytes=settings.max_body_bytes)
    app.add_middleware(ApiKeys, keys=settings.api_keys)
    app.add_middleware(RequestId)
    return app


def _tell_errors(app: FastAPI) -> None:
    for kind in (RequestError, RuntimeFailure, GrammarError, TimeoutError):
        app.add_exception_handler(kind, _failed)
    app.add_exception_handler(RequestValidationError, _malformed)
    app.add_exception_handler(HTTPException, _no_route)


async def _failed(request: Request, error: Exception) -> Response:
    told = problem(error)
    return JSONResponse(told.body(request.url.path), told.status)


async def _malformed(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    field = getattr(request.scope.get("route"), "body_field", None)
    return await _failed(request, refusal(error.errors(), _type_of(field)))


def _type_of(body_field: Any) -> Any:
    return None if body_field is None else body_field.field_info.annotation


async def _no_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    method, path = request.method, request.url.path
    words = {404: f"there is nothing at {path}", 405: f"{path} takes no {method}"}
    message = words.get(error.status_code, str(error.detail))
    return await _failed(request, RequestError(message, status=error.status_code))
