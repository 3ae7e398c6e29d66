"""A server of the bundled model on a free port of 127.0.0.1, in a thread of the test."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from fastapi import FastAPI

from sgl.runtime import Engine
from sgl.runtime.server.server_app import create_app
from sgl.runtime.server.server_listener import config_of
from sgl.runtime.server.server_settings import ServerSettings
from sgl.runtime.server.server_socket import bind


@contextmanager
def serving(engine: Engine, **settings: Any) -> Iterator[str]:
    """The URL of a real server of `engine`, with an event loop in a thread of its own."""
    with serving_app(create_app(engine, ServerSettings(**settings))) as url:
        yield url


@contextmanager
def serving_app(app: FastAPI, listener: socket.socket | None = None) -> Iterator[str]:
    """The same of an application that the test keeps to look into."""
    listener = listener or bind(ServerSettings(port=0))
    config = config_of(app, log_level="critical", timeout_graceful_shutdown=2)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])), name="server", daemon=True)
    thread.start()
    await_true(lambda: server.started)
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(10)
        listener.close()
        app.state.watchers.close()


def await_true(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    """Wait until `condition()`; AssertionError if it does not come."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.005)


@contextmanager
def slow_steps(engine: Engine, seconds: float) -> Iterator[None]:
    """Each step takes so much longer: what is told of one is sent before the next,
    and a long text takes long on any machine.
    """
    engine._core.after_step = lambda: time.sleep(seconds)
    try:
        yield
    finally:
        engine._core.after_step = None
