"""Rank 0's side of the other ranks: it starts their processes, sends them their work, and ends all when one ends."""

from __future__ import annotations

import faulthandler
import logging
import os
import pickle
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from sgl.common.child_process.child_process import ChildProcess
from sgl.common.child_process.message_channel import HeartbeatLost

from ...errors import RuntimeFailure
from ..rank_collectives import RankCollectives
from .gpu_progress import GpuProgress, GpuProgressCount, StallDetector
from .worker_channel import (
    ASK,
    BEGIN,
    COMPILE,
    POOL,
    READY,
    REHEARSE,
    SLEEP,
    STEP,
    TELL,
    WAKE,
    WHERE,
    RankKVOptions,
    RankStart,
)
from .worker_processes import rank_processes

log = logging.getLogger("sgl.runtime")

LOADING = 10.0  # times the limit of silence, while models are loaded: a process may hold Python's lock
GRACE = 1.0  # seconds in which rank 0 may find for itself what made another end while it began, or end by itself
STEP_LIMIT = 10.0  # seconds that a GPU may take for a step, less where the limit of silence is less
STDERR, WRITING = 2, 0.2  # the descriptor, whatever sys.stderr is; seconds in which a process writes where it is
ENDING = 10.0  # seconds that ending takes at most
TURN = 0.2  # seconds between two looks at who was heard when


Met = TypeVar("Met", bound=RankCollectives)
Signed = TypeVar("Signed")


class RankWorkerHandle:
    """The process of a rank above 0, as rank 0 sees it."""

    def __init__(self, rank: int, child: ChildProcess) -> None:
        self.child, self.channel = child, child.channel
        self.rank, self.name = rank, f"rank {rank} (pid {child.pid})"
        self.ready: SimpleQueue[bytes] = SimpleQueue()

    @property
    def failure(self) -> str:
        """What it said of its failure."""
        error = self.channel.failure
        return "" if error is None else f"{type(error).__name__}: {error}"


class RankGroup:
    """The ranks of one engine.

    `broken` is called once, on a thread of the team's own, when one of them has ended or is silent.

    silence: seconds without a sign of life after which a rank counts as hung; None: it may be silent for ever.
    """

    def __init__(self, ranks: int, silence: float | None, broken: Callable[[BaseException], None]) -> None:
        self.size, self._silence, self._broken = ranks, silence, broken
        them = rank_processes(ranks)
        self._meeting = them.meeting
        self._asking = threading.RLock()  # answers are those of the newest question
        self._failed, self._closing, self._begun = threading.Lock(), False, False
        self._progress: GpuProgress | None = None
        self._stalls: list[StallDetector] = []
        self._connecting: float | None = None  # since when the ranks connect
        self.members = [RankWorkerHandle(rank, other) for rank, other in enumerate(them.each, 1)]
        self._set_loading(True)
        for member in self.members:
            threading.Thread(target=self._listen, args=(member,), name=f"sgl-rank-{member.rank}", daemon=True).start()
        threading.Thread(target=self._watch, name="sgl-ranks", daemon=True).start()

    def begin(self, begin: RankStart) -> None:
        """Let every rank load its share. begin: as for rank 0."""
        for member in self.members:
            own = begin._replace(rank=member.rank, meeting=str(self.meeting))
            self._tell(member, BEGIN, pickle.dumps(own))

    def meet(self) -> RankCollectives:
        """Wait until all have loaded, and have heard each other."""
        return self.met(lambda arrived: RankCollectives(0, self.size, self.meeting, arrived))

    def met(self, meet: Callable[[Callable[[], None]], Met]) -> Met:
        """What `meet` returns, which connects the ranks once it has called what it is given.

        Where that takes long, all ranks end.
        """
        try:
            return meet(self._arrived)
        finally:
            self._connecting = None

    def _arrived(self) -> None:
        self._connecting = time.monotonic()

    @property
    def meeting(self) -> Path:
        """See `RankCollectives`."""
        return self._meeting.path

    def wait(self) -> list[bytes]:
        """Until every rank has done what it was sent last; the answer of each.

        Raises RuntimeFailure when one has ended.
        """
        answers = []
        for member in self.members:
            while True:
                try:
                    answers.append(member.ready.get(timeout=TURN))
                    break
                except Empty:
                    if self._failed.locked():
                        raise RuntimeFailure(f"rank {member.rank} has ended: {member.failure}") from None
        self._begun = True
        self._set_loading(False)
        self._meeting.end()
        return answers

    def make_room(self, room: RankKVOptions) -> None:
        """Assign every rank memory for keys and values, and what reads them there.

        `wait` returns of each, pickled, what computes its layers.
        """
        for member in self.members:
            self._tell(member, POOL, pickle.dumps(room))

    def step(self, words: bytes) -> None:
        """Let every rank compute this step, which rank 0 computes at the same time."""
        for member in self.members:
            self._tell(member, STEP, words)

    def tell(self, name: str, *arguments: Any) -> None:
        """Let every rank call its method of this name, before the steps that it is sent later.

        One that cannot ends all ranks.
        """
        self.tell_each(name, [arguments] * len(self.members))

    def tell_each(self, name: str, arguments: Sequence[tuple[Any, ...]]) -> None:
        """The same with arguments of each rank's own."""
        for member, own in zip(self.members, arguments, strict=True):
            self._tell(member, TELL, pickle.dumps((name, own)))

    def ask(self, name: str, *arguments: Any, meanwhile: Callable[[], None] = lambda: None) -> list[Any]:
        """What each rank's method of this name returns; it may load weights. meanwhile: what rank 0 does.

        Raises what `meanwhile` raised, otherwise what one of the others did; all have come to an end then.
        """
        return self.ask_each(name, [arguments] * len(self.members), meanwhile)

    def ask_each(
        self, name: str, arguments: Sequence[tuple[Any, ...]], meanwhile: Callable[[], None] = lambda: None
    ) -> list[Any]:
        """The same with arguments of each rank's own. Adapters are read on any thread."""
        own = None
        with self._asking:
            self._set_loading(True)
            for member, given in zip(self.members, arguments, strict=True):
                self._tell(member, ASK, pickle.dumps((name, given)))
            try:
                meanwhile()
            except BaseException as error:
                own = error
            answers = [pickle.loads(each) for each in self.wait()]
        if (wrong := own or next((error.error() for _, error in answers if error is not None), None)) is not None:
            raise wrong
        return [found for found, _ in answers]

    def signs(self, before: Signed) -> list[Signed]:
        """What each rank says with its newest sign of life. before: of one that has not said anything yet."""
        return [pickle.loads(sign) if (sign := member.channel.sign) else before for member in self.members]

    def compile(self) -> None:
        """On GPUs: let every rank have all kernels compiled that steps will launch."""
        self._all(COMPILE)

    def warm_up(self) -> None:
        """On GPUs: let every rank do a little of what later steps will need, as rank 0 does."""
        for member in self.members:
            self._tell(member, REHEARSE)

    def watch_steps(self, progress: GpuProgress) -> None:
        """On GPUs: from now on a step that a GPU does not do in time ends all ranks. progress: of rank 0."""
        if self._silence is not None:
            self._stalls = [StallDetector(min(STEP_LIMIT, self._silence)) for _ in range(self.size)]
            self._progress = progress

    def sleep(self) -> None:
        self._all(SLEEP)

    def wake(self) -> None:
        self._all(WAKE)

    def report_failed_step(self, error: BaseException) -> None:
        """A step that others compute has broken off here.

        This process ends before anybody hears of it in other words than theirs.
        """
        until = time.monotonic() + GRACE
        while time.monotonic() < until and not (self._closing or self._failed.locked()):
            time.sleep(0.01)  # one of them may have ended: who listens to it says so better
        self.fail(error)
        if not self._closing:
            time.sleep(ENDING)

    def fail(self, error: BaseException, hung: bool = False) -> None:
        """The ranks are no longer at the same place: all of them end, and so does this process.

        hung: all write first where they are, to stderr.
        """
        if self._closing or not self._failed.acquire(blocking=False):
            return
        if hung:
            # stderr may be full, with no reader
            writing = threading.Thread(target=self._write_stacks, daemon=True)
            writing.start()
            writing.join(WRITING * (2 + len(self.members)))
        for member in self.members:
            member.child.kill()
        until = time.monotonic() + GRACE
        for member in self.members:
            member.child.end(max(0.0, until - time.monotonic()), GRACE)  # a GPU may take its time to let a process go
        self._meeting.end()
        self._broken(error)

    def close(self) -> None:
        self._closing = True
        for member in self.members:
            member.child.end(GRACE)
        self._meeting.end()

    def _all(self, kind: int) -> None:
        with self._asking:
            for member in self.members:
                self._tell(member, kind)
            self.wait()

    def _tell(self, member: RankWorkerHandle, kind: int, payload: bytes = b"") -> None:
        with suppress(OSError):  # it is gone: its listener knows
            member.channel.send(kind, payload)

    # threads of the team's own

    def _listen(self, member: RankWorkerHandle) -> None:
        try:
            while True:
                kind, payload = member.channel.receive()
                assert kind == READY
                member.ready.put(payload)
        except HeartbeatLost as silent:
            self.fail(RuntimeFailure(f"{member.name} {silent}"), hung=True)
        except (EOFError, OSError):
            if not self._begun:
                time.sleep(GRACE)  # what it could not read, rank 0 cannot read either, and says so better
            self._ended(member)

    def _ended(self, member: RankWorkerHandle) -> None:
        if self._closing or self._failed.locked():
            return
        how = member.child.end(GRACE, GRACE)
        self.fail(RuntimeFailure(f"{member.name} {how}{member.failure and f': {member.failure}'}"))

    def _set_loading(self, loading: bool) -> None:
        """Who loads may be silent for longer."""
        self._limit = self._silence and self._silence * (LOADING if loading else 1)
        for member in self.members:
            member.channel.reader.patience = self._limit

    def _watch(self) -> None:
        while self._limit is not None and not (self._closing or self._failed.locked()):
            time.sleep(TURN)
            if (since := self._connecting) is not None and time.monotonic() - since > self._limit:
                words = (
                    f"the ranks have not connected within {self._limit:g} s: maybe something else connects to their "
                    "ports on this machine; all were killed"
                )
                return self.fail(RuntimeFailure(words), hung=True)
            if self._progress is not None:
                self._watch_gpus(self._progress)

    def _write_stacks(self) -> None:
        """Of several that wait for each other the silent one need not be at fault."""
        faulthandler.dump_traceback(file=STDERR)
        for member in self.members:
            os.write(STDERR, f"{member.name}, which is ended:\n".encode())
            member.child.signal(WHERE)
            time.sleep(WRITING)

    def _watch_gpus(self, progress: GpuProgress) -> None:
        own = progress.moved()
        others = self.signs(GpuProgressCount())
        hung = [
            rank
            for rank, (moved, stall) in enumerate(zip((own, *others), self._stalls, strict=True))
            if stall(moved, progress.launched)
        ]
        if hung:
            names = " and ".join(f"rank {rank}" for rank in hung)
            self.fail(
                RuntimeFailure(
                    f"a step hangs: {names} has done nothing of it for {self._stalls[0].limit:g} s; all ranks were "
                    "killed"
                ),
                hung=True,
            )
