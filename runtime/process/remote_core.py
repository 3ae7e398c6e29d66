"""The core of an engine in a separate process, as the engine sees it; started anew when the process dies."""

from __future__ import annotations

import copy
import itertools
import logging
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotInTime
from dataclasses import replace
from pathlib import Path
from typing import Any

from sgl.common.child_process.child_process import ChildProcess
from sgl.common.child_process.message_channel import LOOK
from sgl.common.child_process.restart_policy import RestartPolicy
from sgl.grammars import Vocabulary

from ..build.build_engine import BuiltEngine
from ..build.build_tokenizer import load_tokenizer
from ..build.engine_config import EngineConfig
from ..common.argument_checks import shown
from ..errors import EngineClosed, EngineDied, EngineFailed, RuntimeFailure
from ..sequences.op_future import note
from ..sequences.ops.sequence_ops import Close, Fork
from ..sequences.sequence_options import SequenceOptions
from ..sequences.sequence_state import SequenceOp, SequenceStatus
from ..watch.engine_stats import Stats
from .engine_connection import EngineConnection
from .loop_watch import HUNG
from .process_messages import ADAPT, OpenSequence, ReadyMessage
from .process_start import ProcessStart

log = logging.getLogger("sgl.runtime")

PAUSES = (0.0, 0.5, 1.0, 2.0, 4.0)  # seconds before each restart in a row; after the last one it stays down
LOADING = 10  # times the heartbeat that a process may be silent while it imports and loads
STEADY = 60.0  # seconds after which a process that dies is the first in a new row
ANSWER = 60.0  # seconds that the counters between two steps may take
GLANCE = 1.0  # seconds that a glance at the counters may take
GRACE = 10.0  # seconds that a process has to end by itself once it is asked to
HURRY = 1.0  # seconds, where it was not asked to end

CLOSED = EngineClosed("the engine is closed; open a new one")


def connect(path: Path, options: EngineConfig) -> BuiltEngine[RemoteCore]:
    """What `build_engine` returns, with the model in another process, running. Raises what is raised there."""
    core = RemoteCore(path, options)
    try:
        with ThreadPoolExecutor(1, "sgl-tokenizer") as pool:
            text = pool.submit(load_tokenizer, path, options)
            config = core.started.result().config
            tokenizer = text.result()
        core.vocabulary = Vocabulary.from_tokenizer(tokenizer)
    except BaseException:
        core.stop()
        raise
    return BuiltEngine(replace(config, process=True), tokenizer, core.vocabulary, core, core.info)


class RemoteSequenceState:
    """A sequence by its number. error: why it takes no operations."""

    __slots__ = ("error", "id", "link", "terms")

    def __init__(self, id: int, terms: SequenceOptions, link: EngineConnection) -> None:
        self.id, self.terms, self.link = id, terms, link
        self.error: BaseException | None = None


class RemoteCore:
    """Represents an EngineCore elsewhere. All methods are thread-safe.

    One thread, the supervisor, starts the process, hands out what it answers, and when it dies fails what waited for
    it and starts the next. Sequences opened meanwhile wait for that one; those opened before are lost.
    """

    def __init__(
        self,
        path: Path,
        options: EngineConfig,
        noted: Callable[[], None] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """noted: called when a process is ready and `info` says what it is.

        environment: of its processes, what is another than here.
        """
        self._path, self._noted = str(path), noted
        self._heartbeat = options.heartbeat
        self._options = replace(options, process=False)
        self._environment = environment
        self._start = ProcessStart.here(path, self._options, environment)
        self.info: dict[str, Any] = {}
        self.asleep = False
        self.vocabulary: Vocabulary
        self._ids = itertools.count(1)
        self.restart_policy, self._restarts = RestartPolicy(PAUSES), 0
        self._seen, self._touched = Stats(), 0
        self._stopping, self._adapting = threading.Event(), threading.Lock()
        self._child: ChildProcess | None = None
        self._thread = threading.Thread(target=self._supervise, name="sgl-process", daemon=True)
        self._link = EngineConnection(self._thread)
        self.started = self._link.ready
        self._thread.start()

    # what an engine asks of its core

    def new_state(
        self, terms: SequenceOptions, status: SequenceStatus = SequenceStatus.IDLE, number: int | None = None
    ) -> RemoteSequenceState:
        """number: what it is called, where somebody else counts."""
        state = RemoteSequenceState(next(self._ids) if number is None else number, terms, self._link)
        if status is not SequenceStatus.CHILD_PENDING:
            state.link.post(OpenSequence(state.id, terms))
        return state

    def submit(self, state: RemoteSequenceState, op: SequenceOp) -> Future[Any]:
        children: list[Any] = op.children if isinstance(op, Fork) else []
        for child in children:
            child.link, child.error = state.link, state.error
        if state.error is None:
            state.link.queue(state.id, op, self.vocabulary, state.terms.deadline)
        elif not isinstance(op, Close):
            op.fail(copy.copy(state.error))
        if isinstance(op, Close):
            state.error = EngineClosed("the sequence is closed; open or fork a new one")
        return op.future

    def abort(self, state: RemoteSequenceState) -> None:
        state.link.abort(state.id)

    def ask(self, name: str, *args: Any) -> Any:
        """What `EngineCore.answer` answers there. Raises EngineDied when the process dies over it."""
        link = self._link
        future = link.ask(name, *args)
        if threading.current_thread() is self._thread and not link.read_until(future):
            raise EngineDied("the engine's process does not run; ask again when it is started")
        answer = self._answer(future) if name == "snapshot" else future.result()
        if name in ("sleep", "wake"):
            self.asleep = name == "sleep"
        if name == "update":  # what is started after this one begins with it
            self._path = str(args[0])
            self._start = ProcessStart.here(Path(self._path), self._options, self._environment)
        return answer

    def adapt(self, name: str, *args: Any) -> Any:
        """See `EngineCore.adapt`. A process that is started later loads what is loaded now."""
        if name not in ("load", "unload"):
            return self._link.ask(ADAPT, name, *args).result()
        with self._adapting:
            answer = self._link.ask(ADAPT, name, *args).result()
            kept = {**(self._options.adapters or {}), **({args[0]: args[1]} if name == "load" else {})}
            if name == "unload":
                kept.pop(args[0], None)
            self._options = replace(self._options, adapters=kept)
            self._start = ProcessStart.here(Path(self._path), self._options, self._environment)
            return answer

    def adapter_digest(self, name: str) -> str:
        return self.adapt("digest_of", name)

    def _answer(self, future: Future[Any]) -> Any:
        try:
            return future.result(ANSWER)
        except NotInTime:
            raise RuntimeFailure(
                f"the engine did not come to the end of a step within {ANSWER:g} s; glance() has its counters as "
                "they are now"
            ) from None

    @property
    def up(self) -> bool:
        """Whether a process runs that takes operations."""
        return self._link.up

    def snapshot(self) -> Stats:
        """The counters of the process that runs, at once; those seen last where it does not answer within a second."""
        self._seen = self._at_once("snapshot", self._seen)
        return self._seen

    def touched(self) -> int:
        """See `ServingCore`; what was seen last where it does not answer within a second."""
        self._touched = self._at_once("touched", self._touched)
        return self._touched

    def _at_once(self, name: str, otherwise: Any) -> Any:
        if self._link.up and threading.current_thread() is not self._thread:
            try:
                return self._link.ask(name, at_once=True).result(GLANCE)
            except (NotInTime, RuntimeFailure):
                pass
        return otherwise

    def stop(self) -> None:
        """Fail all that waits, end process and threads. Idempotent."""
        self.leave()
        if threading.current_thread() not in (self._thread, self._link.outbox.thread):  # the collector may call on any
            self._thread.join(GRACE)
            if self._thread.is_alive() and (child := self._child) is not None:
                child.kill()
            self._thread.join()

    def leave(self) -> None:
        """The same without waiting for the end of process and threads."""
        self._stopping.set()
        link, child = self._link, self._child
        listens = link.ready.done()
        link.end(EngineClosed("the engine was closed while this waited"), CLOSED)
        if child is not None and listens:
            child.channel.leave()
        elif child is not None:
            child.kill()  # it is still loading, and does not listen

    def forget(self) -> None:
        """Nothing here holds the model's memory."""

    # the supervisor

    def _supervise(self) -> None:
        try:
            self._keep_up()
        except BaseException as error:  # ours: no caller may be left waiting
            note("the supervisor of an engine's process failed", error)
            down = EngineFailed(f"the supervisor of the engine's process failed: {shown(error)}; open a new engine")
            down.__cause__ = error.with_traceback(None)
            if (child := self._child) is not None:
                child.end(0.0)
            self._link.end(down, down)

    def _keep_up(self) -> None:
        while not self._stopping.is_set():
            began = time.monotonic()
            how = self._live(self._link)
            pause = self.restart_policy.pause(useful=time.monotonic() - began > STEADY)
            if self._stopping.is_set() or not self._go_on(how, pause):
                break
        if self._stopping.is_set():
            self._link.end(CLOSED, CLOSED)

    def _live(self, link: EngineConnection) -> str:
        """One process, from its start to its end; how that was."""
        start = self._start
        try:
            child = self._child = start.child()
        except Exception as error:
            return f"the engine's process could not be started ({error})"
        if self._stopping.is_set():
            child.kill()
        link.ready.add_done_callback(lambda ready: self._note(child, ready))
        link.outbox.send(child.channel, start.message)
        child.channel.reader.look = link.expire
        child.channel.reader.patience = self._heartbeat and LOADING * self._heartbeat
        link.serve(child.channel)
        self._child = None
        how = f"the engine's process (pid {child.pid}) {self._how_it_ended(link, child)}"
        link.outbox.end()
        refused = link.ready.done() and link.ready.exception()
        return f"{how} ({refused})" if refused else how

    def _how_it_ended(self, link: EngineConnection, child: ChildProcess) -> str:
        how = child.end(0.0 if link.silent else GRACE if self._stopping.is_set() else HURRY)
        if link.silent:
            return link.silent
        if link.failure is not None:
            return f"{how}, as its loop failed: {shown(link.failure)}"
        return f"{how}, as its loop did not go on (it wrote to stderr where)" if child.code == HUNG else how

    def _note(self, child: ChildProcess, ready: Future[ReadyMessage]) -> None:
        if ready.exception() is None:
            child.channel.reader.patience = self._heartbeat
            self.asleep = False
            self.info.update(ready.result().info, model_path=self._path, pid=child.pid, restarts=self._restarts)
            if self._noted is not None:
                self._noted()

    def _go_on(self, how: str, pause: float | None) -> bool:
        """Tell those who waited, and get ready for the next process; False: there will be none.

        pause: see `RestartPolicy`.
        """
        ended, started = self._link, self.started
        if not started.done():
            ended.end(*[EngineDied(f"{how} before it could start; look at what it wrote to stderr")] * 2)
        if started.exception() is not None:
            return False
        self._link = EngineConnection(self._thread)
        if pause is None:
            times = f"{self.restart_policy.deaths} times in a row"
            down = EngineDied(f"{how}, {times}, and stays down; look at its stderr and open a new engine")
            down.__cause__ = ended.failure
            log.error("%s", down)
            for link in (ended, self._link):
                link.end(down, down)
            return False
        log.warning("%s; it is started again", how)
        again = EngineDied(f"{how} and is started again; open a new sequence and ask once more")
        lost = EngineDied(f"the sequence is lost: {how}; open a new one, the engine is started again")
        again.__cause__ = lost.__cause__ = ended.failure
        ended.end(again, lost)
        self._restarts += 1
        self._pause(pause)
        return True

    def _pause(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0 and not self._stopping.wait(min(LOOK, left)):
            self._link.expire()
