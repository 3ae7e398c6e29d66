"""A server on a port: bound before the model is loaded, drained before it ends."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

from sgl.runtime.engine import Engine
from sgl.runtime.errors import ConfigError

from .app import create_app
from .settings import ServerSettings

DRAIN_SECONDS = 10
SIGNALS = (signal.SIGINT, signal.SIGTERM)


def bind(settings: ServerSettings) -> socket.socket:
    """A socket at the host and port of the settings that does not listen yet. Raises ConfigError."""
    host, port = settings.host, settings.port
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise ConfigError(f"cannot listen at {host} port {port}: {error.strerror}; take another --port") from error
    return listener


def serve(engine: Engine, settings: ServerSettings, listener: socket.socket, ready: Callable[[str], None]) -> None:
    """Serve until SIGINT or SIGTERM; what runs then has 10 seconds to finish. `ready` is called with the URL."""
    config = uvicorn.Config(
        create_app(engine, settings),
        log_level="warning",
        lifespan="off",
        ws="none",
        server_header=False,
        timeout_graceful_shutdown=DRAIN_SECONDS,
    )
    server = _Server(config, lambda: ready(url_of(listener)))
    asyncio.run(server.serve(sockets=[listener]))


def url_of(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class _Server(uvicorn.Server):
    """Tells when it listens, and ends well when it is told to end."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """The first signal drains, the second ends at once. Neither is passed on: to end so is no failure."""
        before: dict[int, Any] = {number: signal.signal(number, self.handle_exit) for number in SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
