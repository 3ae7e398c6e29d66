"""What stands before the routes: request ids, API keys, the limit of a body, and an eye on clients that leave."""

from __future__ import annotations

import asyncio
import hmac
import logging
import re
import uuid
from collections.abc import MutableMapping
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .errors import RequestError, problem

log = logging.getLogger("sgl.server")

OPEN_PATHS = frozenset({"/health"})
REQUEST_ID = "x-request-id"
USABLE_ID = re.compile(r"[!-~]{1,128}")


class RequestId:
    """Every answer carries the client's X-Request-Id, or one of ours; the routes find it in `request.state`."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        given = Headers(scope=scope).get(REQUEST_ID, "")
        name = given if USABLE_ID.fullmatch(given) else uuid.uuid4().hex
        scope.setdefault("state", {})["request_id"] = name

        async def named(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[REQUEST_ID] = name
            await send(message)

        await self.app(scope, receive, named)


class ApiKeys:
    """Only who brings one of the keys as a bearer token gets past; /health is open to all."""

    def __init__(self, app: ASGIApp, keys: frozenset[str]) -> None:
        self.app = app
        self._keys = [key.encode() for key in sorted(keys)]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS or self._knows(Headers(scope=scope)):
            return await self.app(scope, receive, send)
        error = RequestError(
            "this server wants an API key: send the header 'Authorization: Bearer KEY'", None, "invalid_api_key", 401
        )
        await _answer(error, scope, receive, send, {"WWW-Authenticate": "Bearer"})

    def _knows(self, headers: Headers) -> bool:
        scheme, _, key = headers.get("authorization", "").partition(" ")
        given = key.strip().encode()
        matches = [hmac.compare_digest(given, known) for known in self._keys]  # all of them, whatever the first says
        return not self._keys or (scheme.lower() == "bearer" and any(matches))


class Attended:
    """Reads the body up to `max_body_bytes`, then runs the route for as long as its client stays.

    A route whose client goes away is cancelled. What a route did not expect is answered with a 500 that tells nothing.
    """

    def __init__(self, app: ASGIApp, max_body_bytes: int) -> None:
        self.app, self.most = app, max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        try:
            body = await self._body(Headers(scope=scope), receive)
        except RequestError as error:
            return await _answer(error, scope, receive, send, {"Connection": "close"})
        if body is not None:
            await _Exchange(scope, receive, send, body).run(self.app)

    async def _body(self, headers: Headers, receive: Receive) -> bytes | None:
        """None: the client left while it sent."""
        declared = headers.get("content-length", "0")
        if declared.isdecimal() and (len(declared) > 15 or int(declared) > self.most):
            raise self._too_large()
        body = bytearray()
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            body += message.get("body", b"")
            if len(body) > self.most:
                raise self._too_large()
            if not message.get("more_body", False):
                return bytes(body)

    def _too_large(self) -> RequestError:
        return RequestError(
            f"the body is longer than the {self.most} bytes that this server takes", None, "body_too_large", 413
        )


class _Exchange:
    """One request whose body is here, and its answer."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, body: bytes) -> None:
        self.scope, self._receive, self._send = scope, receive, send
        self._body: bytes | None = body
        self._gone = asyncio.Event()
        self._started = False

    async def run(self, app: ASGIApp) -> None:
        route = asyncio.ensure_future(self._route(app))
        watch = asyncio.ensure_future(self._watch())
        try:
            await asyncio.wait({route, watch}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:  # the server ends and has waited long enough
            route.cancel()
            watch.cancel()
            return await self._break_off()
        for task in (route, watch):
            task.cancel()
        await asyncio.gather(route, watch, return_exceptions=True)
        if not route.cancelled() and (error := route.exception()) is not None:
            raise error

    async def _route(self, app: ASGIApp) -> None:
        try:
            await app(self.scope, self._receive_next, self._send_on)
        except Exception as error:
            if self._started:
                raise  # the server breaks the connection: half an answer must not look whole
            await _answer(error, self.scope, self._receive_next, self._send_on)

    async def _break_off(self) -> None:
        if not self._started:
            ending = RequestError("the server is shutting down; ask again later", None, "shutting_down", 503)
            await _answer(ending, self.scope, self._receive_next, self._send_on)

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._gone.set()

    async def _receive_next(self) -> Message:
        """The whole body, once; then the end."""
        body, self._body = self._body, None
        if body is not None:
            return {"type": "http.request", "body": body, "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send_on(self, message: MutableMapping[str, Any]) -> None:
        self._started = True
        await self._send(message)


async def _answer(
    error: BaseException, scope: Scope, receive: Receive, send: Send, headers: dict[str, str] | None = None
) -> None:
    told = problem(error)
    await JSONResponse(told.body(scope["path"]), told.status, headers)(scope, receive, send)
