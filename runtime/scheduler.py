"""Which tokens of which sequences are computed in the next step.

There is no prefill or decode phase: each running sequence has `computed` tokens chasing its target, and one
token budget is shared out every step, single tokens first, then chunks, then newcomers.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator
from typing import NamedTuple

from .cache import PrefixCache, common_prefix
from .errors import OutOfPages
from .ops import Generate
from .sequence import SequenceState, Status

SHARED_ENOUGH = 32  # a newcomer waits for a prefill that computes at least so many of its tokens


class Work(NamedTuple):
    """Compute the tokens lo..hi of a sequence in this step (none, if its target is reached already)."""

    seq: SequenceState
    lo: int
    hi: int


class LengthEstimate:
    """Learns which share of max_tokens generations use, so that admission need not assume the worst."""

    def __init__(self) -> None:
        self.share = 0.5

    def remaining(self, seq: SequenceState) -> int:
        op = seq.ops[0]
        if not isinstance(op, Generate):
            return 0
        made = len(op.decoding.output) if op.decoding else 0
        return max(1, int(self.share * op.params.max_tokens) - made)

    def finished(self, made: int, allowed: int) -> None:
        self.share += 0.05 * (made / max(1, allowed) - self.share)

    def too_low(self) -> None:
        self.share = min(1.0, 1.3 * self.share + 0.05)


class Claims:
    """Tokens that the running sequences will still want, kept up while newcomers are admitted."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._preemptions = -1
        self._tokens = 0

    @property
    def tokens(self) -> int:
        scheduler = self._scheduler
        if self._preemptions != scheduler.preemptions:
            self._preemptions = scheduler.preemptions
            self._tokens = sum(map(self._of, scheduler.running))
        return self._tokens

    def add(self, seq: SequenceState) -> None:
        if seq.status is Status.RUNNING:
            self._tokens += self._of(seq)

    def _of(self, seq: SequenceState) -> int:
        return self._scheduler.estimate.remaining(seq) + max(0, seq.need)


class Scheduler:
    def __init__(self, cache: PrefixCache, step_tokens: int, max_running: int) -> None:
        self.cache = cache
        self.step_tokens = step_tokens
        self.max_running = max_running
        self.estimate = LengthEstimate()
        self.running: list[SequenceState] = []
        self.waiting: list[SequenceState] = []
        self.resident: dict[SequenceState, None] = {}  # idle, with pages; least recently used first
        self.preemptions = 0
        self.reused_tokens = 0
        self.refused: list[tuple[SequenceState, OutOfPages]] = []
        self.paused = False

    @property
    def busy(self) -> bool:
        """There may be something to plan."""
        return not self.paused and bool(self.running or self.waiting)

    def pause(self) -> None:
        """Plan nothing until `paused` is False again, and take every page from the sequences."""
        self.paused = True
        share = self.estimate.share  # these preemptions say nothing about lengths
        for seq in list(self.running):
            self.preempt(seq)
        self.estimate.share = share
        while self._park_one():
            pass

    def plan(self) -> list[Work]:
        """The work of one step. Sequences that can never run are left in `refused`."""
        if self.paused:
            return []
        work: dict[SequenceState, Work] = {}
        self._continue(work)
        self._admit(work)
        return sorted(work.values(), key=lambda item: item.hi - item.lo > 1)

    def wait(self, seq: SequenceState) -> None:
        """The sequence has something to compute."""
        if seq.status is Status.IDLE:
            self.resident.pop(seq, None)
            seq.status = Status.WAITING
            insort(self.waiting, seq, key=_turn)

    def suspend(self, seq: SequenceState) -> None:
        """The sequence has nothing to compute; its pages stay while there is room."""
        self._leave(seq)
        seq.status = Status.IDLE
        self.resident.pop(seq, None)
        if len(seq.slots):
            self.resident[seq] = None

    def remove(self, seq: SequenceState) -> None:
        """The sequence ends; its pages go back."""
        self._leave(seq)
        self.resident.pop(seq, None)
        self.cache.release(seq)
        seq.status = Status.CLOSED

    def preempt(self, seq: SequenceState) -> None:
        """Take the pages of a running sequence; it waits in its old turn and computes again what was lost."""
        self.running.remove(seq)
        self.cache.release(seq)
        seq.prefilling = False
        seq.status = Status.WAITING
        insort(self.waiting, seq, key=_turn)
        self.preemptions += 1
        self.estimate.too_low()

    def _continue(self, work: dict[SequenceState, Work]) -> None:
        budget = self.step_tokens
        needs = [(seq.ops[0].target(seq) - seq.computed > 1, seq) for seq in self.running]
        for _, seq in sorted(needs, key=_first):  # stable: single tokens first, otherwise in the order of running
            if budget <= 0:
                break
            if seq.status is Status.RUNNING:
                budget -= self._give(seq, budget, work)

    def _give(self, seq: SequenceState, budget: int, work: dict[SequenceState, Work]) -> int:
        lo = seq.computed
        hi = max(lo, min(seq.ops[0].target(seq), lo + budget))
        if not (self.cache.grow(seq, hi) or self._make_room(seq, hi, work)):
            return 0
        work[seq] = Work(seq, lo, hi)
        return hi - lo

    def _make_room(self, seq: SequenceState, length: int, work: dict[SequenceState, Work]) -> bool:
        while not self.cache.grow(seq, length):
            if self._park_one():
                continue
            victim = max(self.running, key=_turn)
            if victim is seq and len(self.running) == 1:
                if not seq.ahead:  # the token that is being sampled may be its last, and needs no page then
                    self._refuse(seq, length)
                return False
            work.pop(victim, None)
            self.preempt(victim)
            if victim is seq:
                return False
        return True

    def _park_one(self) -> bool:
        """Take the pages of a sequence that is not running: the longest idle one, or the last in the queue."""
        if self.resident:
            seq = next(iter(self.resident))
            del self.resident[seq]
        else:
            found = next((other for other in reversed(self.waiting) if len(other.slots)), None)
            if found is None:
                return False
            seq = found
        self.cache.release(seq)
        return True

    def _refuse(self, seq: SequenceState, length: int) -> None:
        pool = self.cache.pool
        self.refused.append((seq, OutOfPages(
            f"the sequence needs {length} tokens of KV cache and the whole pool has {pool.total * pool.page_size}; "
            f"open the engine with a larger kv_tokens"
        )))  # fmt: skip

    def _admit(self, work: dict[SequenceState, Work]) -> None:
        budget = self.step_tokens - sum(hi - lo for _, lo, hi in work.values())
        if self.refused or budget <= 0 or not self.waiting:
            return
        claims = Claims(self)
        for seq, reusable in self._candidates():
            if budget <= 0 or len(self.running) >= self.max_running:
                return
            if not self._computed_by_another(seq, reusable) and self._fits(seq, reusable, claims):
                self._start(seq)
                budget -= self._give(seq, budget, work)
                claims.add(seq)

    def _candidates(self) -> Iterator[tuple[SequenceState, int]]:
        """Those whose turn it is, of equal priority the longest cached prefix first."""
        window = self.waiting[: self.max_running - len(self.running) + 8]
        rated = [(seq, self._reusable(seq)) for seq in window]
        yield from sorted(rated, key=lambda item: (-item[0].priority, -item[1]))

    def _reusable(self, seq: SequenceState) -> int:
        if len(seq.slots):
            return seq.computed
        return self.cache.tree.match_length(seq.tokens.array[: seq.ops[0].reuse(seq)])

    def _computed_by_another(self, seq: SequenceState, reusable: int) -> bool:
        """A running prefill is just computing a good part of this one's tokens: wait and share them."""
        enough = min(reusable + SHARED_ENOUGH, seq.ops[0].reuse(seq))
        return reusable < enough and any(
            common_prefix(seq.tokens.array, other.tokens.array) >= enough for other in self.running if other.prefilling
        )

    def _fits(self, seq: SequenceState, reusable: int, claims: Claims) -> bool:
        if not self.running:
            return True
        size = self.cache.pool.page_size
        wanted = seq.target - reusable + self.estimate.remaining(seq) + claims.tokens
        available = self.cache.available * size
        return wanted <= available or wanted <= available + self._parkable(seq)

    def _parkable(self, newcomer: SequenceState) -> int:
        """Tokens held by sequences that are not running; shared ones count more than once."""
        waiting = sum(len(other.slots) for other in self.waiting if other is not newcomer)
        return waiting + sum(len(idle.slots) for idle in self.resident)

    def _start(self, seq: SequenceState) -> None:
        self.waiting.remove(seq)
        if not len(seq.slots):
            self.reused_tokens += self.cache.attach(seq, seq.ops[0].reuse(seq))
        seq.ops[0].admitted(seq, seq.computed)
        seq.status = Status.RUNNING
        seq.prefilling = seq.need > SHARED_ENOUGH
        self.running.append(seq)

    def _leave(self, seq: SequenceState) -> None:
        if seq.status is Status.RUNNING:
            self.running.remove(seq)
        elif seq.status is Status.WAITING:
            self.waiting.remove(seq)
        seq.prefilling = False


def _turn(seq: SequenceState) -> tuple[int, int]:
    return (-seq.priority, seq.arrival)


def _first(pair: tuple[bool, SequenceState]) -> bool:
    return pair[0]
