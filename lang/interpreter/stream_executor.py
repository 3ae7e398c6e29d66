"""Runs the nodes of one state: each becomes an operation of the backend's stream, and nothing waits.

Results arrive by completion callbacks. Only a reader of a value waits for it.
"""

from __future__ import annotations

import logging
import math
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from ..backend import Backend, Generated, Media, Stream
from ..chat import ConversationTurns
from ..concurrency.one_shot_callbacks import when_done
from ..concurrency.timeout_alarms import TimeoutAlarm, deadlines
from ..concurrency.unique_ids import fresh_id
from ..errors import DeadlineExceeded, ProgramCancelled, ProgramError, StateEndedError, node_failure
from ..nodes.ir import flatten
from ..nodes.pickle_placeholders import kept as kept_or_lost
from ..nodes.primitives import as_node
from ..places.source_location import SourceLocation, caller_place
from ..sampling.adapter_selection import Adapter
from ..sampling.options import SamplingOptions, derive_seed
from .detached_backend import bare, detached
from .node_handlers import apply
from .run_control import RunControl
from .run_history import RunBranch
from .state_reader import StateReader
from .state_transcript import LiteralText, PendingText, again, result_of
from .state_variables import Binding, Name, StateVariables

log = logging.getLogger("sgl.lang")
_KEPT = (
    "arguments",
    "body_error",
    "branch",
    "control",
    "failure",
    "failure_is_returned",
    "inline",
    "options",
    "scopes",
    "sid",
    "stopped",
    "streaming",
    "vars",
    "_failed_at",
)
Result = TypeVar("Result")


class StreamExecutor(StateReader):
    """One state of a running program: its text, its variables and its stream at the backend.

    `options` are the run's sampling options without gaps. `streaming` has chunks delivered while they are
    made; `inline` waits for each node and raises where it was appended. `branch` is the text so far, for
    those who look at the run.
    """

    ret_value: Any = None

    def __init__(
        self,
        backend: Backend,
        options: SamplingOptions,
        arguments: dict[str, Any] | None = None,
        streaming: bool = False,
        inline: bool = False,
        stream: Stream | None = None,
        control: RunControl | None = None,
        branch: RunBranch | None = None,
    ) -> None:
        self.backend = backend
        self.options = options
        self.arguments = arguments or {}
        self.streaming = streaming
        self.inline = inline
        self.sid = fresh_id()
        self.stream = stream or backend.open()
        self._left: list[Stream] = []  # of other adapters, where something may be pending
        self.control = control or RunControl(backend)
        self.branch = branch or self.control.root
        self.pieces = self.branch.pieces
        self.adapter = self.branch.adapter
        self.adapters: list[Adapter] = []  # to go back to, the innermost last
        self.chat_template = backend.get_chat_template()
        self.conversation = self.branch.conversation = ConversationTurns(self.chat_template, self.branch.turns)
        self.vars = StateVariables()
        self.scopes: dict[str, list[int]] = {}  # open variable scopes: where they begin, the innermost last
        self.failure: ProgramError | None = None
        self.failure_is_returned = False  # to who asked for errors as results: then it is not logged too
        self._failed_at = math.inf  # when the piece that failed first was submitted
        self.stopped: ProgramError | None = None
        self.body_error: BaseException | None = None
        self.body_thread: int | None = None  # where the body of a streaming run is running
        self.ended = False
        self._binding_to = self.vars
        self._called: weakref.WeakSet[StateVariables] = weakref.WeakSet()
        self._samples: set[Stream] = set()  # of running gens with n > 1, besides the state's own stream
        self._children: list[weakref.ref[StreamExecutor]] = []
        self._forked = 0
        self._submitting = threading.RLock()
        self._counting = threading.Lock()  # held for moments only: backends' threads take it
        self._pending = 0
        self._when_finished: list[Callable[[], object]] = []
        self.control.enter(self)

    def __getstate__(self) -> dict[str, Any]:
        """Of a program that has ended, all that can be read."""
        self.sync()
        if self.ended:  # the last result is readable a moment before it is counted
            counted = threading.Event()
            self.when_finished(counted.set)
            counted.wait(1)
        if not self.is_finished:
            raise TypeError("a state cannot be pickled or copied while its program runs; wait for its end")
        kept = {name: self.__dict__[name] for name in _KEPT}
        kept["arguments"] = {name: kept_or_lost(value) for name, value in self.arguments.items()}
        return {
            **kept,
            "backend": detached(self.backend),
            "chat_template": bare(self.chat_template),
            "ret_value": self.ret_value,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(
            state, ended=True, body_thread=None, _pending=0, _forked=0, _children=[], _when_finished=[]
        )
        self._binding_to, self.pieces = self.vars, self.branch.pieces
        self.conversation = self.branch.conversation or ConversationTurns(self.chat_template)
        self.stream, self._called, self._samples = None, weakref.WeakSet(), set()  # type: ignore[assignment]
        self._left, self.adapter, self.adapters = [], self.branch.adapter, []
        self._submitting, self._counting = threading.RLock(), threading.Lock()

    # --- nodes -------------------------------------------------------------------------------------------

    def submit(self, expr: Any, variables: StateVariables | None = None, where: SourceLocation | None = None) -> None:
        """Queue the nodes of an expression, whose names are bound in `variables` (None: the state's own).

        Raises what can be known at once, as ProgramError.
        """
        node = as_node(expr)
        where = where or caller_place()
        with self._submitting:
            outer, self._binding_to = self._binding_to, variables or self.vars
            try:
                for part in flatten(node, self):
                    self._check_open(f"{part!r} was appended", where)
                    apply(self, part, where)
            finally:
                self._binding_to = outer

    def _check_open(self, what: str, where: SourceLocation | None) -> None:
        if self.stopped:
            raise again(self.stopped, where)
        if self.ended:
            raise StateEndedError(
                f"{what} after the program ended; put it into the program, or read the state and run another", where
            )

    # --- what the rules of the nodes are made of -----------------------------------------------------------

    def write(self, text: str, send: Callable[[], None], where: SourceLocation | None) -> None:
        """Add text that is known; `send` gives it to the stream."""
        if not self.failure:
            send()
        self.pieces.put(LiteralText(text, where))

    def attach(self, media: Media, where: SourceLocation | None) -> None:
        """Add a picture or film, and the template's text for it."""
        token = self.chat_template.image_token
        if not self.failure:
            self.stream.attach(media, token)
        self.pieces.put(LiteralText(token, where, media))

    def bind(self, name: Name, piece: PendingText) -> PendingText:
        """Add text that will come, as the value of a name."""
        if self.adapter != self.branch.adapter:
            piece.adapter = self.adapter
        self.pieces.put(piece)
        self._binding_to.bind(name, piece)
        if self.control.observer:
            piece.when_closed(self.control.observer.began(piece, self))
        return piece

    def name(self, name: str, binding: Binding) -> None:
        self._binding_to.bind(name, binding)

    def attempt(self, piece: PendingText, call: Callable[[], Result]) -> Result:
        """What `call` gives; if it raises, the piece has failed."""
        try:
            return call()
        except Exception as error:
            raise self._fail(piece, error) from error

    def start(
        self,
        piece: PendingText,
        index: int,
        call: Callable[[], Future[Any]],
        timeout: float | None = None,
        own_stream: Stream | None = None,
        check: Callable[[Generated], None] | None = None,
    ) -> None:
        """Hand sample `index` of a piece to the backend; `own_stream`: the sample's own stream, let go afterwards.

        `check` raises for a result that is none.
        """
        if self.failure:
            self._fail_with(piece, self.failure)
            return
        future = self.attempt(piece, call)
        if demand := getattr(future, "demand", None):  # it waits for what the body has still to write
            piece.demand = lambda: None if self.body_still_runs() else demand()
        with self._counting:
            self._pending += 1
            if own_stream is not None:
                self._samples.add(own_stream)
        when_done(future, partial(self._settle, piece, index, self._alarm(piece, timeout), own_stream, check))
        if own_stream is not None:
            own_stream.close()
            if self.failure:
                _abort(own_stream)
        if self.inline and piece.is_last(index):
            piece.get()

    def forked_streams(self, size: int, adapters: list[Adapter] | None = None) -> list[Stream]:
        """Forks of the stream; after a failed node, where nothing is computed any more, empty streams."""
        if self.failure:
            return [self.backend.open() for _ in range(size)]
        based = self.adapter is None and not any(adapters or ())
        return self.stream.fork(size) if adapters is None or based else self.stream.fork_adapted(adapters)

    def adapt(self, adapter: Adapter) -> None:
        """Have another adapter compute what follows: on a fork of the stream, which shares the text alone. What is
        queued is done as before.
        """
        if adapter == self.adapter:
            return
        (stream,) = self.forked_streams(1, [adapter])
        self.stream.close()
        with self._counting:  # who stops the state meanwhile finds both
            self._left.append(self.stream)
            self.stream, self.adapter = stream, adapter
        if self.failure:
            _abort(stream)

    def _alarm(self, piece: PendingText, timeout: float | None) -> TimeoutAlarm | None:
        if timeout is None:
            return None
        late = DeadlineExceeded(f"{piece.node!r} took longer than its timeout of {timeout:g} s", piece.where)
        return deadlines.after(timeout, partial(self._give_up, piece, late))

    def _give_up(self, piece: PendingText, error: ProgramError) -> None:
        if not piece.done:
            self._stop(error)

    def _settle(
        self,
        piece: PendingText,
        index: int,
        alarm: TimeoutAlarm | None,
        own_stream: Stream | None,
        check: Callable[[Generated], None] | None,
        future: Future[Any],
    ) -> None:
        """An operation is done. Called on a thread of the backend."""
        if alarm is not None:
            deadlines.cancel(alarm)
        try:
            if self.failure and piece.submitted > self._failed_at:
                raise self.failure  # it was on its way before the failure was known
            result = result_of(future)
            if check is not None:
                check(result)
            if self._deliver(piece, index, result):
                self._finish(piece)
        except BaseException as error:
            if not piece.done:
                self._log(self._fail(piece, error), error)
        finally:
            self._settled(own_stream)

    def _log(self, failure: ProgramError, cause: BaseException) -> None:
        quiet = self.failure_is_returned or getattr(cause, "expected", False)
        log.log(logging.DEBUG if quiet else logging.WARNING, "%s", failure)

    def _deliver(self, piece: PendingText, index: int, result: Generated) -> bool:
        """Take the result of one sample; True if the piece is complete and ours to finish."""
        with self._counting:
            if piece.deliver(index, result) and not piece.claimed:
                piece.claimed = True
                return True
            return False

    def _finish(self, piece: PendingText) -> None:
        try:
            piece.finish(self.backend.prices)
        except BaseException:
            piece.claimed = False  # what the backend returned is not a result
            raise
        if piece.usage is not None:
            self.control.count(piece.usage)

    def _fail(self, piece: PendingText, cause: BaseException) -> ProgramError:
        error = self.failure or node_failure(piece.node, cause, piece.where)
        self._failed_at = min(self._failed_at, piece.submitted)
        self.failure = error
        self._fail_with(piece, error)
        return error

    def _fail_with(self, piece: PendingText, error: ProgramError) -> None:
        with self._counting:
            if piece.claimed:
                return
            piece.claimed = True
        piece.fail(error)

    def _settled(self, own_stream: Stream | None) -> None:
        with self._counting:
            self._pending -= 1
            self._samples.discard(own_stream)
            calls = self._finished_calls()
        for call in calls:
            call()
        if not self._pending:
            self.control.rest()

    # --- stopping ------------------------------------------------------------------------------------------

    def cancel(self, error: ProgramError | None = None) -> None:
        """Give up this state and its forks: what is pending fails with `error`, appending raises it."""
        error = error or ProgramCancelled("the state was cancelled")
        if not self.is_finished:
            self.stopped = self.stopped or error
            self._stop(error)
        for reference in list(self._children):
            if (child := reference()) is not None:
                child.cancel(error)

    def _stop(self, error: ProgramError) -> None:
        with self._counting:
            self.failure = self.failure or error
            samples = [*self._samples, *self._left, self.stream]
        for stream in samples:
            _abort(stream)
        for piece in self.branch.own:
            if isinstance(piece, PendingText):
                self._fail_with(piece, error)

    # --- forks and the end ------------------------------------------------------------------------------------

    def fork(
        self, size: int, variables: StateVariables | None = None, adapters: list[Adapter] | None = None
    ) -> list[StreamExecutor]:
        """Children that continue from here, under this state's adapter or one each. Returns at once; they share
        the pieces that are still pending."""
        with self._submitting:
            self._check_open("fork()", caller_place())
            streams = self.forked_streams(size, adapters)
            names = adapters or [self.adapter] * size
            return [
                self._child(stream, variables or self.vars, name) for stream, name in zip(streams, names, strict=True)
            ]

    def _child(self, stream: Stream, variables: StateVariables, adapter: Adapter) -> StreamExecutor:
        self._forked += 1
        options = self.options
        if options.seed is not None:
            options = replace(options, seed=derive_seed(options.seed, self._forked))
        child = StreamExecutor(
            self.backend,
            options,
            self.arguments,
            self.streaming,
            self.inline,
            stream,
            self.control,
            self.branch.fork(adapter),
        )
        child.chat_template = self.chat_template
        child.conversation.follow(self.conversation)
        child.failure = child.failure or self.failure
        child.vars = child._binding_to = variables.copy()
        self._children.append(weakref.ref(child))
        if self.stopped:  # while this was going on
            child.cancel(self.stopped)
        return child

    def called(self) -> StateVariables:
        """Separate variables for a program that is called on this state."""
        variables = StateVariables()
        self._called.add(variables)
        return variables

    def end(self, body_error: BaseException | None = None) -> None:
        """Nothing more follows; the stream's resources go back when what is queued is done."""
        with self._submitting:
            if self.ended:
                return
            self.stream.close()
            self.branch.close()
            with self._counting:
                self.ended, self.body_error = True, body_error
                calls = self._finished_calls()
        self._close_feeds(body_error)
        for call in calls:
            call()

    def _close_feeds(self, error: BaseException | None) -> None:
        for variables in (self.vars, *self._called):
            variables.close(error)
        self.pieces.close(error)
        for reference in self._children if self.streaming else ():
            if (child := reference()) is not None:
                child._close_feeds(error)

    def when_finished(self, call: Callable[[], object]) -> None:
        """Call back once the program has ended and all its operations are done (on any thread)."""
        with self._counting:
            self._when_finished.append(call)
            calls = self._finished_calls()
        for ready in calls:
            ready()

    def _finished_calls(self) -> list[Callable[[], object]]:
        if not self.ended or self._pending:
            return []
        calls, self._when_finished = self._when_finished, []
        return calls


def _abort(stream: Stream) -> None:
    try:
        stream.abort()
    except Exception:  # those who wait are let go all the same
        log.exception("%r could not be aborted", stream)
