"""Which tokens of which sequences are computed in the next step.

There is no prefill or decode phase: each running sequence has `computed` tokens chasing its target, and one token
budget is shared out every step. Single tokens come first. Then those that want more have their turn, running or new: by
priority, of equal priority the tenant that was given least. After that comes the one with least left to compute while a
prefill is under way, else the longest cached prefix. Half of what is left is the oldest prefill's. A sequence that was
passed over too often comes first, so that each gets there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

import numpy as np

from ..cache import WORTH_LOADING, PrefixCache, common_prefix
from ..errors import OutOfPages
from ..sequences.ops.generate_op import Generate
from ..sequences.sequence_state import ScheduledWork, SequenceState, SequenceStatus
from .batch_admission import PATIENCE, WORTH_WAITING, BatchAdmission
from .capacity_errors import kv_pages_exhausted, pins_exceed_limit
from .length_estimate import LengthEstimate
from .prefill_budget import PrefillBudget
from .state_checkpoint_positions import CheckpointPositions
from .tenant_fairness import AdmissionCandidate, TenantCounters, WaitingQueue, fair_order, turn

GRACE = 8  # steps that a sequence keeps its place after it lost one, twice as many after the next loss ...
LONGEST_GRACE = 64


class AdapterResidents(Protocol):
    """Where the adapters of running sequences are, by digest. See `adapters.room.AdapterManager`."""

    def take(self, digest: str, waits: bool) -> bool: ...
    def drop(self, digest: str) -> None: ...


class Scheduler:
    def __init__(
        self,
        cache: PrefixCache,
        step_tokens: int,
        max_running: int,
        state_every: int = 256,
        prompt_seconds: float | None = None,
    ) -> None:
        self.cache = cache
        self.pace = PrefillBudget(prompt_seconds)
        self.checkpoint_positions = CheckpointPositions(cache, state_every)
        self.step_tokens = step_tokens
        self.max_running = max_running
        self.estimate = LengthEstimate()
        self.counters = TenantCounters()
        self.running: list[SequenceState] = []
        self.waiting = WaitingQueue()
        self.resident: dict[SequenceState, None] = {}  # idle, with pages; least recently used first
        self.pinned: dict[SequenceState, None] = {}  # idle, and keep their pages
        self.steps = 0
        self.preemptions = 0
        self.reused_tokens = 0
        self.refused: list[tuple[SequenceState, OutOfPages]] = []
        # adds drafts to a plan, up to so many tokens
        self.drafting: Callable[[dict[SequenceState, ScheduledWork], int], None] | None = None
        self.paused = False
        self.adapters: AdapterResidents | None = None
        self.lingers = False  # somebody could be computed but for an adapter that is on its way
        self._with_adapters: set[SequenceState] = set()  # who hold a place of their adapter

    @property
    def busy(self) -> bool:
        """There may be something to plan."""
        return not self.paused and bool(self.running or self.waiting)

    def pause(self) -> None:
        """Plan nothing until `paused` is False again, and take every page from the sequences."""
        self.paused = True
        for seq in list(self.running):
            self.preempt(seq)
        while self._park_one():
            pass
        for seq in self.pinned:
            self.cache.release(seq)

    def plan(self) -> list[ScheduledWork]:
        """The work of one step. Sequences that can never run are left in `refused`."""
        if self.paused:
            return []
        self.steps += 1
        self.lingers = False
        work: dict[SequenceState, ScheduledWork] = {}
        singles, chunks = self._sides()
        budget = self._give_each(singles, self._kept_for(singles, chunks), work)
        if chunks or self.waiting:
            watched = any(seq.ops[0].streamed for seq in work)
            self._share(chunks, min(budget, self.prompt_budget) if watched else budget, work)
        elif self.drafting is None:
            return list(work.values())
        if self.drafting is not None:
            self.drafting(work, self.step_tokens - sum(item.hi - item.lo for item in work.values()))
        return sorted(work.values(), key=lambda item: item.hi - item.lo > 1)

    @property
    def prompt_budget(self) -> int:
        """Tokens of prompts in a step in which others get a token that somebody waits for."""
        return self.pace.budget(self.step_tokens)

    # what becomes of a sequence

    def wait(self, seq: SequenceState) -> None:
        """The sequence has something to compute."""
        if seq.status is SequenceStatus.IDLE:
            self.resident.pop(seq, None)
            seq.status = SequenceStatus.WAITING
            self.counters.tenant_arrived(seq.terms.tenant, self.waiting.tenants(seq.terms.priority))
            self.waiting.add(seq)

    def suspend(self, seq: SequenceState) -> None:
        """The sequence has nothing to compute; its pages stay while there is room."""
        self._leave(seq)
        seq.status = SequenceStatus.IDLE
        self.resident.pop(seq, None)
        if len(seq.slots) and seq not in self.pinned:
            self.resident[seq] = None

    def remove(self, seq: SequenceState) -> None:
        """The sequence ends; its pages go back."""
        self._leave(seq)
        self.resident.pop(seq, None)
        self.pinned.pop(seq, None)
        self.cache.release(seq)
        seq.status = SequenceStatus.CLOSED

    def start(self, seq: SequenceState) -> None:
        """The sequence gets a place in the batch, and what is cached of it."""
        op = seq.ops[0]
        if not len(seq.slots):
            self.reused_tokens += self.cache.attach(seq, op.reuse(seq))
        elif seq.need >= WORTH_LOADING and (gained := self.cache.rejoin(seq, op.reuse(seq))):
            self.reused_tokens += gained
            op.prefix_rejoined(gained)
        op.admitted(seq, seq.computed)
        prefilling = seq.need > WORTH_WAITING
        self.waiting.remove(seq)  # not before all that may fail
        seq.status, seq.prefilling = SequenceStatus.RUNNING, prefilling
        seq.since, seq.passed = self.steps, 0
        self.running.append(seq)

    def clear(self) -> None:
        """No sequence runs or waits any more, whatever state things are in."""
        for seq in {**dict.fromkeys(self.running), **dict.fromkeys(self.waiting)}:
            self.release_adapter(seq)
            seq.status, seq.prefilling, seq.preempted, seq.passed = SequenceStatus.IDLE, False, 0, 0
            if len(seq.slots) and seq not in self.pinned:
                self.resident[seq] = None
        self.running, self.waiting, self.refused = [], WaitingQueue(), []
        self.counters.present.clear()

    def preempt(self, seq: SequenceState) -> None:
        """Take the pages of a running sequence; it waits in its old turn and computes again what was lost."""
        self.running.remove(seq)
        self.release_adapter(seq)
        self.cache.release(seq)
        seq.prefilling = False
        seq.status = SequenceStatus.WAITING
        seq.preempted += 1
        self.waiting.add(seq)
        self.preemptions += 1

    def pin(self, seq: SequenceState) -> None:
        """Let a sequence keep its pages until it is closed. Raises OutOfPages where that is too much."""
        self.check_pinned(self.pinned_pages(seq) + self._promised(seq))
        self.cache.check_pinned([*{*self.pinned, seq}])
        self.pinned[seq] = None

    def check_pinned(self, pages: int) -> None:
        """Raise OutOfPages if so many pinned pages were more than half of the pool."""
        if 2 * pages > self.cache.pool.total:
            raise pins_exceed_limit(self.cache, pages)

    def pinned_pages(self, *more: SequenceState) -> int:
        """How many pages are pinned, or would be with `more`."""
        rows = [self.cache.pages(seq) for seq in (*self.pinned, *more)]
        return len(np.unique(np.concatenate(rows))) if rows else 0

    def _promised(self, seq: SequenceState) -> int:
        """Pages that pinned sequences will hold again, as theirs were taken in a sleep; shared ones count once."""
        size, found = self.cache.pool.page_size, 0
        counted = [seq]
        for each in sorted(self.pinned, key=lambda each: each.computed < len(each)):
            if each.computed < len(each):
                alike = [
                    common_prefix(each.tokens.array, other.tokens.array)
                    for other in counted
                    if other.namespace == each.namespace
                ]
                found += len(each) // size - max([each.computed, *alike]) // size
            counted.append(each)
        return found

    def _leave(self, seq: SequenceState) -> None:
        self.release_adapter(seq)
        if seq.status is SequenceStatus.RUNNING:
            self.running.remove(seq)
        elif seq.status is SequenceStatus.WAITING:
            self.waiting.remove(seq)
        if seq.status in (SequenceStatus.RUNNING, SequenceStatus.WAITING):
            self.counters.leave(seq.terms.tenant)
        seq.prefilling = False
        seq.preempted = seq.passed = 0

    def acquire_adapter(self, seq: SequenceState) -> bool:
        """Have its adapter on the device while it runs; False: it is not yet there."""
        if not seq.terms.adapter or seq in self._with_adapters:
            return True
        if self.adapters is None or not self.adapters.take(seq.terms.adapter, bool(self.running)):
            self.lingers = True
            return False
        self._with_adapters.add(seq)
        return True

    def release_adapter(self, seq: SequenceState) -> None:
        if self.adapters is not None and seq in self._with_adapters:
            self._with_adapters.remove(seq)
            self.adapters.drop(seq.terms.adapter)

    # how a step is shared out

    def _sides(self) -> tuple[list[SequenceState], list[SequenceState]]:
        """The running sequences that want one token (or none), and those that want more."""
        singles: list[SequenceState] = []
        chunks: list[SequenceState] = []
        for seq in self.running:
            (chunks if seq.ops[0].target(seq) - seq.computed > 1 else singles).append(seq)
        if len(singles) > self.step_tokens // 2:
            singles.sort(key=turn)
        return singles, chunks

    def _kept_for(self, singles: list[SequenceState], chunks: list[SequenceState]) -> int | None:
        """The priority of those who want more than a token, where single ones could leave them less than half."""
        if len(singles) <= self.step_tokens // 2:
            return None
        wanted = [seq.terms.priority for seq in chunks] + ([self.waiting.top] if self.waiting else [])
        return max(wanted, default=None)

    def _give_each(
        self, singles: list[SequenceState], kept_for: int | None, work: dict[SequenceState, ScheduledWork]
    ) -> int:
        budget, simple = self.step_tokens, self.counters.alone and not self.checkpoint_positions.kept
        for seq in singles:
            less_urgent = kept_for is not None and seq.terms.priority < kept_for
            if budget <= ((self.step_tokens + 1) // 2 if less_urgent else 0):
                break
            if seq.status is not SequenceStatus.RUNNING:
                continue
            done = seq.computed
            hi = max(done, seq.ops[0].target(seq))
            if simple and (
                hi <= seq.slots.length or self.cache.grow(seq, hi)
            ):  # `_give` where no tenant is charged and no state is left
                work[seq] = ScheduledWork(seq, done, hi)
                budget -= hi - done
            else:
                budget -= self._give(seq, budget, work)
        return budget

    def _share(self, chunks: list[SequenceState], budget: int, work: dict[SequenceState, ScheduledWork]) -> None:
        if budget <= 0:
            return
        if (eldest := self._eldest(chunks)) is not None and eldest.status is SequenceStatus.RUNNING:
            budget -= self._give(eldest, (budget + 1) // 2, work)
        admission = BatchAdmission(self, work)
        for offer in self._offers(chunks, admission):
            if budget <= 0:
                break
            if offer.is_new_request and admission.admit(offer):
                budget -= self._give(offer.seq, budget, work)
                admission.claims.add(offer.seq)
            elif not offer.is_new_request and offer.seq.status is SequenceStatus.RUNNING:
                budget -= self._give(offer.seq, budget, work)
        admission.settle()

    def _eldest(self, chunks: list[SequenceState]) -> SequenceState | None:
        """The prefill that has run longest, unless somebody more urgent is there; None too where it has no rival."""
        if not chunks or len(chunks) + len(self.waiting) == 1:
            return None
        top = max(seq.terms.priority for seq in chunks)
        if self.waiting and self.waiting.top > top:
            return None
        return next(seq for seq in chunks if seq.terms.priority == top)

    def _offers(self, chunks: list[SequenceState], admission: BatchAdmission) -> Iterator[AdmissionCandidate]:
        """Who wants more than a token, in the order in which they get it."""
        running: dict[str, list[SequenceState]] = {}
        for seq in chunks:
            running.setdefault(seq.terms.tenant, []).append(seq)
        lanes = self.waiting.lanes if self._may_admit else {}
        window = (self.max_running - len(self.running)) // max(1, len(lanes)) + 8
        tops = {tenant: max(seq.terms.priority for seq in seqs) for tenant, seqs in running.items()}
        for tenant, lane in lanes.items():
            tops[tenant] = max(tops.get(tenant, lane[0].terms.priority), lane[0].terms.priority)

        def of(tenant: str) -> list[AdmissionCandidate]:
            offers = [AdmissionCandidate(seq, seq.computed, False) for seq in running.get(tenant, ())]
            waiting = [] if admission.closed else lanes.get(tenant, [])[:window]
            offers += [AdmissionCandidate(seq, self.reusable(seq), True) for seq in waiting]
            return sorted(offers, key=_shortest_first if chunks else _cached_first)

        return fair_order(self.counters, tops, of)

    @property
    def _may_admit(self) -> bool:
        """There is a free place, or one that somebody more urgent could take."""
        if not self.waiting or len(self.running) < self.max_running:
            return bool(self.waiting)
        return self.waiting.top > min(seq.terms.priority for seq in self.running)

    def _give(self, seq: SequenceState, budget: int, work: dict[SequenceState, ScheduledWork]) -> int:
        """Up to `budget` tokens more in this step; returns how many."""
        start = work[seq].hi if seq in work else seq.computed
        seq.border = self.checkpoint_positions.next(seq)
        hi = max(start, min(seq.ops[0].target(seq), start + budget, seq.border))
        if not (self._grow(seq, hi) or self._make_room(seq, hi, work)):
            return 0
        work[seq] = ScheduledWork(seq, seq.computed, hi)
        if not self.counters.alone:
            self._charge(seq, start, hi)
        return hi - start

    def _charge(self, seq: SequenceState, start: int, hi: int) -> None:
        """A tenant pays for each token once, and not for what it lost to others."""
        sampled = hi >= len(seq) and isinstance(seq.ops[0], Generate)
        self.counters.charge(seq.terms.tenant, max(0, hi - max(start, seq.charged_tokens)), sampled)
        seq.charged_tokens = max(seq.charged_tokens, hi)

    # pages

    def reusable(self, seq: SequenceState) -> int:
        """Tokens of a waiting sequence that need not be computed."""
        if len(seq.slots) and seq.need < WORTH_LOADING:
            return seq.computed
        return max(seq.computed, self.cache.reusable(seq.tokens.array[: seq.ops[0].reuse(seq)], seq.namespace))

    def may_preempt(self, seq: SequenceState) -> bool:
        """Whether somebody more urgent may take its place: not again before it got some way."""
        if not seq.preempted:
            return True
        return self.steps - seq.since >= min(LONGEST_GRACE, GRACE << (seq.preempted - 1))

    def last(self, seq: SequenceState) -> tuple[int, int, int]:
        """The greatest of the running sequences is preempted first."""
        return (-seq.terms.priority, self.counters.coarse(seq.terms.tenant), seq.arrival)

    def _grow(self, seq: SequenceState, length: int) -> bool:
        return self.cache.grow(seq, length, self.cache.trails is None or seq.ops[0].leaves(seq, length))

    def _make_room(self, seq: SequenceState, length: int, work: dict[SequenceState, ScheduledWork]) -> bool:
        while not self._grow(seq, length):
            if (
                (self.cache.misses_state(seq) and self._shed_one())
                or self.cache.share_equal_prefixes((*self.running, *self.pinned))
                or self._park_one()
            ):
                continue
            victim = max(self.running, key=self.last)
            if victim is seq and len(self.running) == 1:
                if not seq.ahead:  # the token that is being sampled may be its last, and needs no page then
                    self._refuse(seq, length)
                    work.pop(seq, None)
                return False
            work.pop(victim, None)
            self.preempt(victim)
            if victim.terms.priority == seq.terms.priority:
                self.estimate.raise_estimate()
            if victim is seq:
                return False
        return True

    def _park_one(self) -> bool:
        """Take the pages of a sequence that is not running: the longest idle one, or the last in the queue."""
        if self.resident:
            seq = next(iter(self.resident))
            del self.resident[seq]
        elif self.waiting.holding:
            seq = max(self.waiting.holding, key=turn)
            del self.waiting.holding[seq]
        else:
            return False
        self.cache.release(seq)
        return True

    def _shed_one(self) -> bool:
        """Have somebody let go of a state that it can do without."""
        return any(self.cache.shed(seq) for seq in (*self.running, *self.resident, *self.waiting.holding, *self.pinned))

    def _refuse(self, seq: SequenceState, length: int) -> None:
        self.refused.append(
            (seq, kv_pages_exhausted(self.cache, length, self.cache.missing(seq, length), self.pinned_pages()))
        )

    def check(self) -> None:
        """Raise unless every sequence is where its status says."""
        present: dict[str, int] = {}
        if self._with_adapters != {seq for seq in self.running if seq.terms.adapter}:
            raise RuntimeError("the sequences that hold adapters are not those that run with one")
        for seqs, status in ((self.running, SequenceStatus.RUNNING), (self.waiting, SequenceStatus.WAITING)):
            for seq in seqs:
                if seq.status is not status:
                    raise RuntimeError(f"sequence {seq.id} is {seq.status.value} among those that are {status.value}")
                present[seq.terms.tenant] = present.get(seq.terms.tenant, 0) + 1
        if present != self.counters.present:
            raise RuntimeError(f"the tenants have {present} sequences at work, counted are {self.counters.present}")
        if {seq for seq in self.waiting if len(seq.slots)} != set(self.waiting.holding):
            raise RuntimeError("the queue does not know who of it holds pages")
        if any(
            seq.status is not SequenceStatus.IDLE or not len(seq.slots) or seq in self.pinned for seq in self.resident
        ):
            raise RuntimeError("a resident sequence is not idle, is pinned or has no pages")


def _shortest_first(offer: AdmissionCandidate) -> tuple[int, bool, int]:
    return (-offer.seq.terms.priority, _patient(offer), offer.seq.target - offer.reusable)


def _cached_first(offer: AdmissionCandidate) -> tuple[int, bool, int]:
    return (-offer.seq.terms.priority, _patient(offer), -offer.reusable)


def _patient(offer: AdmissionCandidate) -> bool:
    return not offer.is_new_request or offer.seq.passed < PATIENCE
