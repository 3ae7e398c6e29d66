"""The text of one state at a remote backend: literals are joined at once, calls run one after another."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, InvalidStateError
from functools import partial
from typing import Any, Protocol, TypeVar

from ...backend import Generated, GenRequest, Media, OnChunk, SelectRequest, Stream
from ...errors import RemoteAbortedError, RemoteError, RemoteStreamError, UnsupportedByBackendError, check_text
from ...global_config import own_words
from ...media.media_urls import as_url
from ...sampling.choices import ChoicesDecision
from ..pending_calls import PendingCalls, break_all
from .remote_event_loop import call_on_loop
from .remote_prompt import RemotePrompt, RemotePromptBuilder

T = TypeVar("T")


class StreamBackend(Protocol):
    """What a RemoteStream asks of its backend: a RemoteBackend."""

    takes_media: frozenset[str]

    def check(self, request: GenRequest | SelectRequest) -> None: ...
    async def complete(self, prompt: RemotePrompt, request: GenRequest, emit: OnChunk | None) -> Generated: ...
    async def choose(self, prompt: RemotePrompt, request: SelectRequest) -> ChoicesDecision: ...
    async def warm(self, prompt: RemotePrompt) -> None: ...
    async def perform(
        self, work: Callable[[], Awaitable[T]], deadline: float | None = None, may_retry: Callable[[], bool] = ...
    ) -> T: ...


class RemoteStream(Stream):
    """Operations in order. While a call is under way the gate is shut and keeps back what follows.

    Subclasses may override what happens when an operation's turn has come: `write`, `begin`, `end`, `insert`,
    `produce`, `decide` and, for what a fork takes over, `inherit`.
    """

    def __init__(self, backend: StreamBackend, born: bool = True) -> None:
        self.backend = backend
        self.draft = RemotePromptBuilder()
        self._gate = PendingCalls(shut=not born)
        self._task: asyncio.Task[None] | None = None  # touched on the loop only
        self._running: Future[Any] | None = None

    # --- the protocol ------------------------------------------------------------------------------------

    def append(self, text: str) -> None:
        check_text(text, "the text")
        if text:
            self._gate.run(partial(self.write, text))

    def begin_turn(self, role: str, prefix: str) -> None:
        self._gate.run(partial(self.begin, role, prefix))

    def end_turn(self, role: str, suffix: str) -> None:
        self._gate.run(partial(self.end, role, suffix))

    def attach(self, media: Media, token: str) -> None:
        """Add a picture. Raises at once what is wrong with it."""
        if media.kind not in self.backend.takes_media:
            raise UnsupportedByBackendError(
                f"{type(self.backend).__name__} does not accept {media.kind}s; use a backend that does"
            )
        found = Media(media.kind, as_url(media), media.num_frames)
        self._gate.run(partial(self.insert, found, token))

    def generate(self, request: GenRequest, on_chunk: OnChunk | None = None) -> Future[Generated]:
        self.backend.check(request)
        timeout = request.options.timeout
        deadline = None if timeout is None else time.monotonic() + timeout
        return self.queue(partial(self.produce, request, on_chunk, deadline), partial(self._write_generated, request))

    def select(self, request: SelectRequest) -> Future[ChoicesDecision]:
        self.backend.check(request)
        return self.queue(
            partial(self.decide, request), lambda decision: self.write(request.as_given(decision.decision))
        )

    def prefill(self) -> Future[None]:
        return self.queue(self.warm, lambda nothing: None)

    def fork(self, size: int) -> list[Stream]:
        children = [type(self)(self.backend, born=False) for _ in range(size)]
        self._gate.run(partial(self._bear, children), partial(break_all, [child._gate for child in children]))
        return list(children)

    def abort(self) -> None:
        """Close the connection of the running call and fail it, with all that waits after it."""
        error = RemoteAbortedError("the stream was aborted")
        _fail(self._running, error)
        self._gate.break_with(error)
        _fail(self._running, error)  # one that started in between
        call_on_loop(self._cancel)

    def close(self) -> None:
        """Nothing is held between calls."""

    # --- what an operation does when its turn has come ---------------------------------------------------

    def write(self, text: str) -> None:
        self.draft.write(text)

    def begin(self, role: str, prefix: str) -> None:
        self.draft.begin(role, prefix)

    def end(self, role: str, suffix: str) -> None:
        self.draft.end(role, suffix)

    def insert(self, media: Media, token: str) -> None:
        self.draft.attach(media, token)

    def inherit(self, parent: RemoteStream) -> None:
        """Begin as a copy of `parent`. Called once, before the first operation of a fork."""
        self.draft = parent.draft.copy()

    async def produce(self, request: GenRequest, on_chunk: OnChunk | None, deadline: float | None) -> Generated:
        """Have the backend generate after the text so far. `deadline`: time.monotonic() seconds."""
        emission = ChunkEmitter(on_chunk) if on_chunk else None
        work = partial(self.backend.complete, self.draft.prompt(), request, emission)
        try:
            return await self.backend.perform(work, deadline, lambda: not (emission and emission.text))
        except RemoteError as error:
            if emission is None or not emission.text:
                raise
            raise emission.broken(error) from error

    async def decide(self, request: SelectRequest) -> ChoicesDecision:
        return await self.backend.perform(partial(self.backend.choose, self.draft.prompt(), request))

    async def warm(self) -> None:
        await self.backend.perform(partial(self.backend.warm, self.draft.prompt()))

    def _write_generated(self, request: GenRequest, generated: Generated) -> None:
        self.write(own_words(request.keep(generated.text) if request.keep else generated.text))

    def _bear(self, children: list[RemoteStream]) -> None:
        for child in children:
            child._gate.open(partial(child.inherit, self))

    # --- calls -------------------------------------------------------------------------------------------

    def queue(self, work: Callable[[], Awaitable[T]], apply: Callable[[T], None]) -> Future[T]:
        """Run `work` on the loop when its turn has come, then `apply` its result; then continue with what follows."""
        result: Future[T] = Future()
        result.set_running_or_notify_cancel()  # abort() is the way to stop it
        self._gate.run(partial(self._launch, work, apply, result), result.set_exception)
        return result

    def _launch(self, work: Callable[[], Awaitable[T]], apply: Callable[[T], None], result: Future[T]) -> None:
        self._gate.shut()
        self._running = result
        call_on_loop(self._start, work, apply, result)

    def _start(self, work: Callable[[], Awaitable[T]], apply: Callable[[T], None], result: Future[T]) -> None:
        if not result.done():
            self._task = asyncio.get_running_loop().create_task(self._run(work, apply, result))

    async def _run(self, work: Callable[[], Awaitable[T]], apply: Callable[[T], None], result: Future[T]) -> None:
        try:
            value = await work()
            self._gate.open(partial(apply, value))
        except asyncio.CancelledError:
            self._give_up(result, RemoteAbortedError("the stream was aborted"))
        except BaseException as error:
            self._give_up(result, error)
        else:
            _finish(result, value)

    def _give_up(self, result: Future[Any], error: BaseException) -> None:
        """The call's own future first: it is the one to blame for what follows."""
        _fail(result, error)
        self._gate.break_with(error)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()


class ChunkEmitter:
    """Passes on the chunks of a call and remembers their text: what was shown cannot be taken back."""

    def __init__(self, on_chunk: OnChunk) -> None:
        self.text = ""
        self._on_chunk = on_chunk

    def __call__(self, chunk: Generated) -> None:
        self.text += chunk.text
        self._on_chunk(chunk)

    def broken(self, error: RemoteError) -> RemoteStreamError:
        return RemoteStreamError(
            f"{error}. Part of the stream had arrived, so it is not retried; the text so far: {self.text!r}",
            text=self.text,
            status=error.status,
            url=error.url,
        )


def _finish(result: Future[T], value: T) -> None:
    try:
        result.set_result(value)
    except InvalidStateError:
        pass  # aborted meanwhile


def _fail(result: Future[Any] | None, error: BaseException) -> None:
    try:
        if result is not None and not result.done():
            result.set_exception(error)
    except InvalidStateError:
        pass
