"""A server on a bound socket, drained before it ends."""

from __future__ import annotations

import asyncio
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import uvicorn

from sgl.runtime.engine import Engine

from .admission_control import AdmissionControl
from .http.http_protocol import HttpProtocol
from .http.middleware import HostCheckMiddleware
from .server_app import create_app
from .server_settings import ServerSettings
from .server_socket import url_of

DRAIN_SECONDS = 10
KEPT_SECONDS = 75  # a quiet connection: longer than the largest Retry-After, so that a client can use it again
SIGNALS = (signal.SIGINT, signal.SIGTERM)


def serve(engine: Engine, settings: ServerSettings, listener: socket.socket, ready: Callable[[str], None]) -> None:
    """Serve until SIGINT or SIGTERM; what runs then has 10 seconds to finish. `ready` is called with the URL."""
    app = create_app(engine, settings)
    guarded = HostCheckMiddleware(app) if settings.local and not settings.api_keys else app
    server = _DrainingServer(config_of(guarded), app.state.bridge.admission, lambda: ready(url_of(listener)))
    try:
        asyncio.run(server.serve(sockets=[listener]))
    finally:
        app.state.watchers.close()


def config_of(app: Any, **options: Any) -> uvicorn.Config:
    """How uvicorn is to serve the application."""
    usual: dict[str, Any] = {"log_level": "warning", "timeout_keep_alive": KEPT_SECONDS}
    return uvicorn.Config(app, http=HttpProtocol, lifespan="off", ws="none", server_header=False, **(usual | options))


class _DrainingServer(uvicorn.Server):
    """Reports when it listens, and shuts down gracefully: it goes on listening until what runs has ended."""

    def __init__(self, config: uvicorn.Config, admission: AdmissionControl, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._admission, self._ready = admission, ready
        self._last_moment = 0.0  # of what runs, when it drains

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal drains, the second ends at once."""
        if self._admission.draining:
            self.should_exit = self.force_exit = True
        else:
            self._last_moment = time.monotonic() + DRAIN_SECONDS
            self._admission.draining = True

    async def on_tick(self, counter: int) -> bool:
        """Ten times a second.

        Answers that are being written when nothing is left in the engine have the rest of the time.
        """
        left = self._last_moment - time.monotonic()
        if self._admission.draining and (left <= 0 or not self._admission.held):
            self.config.timeout_graceful_shutdown = max(1, round(left))
            self.should_exit = True
        return await super().on_tick(counter)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are not passed on: to end so is no failure."""
        before: dict[int, Any] = {number: signal.signal(number, self.handle_exit) for number in SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
