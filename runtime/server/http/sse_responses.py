"""Streams of events as they are sent, and streams and calls run side by side."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Coroutine, Sequence
from contextlib import aclosing
from typing import Any, TypeVar

from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

T = TypeVar("T")

DONE = b"data: [DONE]\n\n"
_compact = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def sse_event(data: Any) -> bytes:
    """One event that holds one JSON value."""
    return b"data: " + _compact(data).encode("utf-8", "replace") + b"\n\n"


def named_sse_event(data: dict[str, Any]) -> bytes:
    """The same of an event that is called by its `type`."""
    return b"event: " + data["type"].encode() + b"\n" + sse_event(data)


def json_line(data: Any) -> bytes:
    return _compact(data).encode("utf-8", "replace") + b"\n"


class StreamedResponse(StreamingResponse):
    """What comes line by line; its generator is closed when the client is gone, whatever it was doing."""

    def __init__(self, lines: AsyncGenerator[bytes, None], media_type: str) -> None:
        self._lines = lines
        super().__init__(lines, media_type=media_type, headers={"Cache-Control": "no-cache"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self._lines):
            await super().__call__(scope, receive, send)


async def first_of(items: AsyncGenerator[T, None]) -> T:
    """The first item. Raises what comes instead of it, which is the end of the items."""
    try:
        return await anext(items)
    except BaseException:
        await items.aclose()
        raise


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
    except asyncio.CancelledError:
        raise
    except BaseException as error:  # a panic of a library in Rust is no Exception, and a merge would wait for ever
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
