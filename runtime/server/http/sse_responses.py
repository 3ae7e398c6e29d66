"""Server-sent events of OpenAI's routes, and streams and calls run side by side."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import aclosing
from typing import Any, TypeVar

from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from .http_errors import ENDINGS, HttpProblem, problem

T = TypeVar("T")

DONE = b"data: [DONE]\n\n"
_compact = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def event(data: Any) -> bytes:
    """One event that holds one JSON value."""
    return b"data: " + _compact(data).encode("utf-8", "replace") + b"\n\n"


async def events(items: AsyncGenerator[Any, None]) -> AsyncGenerator[bytes, None]:
    """Each item as an event, then [DONE]. The status is long out: an error is an event too, the last but that."""
    async with aclosing(items):
        try:
            async for item in items:
                yield event(item)
        except ENDINGS:
            raise
        except BaseException as error:  # a panic of a library in Rust is no Exception
            yield event(problem(error).body())
        yield DONE


class StreamedResponse(StreamingResponse):
    """What comes line by line; its generator is closed when the client is gone, whatever it was doing."""

    def __init__(self, lines: AsyncGenerator[bytes, None], media_type: str) -> None:
        self._lines = lines
        super().__init__(lines, media_type=media_type, headers={"Cache-Control": "no-cache"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self._lines):
            await super().__call__(scope, receive, send)


class SSEResponse(StreamedResponse):
    """A stream of events as OpenAI's chat has them."""

    def __init__(self, items: AsyncGenerator[Any, None]) -> None:
        super().__init__(events(items), "text/event-stream")


class NamedSSEResponse(StreamedResponse):
    """A stream of events that are called by their `type`, without a mark at the end.

    failed: the last event after an unexpected error.
    """

    def __init__(
        self, items: AsyncGenerator[dict[str, Any], None], failed: Callable[[HttpProblem], dict[str, Any]]
    ) -> None:
        super().__init__(_named(items, failed), "text/event-stream")


class JsonLinesResponse(StreamedResponse):
    """A stream of lines of JSON. failed: what a last line says of an error."""

    def __init__(
        self, items: AsyncGenerator[dict[str, Any], None], failed: Callable[[HttpProblem], dict[str, Any]]
    ) -> None:
        super().__init__(_lines(items, failed), "application/x-ndjson")


async def _lines(
    items: AsyncGenerator[dict[str, Any], None], failed: Callable[[HttpProblem], dict[str, Any]]
) -> AsyncGenerator[bytes, None]:
    async with aclosing(items):
        try:
            async for item in items:
                yield _compact(item).encode("utf-8", "replace") + b"\n"
        except ENDINGS:
            raise
        except BaseException as error:  # a panic of a library in Rust is no Exception
            yield _compact(failed(problem(error))).encode() + b"\n"


async def _named(
    items: AsyncGenerator[dict[str, Any], None], failed: Callable[[HttpProblem], dict[str, Any]]
) -> AsyncGenerator[bytes, None]:
    async with aclosing(items):
        try:
            async for item in items:
                yield b"event: " + item["type"].encode() + b"\n" + event(item)
        except ENDINGS:
            raise
        except BaseException as error:  # a panic of a library in Rust is no Exception
            last = failed(problem(error))
            yield b"event: " + last["type"].encode() + b"\n" + event(last)


async def primed(items: AsyncGenerator[T, None]) -> AsyncGenerator[T, None]:
    """The same items once the first of them is there, so that what is refused at once is refused by a status."""
    try:
        first = await anext(items)
    except BaseException:
        await items.aclose()
        raise
    return _after(first, items)


async def _after(first: T, items: AsyncGenerator[T, None]) -> AsyncGenerator[T, None]:
    async with aclosing(items):
        yield first
        async for item in items:
            yield item


async def merged(streams: Sequence[AsyncGenerator[T, None]]) -> AsyncGenerator[tuple[int, T], None]:
    """(index of the stream, item) of all streams, as they come; all are closed when one fails or this one is left."""
    if len(streams) == 1:  # most often so, and a task for each item would be half of its cost
        async with aclosing(streams[0]) as only:
            async for one in only:
                yield 0, one
        return
    arrived: asyncio.Queue[tuple[int, T] | BaseException | None] = asyncio.Queue(len(streams))
    tasks = [asyncio.ensure_future(_pump(index, stream, arrived)) for index, stream in enumerate(streams)]
    left = len(tasks)
    try:
        while left:
            item = await arrived.get()
            if isinstance(item, BaseException):
                raise item
            left -= item is None
            if item is not None:
                yield item
    finally:
        await _cancelled(tasks)


async def _pump(index: int, stream: AsyncGenerator[T, None], arrived: asyncio.Queue[Any]) -> None:
    try:
        async with aclosing(stream):
            async for item in stream:
                await arrived.put((index, item))
        await arrived.put(None)
    except Exception as error:
        await arrived.put(error)


async def together(work: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """The results of all; when one fails or this call is cancelled, the others are cancelled."""
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        return await asyncio.gather(*tasks)
    finally:
        await _cancelled(tasks)


async def _cancelled(tasks: Sequence[asyncio.Future[Any]]) -> None:
    """Cancel what still runs and wait until it is over."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
