"""A stream whose nodes are served from a journal where it has them, and computed and recorded where not."""

from __future__ import annotations

import hashlib
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from operator import methodcaller
from typing import Any

from ..backend import Backend, Generated, GenRequest, Media, OnChunk, SelectRequest, Stream
from ..backends.pending_calls import forward_result
from ..errors import ProgramCancelled
from ..places.source_location import SourceLocation
from ..sampling.choices import ChoicesDecision
from .hash_chain import HashChainLink, adapter_part, address, encode, media_part, result_part, result_place, turn_part
from .journal_node import JournalNode
from .journal_request import JournalRequest, Path, RequestContent, content_of, once_content, program_at
from .memoized_values import MemoizedValues
from .recorded_call import RecordedCall, StreamPosition, done
from .replay_mismatch import mismatch
from .replay_session import ReplaySession

Step = Callable[[Stream], object]
Operation = Callable[[], None]
Failure = Callable[[BaseException], object]


class SerialQueue:
    """Unlike PendingCalls it holds no lock while an operation runs: operations end futures, and those call back."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[tuple[Operation, Failure]] = deque()
        self._busy = False
        self._shut = False
        self._error: BaseException | None = None

    def run(self, operation: Operation, fail: Failure) -> None:
        """Do it now, or when what precedes it is done. `fail` gets what it raises."""
        with self._lock:
            self._waiting.append((operation, fail))
        self._drain()

    def shut(self) -> None:
        """Let nothing pass until `open`. Called by a running operation."""
        self._shut = True

    def open(self, first: Operation, fail: Failure) -> None:
        """Continue: with `first`, then with what has been waiting."""
        with self._lock:
            self._waiting.appendleft((first, fail))
            self._shut = False
        self._drain()

    def break_with(self, error: BaseException) -> None:
        """Fail what waits, and all that follows."""
        with self._lock:
            self._error, self._shut = error, False
        self._drain()

    def _drain(self) -> None:
        while True:
            with self._lock:
                if self._busy or self._shut or not self._waiting:
                    return
                self._busy = True
                operation, fail = self._waiting.popleft()
                broken = self._error
            try:
                self._attempt(operation, fail, broken)
            finally:
                self._busy = False

    @staticmethod
    def _attempt(operation: Operation, fail: Failure, broken: BaseException | None) -> None:
        if broken is not None:
            fail(broken)
            return
        try:
            operation()
        except Exception as error:
            fail(error)


class JournalStream(Stream):
    """Recorded nodes are served without the inner stream, which gets them all at once (`_not_restored`) when
    something has to be computed after them.

    What is known when an operation is queued (the shape of the content, the place, the text since the last
    node) is kept in the caller's order; what needs results (`_content`, `_last`) goes through the mailbox.
    Only a node that the journal may have waits for the results before it; all others go straight through.
    """

    def __init__(self, session: ReplaySession, opener: Callable[[Backend], Stream], path: Path) -> None:
        self._session = session
        self._opener = opener
        self._path = path
        self._children = 0
        self._adapter: str | None = None
        self._turn: bytes | None = None  # to another adapter than that of the stream it was forked off
        self._shape = hashlib.blake2b(digest_size=16)
        self._before = ""
        self._content = HashChainLink()
        self._last: Future[JournalNode] | None = None
        self._inner: Stream | None = None  # opened when something has to be computed
        self._not_restored: list[Step] = []
        self._mailbox = SerialQueue()

    # --- literals ------------------------------------------------------------------------------------------

    def append(self, text: str) -> None:
        if text:
            self._write(text, encode(text), methodcaller("append", text))

    def begin_turn(self, role: str, prefix: str) -> None:
        self._write(prefix, turn_part(role, prefix, True), methodcaller("begin_turn", role, prefix))

    def end_turn(self, role: str, suffix: str) -> None:
        self._write(suffix, turn_part(role, suffix, False), methodcaller("end_turn", role, suffix))

    def attach(self, media: Media, token: str) -> None:
        self._write(token, media_part(media, token), methodcaller("attach", media, token))

    def restore(self, generated: Generated) -> None:
        self._write(generated.text, result_part(generated.text), methodcaller("restore", generated))

    def _write(self, text: str, part: bytes, step: Step) -> None:
        self._shape.update(part)
        self._before += str(text)
        failures: list[Exception] = []
        self._mailbox.run(partial(self._add, part, step, failures), _ignore)
        if failures:
            raise failures[0]

    def _add(self, part: bytes, step: Step, failures: list[Exception]) -> None:
        self._content = HashChainLink(self._content, part)
        try:
            self._pass_on(step)
        except Exception as error:  # the backend takes no pictures, say
            failures.append(error)
            self._mailbox.break_with(error)

    def _pass_on(self, step: Step) -> None:
        """To the inner stream, or to what it will get when it is needed."""
        if self._inner is not None and not self._not_restored:
            step(self._inner)
        else:
            self._not_restored.append(step)

    def start(self) -> None:
        """Open the inner stream now: nothing is recorded that could be served."""
        self._inner = self._session.open_inner(self._opener)

    def _caught_up(self) -> Stream:
        if self._inner is None:
            self.start()
        assert self._inner is not None
        steps, self._not_restored = self._not_restored, []
        for step in steps:
            step(self._inner)
        return self._inner

    # --- nodes ---------------------------------------------------------------------------------------------

    def generate(self, request: GenRequest, on_chunk: OnChunk | None = None) -> Future[Generated]:
        return self._submit(request, on_chunk)

    def select(self, request: SelectRequest) -> Future[ChoicesDecision]:
        return self._submit(request, None)

    def _submit(self, request: GenRequest | SelectRequest, on_chunk: OnChunk | None) -> Future[Any]:
        journal_request = self._ask(content_of(request), request.name, request.where)
        question = RecordedCall(self._session, journal_request, request, on_chunk)
        self._shape.update(result_place())
        self._before = ""
        self._mailbox.run(partial(self._decide, question), question.fail)
        if question.refusal is not None:
            raise question.refusal
        return question.result

    def _ask(self, content: RequestContent, name: str | None, where: SourceLocation | None) -> JournalRequest:
        """The question at this point of the stream."""
        shape = address(self._shape, content.address)
        number = self._session.number(shape, self._path)
        program = program_at(where)
        return JournalRequest(content, name, where, program, self._path, shape, number, self._before, self._adapter)

    def _decide(self, question: RecordedCall) -> None:
        """Serve the node if the journal has it, else compute it; later, if that cannot be known yet."""
        key = self._content.address(question.journal_request.content.address)
        if key is None and self._session.may_have(question.journal_request.shape):
            self._mailbox.shut()
            again = partial(self._mailbox.open, partial(self._decide, question), question.fail)
            self._content.when_known(again)
            return
        node = self._session.take(key, question.journal_request) if key else None
        if node is not None:
            self._serve(question, node)
        elif self._session.inner is None:
            question.refuse(mismatch(self._session.journal, question.journal_request, self._last))
        else:
            self._compute(question)

    def _serve(self, question: RecordedCall, node: JournalNode) -> None:
        if node.error is None:
            kept = question.kept(node.text)
            self._content, self._last = HashChainLink(self._content, result_part(kept)), done(node)
            self._pass_on(_restoring(node, question.request, kept))
        question.serve(node)

    def _compute(self, question: RecordedCall) -> None:
        spot = StreamPosition(self._content, self._last)
        self._content, self._last = HashChainLink(spot.content, spot.node), spot.node
        question.compute(self._caught_up(), spot)

    # --- values that Python computes -------------------------------------------------------------------------

    def once(
        self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], where: SourceLocation | None
    ) -> MemoizedValues:
        """The place of a value in this stream. See `sgl.once`."""
        journal_request = self._ask(once_content(name, args, kwargs), name, where)
        spot: Future[StreamPosition] = Future()
        self._mailbox.run(lambda: spot.set_result(StreamPosition(self._content, self._last)), spot.set_exception)
        return MemoizedValues(self._session, journal_request, spot)

    # --- forks and the end -----------------------------------------------------------------------------------

    def fork(self, size: int) -> list[Stream]:
        return self._forked([self._child() for _ in range(size)], methodcaller("fork", size))

    def fork_adapted(self, adapters: Sequence[str | None]) -> list[Stream]:
        children = [self._child() for _ in adapters]
        for child, adapter in zip(children, adapters, strict=True):
            child.turn_to(adapter, methodcaller("open_adapted", adapter) if adapter else methodcaller("open"))
        return self._forked(children, methodcaller("fork_adapted", adapters))

    def turn_to(self, adapter: str | None, opener: Callable[[Backend], Stream]) -> None:
        """Before anything else: it is computed by another adapter than what it was forked off."""
        if adapter != self._adapter:
            part = adapter_part(adapter)
            self._shape.update(part)
            self._content, self._adapter, self._opener = HashChainLink(self._content, part), adapter, opener
            self._turn = part

    def _forked(self, children: list[JournalStream], split: Callable[[Stream], list[Stream]]) -> list[Stream]:
        for child in children:
            child._mailbox.shut()  # until this stream comes to the fork
        self._mailbox.run(partial(self._fork, children, split), partial(_break, children))
        return list(children)

    def _child(self) -> JournalStream:
        child = JournalStream(self._session, self._opener, (*self._path, self._children))
        self._children += 1
        child._shape, child._before, child._adapter = self._shape.copy(), self._before, self._adapter
        return child

    def _fork(self, children: list[JournalStream], split: Callable[[Stream], list[Stream]]) -> None:
        inners = split(self._inner) if self._inner is not None else [None] * len(children)
        for child, inner in zip(children, inners, strict=True):
            begin = partial(child._begin, self._content, self._last, inner, list(self._not_restored))
            child._mailbox.open(begin, _ignore)

    def _begin(
        self, content: HashChainLink, last: Future[JournalNode] | None, inner: Stream | None, not_restored: list[Step]
    ) -> None:
        self._last, self._inner, self._not_restored = last, inner, not_restored
        self._content = HashChainLink(content, self._turn) if self._turn else content

    def prefill(self) -> Future[None]:
        """Of a stream that is served from the journal nothing has to be computed ahead."""
        result: Future[None] = Future()
        self._mailbox.run(partial(self._prefill, result), result.set_exception)
        return result

    def _prefill(self, result: Future[None]) -> None:
        if self._inner is None or self._not_restored:
            result.set_result(None)
        else:
            forward_result(self._inner.prefill(), result, lambda done: None)

    def abort(self) -> None:
        if self._inner is not None:
            self._inner.abort()
        self._mailbox.break_with(ProgramCancelled("the run was stopped"))

    def close(self) -> None:
        self._mailbox.run(self._close, lambda error: self._close())

    def _close(self) -> None:
        if self._inner is not None:
            self._inner.close()


def _restoring(node: JournalNode, request: GenRequest | SelectRequest, kept: str) -> Step:
    """How the inner stream gets what a recorded node made: a gen as its own tokens, a choice as text."""
    if node.kind == "select":
        return methodcaller("append", request.as_given(kept) if isinstance(request, SelectRequest) else kept)
    token_ids = node.token_ids if kept == node.text else None
    return methodcaller("restore", Generated(kept, node.meta_info or {}, token_ids))


def _break(children: list[JournalStream], error: BaseException) -> None:
    for child in children:
        child._mailbox.break_with(error)


def _ignore(error: BaseException) -> None:
    """What had to be said was said by an operation with a future."""
