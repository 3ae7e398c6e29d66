"""The process that compiles grammars, as the one that started it sees it: asked by any thread, and started again if it
dies.
"""

from __future__ import annotations

import itertools
import logging
import os
import pickle
import threading
from collections import deque
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotInTime
from contextlib import suppress
from typing import Any

from sgl.common.child_process.child_process import ChildProcess, child_environment
from sgl.common.child_process.restart_policy import RestartPolicy
from sgl.common.child_process.serialized_error import SerializedError
from sgl.grammars.compile_client import grammar_compile_messages
from sgl.grammars.errors import GrammarLimitError
from sgl.grammars.tokens.vocabulary import Vocabulary

LONGEST = 60.0  # seconds of one question: what takes longer is ended, and the process with it
GRACE = 1.0  # seconds to end by itself
_log = logging.getLogger("sgl.grammars")
PAUSES = (0.0, 0.0)  # seconds before each restart in a row, of processes that answered nothing
SERVER = "sgl.grammars.compile_server.grammar_compile_server"  # what the process runs


class CompileProcessDied(GrammarLimitError):
    """The process ended over this question, or over another one that it worked on at the same time."""


class RunningCompileProcess:
    """One life of it: a child and what it was asked. `ended` says how it ended."""

    def __init__(self) -> None:
        self._waiting: dict[int, Future[bytes]] = {}
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._owner = os.getpid()
        self.ended: str | None = None
        self._teaching, self._known = threading.Lock(), set[int]()  # vocabularies that were sent
        # networks that are no longer read; a queue, because the thread that drops them may hold any lock
        self.dropped: deque[int] = deque()
        self.ready = threading.Event()
        started: Future[ChildProcess] = Future()
        threading.Thread(target=self._run, args=(started,), name="sgl-grammars-heard", daemon=True).start()
        self.child = started.result()

    @property
    def lost(self) -> bool:
        """Whether it answers no more: it has ended, or it is another process's that forked this one, who hears the
        answers.
        """
        return self.ended is not None or self._owner != os.getpid()

    def tell(self, request: Any) -> None:
        self._send(grammar_compile_messages.NO_VOCABULARY, pickle.dumps(request))

    def ask(self, request: Any) -> Any:
        """The answer. Raises the error that it is, and Died where the process ends meanwhile."""
        data, number = grammar_compile_messages.packed(request), next(self._numbers)
        self._forget()
        future = self._expected(number)
        self._send(number, data)
        try:
            answer = pickle.loads(future.result(LONGEST))
        except NotInTime:
            self.child.kill()
            raise GrammarLimitError(f"the grammar takes more than {LONGEST:.0f} s to compile; simplify it") from None
        if isinstance(answer, SerializedError):
            raise answer.error()
        return answer

    def _forget(self) -> None:
        dropped: list[int] = []
        with suppress(IndexError):
            while True:
                dropped.append(self.dropped.popleft())
        if dropped:
            self.tell(grammar_compile_messages.ForgetNetworks(dropped))

    def teach(self, vocabulary: Vocabulary) -> int:
        """The number by which it knows a vocabulary."""
        with self._teaching:
            if vocabulary.number not in self._known:
                self.tell(
                    grammar_compile_messages.VocabularyMessage(
                        vocabulary.number, vocabulary.tokens, vocabulary.eos_ids, tuple(vocabulary.special_ids)
                    )
                )
                self._known.add(vocabulary.number)
        return vocabulary.number

    def _expected(self, number: int) -> Future[bytes]:
        with self._lock:
            if self.ended is not None:
                raise self._over(self.ended)
            future = self._waiting[number] = Future()
        return future

    def _send(self, number: int, data: bytes) -> None:
        with suppress(OSError):  # it has ended: the thread that hears it tells those that wait
            self.child.channel.send(number, data)

    def _run(self, started: Future[ChildProcess]) -> None:
        """Start the process and hear it: it is tied to the thread that starts it, and callers' threads may end."""
        try:
            child = ChildProcess(SERVER, environment=child_environment(PYTHONHASHSEED="0"))  # rules have equal numbers
        except BaseException as error:
            return started.set_exception(error)
        started.set_result(child)
        with suppress(EOFError, OSError):
            self._hear(child)
        self._end_of_all(child.end(GRACE))

    def _hear(self, child: ChildProcess) -> None:
        while True:
            number, data = child.channel.receive()
            self.ready.set()
            with self._lock:
                future = self._waiting.pop(number, None)
            if future is not None:
                future.set_result(data)

    def _end_of_all(self, how: str) -> None:
        """The connection has ended: those that wait get the error."""
        with self._lock:
            self.ended = how
            waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            future.set_exception(self._over(how))

    def _over(self, how: str) -> Exception:
        if not self.ready.is_set():
            return grammar_compile_messages.RequestNotSent(
                f"the process that compiles grammars {how} before it was ready"
            )
        return CompileProcessDied(
            f"the process that compiles grammars {how} while it worked on this one; ask again, or simplify it"
        )


class CompileProcess:
    """The lives of it, one after the other. `broken` says why there will be none any more."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: RunningCompileProcess | None = None
        self._restarts, self._was_ready = RestartPolicy(PAUSES), False
        self.owner = os.getpid()
        self.broken: str | None = None

    def running(self) -> RunningCompileProcess | None:
        """The one that takes questions now, started if need be; None: there is none any more."""
        with self._lock:
            if self.broken is None and (self._running is None or self._running.ended is not None):
                self._begin()
            return None if self.broken else self._running

    @property
    def ready(self) -> bool:
        """Whether it was up already; who asks it anew waits for that."""
        running = self._running
        self._was_ready = self._was_ready or (running is not None and running.ready.is_set())
        return self._was_ready

    def _begin(self) -> None:
        before, self._running = self._running, None
        if before is not None and self._restarts.pause(useful=before.ready.is_set()) is None:
            self._give_up(f"it {before.ended}, {self._restarts.deaths} times in a row")
            return
        try:
            self._running = RunningCompileProcess()
        except OSError as error:
            self._give_up(f"it cannot be started: {error}")

    def _give_up(self, why: str) -> None:
        self.broken = why
        _log.warning("grammars are compiled in this process, without a separate one: %s", why)

    def close(self) -> None:
        with self._lock:
            self.broken = self.broken or "it was closed"
            running, self._running = self._running, None
        if running is not None and self.owner == os.getpid():
            running.child.end(GRACE)
