"""A small HTTP client on asyncio: one connection a request, so that it can leave, dawdle and send what it likes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

DONE = "[DONE]"
MOST_LINE = 2**22  # bytes


class Broken(Exception):
    """The server closed the connection in the middle of an answer, or before it."""


class Answer:
    """What came back: `status` and `headers` at once, the body as it is read."""

    def __init__(self, reader: asyncio.StreamReader, status: int, headers: dict[str, str]) -> None:
        self.status, self.headers = status, headers
        self._reader = reader

    async def body(self) -> bytes:
        return b"".join([piece async for piece in self.pieces()])

    async def json(self) -> Any:
        return json.loads(await self.body())

    async def events(self) -> AsyncGenerator[str, None]:
        """The data of each server-sent event, `[DONE]` too."""
        rest = b""
        async for piece in self.pieces():
            *events, rest = (rest + piece).split(b"\n\n")
            for event in events:
                yield event.removeprefix(b"data: ").decode()
        if rest:
            raise Broken(f"the stream ended within an event: {rest[:100]!r}")

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        """The body as it comes. Raises Broken where it ends early."""
        try:
            if self.headers.get("transfer-encoding") == "chunked":
                while size := int((await self._reader.readuntil(b"\r\n")).split(b";")[0], 16):
                    yield (await self._reader.readexactly(size + 2))[:-2]
                await self._reader.readuntil(b"\r\n")
            elif size := int(self.headers.get("content-length", 0)):
                yield await self._reader.readexactly(size)
        except (asyncio.IncompleteReadError, ValueError) as error:
            raise Broken("the answer ended in the middle") from error


class Client:
    """Asks the server at `url`; `key` is its API key."""

    def __init__(self, url: str, key: str = "") -> None:
        host, _, port = url.removeprefix("http://").rpartition(":")
        self._host, self._port, self._key = host, int(port), key

    @asynccontextmanager
    async def asked(
        self, path: str, body: Any = None, *, method: str | None = None, key: str | None = None, dawdle: float = 0.0
    ) -> AsyncIterator[Answer]:
        """The answer to a request; the connection ends with the block.

        `body` is sent as JSON, or as it is when it is bytes; `dawdle`: seconds between two halves of the request.

        Raises:
            Broken: no answer, or half of one.
        """
        content = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        request = self._head(method or ("GET" if body is None else "POST"), path, len(content), key) + content
        reader, writer = await asyncio.open_connection(self._host, self._port, limit=MOST_LINE)
        try:
            half = len(request) // 2 if dawdle else 0
            writer.write(request[:half])
            await asyncio.sleep(dawdle)
            writer.write(request[half:])
            yield await _answer(reader)
        except ConnectionError as error:
            raise Broken(f"the connection broke: {error}") from error
        finally:
            writer.transport.abort()  # what was not read is not needed

    async def get(self, path: str) -> Any:
        """The JSON that a route answers."""
        async with self.asked(path) as answer:
            return await answer.json()

    def _head(self, method: str, path: str, length: int, key: str | None) -> bytes:
        key = self._key if key is None else key
        lines = [
            f"{method} {path} HTTP/1.1",
            f"Host: {self._host}",
            "Connection: close",
            "Content-Type: application/json",
        ]
        lines += [f"Content-Length: {length}"] + ([f"Authorization: Bearer {key}"] if key else [])
        return "\r\n".join([*lines, "", ""]).encode()


async def _answer(reader: asyncio.StreamReader) -> Answer:
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except asyncio.IncompleteReadError as error:
        raise Broken("the server closed the connection without an answer") from error
    status, *lines = head.removesuffix("\r\n\r\n").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return Answer(reader, int(status.split()[1]), headers)
