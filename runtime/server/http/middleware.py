"""What a request passes before its route: API keys, the limit of a body, and an eye on clients that leave."""

from __future__ import annotations

import asyncio
import hmac
import logging
import re
from abc import ABC, abstractmethod
from collections.abc import MutableMapping
from typing import Any

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..admission_control import NEXT_SERVER, shutting_down
from ..observability.request_record import RECORD
from ..request_context import calling, key_of, tenant_of
from ..server_settings import ServerSettings
from .http_errors import ENDINGS, RequestError, problem
from .request_bodies import BodyMemoryBudget, BodyReservation

log = logging.getLogger("sgl.server")

OPEN_PATHS = frozenset({"/", "/health"})
OPEN_FOLDER = "/page/"  # the page itself, which knows nothing until its reader gives it a key
METRICS = frozenset({"/metrics"})  # open too where the settings say so
OWN_NAMES = frozenset({"", "localhost", "127.0.0.1", "[::1]"})
BODY_SECONDS = 120.0  # a body that is not here by then is not waited for
STALL_SECONDS = 20.0  # nor one of which nothing came for so long
# clients such as LiteLLM know OpenAI's refusal of a key by its first words
_KEY_WANTED = "Incorrect API key provided, or none: this server wants the header 'Authorization: Bearer KEY'"
EXPOSED = ("X-Request-Id", "Retry-After")  # headers of answers that pages may read
PREFLIGHT_SECONDS = 600


class HttpMiddleware(ABC):
    """`handle` gets the HTTP requests; all else, such as an application's start, goes on to `app`."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await (self.handle if scope["type"] == "http" else self.app)(scope, receive, send)

    @abstractmethod
    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None: ...


class ApiKeyMiddleware(HttpMiddleware):
    """Only who brings one of the keys, as a bearer token or in X-Api-Key, gets past, and is the `CALLER` from there;
    some paths are open.
    """

    def __init__(self, app: ASGIApp, settings: ServerSettings) -> None:
        super().__init__(app)
        self._settings = settings
        self._open = OPEN_PATHS | (METRICS if settings.open_metrics else set())
        keys = sorted(settings.api_keys) + ([settings.admin_key] if settings.api_keys and settings.admin_key else [])
        self._tenants = {key.encode(): tenant_of(key) for key in keys}

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        tenant = self._tenant(Headers(scope=scope))
        if tenant is not None or self._is_open(scope["path"]):
            return await self._as_caller(tenant or "", scope, receive, send)
        error = RequestError(_KEY_WANTED, None, "invalid_api_key", 401)
        await answer_error(error, scope, receive, send, {"WWW-Authenticate": "Bearer"})

    def _is_open(self, path: str) -> bool:
        return path in self._open or path.startswith(OPEN_FOLDER)

    async def _as_caller(self, tenant: str, scope: Scope, receive: Receive, send: Send) -> None:
        if (record := RECORD.get()) is not None:
            record.tenant = tenant
        with calling(tenant, self._settings):
            await self.app(scope, receive, send)

    def _tenant(self, headers: Headers) -> str | None:
        """Of the key that is brought, "" where none is asked for, None where it is not known."""
        if not self._tenants:
            return ""
        given, found = key_of(headers), None
        for known, tenant in self._tenants.items():  # all of them, whatever the first says
            if hmac.compare_digest(given, known):
                found = tenant
        return found


class HostCheckMiddleware(HttpMiddleware):
    """Lets only requests past that were meant for this machine, by their header Host.

    A page in a browser here may be made to ask a server at 127.0.0.1 under its own name (DNS rebinding).
    """

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        host = Headers(scope=scope).get("host", "")
        name = host if host.endswith("]") else re.sub(r":\d*$", "", host)
        if name.lower() in OWN_NAMES:
            return await self.app(scope, receive, send)
        error = RequestError(
            f"this server listens on this machine only, not as {name[:100]!r}; start it with --api-key to reach it "
            "by other names",
            None,
            "wrong_host",
            403,
        )
        await answer_error(error, scope, receive, send)


class DisconnectMiddleware(HttpMiddleware):
    """Reads the body up to `max_body_bytes`, for at most BODY_SECONDS, then runs the route for as long as its client
    stays.

    What bodies have together is kept within the room, where each has its place as `held_body` of the request's state.
    A route whose client goes away is cancelled. What a route did not expect is answered with a 500 that tells nothing.
    """

    def __init__(self, app: ASGIApp, max_body_bytes: int, room: BodyMemoryBudget) -> None:
        super().__init__(app)
        self.most, self._room = max_body_bytes, room

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        held = scope.setdefault("state", {})["held_body"] = BodyReservation(self._room)
        try:
            await self._exchange(scope, receive, send, held)
        finally:
            held.release()

    async def _exchange(self, scope: Scope, receive: Receive, send: Send, held: BodyReservation) -> None:
        try:
            async with asyncio.timeout(BODY_SECONDS):
                body = await self._body(Headers(scope=scope), receive, held)
        except TimeoutError:
            error = RequestError(f"the body did not come within {BODY_SECONDS:g} seconds", None, "body_timeout", 408)
            return await answer_error(error, scope, receive, send, {"Connection": "close"})
        except RequestError as error:
            return await answer_error(error, scope, receive, send, {"Connection": "close"})
        if body is not None:
            exchange = _WatchedExchange(scope, receive, send, body)
            del body  # it is long, and the route takes a while
            await exchange.run(self.app)

    async def _body(self, headers: Headers, receive: Receive, held: BodyReservation) -> bytes | None:
        """None: the client left while it sent."""
        declared = headers.get("content-length", "0")
        if declared.isdecimal() and (len(declared) > 15 or int(declared) > self.most):
            raise self._too_large()
        body = bytearray()
        while True:
            message = await self._next(receive)
            if message["type"] == "http.disconnect":
                return None
            body += message.get("body", b"")
            if len(body) > self.most:
                raise self._too_large()
            await held.grow(len(body))
            if not message.get("more_body", False):
                return bytes(body)

    async def _next(self, receive: Receive) -> Message:
        try:
            async with asyncio.timeout(STALL_SECONDS):
                return await receive()
        except TimeoutError:
            raise RequestError(
                f"nothing of the body came for {STALL_SECONDS:g} seconds", None, "body_timeout", 408
            ) from None

    def _too_large(self) -> RequestError:
        return RequestError(
            f"the body is longer than the {self.most} bytes that this server takes", None, "body_too_large", 413
        )


class _WatchedExchange:
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
        except ENDINGS:
            raise
        except BaseException as error:  # a panic of a library in Rust is no Exception
            if self._started:
                raise  # the server breaks the connection: half an answer must not look whole
            await answer_error(error, self.scope, self._receive_next, self._send_on)

    async def _break_off(self) -> None:
        ending = shutting_down(NEXT_SERVER)
        if self._started:
            problem(ending)  # for the record: half an answer is out
        else:
            await answer_error(ending, self.scope, self._receive_next, self._send_on)

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


async def answer_error(
    error: BaseException, scope: Scope, receive: Receive, send: Send, headers: dict[str, str] | None = None
) -> None:
    """Answer with the client's view of an error."""
    found = problem(error)
    await JSONResponse(found.body(scope["path"]), found.status, {**found.headers, **(headers or {})})(
        scope, receive, send
    )


class CorsPolicyMiddleware(CORSMiddleware):
    """For pages of other sites: answers preflights, which bring no API key, and marks what `origins` may read.

    Never with credentials of the browser (cookies): keys come in headers that a page has to set itself.
    """

    def __init__(self, app: ASGIApp, origins: tuple[str, ...]) -> None:
        super().__init__(
            app,
            allow_origins=origins,
            allow_methods=("GET", "POST", "DELETE"),
            allow_headers=("*",),
            allow_credentials=False,
            expose_headers=EXPOSED,
            max_age=PREFLIGHT_SECONDS,
        )
