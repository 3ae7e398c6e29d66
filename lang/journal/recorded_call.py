"""A gen or select on its way: served by a recorded node, or computed and recorded."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ..backend import Generated, GenRequest, OnChunk, SelectRequest, Stream
from ..concurrency.one_shot_callbacks import when_done
from .hash_chain import HashChainLink
from .journal_node import JournalNode, describe, rebuild
from .journal_request import JournalRequest, seeded
from .replay_session import ReplaySession


@dataclass(slots=True)
class StreamPosition:
    """A place in a stream: the content there and the node before it. `node` will be what is made."""

    content: HashChainLink
    last: Future[JournalNode] | None
    node: Future[JournalNode] = field(default_factory=Future)

    @property
    def previous(self) -> int | None:
        return self.last.result().number if self.last else None


def done(node: JournalNode) -> Future[JournalNode]:
    future: Future[JournalNode] = Future()
    future.set_result(node)
    return future


class RecordedCall:
    """Ends in `result`. `refusal` is an error that the request itself has, known while it is being queued."""

    def __init__(
        self,
        session: ReplaySession,
        journal_request: JournalRequest,
        request: GenRequest | SelectRequest,
        on_chunk: OnChunk | None,
    ) -> None:
        self.journal_request = journal_request
        self.request = request
        self.result: Future[Any] = Future()
        self.refusal: BaseException | None = None
        self._session = session
        self._on_chunk = on_chunk
        self._chunks: list[int] = []
        self._seed = session.seed_for(journal_request)
        self._started = 0.0

    def kept(self, text: str) -> str:
        """What stays of a text in the stream."""
        keep = getattr(self.request, "keep", None)
        return str(keep(text)) if keep else text

    def fail(self, error: BaseException) -> None:
        self.result.set_exception(error)

    def refuse(self, error: BaseException) -> None:
        self.refusal = error
        self.fail(error)

    # --- served --------------------------------------------------------------------------------------------

    def serve(self, node: JournalNode) -> None:
        if node.error is not None:
            (self.refuse if node.error.get("at_once") else self.fail)(rebuild(node.error))
            return
        if self._on_chunk is not None:
            for chunk in recorded_chunks(node):
                self._on_chunk(chunk)
        self.result.set_result(node.outcome())

    # --- computed ------------------------------------------------------------------------------------------

    def compute(self, stream: Stream, spot: StreamPosition) -> None:
        self._started = self._session.begin()
        request = seeded(self.request, self._seed)
        try:
            future = self._start(stream, request)
        except Exception as error:
            self.refusal, future = error, Future()
            future.set_exception(error)
        when_done(future, partial(self._arrived, spot))

    def _start(self, stream: Stream, request: Any) -> Future[Any]:
        if isinstance(request, SelectRequest):
            return stream.select(request)
        return stream.generate(request, self._counted if self._on_chunk else None)

    def _counted(self, chunk: Generated) -> None:
        self._chunks.append(len(chunk.text))
        if self._on_chunk is not None:
            self._on_chunk(chunk)

    def _arrived(self, spot: StreamPosition, future: Future[Any]) -> None:
        try:
            outcome = future.result()
        except BaseException as error:
            outcome = error
        spot.content.when_known(partial(self._end, spot, outcome))

    def _end(self, spot: StreamPosition, outcome: Any) -> None:
        """Write the node, then resolve its future, then the operations after it."""
        try:
            node = self._record(spot, outcome)
        except Exception as error:
            outcome = error
        finally:
            self._session.end()
        if isinstance(outcome, BaseException):
            self.fail(outcome)
            spot.node.set_exception(outcome)
        else:
            self.result.set_result(outcome)
            spot.node.set_result(node)

    def _record(self, spot: StreamPosition, outcome: Any) -> JournalNode:
        """The node of an outcome. What follows a node that failed has no address: it fails alike, unwritten."""
        key = spot.content.address(self.journal_request.content.address)
        assert key is not None
        node = self.journal_request.node(key, spot.previous, time.perf_counter() - self._started)
        node.seed = self._seed
        if isinstance(outcome, BaseException):
            node.error = describe(outcome, at_once=self.refusal is outcome)
        else:
            self._fill(node, outcome)
        self._session.add(node)
        return node

    def _fill(self, node: JournalNode, outcome: Any) -> None:
        generated = isinstance(outcome, Generated)
        node.text = outcome.text if generated else outcome.decision
        node.meta_info = outcome.meta_info
        node.token_ids = outcome.token_ids if generated else None
        kept = self.kept(node.text)
        node.kept = None if kept == node.text else kept
        if len(self._chunks) > 1 and sum(self._chunks) == len(node.text):
            node.chunks = self._chunks


def recorded_chunks(node: JournalNode) -> Iterator[Generated]:
    """The pieces in which the text came; the last one has the meta_info of the whole."""
    start = 0
    for size in (node.chunks or [len(node.text)])[:-1]:
        yield Generated(node.text[start : start + size], {"finish_reason": None})
        start += size
    yield Generated(node.text[start:], node.meta_info or {})
