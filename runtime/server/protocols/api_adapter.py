"""The way of a request through every API: parsed, run by the engine, answered whole or as a stream of events."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any, Generic, TypeVar

from fastapi.responses import Response

from ..http.http_errors import ENDINGS, problem
from ..http.response_size_limit import json_response
from ..http.sse_responses import DONE, StreamedResponse, first_of, sse_event

Json = dict[str, Any]
Piece = TypeVar("Piece")


class ApiAdapter(ABC, Generic[Piece]):
    """How an API asks and answers. An object is one request, and serves it once.

    streamed    the client wants a stream
    media_type  of a stream
    mark        what ends one
    """

    streamed: bool
    media_type = "text/event-stream"
    mark = DONE

    @abstractmethod
    async def parse(self) -> AsyncGenerator[tuple[int, Piece], None]:
        """What the request asks of the engine: (index of the sample, piece) of all that comes.

        Raises what is refused. The generator is left with `aclosing`.
        """

    @abstractmethod
    def event(self, index: int, piece: Piece) -> Sequence[Json]:
        """Take a piece. Returns its events, which only a stream has use for."""

    @abstractmethod
    async def whole(self) -> Any:
        """The answer that is no stream, when all pieces were taken."""

    async def begin(self) -> Sequence[Json]:
        """The events before the first piece, which is there."""
        return ()

    async def end(self) -> Sequence[Json]:
        """The events after the last piece."""
        return ()

    def failed(self, error: BaseException) -> Sequence[Json]:
        """The last events of a stream that breaks off."""
        return [problem(error).body()]

    def left(self) -> None:
        """The client went away before the end of a stream."""

    def line(self, event: Json) -> bytes:
        """An event as it is sent."""
        return sse_event(event)


async def answer(adapter: ApiAdapter[Any]) -> Response:
    """The response to a request.

    Raises what is refused, also by the engine: until the first piece has come, a status can tell it.
    """
    pieces = await adapter.parse()
    if adapter.streamed:
        return StreamedResponse(lines(adapter, await first_of(pieces), pieces), adapter.media_type)
    async with aclosing(pieces):
        async for index, piece in pieces:
            adapter.event(index, piece)
    return await json_response(await adapter.whole())


async def lines(
    adapter: ApiAdapter[Piece], first: tuple[int, Piece], pieces: AsyncGenerator[tuple[int, Piece], None]
) -> AsyncGenerator[bytes, None]:
    """A stream as it is sent. The status is long out: an error is an event too."""
    async with aclosing(pieces):
        try:
            for event in (*await adapter.begin(), *adapter.event(*first)):
                yield adapter.line(event)
            async for index, piece in pieces:
                for event in adapter.event(index, piece):
                    yield adapter.line(event)
            last = await adapter.end()
        except ENDINGS:
            adapter.left()
            raise
        except BaseException as error:  # a panic of a library in Rust is no Exception
            last = adapter.failed(error)
        for event in last:
            yield adapter.line(event)
        if adapter.mark:
            yield adapter.mark
