"""Bodies of requests: read within a shared budget, parsed and checked within bounds, long ones off the event loop."""

from __future__ import annotations

import asyncio
import json
import re
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from email.message import Message as Mail
from typing import Any, TypeVar

from fastapi import Request
from pydantic import TypeAdapter, ValidationError
from starlette.responses import JSONResponse, Response

from sgl.runtime.common.garbage_collection import collector_off

from .documented_routes import DocumentedRoute
from .http_errors import RequestError
from .validation_errors import validation_message

T = TypeVar("T")

SMALL = 65_536  # bytes: so much of each body needs no room, and is read at once
WAIT_SECONDS = 5.0  # for room
RETRY_SECONDS = 5
MOST_VALUES = 2_000_000  # in one body: each costs many times its bytes once it is read

_READER = ThreadPoolExecutor(1, thread_name_prefix="sgl-bodies")  # one at a time, as each takes memory
_SEPARATOR = re.compile(rb'"(?:[^"\\]++|\\.)*+"|([,\[{])', re.DOTALL)


class BodyMemoryBudget:
    """Bytes that all bodies have together, from their coming until they are read. Used on one event loop."""

    def __init__(self, most: int) -> None:
        self.most, self.held = most, 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def _take(self, size: int) -> None:
        """Raises RequestError where there is no room in time."""
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                while self.held + size > self.most:
                    turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                    self._waiting.append(turn)
                    await turn
        except TimeoutError:
            raise RequestError(
                f"the server holds as many bytes of requests as it can, {self.most}; ask again in {RETRY_SECONDS} s",
                None,
                "bodies_full",
                503,
                RETRY_SECONDS,
            ) from None
        self.held += size

    def _give(self, size: int) -> None:
        self.held -= size
        waiting, self._waiting = self._waiting, deque()
        for turn in waiting:
            if not turn.done():
                turn.set_result(None)


class BodyReservation:
    """The place of one body in the room."""

    def __init__(self, room: BodyMemoryBudget) -> None:
        self._room, self._taken = room, 0

    async def grow(self, size: int) -> None:
        """The body has so many bytes now. Raises RequestError where there is no room for them."""
        more = size - SMALL - self._taken
        if more > 0:
            await self._room._take(more)
            self._taken += more

    def release(self) -> None:
        """Idempotent."""
        taken, self._taken = self._taken, 0
        if taken:
            self._room._give(taken)


class JsonBodyRoute(DocumentedRoute):
    """A route that takes one JSON value as its body: reading ends after the first few errors.

    Raises RequestError for what is no JSON or not of the declared type.
    """

    named = True  # bodies must be called JSON by their Content-Type

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        field, call = self.body_field, self.dependant.call
        if field is None or call is None:
            return super().get_route_handler()
        body_type: Any = field.field_info.annotation
        adapter: TypeAdapter[Any] = TypeAdapter(body_type)
        name, asked = self.dependant.body_params[0].name, self.dependant.request_param_name or "request"

        async def handle(request: Request) -> Response:
            data = (await request.receive()).get("body", b"")
            _check_kind(request, data, self.named)
            answer = await call(**{name: await _read_body(request, data, adapter, body_type), asked: request})
            return answer if isinstance(answer, Response) else JSONResponse(answer)

        return handle


class AnyContentTypeRoute(JsonBodyRoute):
    """A route whose clients may leave out the Content-Type, as Ollama's do."""

    named = False


async def _read_body(request: Request, data: bytes, adapter: TypeAdapter[Any], body_type: Any) -> Any:
    request.state.long_body = len(data) > SMALL
    try:
        return await parse_in_worker_thread(request, _read, data, adapter, body_type)
    finally:
        held = getattr(request.state, "held_body", None)
        if held is not None:
            held.release()


async def parse_in_worker_thread(request: Request, work: Callable[..., Any], *args: Any) -> Any:
    """What the work gives: done at once for short bodies, else by the thread that reads the long ones in turn."""
    if not request.state.long_body:
        return work(*args)
    uncollected = collector_off()(work)  # collections look at a million new lists again and again
    return await asyncio.get_running_loop().run_in_executor(_READER, uncollected, *args)


async def in_worker_thread(request: Request, work: Callable[[], T]) -> T:
    """The same for what is made of a body, in the caller's context."""
    made: T = await parse_in_worker_thread(request, copy_context().run, work)
    return made


def _check_kind(request: Request, data: bytes, named: bool) -> None:
    """A page of another site may make a browser send any body that is not called JSON: such a body is not read.

    Where bodies need not be `named` JSON, the headers that browsers add say whether a page of another site sent it.
    """
    if not data:
        raise RequestError("the body is missing", code="missing_field")
    if not named and not from_other_site(request.headers, request.app.state.settings.cors_origins):
        return
    mail = Mail()
    mail["content-type"] = request.headers.get("content-type", "")
    if mail.get_content_maintype() != "application" or not re.fullmatch(r"json|.*\+json", mail.get_content_subtype()):
        raise RequestError("the body was not read as JSON: send the header 'Content-Type: application/json'")


def from_other_site(headers: Mapping[str, str], allowed: Collection[str]) -> bool:
    """Whether a browser sent the request for a page of another site, by Sec-Fetch-Site and Origin, which no page can
    change.

    `allowed`: origins whose pages may use the server; "*": all. Clients that are no browsers send neither header.
    """
    origin = headers.get("origin")
    if origin is not None and ("*" in allowed or origin in allowed):
        return False
    if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        return True
    return origin is not None and origin.partition("://")[2] != headers.get("host")


def _read(data: bytes, adapter: TypeAdapter[Any], body_type: Any) -> Any:
    value = parsed(data)
    try:
        return adapter.validate_python(value)
    except ValidationError as error:
        raise validation_message(error.errors(include_url=False), body_type) from None
    except RecursionError:
        raise _too_deep() from None


def parsed(data: bytes) -> Any:
    """The JSON value. Raises RequestError: where it is none, nested too deeply, or of too many values."""
    if values_of(data, MOST_VALUES) > MOST_VALUES:
        raise RequestError(
            f"the body has more than {MOST_VALUES} values; send fewer in one request", code="body_too_large", status=413
        )
    try:
        return json.loads(data)
    except json.JSONDecodeError as error:
        raise RequestError(f"the body is no JSON: {error.msg} at character {error.pos}", code="invalid_json") from None
    except UnicodeDecodeError as error:
        raise RequestError(f"the body is no JSON: {error.reason} at byte {error.start}", code="invalid_json") from None
    except RecursionError:
        raise _too_deep() from None
    except ValueError as error:  # a number of thousands of digits
        raise RequestError(f"the body is not read: {error}"[:200], code="invalid_json") from None


def values_of(data: bytes, most: int) -> int:
    """How many values a JSON text has at least; exact where a first glance says more than `most`, up to `most` + 1."""
    found = 1 + sum(data.count(mark) for mark in (b",", b"[", b"{"))
    if found <= most:
        return found
    found = 1
    for match in _SEPARATOR.finditer(data):
        found += match.lastindex is not None
        if found > most:
            break
    return found


def _too_deep() -> RequestError:
    return RequestError("the body is nested too deeply; send it flatter", code="invalid_json")
