"""One life of the engine's process, as the parent sees it: what was opened in it and waits for it dies with it."""

from __future__ import annotations

import copy
import itertools
import logging
from collections import deque
from concurrent.futures import Future
from typing import Any, BinaryIO

from sgl.grammars import Vocabulary

from ..errors import ConfigError
from ..sequences.ops import Chunk, Close, Extend, Generate, Generation, Op
from . import messages
from .messages import CHUNK, DONE, Abort, Answer, Ask, Queue, Ready, Spoil
from .sending import Outbox

log = logging.getLogger("sgl.runtime")

class Question(Op):
    """Waits like an operation, for an answer of the core."""


class Waiting:
    """An operation that is to be answered, and what its chunks have brought: the result, or their receiver's error."""

    __slots__ = ("generation", "op", "raised")

    def __init__(self, op: Op) -> None:
        self.op = op
        self.generation: Generation | None = None
        self.raised: BaseException | None = None


class Link:
    """`ask`, `queue`, `abort` and `end` may be called on any thread, the rest is the reader's own.

    Whether something is still answered or fails with the link is decided by who takes it out of `_waiting`.
    """

    def __init__(self) -> None:
        self.outbox = Outbox("sgl-process-out", b"".join)
        self.error: BaseException | None = None  # of what comes after the end
        self._waiting: dict[int | None, Waiting] = {}
        self._numbers = itertools.count()
        self._arrived: deque[Answer] = deque()
        self._file: BinaryIO | None = None
        hello = Question()
        self._expect(hello)
        self.ready: Future[Ready] = hello.future

    @property
    def up(self) -> bool:
        return self.ready.done() and self.error is None

    def post(self, message: Any) -> None:
        if self.error is None:  # later nobody would take it
            self.outbox.post(messages.frame(message, messages.pack))

    def ask(self, name: str, *args: Any, at_once: bool = False) -> Future[Any]:
        op = Question()
        number = self._expect(op)
        self.post(Ask(number, name, args, at_once))
        self._refuse_late(number)
        return op.future

    def queue(self, sequence: int, op: Op, vocabulary: Vocabulary) -> None:
        """Queue an operation there. Nobody waits for an extend or a close: what they do is told by what follows."""
        number = None if isinstance(op, Extend | Close) else self._expect(op)
        try:
            arguments = messages.arguments_of(op, vocabulary)
            self.post(Queue(number, sequence, type(op), arguments, op.started))
        except Exception as error:  # something of the caller's that no pickle can hold
            self._fail(number, ConfigError(f"{type(op).__name__.lower()}: cannot be sent to the engine's process: {error}"))
        self._refuse_late(number)

    def abort(self, sequence: int) -> None:
        self.post(Abort(sequence))

    def end(self, error: BaseException, later: BaseException) -> None:
        """Fail all that waits with `error`, and from now on everything with `later`."""
        self.error = later
        for number in list(self._waiting):
            self._fail(number, error)

    # what comes back

    def serve(self, file: BinaryIO) -> None:
        """Hand out answers until the other side has ended."""
        self._file = file
        while self._arrived or self._receive():
            self._hand_out(self._arrived.popleft())
        self._file = None

    def read_until(self, future: Future[Any]) -> bool:
        """Answer a question of somebody who was just handed an answer; what comes before that one stays in its order.

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
        if self._file is None:
            return False
        try:
            while not (answers := messages.read(self._file)):
                pass  # its last message may be empty
            self._arrived.extend(answers)
        except (EOFError, OSError):
            return False
        except Exception:  # it does not speak our language any more
            log.exception("what came from the engine's process cannot be read")
            return False
        return True

    def _hand_out(self, answer: Answer) -> None:
        number, kind, value = answer
        if kind == CHUNK:
            if (waiting := self._waiting.get(number)) is not None:
                self._stream(number, waiting, Chunk(*value))
        elif (waiting := self._waiting.pop(number, None)) is not None:
            if waiting.raised is not None:
                waiting.op.fail(waiting.raised)
            elif kind == DONE:
                waiting.op.resolve(waiting.generation if value is None and waiting.generation else value)
            else:
                waiting.op.fail(value.error())

    def _stream(self, number: int, waiting: Waiting, chunk: Chunk) -> None:
        """Give a chunk to its receiver, whose error fails the generation there, and what is queued behind it."""
        assert isinstance(waiting.op, Generate) and waiting.op.on_chunk is not None
        waiting.generation = chunk.generation
        if waiting.raised is not None:
            return
        try:
            waiting.op.on_chunk(chunk)
        except Exception as error:
            waiting.raised = error
            self.post(Spoil(number, messages.Told.of(error, messages.pack)))

    # who waits

    def _expect(self, op: Op) -> int:
        number = next(self._numbers)
        self._waiting[number] = Waiting(op)
        return number

    def _refuse_late(self, number: int | None) -> None:
        """What came when the link had ended, or just ended, is failed here unless `end` saw it."""
        if self.error is not None:
            self._fail(number, self.error)

    def _fail(self, number: int | None, error: BaseException) -> None:
        if (waiting := self._waiting.pop(number, None)) is not None:
            waiting.op.fail(copy.copy(error))  # each its own: where it is raised, it gathers a traceback
