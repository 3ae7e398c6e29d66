"""Who of those that wait gets a place in the batch."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from ..cache import Ints, PrefixCache, Space, common_prefix
from ..sequences.sequence_state import SequenceState, SequenceStatus
from .kv_capacity import KVCapacity
from .length_estimate import ReservedTokens, RunsSequences
from .state_checkpoint_positions import CheckpointPositions
from .tenant_fairness import AdmissionCandidate, WaitingQueue

WORTH_WAITING = 32  # a new request waits for a prefill that computes at least so many of its tokens
PATIENCE = 16  # later ones that may get a place before one that waits
MISSES = 32  # in a step; after so many for whom there was no room, the next are not looked at


class AdmittingScheduler(RunsSequences, Protocol):
    """The scheduler, as those that are admitted to a step change it. See `scheduler.Scheduler`."""

    @property
    def cache(self) -> PrefixCache: ...
    @property
    def checkpoint_positions(self) -> CheckpointPositions: ...
    @property
    def waiting(self) -> WaitingQueue: ...
    @property
    def resident(self) -> Mapping[SequenceState, None]: ...
    @property
    def pinned(self) -> Mapping[SequenceState, None]: ...
    @property
    def refused(self) -> Sequence[Any]: ...
    @property
    def max_running(self) -> int: ...
    @property
    def step_tokens(self) -> int: ...

    def start(self, seq: SequenceState) -> None: ...
    def preempt(self, seq: SequenceState) -> None: ...
    def acquire_adapter(self, seq: SequenceState) -> bool: ...
    def release_adapter(self, seq: SequenceState) -> None: ...
    def reusable(self, seq: SequenceState) -> int: ...
    def may_preempt(self, seq: SequenceState) -> bool: ...
    def last(self, seq: SequenceState) -> tuple[int, int, int]: ...


class BatchAdmission:
    """Those of one step. work: what the step computes; who loses its place is taken out."""

    def __init__(self, scheduler: AdmittingScheduler, work: dict[SequenceState, Any]) -> None:
        self.claims = ReservedTokens(scheduler)
        self._scheduler, self._work = scheduler, work
        self.closed = bool(scheduler.refused)  # no other sequence gets a place in this step
        self._unfit: list[SequenceState] = []
        self._spared = 0  # cached tokens of one that did not fit: who comes after it does not take them
        self._started: list[SequenceState] = []
        self._preemptions = scheduler.preemptions
        self._by_beginning: dict[Space, dict[bytes, list[SequenceState]]] = {}
        self._rooms: dict[tuple[int, int, int | None], KVCapacity] = {}  # good until somebody comes or goes

    def admit(self, offer: AdmissionCandidate) -> bool:
        """Start the sequence if there are pages and a place for it."""
        seq = offer.seq
        if self.closed or seq.status is not SequenceStatus.WAITING or self._computed_by_another(seq, offer.reusable):
            return False
        if not self._fits(seq, offer.reusable):
            self._unfit.append(seq)
            self._spared = max(self._spared, 0 if len(seq.slots) else offer.reusable)
            # later ones would take what it waits for
            self.closed = seq.passed >= PATIENCE or len(self._unfit) >= MISSES
            return False
        if not self._scheduler.acquire_adapter(seq):
            return False
        if not self._has_place(seq):
            self._scheduler.release_adapter(seq)
            return False
        self._scheduler.start(seq)
        self._scheduler.checkpoint_positions.part(seq, (other for other in self._scheduler.running if other.prefilling))
        self._started.append(seq)
        self._note(seq, seq.namespace)
        for other in self._unfit:
            other.passed += 1
        return True

    def settle(self) -> None:
        """Count for those who waited longest that somebody of theirs went before them."""
        overtaken = {self._scheduler.waiting.first_matching(seq): seq for seq in self._started}
        for first, seq in overtaken.items():
            if first is None or first.arrival > seq.arrival or first in self._unfit:
                continue
            if not self._computed_by_another(first, self._scheduler.reusable(first)):
                first.passed += 1

    def _computed_by_another(self, seq: SequenceState, reusable: int) -> bool:
        """A running prefill is just computing a good part of this one's tokens: wait and share them."""
        enough = min(reusable + WORTH_WAITING, seq.ops[0].reuse(seq))
        if reusable >= enough or len(seq) < enough:
            return False
        wanted = seq.tokens.array[:enough]
        return any(
            other.terms.priority >= seq.terms.priority
            and len(other) >= enough
            and np.array_equal(wanted, other.tokens.array[:enough])
            and self._leaves(other, seq, enough)
            for other in self._prefilling(seq.namespace).get(_beginning(wanted), ())
        )

    def _leaves(self, other: SequenceState, seq: SequenceState, enough: int) -> bool:
        """Whether what `seq` shares with a prefill can be gone on from, at `enough` tokens or later."""
        if not self._scheduler.checkpoint_positions.kept:
            return True
        shared = common_prefix(seq.tokens.array[: seq.ops[0].reuse(seq)], other.tokens.array)
        return self._scheduler.checkpoint_positions.last(other, shared) >= enough

    def _prefilling(self, namespace: Space) -> dict[bytes, list[SequenceState]]:
        """Running prefills by their first tokens; and all of them under b"", for what is shorter."""
        if self._preemptions != self._scheduler.preemptions:
            self._preemptions, self._by_beginning = self._scheduler.preemptions, {}
        if namespace not in self._by_beginning:
            self._by_beginning[namespace] = {b"": []}
            for other in self._scheduler.running:
                self._note(other, namespace)
        return self._by_beginning[namespace]

    def _note(self, seq: SequenceState, namespace: Space) -> None:
        found = self._by_beginning.get(namespace)
        if found is not None and seq.prefilling and seq.namespace == namespace:
            for key in {b"", _beginning(seq.tokens.array)}:
                found.setdefault(key, []).append(seq)

    def _fits(self, seq: SequenceState, reusable: int) -> bool:
        """Whether what it and the running ones will want is free or can be made free."""
        scheduler, size = self._scheduler, self._scheduler.cache.pool.page_size
        if not scheduler.running:
            return True
        if not self._has_windows(seq):
            return False
        wanted = seq.target - self._in_place(seq, reusable) + scheduler.estimate.remaining(seq) + self.claims.tokens
        available = scheduler.cache.available * size - self._spared
        if wanted > available:
            available += self._parkable(seq)
        if wanted <= available and self._has_room(seq, ()):
            return True
        lesser = self._lesser(seq)
        wanted -= self.claims.of(lesser)
        return (
            bool(lesser)
            and wanted <= available + sum(len(other.slots) for other in lesser)
            and self._has_room(seq, lesser)
        )

    def _has_windows(self, seq: SequenceState) -> bool:
        """Of models with windowed layers: whether there is a window for it next to those that keep their place."""
        scheduler, windows = self._scheduler, self._scheduler.cache.windows
        if windows is None:
            return True
        keep = set(scheduler.running).difference(self._lesser(seq))
        lengths = [each.target + scheduler.estimate.remaining(each) for each in (*keep, seq)]
        pinned = sum(len(each.slots) // windows.page_size - each.window for each in scheduler.pinned)
        return windows.has_room(lengths, scheduler.step_tokens, pinned)

    def _has_room(self, seq: SequenceState, lesser: Collection[SequenceState]) -> bool:
        """Whether all of it can be computed now with those that keep their place: else it would lose its at once."""
        scheduler, size = self._scheduler, self._scheduler.cache.pool.page_size
        rounding = size * (len(scheduler.running) + 1)
        if seq.target + self.claims.tokens + rounding <= scheduler.cache.available * size:
            return True
        when = (scheduler.preemptions, len(self._started), seq.terms.priority if lesser else None)
        if when not in self._rooms:
            self._rooms[when] = KVCapacity(scheduler.cache, scheduler.pinned, set(scheduler.running).difference(lesser))
        return self._rooms[when].has(seq)

    def _in_place(self, seq: SequenceState, reusable: int) -> int:
        """How many of the `reusable` tokens need no new pages: not those that come back from main memory.

        That its cached pages could be given to others is left out on purpose: who comes back to them is let in sooner,
        before they are gone (measured: benchmarks/pressure.py, conversations).
        """
        cache = self._scheduler.cache
        if cache.host is None or len(seq.slots):
            return reusable
        return cache.tree.match_length(seq.tokens.array[:reusable], seq.namespace)

    def _parkable(self, is_new_request: SequenceState) -> int:
        """Tokens held by sequences that are not running; shared ones count more than once."""
        waiting = sum(len(other.slots) for other in self._scheduler.waiting.holding if other is not is_new_request)
        return waiting + sum(len(idle.slots) for idle in self._scheduler.resident)

    def _has_place(self, seq: SequenceState) -> bool:
        scheduler = self._scheduler
        if len(scheduler.running) < scheduler.max_running:
            return True
        lesser = self._lesser(seq)
        if not lesser:
            return False
        victim = max(lesser, key=scheduler.last)
        self._work.pop(victim, None)
        scheduler.preempt(victim)
        return True

    def _lesser(self, seq: SequenceState) -> list[SequenceState]:
        """Those who run, are less urgent, and may lose their place."""
        scheduler, priority = self._scheduler, seq.terms.priority
        return [
            other for other in scheduler.running if other.terms.priority < priority and scheduler.may_preempt(other)
        ]


def _beginning(tokens: Ints) -> bytes:
    return tokens[:WORTH_WAITING].tobytes() if len(tokens) >= WORTH_WAITING else b""
