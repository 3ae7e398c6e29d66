"""One life of the engine's process, as the parent sees it: what was opened in it and waits for it dies with it."""

from __future__ import annotations

import copy
import heapq
import itertools
import logging
import pickle
import threading
import time
from collections import deque
from concurrent.futures import Future
from typing import Any, NamedTuple

from sgl.common.child_process.known_class_pickles import pack
from sgl.common.child_process.message_channel import HeartbeatLost, MessageChannel, frame
from sgl.grammars import Vocabulary

from ..errors import ConfigError, DeadlineExceeded
from ..sequences.generation import Chunk, Generation
from ..sequences.op_future import note
from ..sequences.ops.generate_op import Generate
from ..sequences.ops.sequence_ops import Close, Extend
from ..sequences.sequence_state import SequenceOp
from . import process_messages
from .message_outbox import MessageOutbox
from .process_messages import (
    CHUNK,
    DONE,
    MESSAGE,
    AbortSequence,
    AskCore,
    FailGeneration,
    ProcessAnswer,
    QueueOp,
    ReadyMessage,
)

log = logging.getLogger("sgl.runtime")

LATE = 1.0  # seconds that the engine's process has for telling itself that a deadline has passed


class OpDeadline(NamedTuple):
    """When an operation that waits has to be done, in `time.monotonic()` seconds."""

    deadline: float
    number: int


class PendingQuestion(SequenceOp):
    """Waits like an operation, for an answer of the core."""


class PendingOp:
    """An operation that is to be answered, and what its chunks have brought: the result, or their receiver's error."""

    __slots__ = ("generation", "op", "raised", "sequence")

    def __init__(self, op: SequenceOp, sequence: int | None = None) -> None:
        self.op, self.sequence = op, sequence
        self.generation: Generation | None = None
        self.raised: BaseException | None = None


class EngineConnection:
    """`ask`, `queue`, `abort` and `end` may be called on any thread, the rest is the reader's own.

    Whether something is still answered or fails with the link is decided by who takes it out of `_waiting`.
    """

    def __init__(self, keeper: threading.Thread | None = None) -> None:
        self._keeper = keeper  # who will serve it
        self.outbox = MessageOutbox("sgl-process-out", b"".join)
        self.error: BaseException | None = None  # of what comes after the end
        self._waiting: dict[int | None, PendingOp] = {}
        self._numbers = itertools.count()
        self._due: list[OpDeadline] = []  # a heap
        self._noting = threading.Lock()
        self._arrived: deque[ProcessAnswer] = deque()
        self._channel: MessageChannel | None = None
        self.silent = ""  # where the other side did not end, but was heard no more: in words
        self.failure: BaseException | None = None  # why the other side's loop failed
        hello = PendingQuestion()
        self._expect(hello)
        self.ready: Future[ReadyMessage] = hello.future

    @property
    def up(self) -> bool:
        return self.ready.done() and self.error is None

    def post(self, message: Any) -> None:
        if self.error is None:  # later no caller would take it
            self.outbox.post(frame(MESSAGE, pack(message)))

    def ask(self, name: str, *args: Any, at_once: bool = False) -> Future[Any]:
        op = PendingQuestion()
        number = self._expect(op)
        self.post(AskCore(number, name, args, at_once))
        self._refuse_late(number)
        return op.future

    def queue(self, sequence: int, op: SequenceOp, vocabulary: Vocabulary, deadline: float | None = None) -> None:
        """Queue an operation there.

        No caller waits for an extend or a close: the next operation reports what they did.
        """
        number = None if isinstance(op, Extend | Close) else self._expect(op, sequence)
        if number is not None and deadline is not None:
            with self._noting:
                heapq.heappush(self._due, OpDeadline(deadline, number))
        try:
            arguments = pack(process_messages.arguments_of(op, vocabulary))
            self.post(QueueOp(number, sequence, type(op), arguments, op.started))
        except Exception as error:  # something of the caller's that no pickle can hold
            self._fail(
                number, ConfigError(f"{type(op).__name__.lower()}: cannot be sent to the engine's process: {error}")
            )
        self._refuse_late(number)

    def abort(self, sequence: int) -> None:
        self.post(AbortSequence(sequence))

    def end(self, error: BaseException, later: BaseException) -> None:
        """Fail all that waits with `error`, and from now on everything with `later`."""
        self.error = later
        for number in list(self._waiting):
            self._fail(number, error)

    def expire(self) -> None:
        """Fail what should be done by now, whether or not the other side does anything."""
        now = time.monotonic()
        while self._due and self._due[0].deadline + LATE <= now:
            with self._noting:
                deadline, number = heapq.heappop(self._due)
            self._fail(
                number,
                DeadlineExceeded(
                    f"not done in time: the deadline passed {now - deadline:.3f} s ago, and the engine's process has "
                    "said nothing of it"
                ),
            )

    # what comes back

    def serve(self, channel: MessageChannel) -> None:
        """Hand out answers until the other side has ended."""
        self._channel = channel
        while self._arrived or self._receive():
            answer = self._arrived.popleft()
            try:
                self._hand_out(answer)
            except BaseException as error:  # the others have no other thread
                note("an answer of the engine's process could not be handed out", error)
                self._fail(answer.number, error)
        self._channel, self.failure = None, channel.failure

    def read_until(self, future: Future[Any]) -> bool:
        """Answer a question of a caller that was just handed an answer; what comes before that one stays in its order.

        False: the other side has ended before.
        """
        seen = 0
        while not future.done():
            if seen == len(self._arrived) and not self._receive():
                return False
            answer = self._arrived[seen]
            waiting = self._waiting.get(answer.number)
            if waiting is not None and waiting.op.future is future:
                del self._arrived[seen]
                self._hand_out(answer)
            seen += 1
        return True

    def _receive(self) -> bool:
        if self._channel is None:
            return False
        try:
            while not (answers := pickle.loads(self._channel.receive()[1])):
                pass  # its last message may be empty
            self._arrived.extend(map(ProcessAnswer._make, answers))
        except (EOFError, OSError):
            return False
        except HeartbeatLost as lost:
            self.silent = str(lost)
            return False
        except Exception:  # it does not speak our language any more
            log.exception("what came from the engine's process cannot be read")
            return False
        return True

    def _hand_out(self, answer: ProcessAnswer) -> None:
        number, kind, value = answer
        if kind == CHUNK:
            if (waiting := self._waiting.get(number)) is not None:
                self._stream(number, waiting, Chunk(*value))
        elif (waiting := self._waiting.pop(number, None)) is not None:
            try:
                self._settle(waiting, kind, value)
            except BaseException as error:  # one that cannot be made again here
                waiting.op.fail(error)

    def _settle(self, waiting: PendingOp, kind: int, value: Any) -> None:
        if waiting.raised is not None:
            waiting.op.fail(waiting.raised)
        elif kind == DONE:
            waiting.op.resolve(waiting.generation if value is None and waiting.generation else value)
        else:
            waiting.op.fail(value.error())

    def _stream(self, number: int, waiting: PendingOp, chunk: Chunk) -> None:
        """Give a chunk to its receiver, whose error fails the generation there, and what is queued after it."""
        assert isinstance(waiting.op, Generate) and waiting.op.on_chunk is not None
        waiting.generation = chunk.generation
        if waiting.raised is not None:
            return
        try:
            waiting.op.on_chunk(chunk)
        except BaseException as error:  # its own affair, whatever it is
            self._raised(number, waiting, error)
            self.post(FailGeneration(number, process_messages.serialized(error, pack)))

    def _raised(self, number: int, waiting: PendingOp, error: BaseException) -> None:
        """The generation fails, and what is queued after it, also where the other process has come further already.

        What is queued after it gets the error as it is reported from there.
        """
        waiting.raised = error
        for later, other in list(self._waiting.items()):
            if other.sequence == waiting.sequence and later is not None and later > number:
                other.raised = other.raised or process_messages.serialized(error, pack).error()

    # who waits

    def _expect(self, op: SequenceOp, sequence: int | None = None) -> int:
        op.future.keeper = self._keeper
        number = next(self._numbers)
        self._waiting[number] = PendingOp(op, sequence)
        return number

    def _refuse_late(self, number: int | None) -> None:
        """What came when the link had ended, or just ended, is failed here unless `end` saw it."""
        if self.error is not None:
            self._fail(number, self.error)

    def _fail(self, number: int | None, error: BaseException) -> None:
        if (waiting := self._waiting.pop(number, None)) is not None:
            own = copy.copy(error)  # each its own: where it is raised, it gathers a traceback
            own.__cause__ = error.__cause__
            waiting.op.fail(own)
