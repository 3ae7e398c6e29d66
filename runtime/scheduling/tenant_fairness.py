"""Whose turn it is: tenants of equal priority are served evenly, counted in tokens.

Virtual token counters (Sheng et al., Fairness in Serving Large Language Models, 2024, arXiv 2401.00588): what is
computed for a tenant is added to its counter, a sampled token twice as heavy as one of a prompt, and the tenant with
the lowest counter comes first. A tenant that begins to wait starts no lower than the lowest of those that wait. So no
tenant saves up turns, not by a long generation that costs little either. A tenant that leaves takes its debt along.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from ..sequences.sequence_state import SequenceState

INPUT, OUTPUT = 1, 2  # what a computed token weighs, and one that is sampled
COARSE = 64  # counters that differ by less are equal when a victim is chosen, so that victims do not alternate


class TenantCounters:
    """given: what each tenant got, comparable between tenants and nothing else."""

    def __init__(self) -> None:
        self.given: dict[str, int] = {}
        self.present: dict[str, int] = {}  # sequences that wait or run
        self._left = 0  # counter of the tenant that left last

    @property
    def alone(self) -> bool:
        """There is no second tenant to be fair to: nothing is counted."""
        return len(self.given) < 2

    def tenant_arrived(self, tenant: str, queued: Collection[str] = ()) -> None:
        """queued: the tenants that wait; none of them is overtaken, and where none waits none has a claim."""
        self.present[tenant] = self.present.get(tenant, 0) + 1
        if tenant not in queued:
            others = [self.given[other] for other in queued or self.present if other != tenant]
            floor = (min if queued else max)(others, default=self._left)
            self.given[tenant] = max(floor, self.given.get(tenant, floor))
            self._forget(floor)

    def leave(self, tenant: str) -> None:
        self.present[tenant] -= 1
        if not self.present[tenant]:
            del self.present[tenant]
            self._left = self.given[tenant]

    def charge(self, tenant: str, computed: int, sampled: int) -> None:
        self.given[tenant] += INPUT * computed + (OUTPUT - INPUT) * sampled

    def coarse(self, tenant: str) -> int:
        return 0 if self.alone else self.given[tenant] // COARSE

    def _forget(self, floor: int) -> None:
        """Those who are gone without a debt would start at the floor anyway."""
        if len(self.given) > 2 * len(self.present) + 8:
            self.given = {name: count for name, count in self.given.items() if name in self.present or count > floor}


class WaitingQueue:
    """Sequences that wait for a place, by tenant; in each lane the most urgent first, then in order of arrival."""

    def __init__(self) -> None:
        self.lanes: dict[str, list[SequenceState]] = {}
        self.holding: dict[SequenceState, None] = {}  # those with pages
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[SequenceState]:
        return heapq.merge(*self.lanes.values(), key=turn)

    @property
    def top(self) -> int:
        """The highest priority that waits; somebody does."""
        return max(lane[0].terms.priority for lane in self.lanes.values())

    def tenants(self, priority: int) -> list[str]:
        """Those of whom somebody waits who is at least so urgent."""
        return [tenant for tenant, lane in self.lanes.items() if lane[0].terms.priority >= priority]

    def add(self, seq: SequenceState) -> None:
        insort(self.lanes.setdefault(seq.terms.tenant, []), seq, key=turn)
        self._count += 1
        if seq.slots.length:
            self.holding[seq] = None

    def remove(self, seq: SequenceState) -> None:
        lane = self.lanes[seq.terms.tenant]
        del lane[self._place(lane, turn(seq))]
        self._count -= 1
        self.holding.pop(seq, None)
        if not lane:
            del self.lanes[seq.terms.tenant]

    def first_matching(self, seq: SequenceState) -> SequenceState | None:
        """Of the same tenant and priority, who has waited longest."""
        lane = self.lanes.get(seq.terms.tenant, [])
        place = self._place(lane, (-seq.terms.priority, -1))
        found = lane[place] if place < len(lane) else None
        return found if found is not None and found.terms.priority == seq.terms.priority else None

    @staticmethod
    def _place(lane: list[SequenceState], where: tuple[int, int]) -> int:
        return bisect_left(lane, where, key=turn)


class AdmissionCandidate(NamedTuple):
    """A sequence that wants a share of the step. A new request could reuse `reusable` computed tokens."""

    seq: SequenceState
    reusable: int
    is_new_request: bool


def fair_order(
    counters: TenantCounters, tops: dict[str, int], offers: Callable[[str], Iterable[AdmissionCandidate]]
) -> Iterator[AdmissionCandidate]:
    """The offers of all tenants: the most urgent first, of equal ones that of the tenant that was given least so far.

    tops: the highest priority of each tenant. `offers` is asked for a tenant when it is first its turn.
    """
    heap = [(-top, counters.given[tenant], number, tenant) for number, (tenant, top) in enumerate(tops.items())]
    heapq.heapify(heap)
    lanes: dict[str, deque[AdmissionCandidate]] = {}
    while heap:
        *_, number, tenant = heapq.heappop(heap)
        if tenant not in lanes:
            lanes[tenant] = deque(offers(tenant))
        lane = lanes[tenant]
        if lane:
            yield lane.popleft()
        if lane:
            heapq.heappush(heap, (-lane[0].seq.terms.priority, counters.given[tenant], number, tenant))


def turn(seq: SequenceState) -> tuple[int, int]:
    return (-seq.terms.priority, seq.arrival)
