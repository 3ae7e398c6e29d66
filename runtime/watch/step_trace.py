"""What the engine computed in each step, kept while somebody asks for it."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from ..errors import EngineDied, note_sequence
from ..sequences.ops.generate_op import Generate
from ..sequences.sequence_state import ScheduledWork, SequenceState

if TYPE_CHECKING:
    from ..scheduling.scheduler import Scheduler
    from ..sequences.running_generation import RunningGeneration


class TracedSequenceStep(NamedTuple):
    """What one sequence got of a step: its tokens start..stop were computed.

    sequence: its number, as `Sequence.id`.  kind: the operation: "generate", "prefill", "fork", "score" ...
    cached: tokens that it found in the cache in this step, just before `start`.
    samples: whether the step ends in a new token of its text.
    drafted: how many of its tokens were draft tokens.  kept: how many of these became text.
    """

    sequence: int
    kind: str
    start: int
    stop: int
    cached: int
    samples: bool
    drafted: int = 0
    kept: int = 0

    @property
    def tokens(self) -> int:
        return self.stop - self.start


class StepRecord(NamedTuple):
    """One step of the engine.

    began: `time.perf_counter()` seconds, of the engine's process.  seconds: until the loop was ready for the next.
    parts: single tokens first, as they are laid out in the batch.
    waiting: sequences with work but without a place in the batch.  preempted: those that lost it in this step, each as
        often as it did.
    evicted: pages that were taken from the prefix cache to make room.
    pages_free, pages_cached: after the plan; cached ones are held by the prefix cache alone, and can be evicted.
    """

    began: float
    seconds: float
    parts: tuple[TracedSequenceStep, ...]
    waiting: tuple[int, ...]
    preempted: tuple[int, ...]
    evicted: int
    pages_free: int
    pages_cached: int

    @property
    def tokens(self) -> int:
        return sum(part.tokens for part in self.parts)


class StepTraces:
    """Those under way, by number; the scheduler thread's own. Without one a step costs nothing more."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._open: dict[int, list[StepRecord]] = {}
        self._numbers = itertools.count(time.time_ns())  # those of a process that died before are no others'
        self._planned: StepRecord | None = None
        self._drafts: list[tuple[int, RunningGeneration, int]] = []

    def begin(self) -> int:
        number = next(self._numbers)
        self._open[number] = []
        return number

    def end(self, number: int) -> list[StepRecord]:
        if number not in self._open:
            raise EngineDied("the trace began in a process of the engine that died since; begin a new one")
        return self._open.pop(number)

    def plan(self) -> list[ScheduledWork]:
        """The scheduler's plan of a step, noted if somebody asked for it."""
        if not self._open:
            return self._scheduler.plan()
        scheduler, began = self._scheduler, time.perf_counter()
        before = {seq: (seq.computed, seq.preempted) for seq in (*scheduler.running, *scheduler.waiting)}
        evicted = scheduler.cache.tree.evicted
        work = scheduler.plan()
        real = [item for item in work if item.hi > item.lo]
        self._drafts = list(_drafts(real))
        self._planned = StepRecord(
            began,
            0.0,
            tuple(_part(item, before) for item in real),
            tuple(seq.number for seq in scheduler.waiting),
            tuple(seq.number for seq, (_, times) in before.items() for _ in range(seq.preempted - times)),
            scheduler.cache.tree.evicted - evicted,
            scheduler.cache.pool.free,
            scheduler.cache.tree.evictable,
        )
        return work

    def stepped(self) -> None:
        """The step that was planned is over."""
        planned, self._planned = self._planned, None
        if planned is not None and (planned.parts or planned.preempted):
            parts = list(planned.parts)
            for place, decoding, before in self._drafts:
                parts[place] = parts[place]._replace(kept=decoding.accepted - before)
            done = planned._replace(parts=tuple(parts), seconds=time.perf_counter() - planned.began)
            for records in self._open.values():
                records.append(done)


def _part(item: ScheduledWork, before: dict[SequenceState, tuple[int, int]]) -> TracedSequenceStep:
    seq, lo, hi = item
    op, (computed, _) = seq.ops[0], before[seq]
    try:
        samples = isinstance(op, Generate) and bool(op.rows(seq, lo, hi))
    except BaseException as error:
        note_sequence(error, seq)
        raise
    drafted = 0 if seq.draft is None else seq.draft.guessed(len(seq.draft.tokens))
    return TracedSequenceStep(seq.number, type(op).__name__.lower(), lo, hi, max(0, lo - computed), samples, drafted)


def _drafts(work: list[ScheduledWork]) -> Iterator[tuple[int, RunningGeneration, int]]:
    """Of parts with drafts: their place, the generation that counts what is kept, and its count before the step."""
    for place, (seq, _, _) in enumerate(work):
        if seq.draft is not None and isinstance(op := seq.ops[0], Generate) and op.decoding is not None:
            yield place, op.decoding, op.decoding.accepted
