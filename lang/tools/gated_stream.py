"""A stream on which an operation may depend on what the one before it gave."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Any

from ..backend import Generated, GenRequest, Media, OnChunk, SelectRequest, Stream
from ..backends.pending_calls import PendingCalls, break_all, forward_result
from ..concurrency.one_shot_callbacks import when_done
from ..errors import LanguageError, check_text
from ..interpreter.state_transcript import result_of
from ..sampling.choices import ChoicesDecision
from ..sampling.options import SamplingOptions
from .tool_nodes import StepContinuation

Request = Callable[[SamplingOptions], GenRequest]


class GatedStream(Stream):
    """Passes everything on to another stream, and holds back what comes while a continuation is undecided.

    So nothing waits: the thread that finishes an operation decides what continues.
    """

    def __init__(self, inner: Stream | None = None) -> None:
        self._stream = inner  # None: a fork of a stream that is not there yet
        self._gate = PendingCalls(shut=inner is None)
        self._last: Future[Any] | None = None
        self._remembers = hasattr(inner, "once")  # it is a journal's

    # --- what goes through -------------------------------------------------------------------------------

    def append(self, text: str) -> None:
        check_text(text, "the text")  # errors of the inner stream are ignored
        self._gate.run(lambda: self._inner.append(text))

    def begin_turn(self, role: str, prefix: str) -> None:
        self._gate.run(lambda: self._inner.begin_turn(role, prefix))

    def end_turn(self, role: str, suffix: str) -> None:
        self._gate.run(lambda: self._inner.end_turn(role, suffix))

    def attach(self, media: Media, token: str) -> None:
        self._gate.run(lambda: self._inner.attach(media, token))

    def restore(self, generated: Generated) -> None:
        self._gate.run(lambda: self._inner.restore(generated))

    def generate(self, request: GenRequest, on_chunk: OnChunk | None = None) -> Future[Generated]:
        return self._operation(lambda: self._inner.generate(request, on_chunk))

    def select(self, request: SelectRequest) -> Future[ChoicesDecision]:
        return self._operation(lambda: self._inner.select(request))

    def prefill(self) -> Future[None]:
        done: Future[None] = Future()
        self._gate.run(lambda: forward_result(self._inner.prefill(), done, _same), done.set_exception)
        return done

    def fork(self, size: int) -> list[Stream]:
        return self._forked(size, lambda: self._inner.fork(size))

    def fork_adapted(self, adapters: Sequence[str | None]) -> list[Stream]:
        return self._forked(len(adapters), lambda: self._inner.fork_adapted(adapters))

    def _forked(self, size: int, split: Callable[[], list[Stream]]) -> list[Stream]:
        children = [GatedStream() for _ in range(size)]
        for child in children:
            child._remembers = self._remembers
        self._gate.run(partial(self._fork, children, split), partial(break_all, [child._gate for child in children]))
        return list(children)

    def once(self, *arguments: Any) -> Any:
        """The place of a value in a journal's stream, when all before it is decided; None without a journal."""
        place: Future[Any] = Future()
        if not self._remembers:
            return None
        self._gate.run(
            lambda: place.set_result(self._inner.once(*arguments)),  # type: ignore[attr-defined]
            lambda error: place.set_result(None),  # after a failure nothing is remembered
        )
        return place.result()

    def close(self) -> None:
        self._gate.run(self._close, lambda error: self._close())

    def abort(self) -> None:
        if self._stream is not None:
            self._stream.abort()
        self._gate.break_with(LanguageError("the stream was aborted"))

    # --- what depends ------------------------------------------------------------------------------------

    def go_on(
        self, decide: Callable[[Generated], StepContinuation], request: Request, on_chunk: OnChunk | None = None
    ) -> Future[Generated]:
        """Append and generate what `decide` makes of the result of the last generation or choice."""
        result: Future[Generated] = Future()
        before, self._last = self._last, result
        if before is None:
            raise LanguageError("a continuation needs an operation before it")
        self._gate.run(partial(self._wait, before, decide, request, on_chunk, result), result.set_exception)
        return result

    def _wait(self, before: Future[Any], *then: Any) -> None:
        self._gate.shut()
        when_done(before, partial(self._decided, *then))

    def _decided(
        self,
        decide: Callable[[Generated], StepContinuation],
        request: Request,
        on_chunk: OnChunk | None,
        result: Future[Generated],
        before: Future[Any],
    ) -> None:
        try:
            chosen = decide(result_of(before))
            self._gate.open(lambda: self._continue(chosen, request, on_chunk, result))
        except BaseException as error:
            result.set_exception(error)
            self._gate.break_with(error)
            return
        if chosen.options is None:
            result.set_result(Generated(chosen.text, {"finish_reason": {"type": "stop", "matched": None}}))

    def _continue(
        self, chosen: StepContinuation, request: Request, on_chunk: OnChunk | None, result: Future[Generated]
    ) -> None:
        if chosen.text:
            self._inner.append(chosen.text)
        if chosen.options is not None:
            report = on_chunk and _after(chosen.text, on_chunk)
            generated = self._inner.generate(request(chosen.options), report)
            forward_result(generated, result, lambda made: replace(made, text=chosen.text + made.text))

    # --- parts -------------------------------------------------------------------------------------------

    @property
    def _inner(self) -> Stream:
        assert self._stream is not None, "operations run only once there is a stream"
        return self._stream

    def _operation(self, start: Callable[[], Future[Any]]) -> Future[Any]:
        result: Future[Any] = Future()
        self._gate.run(lambda: forward_result(start(), result, _same), result.set_exception)
        self._last = result
        return result

    def _fork(self, children: list[GatedStream], split: Callable[[], list[Stream]]) -> None:
        for child, stream in zip(children, split(), strict=True):
            child._gate.open(partial(child._begin, stream))

    def _begin(self, stream: Stream) -> None:
        self._stream = stream

    def _close(self) -> None:
        if self._stream is not None:
            self._stream.close()


def _after(text: str, on_chunk: OnChunk) -> OnChunk:
    """Reports chunks, the first of them with `text` before it."""
    before = [text]

    def report(chunk: Generated) -> None:
        on_chunk(replace(chunk, text=before.pop() + chunk.text) if before else chunk)

    return report


def _same(value: Any) -> Any:
    return value
