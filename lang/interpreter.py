"""Runs the nodes of one state: each becomes an operation of the backend's stream, and nothing waits.

Results arrive by completion callbacks. Only who reads a value waits for it.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Any

from .backend import Backend, Generated, GenRequest, SelectRequest, Stream
from .chat import Conversation
from .errors import Place, ProgramError, StateEndedError, node_failure
from .feed import Feed
from .ids import fresh_id
from .ir import (
    SglConstantText,
    SglExpr,
    SglGen,
    SglRoleBegin,
    SglRoleEnd,
    SglSelect,
    SglVarScopeBegin,
    SglVarScopeEnd,
    flatten,
)
from .once import when_done
from .options import SamplingOptions, derive_seed
from .place import caller_place
from .primitives import as_node
from .transcript import Literal, Pending, Piece, Span, result_of, text_of
from .variables import Binding, Variables

log = logging.getLogger("sgl.lang")


class StreamExecutor:
    """One state of a running program: its text, its variables and its stream at the backend.

    `options` are the run's sampling options without gaps. `streaming` has chunks delivered while they are
    made; `inline` waits for each node and raises where it was appended.
    """

    def __init__(
        self,
        backend: Backend,
        options: SamplingOptions,
        arguments: dict[str, Any] | None = None,
        streaming: bool = False,
        inline: bool = False,
        stream: Stream | None = None,
    ) -> None:
        self.backend = backend
        self.options = options
        self.arguments = arguments or {}
        self.streaming = streaming
        self.inline = inline
        self.sid = fresh_id()
        self.stream = stream or backend.open()
        self.chat_template = backend.get_chat_template()
        self.conversation = Conversation(self.chat_template)
        self.pieces: Feed[Piece] = Feed()
        self.vars = Variables()
        self.failure: ProgramError | None = None
        self.body_error: BaseException | None = None
        self.body_thread: int | None = None  # where the body of a streaming run is running
        self.fork_start = 0
        self.ended = False
        self._scopes: dict[str, int] = {}
        self._children: list[weakref.ref[StreamExecutor]] = []
        self._forked = 0
        self._submitting = threading.RLock()
        self._counting = threading.Lock()  # held for moments only: backends' threads take it
        self._pending = 0
        self._when_finished: list[Callable[[], object]] = []

    # --- nodes -------------------------------------------------------------------------------------------

    def submit(self, expr: Any) -> None:
        """Queue the nodes of an expression. Raises what can be known at once, as ProgramError."""
        node = as_node(expr)
        where = caller_place()
        with self._submitting:
            for part in flatten(node, self):
                self._submit_one(part, where)

    def _submit_one(self, node: SglExpr, where: Place | None) -> None:
        if self.ended:
            raise StateEndedError(f"{node!r} was appended after the program had ended", where)
        rule = _RULES.get(type(node))
        if rule is None:
            raise ProgramError(f"{node!r} cannot be run; it belongs to a trace", where)
        try:
            rule(self, node, where)
        except ProgramError as error:
            if error.where is None:
                raise ProgramError(error.message, where) from error.__cause__
            raise

    def _literal(self, node: Any, where: Place | None) -> None:
        self._write(node.value, self.stream.append)

    def _write(self, text: str, send: Callable[[str], None]) -> None:
        if not self.failure:
            send(text)
        self.pieces.put(Literal(text))

    def _gen(self, node: Any, where: Place | None) -> None:
        options = node.sampling_params.over(self.options)
        piece = self._bind(node.name, Pending(node, where, options.n))
        on_chunk = piece.chunk if self.streaming else None
        others = self._forked_streams(options.n - 1) if options.n > 1 else []
        for index, stream in enumerate([self.stream, *others]):
            request = GenRequest(options.for_sample(index), self.chat_template.stops)
            call = partial(stream.generate, request, on_chunk if index == 0 else None)
            self._start(piece, index, call)

    def _select(self, node: Any, where: Place | None) -> None:
        piece = self._bind(node.name, Pending(node, where))
        request = SelectRequest(node.choices, node.choices_method, node.temperature)
        self._start(piece, 0, partial(self.stream.select, request))

    def _role_begin(self, node: Any, where: Place | None) -> None:
        conversation = self.conversation
        if conversation.wants_default_system(node.role) and conversation.role is None:
            self._role_begin(SglRoleBegin("system"), where)
            self._literal(SglConstantText(conversation.template.default_system_prompt or ""), where)
            self._role_end(SglRoleEnd("system"), where)
        prefix = conversation.prefix(node.role)
        self._write(prefix, partial(self.stream.begin_turn, node.role))
        conversation.begin(node.role, len(self.pieces))

    def _role_end(self, node: Any, where: Place | None) -> None:
        suffix = self.conversation.suffix(node.role)
        end = len(self.pieces)
        self._write(suffix, partial(self.stream.end_turn, node.role))
        self.conversation.end(end)

    def _scope_begin(self, node: Any, where: Place | None) -> None:
        self._scopes[node.name] = len(self.pieces)

    def _scope_end(self, node: Any, where: Place | None) -> None:
        self.vars.bind(node.name, Span(self.pieces.items[self._scopes.pop(node.name) :]))

    # --- operations ----------------------------------------------------------------------------------------

    def _bind(self, name: str | None, piece: Pending) -> Pending:
        self.pieces.put(piece)
        self.vars.bind(name, piece)
        return piece

    def _start(self, piece: Pending, index: int, call: Callable[[], Future[Any]]) -> None:
        if self.failure:
            piece.fail(self.failure)
            return
        try:
            future = call()
        except Exception as error:
            raise self._fail(piece, error) from error
        with self._counting:
            self._pending += 1
        when_done(future, partial(self._settle, piece, index))
        if self.inline:
            piece.get()

    def _settle(self, piece: Pending, index: int, future: Future[Any]) -> None:
        """An operation is done. Called on a thread of the backend."""
        try:
            if piece.done:
                return
            if self.failure:
                piece.fail(self.failure)
            elif self._deliver(piece, index, result_of(future)):
                piece.finish()
        except BaseException as error:
            log.warning("%s", self._fail(piece, error))
        finally:
            self._settled()

    def _deliver(self, piece: Pending, index: int, result: Generated) -> bool:
        with self._counting:
            return piece.deliver(index, result)

    def _fail(self, piece: Pending, cause: BaseException) -> ProgramError:
        error = node_failure(piece.node, cause, piece.where)
        self.failure = error
        piece.fail(error)
        return error

    def _settled(self) -> None:
        with self._counting:
            self._pending -= 1
            calls = self._finished_calls()
        for call in calls:
            call()

    # --- forks and the end ------------------------------------------------------------------------------------

    def fork(self, size: int) -> list[StreamExecutor]:
        """Children that go on from here. Returns at once; they share the pieces that are still pending."""
        with self._submitting:
            if self.ended:
                raise StateEndedError("fork() after the program had ended", caller_place())
            return [self._child(stream) for stream in self._forked_streams(size)]

    def _forked_streams(self, size: int) -> list[Stream]:
        """Forks of the stream; behind a failed node, where nothing is computed any more, empty streams."""
        return [self.backend.open() for _ in range(size)] if self.failure else self.stream.fork(size)

    def _child(self, stream: Stream) -> StreamExecutor:
        self._forked += 1
        options = self.options
        if options.seed is not None:
            options = replace(options, seed=derive_seed(options.seed, self._forked))
        child = StreamExecutor(self.backend, options, self.arguments, self.streaming, self.inline, stream)
        for piece in self.pieces.items:
            child.pieces.put(piece)
        child.fork_start = len(child.pieces)
        child.chat_template = self.chat_template
        child.conversation = self.conversation.copy()
        child.failure = self.failure
        child.vars = self.vars.copy()
        if self.streaming:
            self._children.append(weakref.ref(child))
        return child

    def end(self, body_error: BaseException | None = None) -> None:
        """Nothing more follows; the stream's resources go back when what is queued is done."""
        with self._submitting:
            if self.ended:
                return
            self.stream.close()
            with self._counting:
                self.ended, self.body_error = True, body_error
                calls = self._finished_calls()
        self._close_feeds(body_error)
        for call in calls:
            call()

    def _close_feeds(self, error: BaseException | None) -> None:
        self.vars.close(error)
        self.pieces.close(error)
        for reference in self._children:
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

    # --- reading -----------------------------------------------------------------------------------------------

    def find(self, name: str | None) -> Binding | None:
        """What is bound to a name, None for a plain value. KeyError if nothing is."""
        return self.vars.find(name, self.body_runs_elsewhere())

    def get_var(self, name: str | None) -> Any:
        """The value of a variable, waiting for it. KeyError if there is none, ProgramError if it failed."""
        return self.vars.get(name, self.body_runs_elsewhere())

    def set_var(self, name: str, value: Any) -> None:
        with self._submitting:
            self.vars.set(name, value)

    def body_runs_elsewhere(self) -> bool:
        """True for readers of a streaming run whose body has not ended: more may come."""
        return not self.ended and self.body_thread not in (None, threading.get_ident())

    def sync(self) -> None:
        """Wait until everything that was submitted is done."""
        if self.body_runs_elsewhere():
            self.pieces.wait_closed()
        for piece in self.pieces.items:
            piece.wait()

    def text(self) -> str:
        """The whole text, up to the first node that failed."""
        self.sync()
        return text_of(self.pieces.items)

    def error(self) -> BaseException | None:
        self.sync()
        failed = next((piece.error for piece in self.pieces.items if piece.error), None)
        return failed or self.failure or self.body_error

    def messages(self, wait: bool = True) -> list[dict[str, str]]:
        """The finished turns; the contents without leading white space."""
        if wait:
            self.sync()
        pieces = self.pieces.items
        return [
            {"role": turn.role, "content": text_of(pieces[turn.start : turn.end], wait=False).lstrip()}
            for turn in list(self.conversation.finished)
        ]

    # --- what programs read of the executor ----------------------------------------------------------------------

    @property
    def variables(self) -> dict[str | None, Any]:
        """The variables that have their value by now."""
        return self.vars.ready()

    @property
    def variable_event(self) -> dict[str | None, Binding]:
        return self.vars.pending()

    @property
    def meta_info(self) -> dict[str | None, Any]:
        return {name: binding.meta_info for name, binding in self.vars.pending().items() if binding.done}

    @property
    def text_(self) -> str:
        return text_of(self.pieces.items, wait=False)

    @property
    def messages_(self) -> list[dict[str, str]]:
        return self.messages(wait=False)

    @property
    def cur_role(self) -> str | None:
        return self.conversation.role

    def is_finished(self) -> bool:
        return self.ended and not self._pending


_RULES: dict[type[SglExpr], Callable[[StreamExecutor, Any, Place | None], None]] = {
    SglConstantText: StreamExecutor._literal,
    SglGen: StreamExecutor._gen,
    SglSelect: StreamExecutor._select,
    SglRoleBegin: StreamExecutor._role_begin,
    SglRoleEnd: StreamExecutor._role_end,
    SglVarScopeBegin: StreamExecutor._scope_begin,
    SglVarScopeEnd: StreamExecutor._scope_end,
}
