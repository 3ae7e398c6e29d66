"""Fixtures: a native server for the tests of a module, and an endpoint on it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from native_server import NativeServer

from sgl.lang.backends.native.runtime_endpoint import RuntimeEndpoint


@pytest.fixture(scope="module")
def running() -> Iterator[NativeServer]:
    with NativeServer() as server:
        yield server


@pytest.fixture
def server(running: NativeServer) -> NativeServer:
    running.reset()
    return running


@pytest.fixture
def endpoint(server: NativeServer) -> Iterator[RuntimeEndpoint]:
    backend = RuntimeEndpoint(server.url, backoff=0.001)
    yield backend
    backend.shutdown()
