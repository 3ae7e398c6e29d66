"""Keeps the record of each request, and gives it to those who watch when the request has ended."""

from __future__ import annotations

import re
import uuid
from typing import TYPE_CHECKING

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sgl.runtime.engine import Engine
from sgl.runtime.errors import ConfigError

from ..http.middleware import HttpMiddleware
from ..served_adapters import AdapterPermission
from ..server_settings import ServerSettings
from .prometheus_metrics import ServerMetrics
from .request_log import RequestLog
from .request_record import RECORD, RequestRecord

if TYPE_CHECKING:
    from .otel_tracing import Tracing

REQUEST_ID = "x-request-id"
USABLE_ID = re.compile(r"[!-~]{1,128}")
LEFT = 499  # the status of a request whose client went away
QUIET = frozenset({"/health", "/metrics"})  # asked for all the time: counted, not written down
ELSEWHERE = "none"  # the route of requests that reached none


class RequestWatchers:
    """The observers of every request that has ended. Raises ConfigError where one of them is not available."""

    def __init__(self, engine: Engine, settings: ServerSettings, model: str, tracing: Tracing | None = None) -> None:
        self.metrics = ServerMetrics(engine, AdapterPermission(settings)) if settings.metrics else None
        self.tracing = tracing or (_tracing(model) if settings.trace else None)
        self.log = RequestLog(settings.log_requests) if settings.log_requests is not None else None

    def finished(self, record: RequestRecord, headers: Headers) -> None:
        if self.metrics is not None:
            self.metrics.finished(record)
        if record.route in QUIET:
            return
        if self.log is not None:
            self.log.finished(record)
        if self.tracing is not None:
            self.tracing.finished(record, headers)

    def close(self) -> None:
        """Write and send what waits."""
        if self.log is not None:
            self.log.close()
        if self.tracing is not None:
            self.tracing.close()


def _tracing(model: str) -> Tracing:
    try:
        from .otel_tracing import Tracing
    except ImportError:
        raise ConfigError("traces need OpenTelemetry: pip install 'sgl[otel]', or leave --trace out") from None
    return Tracing.from_environment(model)


class WatchedRequest(HttpMiddleware):
    """Gives each request a record that everything within finds in `RECORD`.

    Its id is the client's X-Request-Id, or one of ours; every answer carries it, and the request's state has it.
    """

    def __init__(self, app: ASGIApp, watchers: RequestWatchers, with_content: bool) -> None:
        super().__init__(app)
        self._watchers, self._with_content = watchers, with_content

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        given = Headers(scope=scope).get(REQUEST_ID, "")
        name = given if USABLE_ID.fullmatch(given) else uuid.uuid4().hex
        scope.setdefault("state", {})["request_id"] = name
        record = RequestRecord(name, scope["method"], content=[] if self._with_content else None)
        complete = False

        async def noted(message: Message) -> None:
            nonlocal complete
            if message["type"] == "http.response.start":
                record.status = message["status"]
                MutableHeaders(scope=message)[REQUEST_ID] = name
            complete = message["type"] == "http.response.body" and not message.get("more_body", False)
            await send(message)

        token = RECORD.set(record)
        try:
            await self.app(scope, receive, noted)
            if not complete and record.error is None:
                record.status, record.error = LEFT, "client_left"
        except BaseException:  # half an answer is out, and the connection breaks
            record.status, record.error = 500, "internal_error"
            raise
        finally:
            RECORD.reset(token)
            self._end(record, scope)

    def _end(self, record: RequestRecord, scope: Scope) -> None:
        record.end(getattr(scope.get("route"), "path", ELSEWHERE))
        self._watchers.finished(record, Headers(scope=scope))
