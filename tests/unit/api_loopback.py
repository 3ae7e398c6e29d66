"""A server on 127.0.0.1 in a thread of the test, with faults to order: what networks and providers do wrong."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import uvicorn
from fastapi import FastAPI


@dataclass(frozen=True)
class Fault:
    """What goes wrong with one request.

    `status`: that answer, with `retry_after` as header; `hang`: seconds of silence, then the connection closes;
    `drop`: the connection closes at once; `half`: it closes behind so many chunks of a stream; `event`: this
    server-sent event stands behind the first chunk of a stream, and nothing more comes.
    """

    status: int | None = None
    retry_after: str | None = None
    message: str = "something broke"
    hang: float | None = None
    drop: bool = False
    half: int | None = None
    event: bytes | None = None
    page: bool = False  # a web page comes, with `status`


class StreamCut(Exception):
    """The server goes away in the middle of a stream."""


class Loopback:
    """Serves `app`. `faults` are used up one a request; `requests` are the bodies that came, `headers` beside them."""

    def __init__(self) -> None:
        self.app = FastAPI()
        self.faults: deque[Fault] = deque()
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.arrivals: list[float] = []
        self.running = 0
        self.most_running = 0
        self.delay = 0.0
        self._socket = socket.socket(
            socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP
        )  # asyncio sends at once on what is named TCP
        self._socket.bind(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        config = uvicorn.Config(
            self._guarded,
            interface="asgi3",
            log_level="critical",
            lifespan="off",
            timeout_graceful_shutdown=1,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._serve, name="loopback", daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Any:
        self._thread.start()
        while not self._server.started:
            time.sleep(0.005)
        return self

    def __exit__(self, *error: object) -> None:
        self._server.should_exit = True
        self._thread.join(10)
        self._socket.close()

    def reset(self) -> None:
        self.faults.clear()
        self.requests.clear()
        self.headers.clear()
        self.arrivals.clear()
        self.most_running, self.delay = 0, 0.0

    def bad_request(self, message: str) -> tuple[int, dict[str, Any]]:
        return 400, self.error_body(400, message)

    def error_body(self, status: int, message: str) -> dict[str, Any]:
        return {"error": {"message": message, "type": "server_error", "code": status}}

    def record(self, body: dict[str, Any], headers: Any) -> None:
        self.requests.append(body)
        self.headers.append(dict(headers))
        self.arrivals.append(time.monotonic())

    def _serve(self) -> None:
        asyncio.run(self._server.serve(sockets=[self._socket]))

    async def _guarded(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        fault = self.faults.popleft() if self.faults else Fault()
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            await asyncio.sleep(self.delay)
            await self._faulty(fault, scope, receive, send)
        finally:
            self.running -= 1

    async def _faulty(self, fault: Fault, scope: Any, receive: Any, send: Any) -> None:
        transport = receive.__self__.transport
        if fault.status is not None:
            await self._refuse(fault, send)
        elif fault.drop or fault.hang is not None:
            await asyncio.sleep(fault.hang or 0)
            transport.abort()
        else:
            await self.app(scope, receive, _Cutter(fault, send, transport) if _cuts(fault) else send)

    async def _refuse(self, fault: Fault, send: Any) -> None:
        body = json.dumps(self.error_body(fault.status or 500, fault.message)).encode()
        headers = [(b"content-type", b"text/html" if fault.page else b"application/json")]
        body = b"<html>a proxy</html>" * 500 if fault.page else body
        if fault.retry_after is not None:
            headers.append((b"retry-after", fault.retry_after.encode()))
        self.arrivals.append(time.monotonic())
        await send({"type": "http.response.start", "status": fault.status, "headers": headers})
        await send({"type": "http.response.body", "body": body})


def _cuts(fault: Fault) -> bool:
    return fault.half is not None or fault.event is not None


class _Cutter:
    """Lets some chunks of a stream through, then an event or nothing, then closes the connection."""

    def __init__(self, fault: Fault, send: Any, transport: Any) -> None:
        self.left = 1 if fault.event is not None else fault.half or 0
        self.event = fault.event
        self.send = send
        self.transport = transport

    async def __call__(self, message: dict[str, Any]) -> None:
        if message["type"] != "http.response.body":
            return await self.send(message)
        if self.left:
            self.left -= 1
            return await self.send(message)
        if self.event is not None:
            await self.send({"type": "http.response.body", "body": self.event, "more_body": True})
            self.event = None
            await asyncio.sleep(0.02)
        self.transport.close()
        raise StreamCut


async def events(items: list[bytes]) -> AsyncIterator[bytes]:
    for item in items:
        await asyncio.sleep(0)
        yield item
