"""The text of a state, as the pieces that its nodes add: some known at once, some still being made."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future
from typing import Any

from .backend import Generated
from .choices import ChoicesDecision
from .errors import Place, ProgramError
from .feed import Feed
from .ir import SglExpr


class Literal:
    """Text that is known from the start."""

    __slots__ = ("text",)

    error: ProgramError | None = None

    def __init__(self, text: str) -> None:
        self.text = text

    def wait(self) -> None:
        """Return at once."""

    @property
    def done(self) -> bool:
        return True

    async def settled(self) -> None:
        """Return at once."""

    def chunks(self) -> Iterator[Generated]:
        yield Generated(self.text)

    async def chunks_async(self) -> AsyncIterator[Generated]:
        yield Generated(self.text)


class Pending:
    """Text that an operation of the backend makes. It is done once its feed of chunks is closed.

    With `samples` > 1 several operations run side by side: the value is the list of all their texts, the
    text is that of the first one.
    """

    __slots__ = ("_feed", "_results", "_streamed", "error", "meta_info", "node", "text", "value", "where")

    def __init__(self, node: SglExpr, where: Place | None, samples: int = 1) -> None:
        self.node = node
        self.where = where
        self._feed: Feed[Generated] = Feed()
        self.text = ""
        self.value: Any = None
        self.meta_info: Any = None
        self.error: ProgramError | None = None
        self._results: list[Generated | None] = [None] * samples
        self._streamed = False

    @property
    def done(self) -> bool:
        return self._feed.closed

    def wait(self) -> None:
        self._feed.wait_closed()

    async def settled(self) -> None:
        """Wait without blocking the event loop. Raises nothing."""
        await self._feed.closing()

    def chunks(self) -> Iterator[Generated]:
        """The parts of the text as they come. Raises ProgramError where they end with a failure."""
        yield from self._feed

    async def chunks_async(self) -> AsyncIterator[Generated]:
        async for chunk in self._feed:
            yield chunk

    def get(self) -> Any:
        """The value, once it is there. Raises ProgramError, chained to the original error."""
        self.wait()
        if self.error is not None:
            raise again(self.error)
        return self.value

    def chunk(self, chunk: Generated) -> None:
        """A part of the text has come."""
        self._streamed = True
        self._feed.put(chunk)

    def deliver(self, index: int, result: Generated) -> bool:
        """The result of sample `index`; True when it was the last one that was missing."""
        self._results[index] = result
        return all(result is not None for result in self._results)

    def finish(self) -> None:
        results = [result for result in self._results if result is not None]
        first = results[0]
        self.text = first.text
        if len(results) == 1:
            self.value, self.meta_info = first.text, first.meta_info
        else:
            self.value, self.meta_info = [r.text for r in results], [r.meta_info for r in results]
        if not self._streamed:
            self._feed.put(first)
        self._feed.close()

    def fail(self, error: ProgramError) -> None:
        self.error = error
        self._feed.close(error)


Piece = Literal | Pending


class Span:
    """The value of a variable scope: the text of its pieces."""

    __slots__ = ("_pieces",)

    meta_info: Any = None

    def __init__(self, pieces: list[Piece]) -> None:
        self._pieces = pieces

    @property
    def done(self) -> bool:
        return all(piece.done for piece in self._pieces)

    @property
    def error(self) -> ProgramError | None:
        return next((piece.error for piece in self._pieces if piece.error), None)

    @property
    def value(self) -> str:
        return self.get()

    def get(self) -> str:
        return text_of(self._pieces, strict=True)

    def wait(self) -> None:
        for piece in self._pieces:
            piece.wait()

    async def settled(self) -> None:
        for piece in self._pieces:
            await piece.settled()

    def chunks(self) -> Iterator[Generated]:
        for piece in self._pieces:
            yield from piece.chunks()

    async def chunks_async(self) -> AsyncIterator[Generated]:
        for piece in self._pieces:
            async for chunk in piece.chunks_async():
                yield chunk


def text_of(pieces: list[Piece], strict: bool = False, wait: bool = True) -> str:
    """The text up to the first piece that failed (`strict`: raise its error) or, not waiting, is not done."""
    texts: list[str] = []
    for piece in pieces:
        if wait:
            piece.wait()
        elif not piece.done:
            break
        if piece.error is not None:
            if strict:
                raise again(piece.error)
            break
        texts.append(piece.text)
    return "".join(texts)


def again(error: ProgramError) -> ProgramError:
    """A fresh exception for each reader, chained to the same original error."""
    fresh = type(error)(error.message, error.where)
    fresh.__cause__ = error.__cause__
    return fresh


def result_of(future: Future[Any]) -> Generated:
    """What an operation gave, as text and meta_info. Raises what it raised."""
    result = future.result()
    if isinstance(result, ChoicesDecision):
        return Generated(result.decision, result.meta_info or {})
    return result
