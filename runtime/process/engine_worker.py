"""The process that an engine runs in, started by `remote_core`; it does not outlive its parent."""

from __future__ import annotations

import faulthandler
import logging
import pickle
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from sgl.common.child_process.message_channel import MessageChannel, frame
from sgl.grammars.compile import GrammarRecipe
from sgl.grammars.compile_client import grammar_compile_policy

from ..common.argument_checks import shown
from ..errors import EngineClosed, RuntimeFailure
from ..sequences.grammar_compile_pool import GrammarCompilePool
from ..sequences.ops.generate_op import Generate
from ..sequences.ops.sequence_ops import Close, Fork
from ..sequences.sequence_state import SequenceStatus
from . import process_messages
from .late_generate import LateGenerate
from .loop_watch import LoopWatch, leave
from .message_outbox import MessageOutbox
from .process_messages import (
    ADAPT,
    CHUNK,
    DONE,
    FAILED,
    MESSAGE,
    AbortSequence,
    AskCore,
    FailGeneration,
    OpenSequence,
    ProcessAnswer,
    QueueOp,
    ReadyMessage,
    StartMessage,
    serialized,
)

if TYPE_CHECKING:
    from ..build.build_engine import BuiltEngine
    from ..loop.engine_core import EngineCore
    from ..sequences.generation import Chunk, Generation
    from ..sequences.sequence_options import SequenceOptions
    from ..sequences.sequence_state import SequenceOp, SequenceState

log = logging.getLogger("sgl.runtime")


class EngineWorker:
    """Gives an engine's core what comes in, and posts what comes of it.

    Its methods are the reader's, but where said.
    """

    def __init__(self, parts: BuiltEngine[EngineCore], outbox: MessageOutbox) -> None:
        self._core = parts.core
        self._outbox = outbox
        self._compiling = GrammarCompilePool(parts.vocabulary)
        self._sequences: dict[int, SequenceState] = {}
        self._closing: dict[int, SequenceState] = {}  # that take no operations any more and may have some to do
        self._spoiled: dict[int, BaseException] = {}
        self._streamed: dict[int, Generation | None] = {}  # what the last chunk of each has brought
        self._takes: dict[type, Callable[[Any], None]] = {
            OpenSequence: self._open,
            QueueOp: self._queue,
            AbortSequence: self._abort,
            AskCore: self._ask,
            FailGeneration: self._spoil,
        }

    def serve(self, channel: MessageChannel) -> None:
        """Until the other side has ended."""
        while True:
            try:
                _, message = channel.receive()
            except (EOFError, OSError):
                return
            self._take(pickle.loads(message))

    def _take(self, message: Any) -> None:
        try:
            self._takes[type(message)](message)
        except Exception as error:  # of this message alone
            log.exception("%s could not be taken", type(message).__name__)
            self._refuse(getattr(message, "number", None), error)

    def _open(self, message: OpenSequence) -> None:
        self._sequences[message.sequence] = self._born(message.sequence, message.terms)

    def _born(self, number: int, terms: SequenceOptions, status: SequenceStatus = SequenceStatus.IDLE) -> SequenceState:
        state = self._core.new_state(terms, status)
        state.number = number
        return state

    def _queue(self, message: QueueOp) -> None:
        number, sequence = message.number, self._sequences.get(message.sequence)
        if sequence is None:  # closed by another thread just before
            self._refuse(number, EngineClosed("the sequence is closed; open or fork a new one"))
            return
        try:
            op = self._rebuilt(message, sequence)
        except Exception as error:
            self._refuse(number, error)
            return
        op.started = message.started
        if number is not None:
            op.future.add_done_callback(partial(self._answer, number))
        waits = op.blocked
        if isinstance(op, Close):
            self._closing[message.sequence] = self._sequences.pop(message.sequence)
            op.future.add_done_callback(lambda _: self._closing.pop(message.sequence, None))
        self._core.submit(sequence, op)
        if waits and isinstance(op, LateGenerate):
            op.resume_when_ready(self._core, sequence)

    def _refuse(self, number: int | None, error: Exception) -> None:
        if number is not None:
            self._post(number, FAILED, serialized(error))

    def _rebuilt(self, message: QueueOp, sequence: SequenceState) -> SequenceOp:
        """The operation that the parent has, here."""
        arguments = pickle.loads(message.arguments)
        if issubclass(message.kind, Generate):
            params, recipe, streams = arguments
            on_chunk = partial(self._stream, cast(int, message.number)) if streams else None
            if isinstance(recipe, GrammarRecipe):
                return LateGenerate(params, self._compiling.grammar(recipe, sequence.terms.tenant), on_chunk)
            op = Generate(params, None, on_chunk)
            op.refusal = op.refusal or recipe
            return op
        if issubclass(message.kind, Fork):
            numbers, adapters = arguments
            children = [
                self._born(number, sequence.terms._replace(adapter=adapter), SequenceStatus.CHILD_PENDING)
                for number, adapter in zip(numbers, adapters, strict=True)
            ]
            self._sequences.update(zip(numbers, children, strict=True))
            return Fork(children)
        return message.kind(*arguments)

    def _abort(self, message: AbortSequence) -> None:
        if (sequence := self._sequences.get(message.sequence, self._closing.get(message.sequence))) is not None:
            self._core.abort(sequence)

    def _ask(self, message: AskCore) -> None:
        number, name, arguments, at_once = message
        if name == ADAPT:  # files may be read: nothing waits for it
            threading.Thread(target=self._adapt, args=(number, arguments), name="sgl-adapt", daemon=True).start()
            return
        if not at_once:
            self._core.ask_soon(name, *arguments).add_done_callback(partial(self._answer, number))
            return
        try:
            self._post(number, DONE, self._core.answer(name, *arguments))
        except Exception as error:  # the step moved on under it
            self._refuse(number, error)

    def _adapt(self, number: int, arguments: tuple[Any, ...]) -> None:
        try:
            self._post(number, DONE, self._core.adapt(*arguments))
        except Exception as error:
            self._refuse(number, error)

    def _spoil(self, message: FailGeneration) -> None:
        if message.number in self._streamed:
            self._spoiled[message.number] = message.error.error()

    # on the scheduler thread

    def _stream(self, number: int, chunk: Chunk) -> None:
        if (error := self._spoiled.get(number)) is not None:
            raise error
        self._streamed[number] = chunk.generation
        # those of a step leave as one message
        self._outbox.later((number, CHUNK, process_messages.chunk_fields(chunk)))

    def _answer(self, number: int, future: Future[Any]) -> None:
        sent = self._streamed.pop(number, None)
        self._spoiled.pop(number, None)
        if self._core.failed:
            return  # this process ends at once, and with that everything that waits for it
        error = future.exception()
        if error is not None:
            self._post(number, FAILED, serialized(error))
        else:
            result = future.result()
            self._post(number, DONE, None if sent is not None and result is sent else result)

    def _post(self, number: int, kind: int, value: Any) -> None:
        self._outbox.post(ProcessAnswer(number, kind, value))


def begin(channel: MessageChannel) -> None:
    """channel: to the parent."""
    with suppress(EOFError):
        main(channel)
    leave(0)


def main(channel: MessageChannel) -> None:
    """Raises EOFError when the parent ends before it has said what to run."""
    faulthandler.enable()
    outbox = MessageOutbox("sgl-process-out", _frames)
    start: StartMessage = pickle.loads(channel.receive()[1])
    outbox.send(channel)
    try:
        _run(start, channel, outbox)
    finally:
        outbox.end()


def _run(start: StartMessage, channel: MessageChannel, outbox: MessageOutbox) -> None:
    from ..build.build_engine import build_engine

    loop = LoopWatch(channel, outbox, start.options.heartbeat)
    try:
        parts = build_engine(Path(start.path), start.options, loop.broken)
    except Exception as error:
        outbox.post(ProcessAnswer(0, FAILED, serialized(error)))
        return
    core: EngineCore = parts.core
    core.told = outbox.ring
    compiling = grammar_compile_policy.use(parts.config.grammar_process)
    outbox.post(ProcessAnswer(0, DONE, ReadyMessage(parts.config, parts.info)))
    loop.watch(core)
    EngineWorker(parts, outbox).serve(channel)
    core.stop()
    if compiling is not None:
        compiling.leave()


def _frames(answers: list[tuple[int, int, Any]]) -> bytes:
    plain = list(map(tuple, answers))  # many small ones are pickled ten times as fast as those of a class
    try:
        return frame(MESSAGE, pickle.dumps(plain))
    except Exception:  # one of them cannot be sent: the others are
        return frame(MESSAGE, pickle.dumps([_sendable(answer) for answer in plain]))


def _sendable(answer: tuple[int, int, Any]) -> tuple[int, int, Any]:
    try:
        pickle.dumps(answer)
        return answer
    except Exception as error:
        return answer[0], FAILED, serialized(RuntimeFailure(f"the answer cannot be sent: {shown(error)}"))
